package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProfilesAreCheckedAndRendered(t *testing.T) {
	write := func(name, text string) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte("apiVersion: flotilla.dev/v1alpha1\nkind: BoardProfile\nmetadata: {name: "+
			"pi}\nspec:\n  match: {arch: [arm64]}\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good, none := write("good.yaml", "  extends: [low-memory]\n  boot: {backend: rpi-config-txt}\n"),
		write("none.yaml", "")
	bad := write("bad.yaml", "  boot: {backend: rpi-config-txt, config: {all: {kernel: x}}, cmdline: {add: [init=/bin/sh]}}\n")
	for _, c := range []struct{ args, out, err string }{
		{"lint " + good + " " + none, good + ": valid\n" + none + ": valid\n", ""},
		{"lint " + good + " " + bad, good + ": valid\n", bad + `: spec.boot: cmdline.add[0]: "init=/bin/sh" is refused`},
		{"lint " + bad, "", bad + `: spec.boot: config.all."kernel": is refused`},
		{"lint " + good + ".not", "", "no such file"},
		{"lint", "", "needs a file"},
		{"render " + good, `{"profile":"pi","revision":0,"backend":"rpi-config-txt","config":{"all":{"gpu_mem":"16"}},"cmdline":{"add":["cgroup_enable=memory"]}}` + "\n", ""},
		{"render " + none, "", "board profile pi: it has no boot configuration"},
		{"render", "", "name a file, or a node"},
		{"render " + good + " --node pi-1", "", "name a file, or a node"},
	} {
		var out, errs bytes.Buffer
		root := Program{Stdout: &out, Stderr: &errs}.Command()
		root.SetArgs(strings.Fields("profile " + c.args))
		err := root.Execute()
		if out.String() != c.out || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("profile %s: %q, %v; want %q, %q", c.args, out.String(), err, c.out, c.err)
		}
	}
}
