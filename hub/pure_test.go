package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A source is some or all files of a package, with resolved names.
type source struct {
	funcs map[types.Object]decl
	uses  map[*ast.Ident]types.Object
}

type decl struct {
	file    string
	fn      *ast.FuncDecl
	imports map[string]string // import path by the name in the file
}

// emptyImporter is an importer that returns empty packages.
type emptyImporter struct{}

func (emptyImporter) Import(p string) (*types.Package, error) {
	pkg := types.NewPackage(p, path.Base(p))
	pkg.MarkComplete()
	return pkg, nil
}

func parse(t *testing.T, dir string, which func(file string) bool) source {
	t.Helper()
	s, set := source{map[types.Object]decl{}, map[*ast.Ident]types.Object{}}, token.NewFileSet()
	entries, err := os.ReadDir("../" + dir)
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	var decls []decl
	for _, d := range entries {
		if d.IsDir() || !strings.HasSuffix(d.Name(), ".go") || !which(d.Name()) {
			continue
		}
		file := path.Join(dir, d.Name())
		f, err := parser.ParseFile(set, "../"+file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		imports := map[string]string{}
		for _, spec := range f.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			name := path.Base(p)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imports[name] = p
		}
		files = append(files, f)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				decls = append(decls, decl{file, fn, imports})
			}
		}
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: s.uses}
	conf := types.Config{Importer: emptyImporter{}, Error: func(error) {}}
	_, _ = conf.Check(dir, set, files, info) // names of other packages are unresolved, which does not matter
	for _, d := range decls {
		s.funcs[info.Defs[d.fn.Name]] = d
	}
	return s
}

// reached returns the functions and methods of the package that a function may call.
func (s source) reached(root types.Object) map[types.Object]bool {
	seen, todo := map[types.Object]bool{}, []types.Object{root}
	for len(todo) > 0 {
		o := todo[0]
		todo = todo[1:]
		d, ours := s.funcs[o]
		if !ours || seen[o] {
			continue
		}
		seen[o] = true
		for n := range ast.Preorder(d.fn) {
			if id, ok := n.(*ast.Ident); ok {
				todo = append(todo, s.uses[id])
			}
		}
	}
	return seen
}

// A function that decides is pure, also in a package that does I/O: it reaches no I/O and no clock.
func TestDecidingFunctionsArePure(t *testing.T) {
	for _, c := range []struct{ dir, root string }{{"hub/inventory", "Decide"}} {
		s := parse(t, c.dir, func(file string) bool { return !strings.HasSuffix(file, "_test.go") })
		var root types.Object
		for o, d := range s.funcs {
			if d.fn.Name.Name == c.root && d.fn.Recv == nil {
				root = o
			}
		}
		if root == nil {
			t.Errorf("%s does not have %s", c.dir, c.root)
			continue
		}
		for o := range s.reached(root) {
			d := s.funcs[o]
			for n := range ast.Preorder(d.fn) {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					continue
				}
				x, ok := sel.X.(*ast.Ident)
				if ok && (slices.Contains(acts, d.imports[x.Name]) || slices.Contains(clock, qualified(sel))) {
					t.Errorf("%s: %s uses %s, and %s may call it", d.file, o.Name(), qualified(sel), c.root)
				}
			}
		}
	}
}

// A model must not call the rule that it tests, because it would confirm the rule's mistakes. It
// may call functions that return data.
func TestModelsDoNotCallTheTestedRule(t *testing.T) {
	gives := []string{"state.KeyOf", "state.Each", "state.NodeCondition"}
	for dir, model := range map[string]func(file string) bool{
		"hub/control": func(f string) bool { return f == "model_test.go" || f == "model_pods_test.go" },
		"hub/sim":     func(f string) bool { return f == "rule_test.go" },
	} {
		s := parse(t, dir, model)
		if len(s.funcs) == 0 {
			t.Errorf("%s has no model", dir)
		}
		for o, d := range s.funcs {
			for n := range ast.Preorder(d.fn) {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					continue
				}
				fun := call.Fun
				if index, ok := fun.(*ast.IndexExpr); ok {
					fun = index.X
				}
				sel, ok := fun.(*ast.SelectorExpr)
				if !ok {
					continue
				}
				x, ok := sel.X.(*ast.Ident)
				if !ok || slices.Contains(gives, qualified(sel)) {
					continue
				}
				if ours, isOurs := strings.CutPrefix(d.imports[x.Name], module+"/"); isOurs {
					t.Errorf("%s: %s calls %s of %s", d.file, o.Name(), qualified(sel), ours)
				}
			}
		}
	}
}
