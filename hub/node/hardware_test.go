package node_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
)

func TestAReportIsStoredWhenItDiffersEnough(t *testing.T) {
	const first = `{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"cpu","celsius":48}],"disks":[{"name":"mmcblk0","written":1000}],
		"radios":[{"name":"wlan0","kind":"wifi","signal":-50}],"stalls":{"io":{"some10":1,"some60":1}},"power":{"underVoltage":false}}`
	for _, c := range []struct {
		name, said string
		news       bool
	}{
		{"an equal report is not written", first, false},
		{"a difference of four degrees is not written", `{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"cpu","celsius":52}],"disks":[{"name":"mmcblk0","written":1000}],
			"radios":[{"name":"wlan0","kind":"wifi","signal":-50}],"stalls":{"io":{"some10":1,"some60":1}},"power":{"underVoltage":false}}`, false},
		{"a difference of five degrees is written", `{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"cpu","celsius":43}],"disks":[{"name":"mmcblk0","written":1000}],
			"radios":[{"name":"wlan0","kind":"wifi","signal":-50}],"stalls":{"io":{"some10":1,"some60":1}},"power":{"underVoltage":false}}`, true},
		{"slightly higher counters are not written", `{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"cpu","celsius":48}],"disks":[{"name":"mmcblk0","written":900000000}],
			"radios":[{"name":"wlan0","kind":"wifi","signal":-59}],"stalls":{"io":{"some10":99,"some60":20}},"power":{"underVoltage":false}}`, false},
		{"a low voltage is written", `{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"cpu","celsius":48}],"disks":[{"name":"mmcblk0","written":1000}],
			"radios":[{"name":"wlan0","kind":"wifi","signal":-50}],"stalls":{"io":{"some10":1,"some60":1}},"power":{"underVoltage":true}}`, true},
		{"another sensor is written", `{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"gpu","celsius":48}],"disks":[{"name":"mmcblk0","written":1000}],
			"radios":[{"name":"wlan0","kind":"wifi","signal":-50}],"stalls":{"io":{"some10":1,"some60":1}},"power":{"underVoltage":false}}`, true},
		{"a new field is written", `{"board":{"name":"raspberrypi4","serial":"7"},"temperatures":[{"name":"cpu","celsius":48}],"disks":[{"name":"mmcblk0","written":1000}],
			"radios":[{"name":"wlan0","kind":"wifi","signal":-50}],"stalls":{"io":{"some10":1,"some60":1}},"power":{"underVoltage":false}}`, true},
		{"another kind of value is written", `{"board":"raspberrypi4","temperatures":"warm","disks":7,"radios":null,"stalls":[],"power":{"underVoltage":false}}`, true},
		{"a status without a report is not written", ``, false},
		{"a report that is not an object is not written", `[1,2]`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, book, stop := nodetest.Start(t, nil)
				defer stop()
				say := func(seq uint64, text string) {
					st := from("b", seq)
					st.Hardware = json.RawMessage(text)
					hear(t, l, "pi-1", st)
					synctest.Wait()
				}
				say(1, first)
				have := l.Snapshot().Report("pi-1")
				if string(have.Text()) != first || !have.Reported.Time.Equal(time.Now()) {
					t.Fatalf("the stored report is %s at %s", have.Text(), have.Reported)
				}
				time.Sleep(20 * time.Second)
				commits, _, _ := book.Counts()
				say(2, c.said)
				want, wrote := first, 0
				if c.news {
					want, wrote = c.said, 1
				}
				now := l.Snapshot().Report("pi-1")
				if got := string(now.Text()); got != want || now.Reported.Time.Equal(time.Now()) != c.news {
					t.Errorf("the stored report is %s at %s", got, now.Reported)
				}
				if after, _, _ := book.Counts(); after-commits != wrote {
					t.Errorf("the report was written %d times, want %d", after-commits, wrote)
				}
				if got := string(l.Liveness("pi-1").Hardware); got != c.said {
					t.Errorf("the newest report in memory is %s", got)
				}
			})
		})
	}
}

func TestAReportIsWrittenOnceAMinuteAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		const minutes = 30
		wrote, last := 0, ""
		for i := range minutes * 60 {
			st := from("b", uint64(i+1))
			st.Hardware = json.RawMessage(fmt.Sprintf(`{"devices":[{"id":"%d"}]}`, i))
			hear(t, l, "pi-1", st)
			if now := string(l.Snapshot().Report("pi-1").Text()); now != last {
				wrote, last = wrote+1, now
			}
			time.Sleep(time.Second)
		}
		if wrote < minutes || wrote > minutes+5 {
			t.Errorf("a report that was new every second was written %d times in %d minutes", wrote, minutes)
		}
	})
}

func TestAReportIsRemovedWithItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		for _, name := range []string{"pi-1", "pi-2"} {
			st := from("b", 1)
			st.Hardware = json.RawMessage(`{}`)
			hear(t, l, name, st)
		}
		before, _, _ := book.Counts()
		remove(t, l, "pi-1")
		if after, _, _ := book.Counts(); l.Snapshot().Report("pi-1") != nil || after != before+1 {
			t.Errorf("the report still exists: %v; %d commits", l.Snapshot().Report("pi-1"), after-before)
		}
		if l.Snapshot().Report("pi-2") == nil {
			t.Error("another node's report was removed")
		}
		if row, ok := book.Rows()[state.Key{Kind: state.DeviceReports, Name: "pi-1"}]; !ok || row != nil {
			t.Errorf("the store has %s", row)
		}
		st := from("b2", 1) // a device that reports again is registered with its report
		st.Hardware = json.RawMessage(`{"a":1}`)
		if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, st); err != nil || string(l.Snapshot().Report("pi-1").Text()) != `{"a":1}` {
			t.Errorf("the node came back with %s: %v", l.Snapshot().Report("pi-1").Text(), err)
		}
	})
}
