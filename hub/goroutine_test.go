package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayEnd lists goroutines that do not recover, each with the reason why their panic may end the
// hub.
var mayEnd = []string{
	"hub.go Run",              // runs the whole hub
	"serve/serve.go Run",      // receives and decides under Catch; after a panic between commit and publish only a restart is safe
	"serve/serve.go ",         // starts parts that recover themselves
	"serve/serve.go run",      // starts listeners, which only accept; each connection recovers itself
	"broker/broker.go accept", // a listener only accepts
}

// TestEveryGoroutineCatchesItsPanics checks every go statement. Its function must recover, or the
// only function of the package that it calls.
func TestEveryGoroutineCatchesItsPanics(t *testing.T) {
	dirs := map[string]map[string]*ast.File{}
	err := filepath.WalkDir(".", func(file string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"testdata", "quickstart", "sim", "e2e", "generate"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if dirs[filepath.Dir(file)] == nil {
			dirs[filepath.Dir(file)] = map[string]*ast.File{}
		}
		dirs[filepath.Dir(file)][file] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, files := range dirs {
		catching := map[string]bool{}
		for _, f := range files {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && catches(fn.Body) {
					catching[fn.Name.Name] = true
				}
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
					for n := range ast.Preorder(fn.Body) { // functions in local variables
						if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
							if lit, ok := a.Rhs[0].(*ast.FuncLit); ok && catches(lit.Body) {
								catching[called(a.Lhs[0])] = true
							}
						}
					}
				}
			}
		}
		for file, f := range files {
			for n := range ast.Preorder(f) {
				var run ast.Expr
				switch n := n.(type) {
				case *ast.GoStmt:
					run = n.Call.Fun
				case *ast.CallExpr:
					if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "AfterFunc") {
						run = n.Args[len(n.Args)-1]
					}
				}
				if run == nil {
					continue
				}
				seen++
				name := called(run)
				if lit, ok := run.(*ast.FuncLit); ok {
					if catches(lit.Body) {
						continue
					}
					name = only1(lit.Body)
				}
				if !slices.Contains([]string{"Close", "stop", "Keep", "Copy"}, name) && !catching[name] &&
					!slices.Contains(mayEnd, file+" "+name) && !slices.Contains(mayEnd, file+" "+whole(run)) {
					t.Errorf("%s: a goroutine of %q does not catch a panic, which would end the hub: defer panics.Catch or "+
						"panics.CatchThen in it", file, name)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d go statements were found", seen)
	}
}

func catches(b *ast.BlockStmt) bool {
	return slices.ContainsFunc(b.List, func(s ast.Stmt) bool {
		d, ok := s.(*ast.DeferStmt)
		if !ok || strings.HasPrefix(whole(d.Call.Fun), "panics.Catch") {
			return ok
		}
		for n := range ast.Preorder(d) {
			if c, ok := n.(*ast.CallExpr); ok && whole(c.Fun) == "recover" {
				return true
			}
		}
		return false
	})
}

// only1 returns the name of the only function that a body calls, or "" if the body does more.
func only1(b *ast.BlockStmt) string {
	if len(b.List) != 1 {
		return ""
	}
	var e ast.Expr
	switch s := b.List[0].(type) {
	case *ast.ExprStmt:
		e = s.X
	case *ast.AssignStmt:
		e = s.Rhs[0]
	case *ast.ReturnStmt:
		if len(s.Results) == 1 {
			e = s.Results[0]
		}
	}
	if c, ok := e.(*ast.CallExpr); ok {
		return called(c.Fun)
	}
	return ""
}

func called(e ast.Expr) string {
	name := whole(e)
	return name[strings.LastIndex(name, ".")+1:]
}

func whole(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x := whole(e.X); x != "" {
			return x + "." + e.Sel.Name
		}
		return e.Sel.Name
	case *ast.FuncLit:
		if len(e.Body.List) == 1 {
			if r, ok := e.Body.List[0].(*ast.ReturnStmt); ok && len(r.Results) == 1 {
				if c, ok := r.Results[0].(*ast.CallExpr); ok {
					return whole(c.Fun)
				}
			}
		}
	}
	return ""
}
