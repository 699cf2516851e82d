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

	"flotilla.dev/hub/state"
)

// rowFiles describe the kinds, their admission and their pages. All other code looks kinds up
// there.
var rowFiles = []string{"hub/state/kind.go", "hub/state/rows.go", "hub/state/served.go", "hub/admission/kinds.go",
	"hub/admin/frame/kinds.go"}

// TestKindsAreListedOnce finds literals and switches that map four or more kinds to words, because
// a new kind would have to be added there. It ignores switches that act or return only booleans.
func TestKindsAreListedOnce(t *testing.T) {
	known := kindNames(t)
	walkSources(t, func(file string, f *ast.File, at func(ast.Node) string) {
		if slices.Contains(rowFiles, file) || helps(path.Dir(file)) {
			return
		}
		for n := range ast.Preorder(f) {
			var listed map[string]bool
			switch n := n.(type) {
			case *ast.CompositeLit:
				listed = known.in(n)
			case *ast.SwitchStmt:
				listed = known.inTable(n.Body)
			case *ast.TypeSwitchStmt:
				listed = known.inTable(n.Body)
			}
			if len(listed) >= 4 {
				t.Errorf("%s lists kinds: %v; say it in their rows in hub/state/rows.go", at(n), slices.Sorted(maps.Keys(listed)))
			}
		}
	})
}

// kindNaming maps a string or a Go name in the sources to its kind.
type kindNaming struct{ text, code map[string]string }

func kindNames(t *testing.T) kindNaming {
	known := kindNaming{map[string]string{}, map[string]string{}}
	for _, k := range state.Kinds() {
		known.text[string(k)] = string(k)
		if r := k.Row(); r.Name != "" {
			known.text[r.Name], known.code[r.Name] = string(k), string(k)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "state/kind.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for n := range ast.Preorder(f) {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				text, _ := strconv.Unquote(lit.Value)
				known.code[v.Names[0].Name] = text
			}
		}
	}
	if len(known.code) < 2*len(known.text)/3 {
		t.Fatalf("the kinds' names were not found: %v", known)
	}
	return known
}

// in returns the kinds named in a part of a source, without function bodies.
func (k kindNaming) in(root ast.Node) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.CallExpr:
			return n == root
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && k.text[text] != "" {
				found[k.text[text]] = true
			}
		case *ast.SelectorExpr:
			if kind := k.code[n.Sel.Name]; kind != "" && qualified(n) != "" {
				found[kind] = true
			}
		}
		return true
	})
	return found
}

// inTable returns the kinds of a switch that maps them to words.
func (k kindNaming) inTable(body *ast.BlockStmt) map[string]bool {
	found := map[string]bool{}
	for _, s := range body.List {
		c := s.(*ast.CaseClause)
		if len(c.Body) > 0 && !slices.ContainsFunc(c.Body, acting) {
			for _, e := range c.List {
				maps.Copy(found, k.in(e))
			}
		}
	}
	return found
}

// acting reports whether a statement does more than return constant text.
func acting(s ast.Stmt) bool {
	var values []ast.Expr
	switch s := s.(type) {
	case *ast.ReturnStmt:
		values = s.Results
	case *ast.AssignStmt:
		values = s.Rhs
	}
	return !slices.ContainsFunc(values, func(e ast.Expr) bool {
		for n := range ast.Preorder(e) {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				return true
			}
		}
		return false
	})
}

// walkSources calls show with every source file except tests.
func walkSources(t *testing.T, show func(file string, f *ast.File, at func(ast.Node) string)) {
	t.Helper()
	files := token.NewFileSet()
	at := func(n ast.Node) string { return strings.TrimPrefix(files.Position(n.Pos()).String(), "../") }
	for _, root := range []string{"hub", "shared", "device", "web", "firmware-configs"} {
		err := fs.WalkDir(os.DirFS(".."), root, func(file string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") ||
				strings.Contains(file, "/testdata/") {
				return err
			}
			f, err := parser.ParseFile(files, "../"+file, nil, 0)
			if err == nil {
				show(file, f, at)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
