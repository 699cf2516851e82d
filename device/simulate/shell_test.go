package main

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"flotilla.dev/device/engine"
)

func TestTheShellOfASimulatedContainer(t *testing.T) {
	for _, c := range []struct {
		name    string
		command []string
		stdin   string
		tty     bool
		out     string
		code    int
	}{
		{"echo", []string{"echo", "hi", "you"}, "", false, "hi you\n", 0},
		{"an exit code", []string{"sh", "-c", "exit 3"}, "", false, "", 3},
		{"a sequence of commands", []string{"sh", "-c", "echo a; false || echo 'b  c'; true && echo d; false && echo e"}, "", false, "a\nb  c\nd\n", 1},
		{"exit ends a sequence", []string{"/bin/sh", "-c", "exit 2; echo a"}, "", false, "", 2},
		{"cat", []string{"cat"}, "from stdin", false, "from stdin", 0},
		{"the environment", []string{"sh", "-c", "env"}, "", false, "PATH=/bin\nHOSTNAME=web\nA=b\n", 0},
		{"a file of the container", []string{"cat", "/etc/hostname"}, "", false, "web\n", 0},
		{"a directory", []string{"ls", "/"}, "", false, "etc\ntmp\n", 0},
		{"an unknown command", []string{"vim"}, "", false, "exec: \"vim\": executable file not found in $PATH (this container is simulated)\n", 127},
		{"input on stdin", []string{"sh"}, "echo a\nfalse\n", false, "a\n", 1},
		{"a terminal echoes and prompts", []string{"sh"}, "echx\x7fo a\rexit 4\r", true, "/ # echx\b \bo a\na\n/ # exit 4\n", 4},
		{"^C drops the line, ^D ends", []string{"sh"}, "exit 9\x03\x04", true, "/ # exit 9^C\n/ # ", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			run := newShell(engine.Spec{Hostname: "web", Env: []string{"A=b"}}).exec(c.command).Run
			code := run(t.Context(), engine.Streams{Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: &out, TTY: c.tty})
			if out.String() != c.out || code != c.code {
				t.Errorf("output %q and exit code %d, want %q and %d", &out, code, c.out, c.code)
			}
		})
	}
}

// kubectl cp works in both directions: test -d, then a tar archive in or out.
func TestFilesAreCopiedIntoASimulatedContainerAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := newShell(engine.Spec{Hostname: "web"})
		run := func(stdin io.Reader, words ...string) (string, int) {
			var out, errs bytes.Buffer
			code := sh.exec(words).Run(t.Context(), engine.Streams{Stdin: stdin, Stdout: &out, Stderr: &errs})
			return out.String() + errs.String(), code
		}
		var in bytes.Buffer
		w := tar.NewWriter(&in)
		data := bytes.Repeat([]byte("flotilla"), 100_000)
		for _, h := range []*tar.Header{{Name: "d/", Typeflag: tar.TypeDir}, {Name: "d/a", Size: int64(len(data))},
			{Name: "d/link", Linkname: "/etc", Typeflag: tar.TypeSymlink}, {Name: "../../d/b", Size: 1}} {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(data[:h.Size])
		}
		_ = w.Close()
		if out, code := run(&in, "tar", "-xmf", "-", "-C", "/tmp"); code != 0 {
			t.Fatal(out)
		}
		for what, want := range map[string]int{"-d /tmp/d": 0, "-f /tmp/d/a": 0, "-e /tmp/d/link": 1, "-d /tmp/d/a": 1,
			"-f /d/b": 0} {
			if _, code := run(nil, append([]string{"test"}, strings.Fields(what)...)...); code != want {
				t.Errorf("test %s returns %d, want %d", what, code, want)
			}
		}
		out, code := run(nil, "tar", "cf", "-", "/tmp/d")
		if code != 0 {
			t.Fatal(out)
		}
		r := tar.NewReader(strings.NewReader(out))
		for _, want := range []string{"tmp/d/", "tmp/d/a"} {
			h, err := r.Next()
			if err != nil || h.Name != want {
				t.Fatalf("got %+v, %v; want %s", h, err, want)
			}
			if got, _ := io.ReadAll(r); want == "tmp/d/a" && !bytes.Equal(got, data) {
				t.Errorf("the copied file differs: %d bytes of %d", len(got), len(data))
			}
		}
		if out, code := run(nil, "tar", "cf", "-", "/nothing"); code != 1 || !strings.Contains(out, "no such file") {
			t.Errorf("tar exits with %d and prints %q, want 1 and the reason", code, out)
		}
		big := &tar.Header{Name: "big", Size: maxFiles + 1}
		in.Reset()
		_ = tar.NewWriter(&in).WriteHeader(big)
		if out, code := run(&in, "tar", "-xmf", "-", "-C", "/tmp"); code != 1 || !strings.Contains(out, "holds 32 MiB") {
			t.Errorf("tar exits with %d and prints %q, want 1 and the reason", code, out)
		}
	})
}
