// Package noticestest compares a program's license notices with its linked modules, and writes
// them. Only tests call it; it reads the module cache.
package noticestest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// architectures are the released architectures. Each may link other modules.
var architectures = []string{"amd64", "arm64", "arm"}

// states matches files with license terms. others matches terms for documentation and logos, which
// do not apply to a program.
var (
	states = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)
	others = regexp.MustCompile(`(?i)\.docs$|-logo$|\.go$`)
)

// Check compares the gzip file with the notices of the package in the working directory. With
// update it writes the file. beside are directories of this repository with embedded files of other
// authors.
func Check(t *testing.T, program, file string, update bool, beside ...string) {
	t.Helper()
	want := notices(t, program, beside)
	have, err := unzip(file)
	if err == nil && have == want {
		return
	}
	if !update {
		t.Fatalf("%s does not have the notices of the modules that %s links (%v): run go test here with -run %s -update",
			file, program, err, t.Name())
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = io.WriteString(z, want)
	}
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.WriteFile(file, b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func unzip(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(z)
	return string(text), err
}

// notices lists the modules, then each text once with the files that have it.
func notices(t *testing.T, program string, beside []string) string {
	t.Helper()
	modules := map[string]bool{}
	files := map[string][]string{} // names of the files, by text
	read := func(name, dir string) (found bool) {
		for _, e := range list(t, dir) {
			if states.MatchString(e) && !others.MatchString(e) {
				b, err := os.ReadFile(filepath.Join(dir, e))
				if err != nil {
					t.Fatal(err)
				}
				text := strings.TrimSpace(strings.ReplaceAll(string(b), "\r\n", "\n"))
				if at := name + ": " + e; !slices.Contains(files[text], at) {
					files[text] = append(files[text], at)
				}
				found = true
			}
		}
		return found
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	read("Go's standard library", strings.TrimSpace(string(goroot)))
	for _, dir := range beside {
		read(filepath.Base(dir), dir)
	}
	for _, arch := range architectures {
		for _, line := range packages(t, arch) {
			module, root, dir := line[0], line[1], line[2]
			if modules[module+dir] {
				continue
			}
			modules[module+dir] = true
			found := false
			for ; len(dir) >= len(root); dir = filepath.Dir(dir) {
				found = read(module+strings.TrimPrefix(dir, root), dir) || found
			}
			if !found {
				t.Errorf("%s has no licence that is found in %s", module, root)
			}
		}
	}
	names := map[string]bool{}
	for _, at := range slices.Concat(slices.Collect(maps.Values(files))...) {
		name, _, _ := strings.Cut(at, ": ")
		names[name] = true
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s contains parts of these, each under the licence that follows:\n\n", program)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "  %s\n", name)
	}
	for _, text := range slices.SortedFunc(maps.Keys(files), alike) {
		fmt.Fprintf(&b, "\n%s\n", strings.Repeat("=", 80))
		slices.Sort(files[text])
		for _, at := range files[text] {
			fmt.Fprintf(&b, "%s\n", at)
		}
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	return b.String()
}

// alike orders similar texts next to each other, which gzip compresses well.
func alike(a, b string) int {
	rank := func(text string) string {
		for _, words := range []string{"Apache License", "Mozilla", "Permission is hereby granted",
			"Redistribution and use"} {
			if strings.Contains(text, words) {
				return words
			}
		}
		return ""
	}
	return strings.Compare(rank(a)+a, rank(b)+b)
}

// packages returns the module, the module's directory and the directory of each linked package of
// other authors.
func packages(t *testing.T, arch string) (found [][3]string) {
	t.Helper()
	c := exec.Command("go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}|{{.Dir}}|{{$.Dir}}{{end}}{{end}}", ".")
	c.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(strings.TrimSpace(line), "|"); len(f) == 3 {
			found = append(found, [3]string(f))
		}
	}
	return found
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names
}
