package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testsOf returns the names of a package's tests.
func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../../..", pkg, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s has no tests, %v", pkg, err)
	}
	names := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}

// Each test in the rows exists. go test does not report an unknown name.
func TestEveryTestOfARowExists(t *testing.T) {
	pkgs := map[string]map[string]bool{}
	number := 0
	for _, r := range rows {
		if strings.TrimRight(r.id, "bcd") == r.id { // F1b is a variant of F1
			number++
		}
		if strings.TrimRight(r.id, "bcd") != fmt.Sprintf("F%d", number) {
			t.Errorf("row %s is in the place of F%d", r.id, number)
		}
		if len(r.tests) == 0 && r.gap == "" {
			t.Errorf("%s has neither tests nor a reason", r.id)
		}
		for _, at := range r.tests {
			if pkgs[at.pkg] == nil {
				pkgs[at.pkg] = testsOf(t, at.pkg)
			}
			if !pkgs[at.pkg][at.name] {
				t.Errorf("%s: test %s not found", r.id, at)
			}
		}
	}
	if number != 24 {
		t.Errorf("%d rows, want 24", number)
	}
}

// Each test that runs only under make faults is in a row.
func TestEveryLongTestIsInARow(t *testing.T) {
	files, err := filepath.Glob("../*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			for n := range ast.Preorder(fn.Body) {
				if c, ok := n.(*ast.CallExpr); !ok || fmt.Sprint(c.Fun) != "long" {
					continue
				}
				found++
				listed := false
				for _, r := range rows {
					for _, at := range r.tests {
						listed = listed || at == test{"hub/e2e", fn.Name.Name}
					}
				}
				if !listed {
					t.Errorf("%s is not in a row", fn.Name.Name)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d long tests were found", found)
	}
}

func TestTheREADMEHasTheRows(t *testing.T) {
	page, err := os.ReadFile("../../../" + readme)
	if err != nil {
		t.Fatal(err)
	}
	want, err := renewed(string(page))
	if err != nil || string(page) != want {
		t.Errorf("%s is out of date, %v: run go run ./hub/e2e/faults -update", readme, err)
	}
}

func TestParsingTest2json(t *testing.T) {
	const printed = `{"Action":"run","Test":"TestA"}
{"Action":"attr","Test":"TestA","Key":"seen","Value":"3 kills"}
{"Action":"output","Test":"TestA","Output":"    a_test.go:1: words\n"}
{"Action":"pass","Test":"TestA"}
{"Action":"output","Test":"TestB","Output":"    b_test.go:1: 3 are lost | 4\n"}
{"Action":"output","Test":"TestB","Output":"--- FAIL: TestB (0.00s)\n"}
{"Action":"fail","Test":"TestB"}
{"Action":"output","Test":"TestC","Output":"    c_test.go:1: no engine\n"}
{"Action":"skip","Test":"TestC"}
{"Action":"output","Test":"TestD/podman","Output":"    d_test.go:1: no Podman\n"}
{"Action":"skip","Test":"TestD/podman"}
{"Action":"attr","Test":"TestD/docker","Key":"seen","Value":"5 pods"}
{"Action":"pass","Test":"TestD"}
not JSON
{"Action":"pass","Test":"TestOther"}
`
	tests := of("hub/x", "TestA", "TestB", "TestC", "TestD", "TestE")
	r := result{row: row{id: "F1", fault: "f", criterion: "c", tests: tests, gap: "the moon"}}
	known := map[string]*outcome{}
	for _, at := range tests {
		known[at.name] = &outcome{}
		r.outcomes = append(r.outcomes, known[at.name])
	}
	var log bytes.Buffer
	if err := read(strings.NewReader(printed), func(name string) *outcome { return known[name] }, &log,
		func(string, string, time.Duration) {}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"TestA": "pass", "TestB": "fail", "TestC": "skip",
		"TestD": "part", "TestE": ""} {
		if got := known[name].state; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	want := "3 kills; TestB: fail: b_test.go:1: 3 are lost ¦ 4; TestC: skip: c_test.go:1: no engine; TestD: part: d_test.go:1: no Podman; 5 pods; TestE: : ; 2 of 5 tests; not tested: the moon"
	if got := r.seen(); got != want {
		t.Errorf("seen is\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(log.String(), "not JSON\n") || !strings.Contains(log.String(), "words") {
		t.Errorf("the log is %q", log.String())
	}
	for n, want := range []string{none, yes, no, no, no, no} {
		if got := (result{outcomes: r.outcomes[:n]}).held(); got != want {
			t.Errorf("verdict on %d tests: %q, want %q", n, got, want)
		}
	}
	for _, c := range []struct {
		tests []string
		held  string
	}{{[]string{"TestA", "TestC"}, part}, {[]string{"TestD"}, part}, {[]string{"TestC"}, none},
		{[]string{"TestC", "TestC"}, none}} {
		var r result
		for _, name := range c.tests {
			r.outcomes = append(r.outcomes, known[name])
		}
		if got := r.held(); got != c.held {
			t.Errorf("verdict on %v: %q, want %q", c.tests, got, c.held)
		}
	}
}
