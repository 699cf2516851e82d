package main

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain also runs as a child process that holds a directory until it is killed.
func TestMain(m *testing.M) {
	if os.Getenv("FLOTILLA_TEST_HOLD") != "" {
		dir, end, err := makeVolumes(slog.New(slog.DiscardHandler))
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(dir + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // a plain deadlock would end the program
		end()
	}
	os.Exit(m.Run())
}

func TestTheNextSimulationRemovesTheVolumesOfAKilledOne(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FLOTILLA_TEST_HOLD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var line [4096]byte
	n, err := out.Read(line[:])
	if err != nil {
		t.Fatal(err)
	}
	killed := string(line[:n-1])
	if err := os.MkdirAll(filepath.Join(killed, "sim-0001", "volume"), 0o700); err != nil {
		t.Fatal(err)
	}
	unlocked, foreign := filepath.Join(tmp, volumesDir+"strange"), filepath.Join(t.TempDir(), "kept")
	for _, dir := range []string{unlocked, foreign} { // a directory without a lock file, and the target of a link
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(foreign, volumesLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(foreign, filepath.Join(tmp, volumesDir+"link")); err != nil {
		t.Fatal(err)
	}
	exists := func(want bool, dirs ...string) {
		t.Helper()
		for _, dir := range dirs {
			if _, err := os.Lstat(dir); (err == nil) != want {
				t.Errorf("%s: %v, want it to exist: %v", dir, err, want)
			}
		}
	}
	next := func() (string, func()) {
		t.Helper()
		dir, end, err := makeVolumes(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return dir, end
	}
	first, endFirst := next()
	exists(true, killed, first)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	second, endSecond := next()
	exists(false, killed)
	exists(true, first, second, unlocked, foreign)
	endFirst()
	endSecond()
	exists(false, first, second)
}
