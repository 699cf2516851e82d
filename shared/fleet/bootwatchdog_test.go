package fleet

import (
	"slices"
	"testing"
)

// The watchdog's word is on the booted command line but not in the signed document.
func TestTheWatchdogAddsAWordToTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		w    *BootWatchdog
		want string
	}{
		{nil, ""}, {&BootWatchdog{Hardware: true}, ""}, {&BootWatchdog{Hardware: true, RuntimeSec: 14}, "systemd.watchdog_sec=14"},
	} {
		b := bootConfig()
		b.Watchdog = c.w
		words := slices.Clone(b.Cmdline.Add)
		document, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseBootConfig(document)
		if err != nil {
			t.Fatal(err)
		}
		if c.want != "" {
			words = append(words, c.want)
		}
		if !slices.Equal(got.Cmdline.Add, words) {
			t.Errorf("%+v: the command line has the words %q, want %q", c.w, got.Cmdline.Add, words)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%+v: the parsed configuration is not valid: %v", c.w, err)
		}
	}
}
