package fleet

import (
	"testing"
	"time"
	_ "time/tzdata"
)

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
