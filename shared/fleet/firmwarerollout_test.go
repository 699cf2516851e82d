package fleet

import (
	"testing"
	"time"
	_ "time/tzdata"
)

// On a day that skips or repeats a clock time, the window uses the first moment at which the clock
// shows that time or a later one.
func TestAWindowOnADayOfAClockChange(t *testing.T) {
	for _, c := range []struct {
		rule     string
		zone     string
		from, to string
		now      string // UTC
		open     bool
		until    string // UTC
	}{
		{"a window that begins in the skipped hour is closed before it", "America/New_York", "02:00", "04:00", "2026-03-08 06:30", false, "2026-03-08 07:00"},
		{"a window that begins in the skipped hour is open after it", "America/New_York", "02:30", "04:00", "2026-03-08 07:00", true, "2026-03-08 08:00"},
		{"a window that ends in the skipped hour is open until that hour", "America/New_York", "01:00", "02:30", "2026-03-08 06:45", true, "2026-03-08 07:00"},
		{"a window inside the skipped hour does not open", "America/New_York", "02:15", "02:45", "2026-03-08 06:20", false, "2026-03-09 06:15"},
		{"east of Greenwich: a window begins in the skipped hour", "Europe/Oslo", "02:30", "04:00", "2026-03-29 01:00", true, "2026-03-29 02:00"},
		{"east of Greenwich: a window ends in the skipped hour", "Europe/Oslo", "01:00", "02:30", "2026-03-29 00:45", true, "2026-03-29 01:00"},
		{"east of Greenwich: a window is inside the skipped hour", "Europe/Oslo", "02:15", "02:45", "2026-03-29 01:20", false, "2026-03-30 00:15"},
		{"a window from a skipped midnight opens on the new day", "America/Santiago", "00:00", "03:00", "2026-09-06 03:30", false, "2026-09-06 04:00"},
		{"a window that ends in the repeated hour closes the first time", "Europe/Oslo", "01:00", "02:30", "2026-10-25 00:15", true, "2026-10-25 00:30"},
		{"a window that ends in the repeated hour stays closed the second time", "Europe/Oslo", "01:00", "02:30", "2026-10-25 01:15", false, "2026-10-26 00:00"},
		{"a window that begins in the repeated hour opens the first time", "Europe/Oslo", "02:30", "04:00", "2026-10-25 00:45", true, "2026-10-25 03:00"},
		{"west of Greenwich: a window ends in the repeated hour", "America/New_York", "00:30", "01:30", "2026-11-01 05:15", true, "2026-11-01 05:30"},
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

func TestAWindowFollowsTheWallClock(t *testing.T) {
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
		{"before the window", night, "2026-06-06 21:59", "2026-06-06 22:00", false, false},
		{"in the window", night, "2026-06-06 22:00", "2026-06-07 04:30", true, false},
		{"after midnight the window of the day before is open", night, "2026-06-07 04:29", "2026-06-07 04:30", true, false},
		{"the next window is a week later", night, "2026-06-07 04:30", "2026-06-13 22:00", false, false},
		{"every day", FirmwareWindow{From: "01:00", To: "02:00"}, "2026-06-07 04:30", "2026-06-08 01:00", false, false},
		{"from midnight to midnight", FirmwareWindow{From: "00:00", To: "00:00"}, "2026-06-07 04:30", "2026-06-08 00:00", true, false},
		{"the clock goes forward inside the window", FirmwareWindow{From: "01:00", To: "04:00"}, "2026-03-29 01:30", "2026-03-29 04:00", true, false},
		{"the clock goes back inside the window", FirmwareWindow{From: "01:00", To: "04:00"}, "2026-10-25 01:30", "2026-10-25 04:00", true, false},
		{"an invalid time never opens", FirmwareWindow{From: "25:00", To: "04:00"}, "2026-10-25 01:30", "", false, true},
	} {
		now, _ := time.ParseInLocation("2006-01-02 15:04", c.now, oslo)
		open, until := c.w.Open(now)
		if open != c.open || until.IsZero() != c.never || !c.never && until.Format("2006-01-02 15:04") != c.until {
			t.Errorf("%s: open %v until %s, want %v until %s", c.rule, open, until, c.open, c.until)
		}
	}
}
