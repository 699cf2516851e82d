package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The Makefile has the tests of some packages run without the race detector, five times as fast.
// That is right for as long as nothing runs beside anything else in them.
func TestWhatIsTestedWithoutTheRaceDetectorIsOneGoroutine(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(strings.ReplaceAll(string(text), "\\\n", " "), "\nPLAIN = ")
	list, _, _ = strings.Cut(list, "\n")
	packages := strings.Fields(list)
	if !found || len(packages) == 0 {
		t.Fatal("the Makefile has no PLAIN")
	}
	concurrent := []string{"context", "golang.org/x/sync/errgroup", "net/http", "sync", "sync/atomic", "testing/synctest"}
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("the Makefile's PLAIN has %s, which has no files (%v): take it out", pkg, err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				if path, err := strconv.Unquote(i.Path.Value); err != nil || slices.Contains(concurrent, path) {
					t.Errorf("%s imports %s: take %s out of PLAIN in the Makefile, for its tests to have the race detector", file, i.Path.Value, pkg)
				}
			}
			for n := range ast.Preorder(f) {
				if _, is := n.(*ast.GoStmt); is {
					t.Errorf("%s starts a goroutine: take %s out of PLAIN in the Makefile, for its tests to have the race detector", file, pkg)
				}
			}
		}
	}
}
