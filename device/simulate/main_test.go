package main

import (
	"errors"
	"flag"
	"strings"
	"testing"
)

func TestMistakesOnTheCommandLineAreReported(t *testing.T) {
	const hub = "--hub mqtt://127.0.0.1:1 "
	for _, c := range []struct{ name, args, want string }{
		{"no hub", "", `--hub "" must be mqtt://127.0.0.1:PORT`},
		{"a hub elsewhere", "--hub mqtt://192.0.2.1:1883", "is not on this machine"},
		{"no devices", hub + "--count 0 --sites 1", "--count 0 must be from 1 to"},
		{"an invalid count", hub + "--count many", `invalid value "many" for flag -count`},
		{"more sites than devices", hub + "--count 2 --sites 3", "--sites 3 must be from 1 to the number of devices, 2"},
		{"an unknown log level", hub + "--log-level loud", `invalid value "loud" for flag -log-level`},
		{"a missing script", hub + "--script /none", "night is built in"},
		{"an argument", hub + "now", `got "now"`},
	} {
		if _, err := options(strings.Fields(c.args), t.Output()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	var help strings.Builder
	if _, err := options([]string{"--help"}, &help); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(help.String(), "undervoltage") || !strings.Contains(help.String(), "-speed") {
		t.Errorf("--help returns %v and prints %s, want the flags and the verbs", err, help.String())
	}
	if o, err := options(strings.Fields(hub+"--script night --speed 3 --log-level error"), t.Output()); err != nil ||
		o.Count != 8 || o.Sites != 3 || o.Prefix != "sim" || o.Script == nil || o.Speed != 3 {
		t.Errorf("the options are %+v, %v", o, err)
	}
}
