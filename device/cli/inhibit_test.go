package cli

import (
	"testing"
	"time"
)

func TestTheShutdownGraceIsLimitedByLogind(t *testing.T) {
	for _, c := range []struct{ requested, want grace }{
		{grace{30 * time.Second, 10 * time.Second}, grace{30 * time.Second, 10 * time.Second}},
		{grace{90 * time.Second, 30 * time.Second}, grace{45 * time.Second, 15 * time.Second}},
		{grace{90 * time.Second, 0}, grace{45 * time.Second, 0}},
	} {
		if got := c.requested.within(45 * time.Second); got != c.want {
			t.Errorf("%v limited to 45s: got %v, want %v", c.requested, got, c.want)
		}
	}
}
