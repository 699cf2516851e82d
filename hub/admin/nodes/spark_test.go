package nodes

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/history"
)

func TestASparkIsALineThroughTheHoursThatHaveEnded(t *testing.T) {
	at := func(cpu, memory float64) history.Word {
		s := history.Nothing()
		s[history.CPU], s[history.Memory] = cpu, memory
		return history.Pack(s)
	}
	now := admintest.Now.Truncate(time.Hour).Add(20 * time.Minute)
	remembered := func(_ types.UID, from time.Time, n int) []history.Word {
		if want := now.Truncate(time.Hour).Add(-24 * time.Hour); !from.Equal(want) || n != 288 {
			t.Errorf("%d samples from %s are requested, want a day from %s", n, from, want)
		}
		words := make([]history.Word, n)
		for i := range words {
			switch hour := i / 12; {
			case hour < 2:
				words[i] = at(0, .5)
			case hour == 2:
				words[i] = at(1, .5)
			case hour == 22:
				words[i] = at(.25, .5)
			}
		}
		return words
	}
	a := chartRequest("", now, remembered)
	var cpu, memory spark
	sparks(a, a.Node("pi-1"), &cpu, &memory)
	if want := "M2 12h0l4 0l4 -12M90 9h0"; cpu.Line != want {
		t.Errorf("the line is %s, want %s", cpu.Line, want)
	}
	if want := "CPU of all processors, last 24 hours: lowest 0 %, mean 31 %, highest 100 %"; cpu.Said != want {
		t.Errorf("its words are %q, want %q", cpu.Said, want)
	}
	if memory.Line != "" || !strings.HasPrefix(memory.Said, "Memory in use") {
		t.Errorf("memory, which did not change, is %+v", memory)
	}
	for name, remembered := range map[string]func(types.UID, time.Time, int) []history.Word{
		"no history": nil, "nothing known": func(_ types.UID, _ time.Time,
			n int) []history.Word {
			return make([]history.Word, n)
		},
	} {
		var s spark
		a := chartRequest("", now, remembered)
		if sparks(a, a.Node("pi-1"), &s); s != (spark{}) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
