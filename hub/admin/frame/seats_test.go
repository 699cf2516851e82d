package frame

import (
	"testing"
)

func TestTerminalsAreCounted(t *testing.T) {
	tools := newTools()
	for i := range maxTerminals {
		if _, ok := tools.Terminals.Enter([]string{"anna", "olav"}[i%2]); !ok {
			t.Fatal("there is no place left")
		}
	}
	if _, ok := tools.Terminals.Enter("kari"); ok || tools.Terminals.taken.Load() != maxTerminals {
		t.Error("there is one place too many")
	}
}

func TestOneWhoTakesAllPlacesLeavesOthersSome(t *testing.T) {
	tools := newTools()
	for what, enter := range map[string]func(string) (func(), bool){"logs": tools.Logs.Enter,
		"terminals": tools.Terminals.Enter, "pages": tools.pages.Enter} {
		most := 0
		for leave, ok := enter("vera"); ok; leave, ok = enter("vera") {
			if most++; most > maxStreams {
				break
			}
			defer leave()
		}
		if _, ok := enter("kari"); !ok || most == 0 || most > maxStreams/2 {
			t.Errorf("%s: one user has %d places, and the other user gets one: %v", what, most, ok)
		}
	}
}
