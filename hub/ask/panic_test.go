package ask

import (
	"strings"
	"testing"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

type broken struct{}

func (broken) Request(string, string, wire.Request) error { panic("ouch") }

func TestAPanicOfAMeasurementIsAnError(t *testing.T) {
	before := panics.Counts()["usage"]
	d := &Client{Broker: broken{}}
	for range 2 { // the second call must not wait for the measurement that panicked
		if _, err := d.Usage(t.Context(), "pi-1"); err == nil || !strings.Contains(err.Error(), "ouch") {
			t.Errorf("the call returned %v, want the panic", err)
		}
	}
	if n := panics.Counts()["usage"] - before; n != 2 {
		t.Errorf("%d panics are counted, want 2", n)
	}
}
