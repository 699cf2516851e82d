package main

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/web/manual"
)

// reasonSet has the reasons and condition types in the sources, with their places. A source has
// each as a string or as the name of a constant.
type reasonSet struct {
	reasons, conditions map[string]string
	words               map[string]bool // every string in the sources
	names               map[string]bool // every name in the sources, such as batchv1.JobReasonSuccessPolicy
}

var (
	reporting = regexp.MustCompile(`^([eE]vent|Warning|tell)$`)
	word      = regexp.MustCompile(`^([a-z.]+/)?[A-Z][A-Za-z]+$`)
)

func findReasons(t *testing.T) *reasonSet {
	t.Helper()
	l := &reasonSet{map[string]string{}, map[string]string{}, map[string]bool{}, map[string]bool{}}
	consts := map[string]string{}
	value := func(pkg string, e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			text, _ := strconv.Unquote(e.Value)
			return text
		case *ast.Ident:
			return consts[pkg+"."+e.Name]
		case *ast.SelectorExpr:
			return consts[qualified(e)]
		}
		return ""
	}
	sources := func(show func(pkg string, n ast.Node, at func(ast.Node) string)) {
		walkSources(t, func(file string, f *ast.File, at func(ast.Node) string) {
			if !strings.HasPrefix(file, "hub/e2e/") && !helps(path.Dir(file)) {
				for n := range ast.Preorder(f) {
					show(f.Name.Name, n, at)
				}
			}
		})
	}
	sources(func(pkg string, n ast.Node, at func(ast.Node) string) {
		switch n := n.(type) {
		case *ast.BasicLit:
			l.words[value(pkg, n)] = n.Kind == token.STRING
		case *ast.Ident:
			l.names[n.Name] = true
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					consts[pkg+"."+n.Names[i].Name] = value(pkg, lit)
				}
			}
		}
	})
	note := func(into map[string]string, prefix, pkg string, e ast.Expr, at string) {
		if v := value(pkg, e); word.MatchString(v) {
			into[prefix+v] = at
		}
	}
	sources(func(pkg string, n ast.Node, at func(ast.Node) string) {
		switch n := n.(type) {
		case *ast.CallExpr:
			if reporting.MatchString(called(n.Fun)) {
				for _, arg := range n.Args {
					note(l.reasons, "", pkg, arg, at(n))
				}
			}
		case *ast.CompositeLit:
			kind, condition := strings.CutSuffix(called(n.Type), "Condition")
			for _, e := range n.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				switch {
				case ok && pkg == "rollout" && called(n.Type) == "words": // of a kind of rollouts
					note(l.reasons, "", pkg, kv.Value, at(n))
				case ok && condition && called(kv.Key) == "Type" && kind != "": // metav1's reasons are used in events and in API responses
					note(l.conditions, kind+".", pkg, kv.Value, at(n))
				case ok && !condition && called(kv.Key) == "Reason" && called(n.Type) != "Status": // a metav1.Status is an API response
					note(l.reasons, "", pkg, kv.Value, at(n))
				case !ok && called(n.Type) == "Verdict" && e == n.Elts[0]:
					note(l.reasons, "", pkg, e, at(n))
				}
			}
		}
	})
	return l
}

// The manual has exactly the reasons of events and of waiting or ended containers.
func TestTheManualHasEveryReason(t *testing.T) {
	l := findReasons(t)
	l.compare(t, "events", l.reasons)
}

func TestTheManualHasEveryCondition(t *testing.T) {
	l := findReasons(t)
	l.compare(t, "conditions", l.conditions)
}

func TestTheManualHasEveryCauseOfAnIncident(t *testing.T) {
	l, causes := findReasons(t), map[string]string{}
	for _, c := range diagnose.Causes() {
		causes[string(c)] = "hub/diagnose/rules.go"
	}
	l.compare(t, "incidents", causes)
}

func TestTheManualHasEveryKind(t *testing.T) {
	var served []string
	for _, r := range state.Served() {
		served = append(served, r.In.GroupVersion.String()+"."+string(r.Kind))
	}
	slices.Sort(served)
	if listed := slices.Sorted(slices.Values(book(t).Page("kinds").Entries())); !slices.Equal(listed,
		slices.Compact(served)) {
		t.Errorf("web/manual/kinds.md has\n%q, the API serves\n%q", listed, served)
	}
}

func book(t *testing.T) *manual.Manual {
	t.Helper()
	m, err := manual.Load(os.DirFS("../web/manual"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// compare compares a page's entries with the sources.
func (l *reasonSet) compare(t *testing.T, page string, there map[string]string) {
	t.Helper()
	listed := book(t).Page(page).Entries()
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if !slices.Contains(listed, name) {
			t.Errorf("web/manual/%s.md has no entry for %s of %s", page, name, there[name])
		}
	}
	for _, entry := range listed {
		name := entry
		if page == "conditions" {
			_, name, _ = strings.Cut(entry, ".")
		}
		known := l.words[name] || name == "NamespaceDeletionGroupVersionParsingFailure" // the Go name differs: NamespaceDeletionGVParsingFailure
		for n := range l.names {
			known = known || strings.Contains(n, name)
		}
		if !known {
			t.Errorf("web/manual/%s.md has %s, which no source has", page, entry)
		}
	}
	if len(there) < 5 {
		t.Errorf("only %d reasons were found in the sources", len(there))
	}
}
