package config

import (
	"strings"
	"testing"
	"time"
)

func TestTheTimeOfSamplesIsLimited(t *testing.T) {
	for _, c := range []struct {
		args, wrong string
		want        time.Duration
	}{
		{"", "", 168 * time.Hour}, {"--history=false", "", 0}, {"--history=0", "", 0}, {"--history=true", "", 168 * time.Hour}, {"--history=24h", "", 24 * time.Hour},
		{"--history=30m", "write 1h to 168h", 0}, {"--history=720h", "write 1h to 168h", 0}, {"--history=-1h", "write 1h to 168h", 0}, {"--history=long", "or false", 0},
	} {
		got, _, err := load(t, strings.Fields(c.args), nil)
		if c.wrong == "" && (err != nil || got.History != c.want) || c.wrong != "" &&
			(err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: history %v, error %v; want %v, %q", c.args, got.History, err, c.want, c.wrong)
		}
	}
}
