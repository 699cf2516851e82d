package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// SQLite in Go works only with the version of libc that it was generated for. Another version
// corrupts memory on 32-bit ARM.
func TestSQLiteHasItsVersionOfLibc(t *testing.T) {
	version := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`modernc\.org/libc (v\S+)`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s does not require modernc.org/libc", file)
		}
		return string(found[1])
	}
	file, err := exec.Command("go", "list", "-m", "-f", "{{.GoMod}}", "modernc.org/sqlite").Output()
	if err != nil {
		t.Fatal(err)
	}
	if have, want := version("../go.mod"), version(strings.TrimSpace(string(file))); have != want {
		t.Errorf("go.mod: modernc.org/libc is %s, but modernc.org/sqlite was generated for %s: require that version", have, want)
	}
}
