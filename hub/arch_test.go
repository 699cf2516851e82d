package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "flotilla.dev"

// mayImport is the architecture: which packages of this module each package may import. An unlisted
// package may import none. Mains and hub/serve may import all, because they connect the packages.
var mayImport = map[string][]string{
	"shared/wire":              {"shared/fleet", "shared/bound"},
	"shared/fleet":             {"shared/bound"},
	"shared/policy":            {"shared/bound"},
	"shared/policy/policytest": {"shared/policy"},
	"firmware-configs":         {"shared/fleet", "shared/bound"},

	"hub/state":           {"shared/fleet"},
	"hub/lifecycle":       {"shared/fleet", "hub/state"},
	"hub/eviction":        {"shared/fleet", "hub/state"},
	"hub/drain":           {"hub/state"},
	"hub/preview":         {"hub/state", "hub/control", "hub/drain"},
	"hub/rollout":         {"shared/fleet", "hub/state", "firmware-configs"},
	"hub/approval":        {"hub/state"},
	"hub/address":         {"shared/fleet", "hub/state"},
	"hub/install":         {"firmware-configs", "shared/fleet", "hub/listen"},
	"hub/inventory":       {"shared/fleet", "shared/bound", "hub/state"},
	"hub/volume":          {"hub/state"},
	"hub/publish":         {"hub/state"},
	"hub/registry":        {"shared/bound", "shared/fsync"},
	"hub/workload":        {"shared/fleet", "hub/state"},
	"hub/schedule":        {"shared/fleet", "hub/state"},
	"hub/diagnose":        {"shared/fleet", "hub/state"},
	"hub/incident":        {"shared/fleet", "hub/diagnose", "hub/state"},
	"hub/admission":       {"shared/fleet", "shared/bound", "shared/policy", "hub/state", "firmware-configs"},
	"hub/notify":          {"shared/fleet", "hub/state", "hub/control", "hub/incident", "hub/panics"},
	"hub/cli":             {"firmware-configs", "shared/commands", "shared/fleet", "shared/wire", "hub/access", "hub/broker/setup", "hub/cli/socket", "hub/config", "hub/doctor", "hub/install", "hub/leader", "hub/monitoring", "hub/pki", "hub/registry", "hub/registry/archive", "hub/store"},
	"hub/doctor":          {"shared/fleet", "shared/line", "hub/config", "hub/leader", "hub/pki", "hub/state", "hub/store"},
	"hub/cli/socket":      {"hub/listen"},
	"hub/control":         {"shared/fleet", "hub/state", "hub/panics"},
	"hub/node":            {"firmware-configs", "shared/fleet", "shared/wire", "shared/bound", "hub/state", "hub/control", "hub/panics"},
	"hub/broker":          {"shared/fleet", "shared/line", "shared/wire", "hub/broker/idle", "hub/listen", "hub/panics"},
	"hub/broker/idle":     {"hub/panics"},
	"hub/broker/setup":    {"shared/wire"},
	"hub/store":           {"shared/fsync", "hub/leader", "hub/owner", "shared/bound", "hub/state", "hub/panics", "hub/store/deadline"},
	"hub/snapshot":        {"shared/bound", "hub/panics", "hub/state", "hub/store"},
	"hub/pki":             {"shared/fsync", "hub/owner", "shared/clock", "shared/wire"},
	"hub/access":          {"shared/clock", "shared/wire", "hub/state", "hub/store", "hub/pki", "hub/panics"},
	"hub/config":          {"shared/fleet", "shared/bound", "shared/commands", "shared/policy"},
	"hub/history":         {"hub/state"},
	"hub/metrics":         {"shared/fleet", "hub/broker", "hub/inventory", "hub/node", "hub/panics", "hub/pki", "hub/state", "hub/store"},
	"hub/enrolment":       {"shared/bound", "shared/wire", "hub/access", "hub/admission", "hub/node", "hub/pki", "hub/state", "hub/store"},
	"hub/listen":          {"hub/panics"},
	"hub/cluster":         {"hub/access", "hub/admission", "hub/cli/socket", "hub/config", "hub/control", "hub/kube", "hub/leader", "hub/listen", "hub/metrics", "hub/panics", "hub/peer", "hub/pki", "hub/snapshot", "hub/state", "hub/store"},
	"hub/peer":            {"shared/line", "hub/leader", "hub/listen", "hub/panics"},
	"hub/kube":            {"shared/wire", "hub/access", "hub/control", "hub/state", "hub/store", "hub/admission", "hub/ask", "hub/kube/openapi", "hub/kube/remote", "hub/listen", "hub/panics", "hub/kube/body", "hub/kube/resource", "hub/kube/watch", "hub/kube/write"},
	"hub/kube/body":       {"shared/bound", "hub/kube/lines", "hub/kube/resource"},
	"hub/kube/resource":   {"shared/fleet", "hub/kube/table", "hub/state"},
	"hub/kube/write":      {"shared/bound", "shared/fleet", "hub/admission", "hub/kube/body", "hub/kube/openapi", "hub/kube/resource", "hub/state"},
	"hub/kube/watch":      {"hub/kube/resource", "hub/panics", "hub/state"},
	"hub/kube/remote":     {"hub/ask", "hub/panics"},
	"hub/kube/table":      {"shared/fleet", "shared/bound", "hub/state"},
	"hub/kube/lines":      {"shared/bound"},
	"hub/kube/openapi":    {"shared/fleet"},
	"hub/ask":             {"shared/wire", "hub/panics"},
	"hub/admin":           {"shared/fleet", "hub/state", "hub/store", "web/manual", "hub/search", "hub/admin/format", "hub/admin/frame", "hub/admin/settings", "hub/admin/logs", "hub/admin/manifest", "hub/admin/rollouts", "hub/admin/workloads", "hub/admin/nodes", "hub/admin/incidents", "hub/admin/overview"},
	"hub/admin/changes":   {"shared/fleet", "hub/state", "hub/store", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/diff":      {},
	"hub/admin/finding":   {"shared/fleet", "hub/state", "hub/eviction", "hub/schedule", "hub/diagnose", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/format":    {},
	"hub/admin/frame":     {"shared/bound", "shared/fleet", "shared/wire", "hub/access", "hub/config", "hub/control", "hub/node", "hub/state", "hub/store", "hub/ask", "hub/kube/table", "hub/listen", "web", "hub/diagnose", "hub/history", "web/manual", "hub/panics", "hub/preview", "hub/search", "hub/admin/format"},
	"hub/admin/incidents": {"shared/fleet", "hub/state", "hub/diagnose", "hub/incident", "hub/search", "hub/admin/changes", "hub/admin/finding", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/logs":      {"hub/state", "hub/store", "hub/ask", "hub/panics", "hub/admin/finding", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/manifest":  {"shared/bound", "hub/state", "hub/kube/lines", "hub/admin/diff", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/nodes":     {"shared/bound", "shared/fleet", "shared/wire", "hub/access", "hub/state", "hub/store", "hub/eviction", "hub/install", "hub/diagnose", "hub/history", "hub/preview", "hub/search", "hub/admin/changes", "hub/admin/finding", "hub/admin/format", "hub/admin/frame", "hub/admin/rollouts", "hub/admin/workloads"},
	"hub/admin/overview":  {"shared/bound", "shared/fleet", "hub/state", "hub/diagnose", "hub/incident", "hub/search", "hub/admin/finding", "hub/admin/format", "hub/admin/frame", "hub/admin/incidents", "hub/admin/nodes", "hub/admin/workloads"},
	"hub/admin/rollouts":  {"shared/fleet", "shared/wire", "hub/state", "hub/diagnose", "hub/admin/diff", "hub/admin/finding", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/settings":  {"shared/bound", "hub/access", "hub/config", "hub/state", "hub/store", "hub/admin/changes", "hub/admin/format", "hub/admin/frame"},
	"hub/admin/workloads": {"shared/wire", "hub/state", "hub/kube/table", "hub/diagnose", "hub/search", "hub/admin/changes", "hub/admin/finding", "hub/admin/format", "hub/admin/frame"},

	"hub/registry/archive": {"hub/panics", "hub/registry"},

	"hub/e2e/harness": {"device/join", "shared/loopback", "shared/wire"},

	"device/podspec":           {"shared/bound", "shared/policy", "shared/wire", "shared/fleet", "device/hardware"},
	"device/volume":            {"device/podspec", "device/engine", "device/hardware", "shared/fleet", "shared/fsync", "shared/policy", "shared/wire"},
	"device/probe":             {"device/podspec", "device/engine"},
	"device/plan":              {"device/pause", "device/engine", "device/hardware", "device/podspec", "device/probe", "shared/fleet", "shared/policy", "shared/wire"},
	"device/request":           {"device/engine", "shared/wire"},
	"device/image":             {"device/engine", "device/memory", "device/plan", "device/podspec", "device/signature", "shared/fleet", "shared/policy", "device/mirror"},
	"device/mirror":            {"shared/wire"},
	"device/agent":             {"device/image", "device/request", "device/podspec", "device/probe", "device/volume", "shared/fsync", "shared/fleet", "shared/policy", "shared/wire", "shared/bound", "device/engine", "device/hardware", "device/memory", "device/signature", "device/pause", "device/plan"},
	"device/cli":               {"device/agent", "device/request", "device/engine", "device/firmware", "device/hardware", "device/join", "device/link", "device/logind", "device/memory", "device/mirror", "device/plan", "device/podspec", "device/upgrade", "device/volume", "shared/bound", "shared/commands", "shared/discovery", "shared/fleet", "shared/policy", "shared/resident", "shared/wire", "device/boothelper", "device/image"},
	"device/signature":         {"shared/policy"},
	"device/upgrade":           {"shared/fleet", "shared/fsync", "shared/wire", "shared/bound", "device/boothelper"},
	"device/firmware":          {"shared/fleet", "shared/wire", "shared/bound", "device/boothelper"},
	"device/boothelper":        {"shared/fleet", "shared/wire"},
	"device/memory":            {"shared/fsync", "shared/fleet", "shared/wire", "shared/bound"},
	"device/engine/enginetest": {"device/engine"},
	"device/link":              {"shared/fleet", "shared/line", "shared/wire"},
	"device/join":              {"shared/clock", "shared/line", "shared/wire"},
	"device/hardware":          {"shared/clock", "shared/fleet"},
}

// pure are the packages that decide; acts are packages that they must not import.
var (
	pure = []string{"shared/fleet", "shared/bound", "shared/policy", "device/podspec", "device/plan", "hub/state",
		"hub/lifecycle", "hub/eviction", "hub/drain", "hub/rollout", "hub/preview", "hub/approval", "hub/address",
		"hub/volume", "hub/publish", "hub/workload", "hub/schedule", "hub/diagnose", "hub/incident", "hub/admission",
		"hub/kube/table", "hub/leader", "hub/search"}
	acts = []string{"context", "database/sql", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "os/exec",
		"sync", "sync/atomic", "syscall", "time/tzdata"}
)

// only lists the packages that may import a library.
var only = map[string][]string{
	"github.com/mochi-mqtt/server":     {},                                            // only tests
	"github.com/eclipse/paho.mqtt":     {"device/link", "hub/broker", "hub/e2e/load"}, // hub/e2e/load compares the hub with this client
	"github.com/moby/moby":             {"device/engine"},
	"github.com/moby/spdystream":       {"hub/kube/remote"},
	"github.com/labstack/echo":         {"hub/kube", "hub/serve", "hub/admin/frame"},
	"github.com/spf13/cobra":           {"hub/cli", "shared/commands", "device/cli"},
	"database/sql":                     {"hub/store"},
	"github.com/jackc/pgx":             {"hub/store"},
	"modernc.org/sqlite":               {"hub/store"},
	"periph.io/x":                      {"device/hardware"},
	"github.com/google/go-containerre": {"device/signature", "hub/install/packages"}, // packages: make packages
	"k8s.io/pod-security-admission":    {"hub/admission"},
	"github.com/prometheus/client_gol": {"hub/metrics"},
	"github.com/yuin/goldmark":         {"web/manual"},
}

// mostFiles is the largest number of source files in a package.
const mostFiles = 25

// clock are the functions that a package with a time parameter must not call.
var clock = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc",
	"time.NewTimer", "time.NewTicker", "time.Tick"}

func qualified(sel *ast.SelectorExpr) string {
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return ""
}

// TestArchitecture parses the files itself. Otherwise a child process would read them, and go test
// would not see their changes and use its cached result.
func TestArchitecture(t *testing.T) {
	documented, files := map[string]int{}, map[string]int{}
	err := fs.WalkDir(os.DirFS(".."), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && file != "." || file == "data" ||
			file == "bin" || file == "dist") {
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
		files[pkg]++
		if _, ok := documented[pkg]; !ok {
			documented[pkg] = 0
		}
		if f.Doc != nil {
			documented[pkg]++
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			ours, isOurs := strings.CutPrefix(imp, module+"/")
			if isOurs && f.Name.Name != "main" && pkg != "hub/serve" && !helps(pkg) && !slices.Contains(mayImport[pkg], ours) {
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
					t.Errorf("%s calls %s, but %s must take the time as a parameter", file, qualified(sel), pkg)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, listed := range [][]string{slices.Collect(maps.Keys(mayImport)),
		slices.Concat(slices.Collect(maps.Values(mayImport))...), slices.Concat(slices.Collect(maps.Values(only))...), pure} {
		for _, pkg := range listed {
			if _, there := documented[pkg]; !there {
				t.Errorf("package %s is listed here, but does not exist", pkg)
			}
		}
	}
	for pkg, n := range files {
		if n > mostFiles {
			t.Errorf("package %s has %d files, may have %d: move a part of it into a package", pkg, n, mostFiles)
		}
	}
	for pkg, n := range documented {
		if n != 1 {
			t.Errorf("package %s has %d package comments, wants one", pkg, n)
		}
	}
}

// TestNoCircle checks the table. The compiler refuses circles of packages, but not circles that
// pass through a package's subpackages.
func TestNoCircle(t *testing.T) {
	topFolder := func(pkg string) string {
		return strings.Join(strings.SplitN(pkg, "/", 3)[:min(2, strings.Count(pkg, "/")+1)], "/")
	}
	needs := map[string][]string{}
	for pkg, imports := range mayImport {
		for _, i := range imports {
			if topFolder(i) != topFolder(pkg) {
				needs[topFolder(pkg)] = append(needs[topFolder(pkg)], topFolder(i))
			}
		}
	}
	done := map[string]bool{}
	var visit func(pkg string, way []string)
	visit = func(pkg string, way []string) {
		if i := slices.Index(way, pkg); i >= 0 {
			t.Errorf("a circle: %s", strings.Join(append(way[i:], pkg), " → "))
			return
		}
		if done[pkg] {
			return
		}
		for _, i := range needs[pkg] {
			visit(i, append(slices.Clone(way), pkg))
		}
		done[pkg] = true
	}
	for _, pkg := range slices.Sorted(maps.Keys(needs)) {
		visit(pkg, nil)
	}
}

// helps reports whether a package is for tests only.
func helps(pkg string) bool {
	return strings.HasSuffix(pkg, "test") || strings.Contains(pkg, "test/") || strings.Contains(pkg, "/generate")
}

// ignored reports whether a build constraint excludes a file from every build.
func ignored(f *ast.File) bool {
	for _, g := range f.Comments {
		if g.Pos() < f.Package {
			for _, c := range g.List {
				if strings.HasPrefix(c.Text, "//go:build ignore") {
					return true
				}
			}
		}
	}
	return false
}
