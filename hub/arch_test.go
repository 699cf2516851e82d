package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "flotilla.dev"

// mayImport is the architecture: which of our packages each of our packages may
// import. One that is missing may import none of ours; the two mains may import
// what they like, for wiring is their work.
var mayImport = map[string][]string{
	"shared/wire":      {"shared/fleet"},
	"firmware-configs": {"shared/fleet"},

	"hub/state":        {"shared/fleet"},
	"hub/lifecycle":    {"shared/fleet", "hub/state"},
	"hub/eviction":     {"shared/fleet", "hub/state"},
	"hub/address":      {"shared/fleet", "hub/state"},
	"hub/inventory":    {"shared/fleet", "hub/state"},
	"hub/workload":     {"shared/fleet", "hub/state"},
	"hub/schedule":     {"shared/fleet", "hub/state"},
	"hub/admission":    {"shared/fleet", "hub/state", "firmware-configs"},
	"hub/control":      {"shared/fleet", "shared/wire", "hub/state"},
	"hub/broker":       {"shared/fleet", "shared/wire", "shared/pipe"},
	"hub/access":       {"shared/wire", "hub/store", "hub/pki"},
	"hub/config":       {"shared/fleet"},
	"hub/kube":         {"shared/fleet", "hub/state", "hub/admission", "hub/ask", "hub/kube/table", "hub/kube/openapi", "hub/kube/remote"},
	"hub/kube/remote":  {"hub/ask"},
	"hub/kube/table":   {"shared/fleet", "hub/state"},
	"hub/kube/openapi": {"shared/fleet"},
	"hub/ask":          {"shared/wire"},
	"hub/admin":        {"shared/fleet", "hub/state", "hub/admission", "hub/ask", "hub/eviction", "hub/kube/table", "web"},

	"device/agent":             {"shared/fleet", "shared/wire", "device/engine", "device/hardware", "device/memory"},
	"device/memory":            {"shared/fleet", "shared/wire"},
	"device/engine/enginetest": {"device/engine"},
	"device/link":              {"shared/fleet", "shared/wire"},
	"device/join":              {"shared/wire"},
	"device/hardware":          {"shared/fleet"},
	"device/simulate":          {"shared/fleet", "shared/wire", "device/agent", "device/engine", "device/engine/enginetest", "device/hardware", "device/link", "device/memory"},
}

// pure are the packages that decide; acts is what deciding does not need.
var (
	pure = []string{"shared/fleet", "hub/state", "hub/lifecycle", "hub/eviction", "hub/address", "hub/workload", "hub/schedule", "hub/admission", "hub/kube/table"}
	acts = []string{"context", "database/sql", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "os/exec", "sync", "sync/atomic", "syscall", "time/tzdata"}
)

// only says which packages alone may import a library.
var only = map[string][]string{
	"github.com/mochi-mqtt/server":     {"hub/broker"},
	"github.com/eclipse/paho.mqtt":     {"device/link", "hub/broker"},
	"github.com/moby/moby":             {"device/engine"},
	"github.com/moby/spdystream":       {"hub/kube/remote"},
	"github.com/labstack/echo":         {"hub/kube", "hub/admin", "hub"},
	"database/sql":                     {"hub/store"},
	"modernc.org/sqlite":               {"hub/store"},
	"periph.io/x":                      {"device/hardware"},
	"github.com/prometheus/client_gol": {"hub"},
}

// clock is what a package that is told the time must not ask.
var clock = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick"}

func qualified(sel *ast.SelectorExpr) string {
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return ""
}

// TestArchitecture parses the files itself: what the go command says in a child
// process is cached by the test cache, which passes violations.
func TestArchitecture(t *testing.T) {
	documented := map[string]int{}
	err := fs.WalkDir(os.DirFS(".."), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && file != "." || file == "data" || file == "bin" || file == "dist") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), "../"+file, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if ignored(f) {
			return nil
		}
		pkg := path.Dir(file)
		if _, ok := documented[pkg]; !ok {
			documented[pkg] = 0
		}
		if f.Doc != nil {
			documented[pkg]++
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			ours, isOurs := strings.CutPrefix(imp, module+"/")
			if isOurs && f.Name.Name != "main" && !helps(pkg) && !slices.Contains(mayImport[pkg], ours) {
				t.Errorf("%s imports %s, which mayImport does not allow", file, ours)
			}
			if slices.Contains(pure, pkg) && slices.Contains(acts, imp) {
				t.Errorf("%s imports %s, but %s decides and does not act", file, imp, pkg)
			}
			for lib, rooms := range only {
				if strings.HasPrefix(imp, lib) && !slices.Contains(rooms, pkg) && !helps(pkg) {
					t.Errorf("%s imports %s, which only %v may", file, imp, rooms)
				}
			}
		}
		if slices.Contains(pure, pkg) {
			for n := range ast.Preorder(f) {
				if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(clock, qualified(sel)) {
					t.Errorf("%s calls %s, but %s is told the time", file, qualified(sel), pkg)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg, n := range documented {
		if n != 1 {
			t.Errorf("package %s has %d package comments, wants one", pkg, n)
		}
	}
}

// helps tells whether a package helps tests only.
func helps(pkg string) bool {
	return strings.HasSuffix(pkg, "test") || strings.Contains(pkg, "test/") || strings.Contains(pkg, "/generate")
}

// ignored tells whether a build constraint keeps a file out of every build.
func ignored(f *ast.File) bool {
	for _, g := range f.Comments {
		if g.Pos() < f.Package && strings.Contains(g.Text(), "") {
			for _, c := range g.List {
				if strings.HasPrefix(c.Text, "//go:build ignore") {
					return true
				}
			}
		}
	}
	return false
}
