package fleet

import (
	"testing"
	"time"
	_ "time/tzdata"
)

// A clock time that a day skips or repeats counts when the clock first shows it or a later one.
func TestAWindowOnADayOnWhichTheClockIsChanged(t *testing.T) {
	for _, c := range []struct {
		rule     string
		zone     string
		from, to string
		now      string // UTC
		open     bool
		until    string // UTC
	}{
		{"a window that begins in the skipped hour is closed before it", "America/New_York", "02:00", "04:00", "2026-03-08 06:30", false, "2026-03-08 07:00"},
		{"it is open after that hour", "America/New_York", "02:30", "04:00", "2026-03-08 07:00", true, "2026-03-08 08:00"},
		{"a window that ends in it is open until then", "America/New_York", "01:00", "02:30", "2026-03-08 06:45", true, "2026-03-08 07:00"},
		{"a window inside it does not open", "America/New_York", "02:15", "02:45", "2026-03-08 06:20", false, "2026-03-09 06:15"},
		{"the same east of Greenwich: it begins there", "Europe/Oslo", "02:30", "04:00", "2026-03-29 01:00", true, "2026-03-29 02:00"},
		{"it ends there", "Europe/Oslo", "01:00", "02:30", "2026-03-29 00:45", true, "2026-03-29 01:00"},
		{"it is inside", "Europe/Oslo", "02:15", "02:45", "2026-03-29 01:20", false, "2026-03-30 00:15"},
		{"a skipped midnight does not count for the day before", "America/Santiago", "00:00", "03:00", "2026-09-06 03:30", false, "2026-09-06 04:00"},
		{"a window that ends in the repeated hour ends the first time", "Europe/Oslo", "01:00", "02:30", "2026-10-25 00:15", true, "2026-10-25 00:30"},
		{"it is closed the second time", "Europe/Oslo", "01:00", "02:30", "2026-10-25 01:15", false, "2026-10-26 00:00"},
		{"a window that begins in it begins the first time", "Europe/Oslo", "02:30", "04:00", "2026-10-25 00:45", true, "2026-10-25 03:00"},
		{"the same west of Greenwich", "America/New_York", "00:30", "01:30", "2026-11-01 05:15", true, "2026-11-01 05:30"},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		now, _ := time.Parse("2006-01-02 15:04", c.now)
		w := FirmwareWindow{From: c.from, To: c.to}
		if open, until := w.Open(now.In(zone)); open != c.open || until.UTC().Format("2006-01-02 15:04") != c.until {
			t.Errorf("%s: open %v until %s, want %v until %s UTC", c.rule, open, until.UTC(), c.open, c.until)
		}
	}
}

func TestAWindowIsOpenByTheWallClock(t *testing.T) {
	oslo, err := time.LoadLocation("Europe/Oslo")
	if err != nil {
		t.Fatal(err)
	}
	night := FirmwareWindow{Days: []string{"Sat"}, From: "22:00", To: "04:30"}
	for _, c := range []struct {
		rule        string
		w           FirmwareWindow
		now, until  string
		open, never bool
	}{
		{"before it", night, "2026-06-06 21:59", "2026-06-06 22:00", false, false},
		{"in it", night, "2026-06-06 22:00", "2026-06-07 04:30", true, false},
		{"after midnight it is still that of the day before", night, "2026-06-07 04:29", "2026-06-07 04:30", true, false},
		{"after it, a week", night, "2026-06-07 04:30", "2026-06-13 22:00", false, false},
		{"every day", FirmwareWindow{From: "01:00", To: "02:00"}, "2026-06-07 04:30", "2026-06-08 01:00", false, false},
		{"the whole day", FirmwareWindow{From: "00:00", To: "00:00"}, "2026-06-07 04:30", "2026-06-08 00:00", true, false},
		{"the clock goes forward inside of it", FirmwareWindow{From: "01:00", To: "04:00"}, "2026-03-29 01:30", "2026-03-29 04:00", true, false},
		{"the clock goes back inside of it", FirmwareWindow{From: "01:00", To: "04:00"}, "2026-10-25 01:30", "2026-10-25 04:00", true, false},
		{"one that cannot be read", FirmwareWindow{From: "25:00", To: "04:00"}, "2026-10-25 01:30", "", false, true},
	} {
		now, _ := time.ParseInLocation("2006-01-02 15:04", c.now, oslo)
		open, until := c.w.Open(now)
		if open != c.open || until.IsZero() != c.never || !c.never && until.Format("2006-01-02 15:04") != c.until {
			t.Errorf("%s: open %v until %s", c.rule, open, until)
		}
	}
}
