package main

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A child process of this test holds a directory until it is killed.
func TestMain(m *testing.M) {
	if os.Getenv("FLOTILLA_TEST_HOLD") != "" {
		dir, end, err := makeVolumes(slog.New(slog.DiscardHandler))
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(dir + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // Go ends a program in which nothing can happen
		end()
	}
	os.Exit(m.Run())
}

func TestTheVolumesOfAKilledSimulationAreRemovedByTheNext(t *testing.T) {
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
	held := string(line[:n-1])
	if err := os.MkdirAll(filepath.Join(held, "sim-0001", "volume"), 0o700); err != nil {
		t.Fatal(err)
	}
	strange, somebodys := filepath.Join(tmp, volumesDir+"strange"), filepath.Join(t.TempDir(), "kept")
	for _, dir := range []string{strange, somebodys} { // one without a lock file, and the target of a link
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(somebodys, volumesLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(somebodys, filepath.Join(tmp, volumesDir+"link")); err != nil {
		t.Fatal(err)
	}
	exists := func(want bool, dirs ...string) {
		t.Helper()
		for _, dir := range dirs {
			if _, err := os.Lstat(dir); (err == nil) != want {
				t.Errorf("%s: %v, want it there: %v", dir, err, want)
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
	exists(true, held, first)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	second, endSecond := next()
	exists(false, held)
	exists(true, first, second, strange, somebodys)
	endFirst()
	endSecond()
	exists(false, first, second)
}
