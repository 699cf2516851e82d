package cli

import (
	"testing"
	"time"
)

func TestTheShutdownGraceIsCutToWhatLogindLets(t *testing.T) {
	for _, c := range []struct{ asks, gets grace }{
		{grace{30 * time.Second, 10 * time.Second}, grace{30 * time.Second, 10 * time.Second}},
		{grace{90 * time.Second, 30 * time.Second}, grace{45 * time.Second, 15 * time.Second}},
		{grace{90 * time.Second, 0}, grace{45 * time.Second, 0}},
	} {
		if gets := c.asks.within(45 * time.Second); gets != c.gets {
			t.Errorf("of %v it gets %v, want %v", c.asks, gets, c.gets)
		}
	}
}
