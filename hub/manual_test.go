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

// said are the words by which others know what the programs say: reasons of events and of containers,
// types of conditions, each with where. Found is what is written where it is said,
// as a word or by the name of a constant.
type said struct {
	reasons, conditions map[string]string
	words               map[string]bool // every text in the sources
	names               map[string]bool // every name in them: batchv1.JobReasonSuccessPolicy is a word of Kubernetes'
}

var (
	speaks = regexp.MustCompile(`^([eE]vent|Warning|tell)$`)
	word   = regexp.MustCompile(`^([a-z.]+/)?[A-Z][A-Za-z]+$`)
)

func hearSources(t *testing.T) *said {
	t.Helper()
	l := &said{map[string]string{}, map[string]string{}, map[string]bool{}, map[string]bool{}}
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
			if speaks.MatchString(called(n.Fun)) {
				for _, arg := range n.Args {
					note(l.reasons, "", pkg, arg, at(n))
				}
			}
		case *ast.CompositeLit:
			kind, condition := strings.CutSuffix(called(n.Type), "Condition")
			for _, e := range n.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				switch {
				case ok && condition && called(kv.Key) == "Type" && kind != "": // metav1's says not whose it is
					note(l.conditions, kind+".", pkg, kv.Value, at(n))
				case ok && !condition && called(kv.Key) == "Reason" && called(n.Type) != "Status": // of an answer of the API
					note(l.reasons, "", pkg, kv.Value, at(n))
				case !ok && called(n.Type) == "Verdict" && e == n.Elts[0]:
					note(l.reasons, "", pkg, e, at(n))
				}
			}
		}
	})
	return l
}

// The manual tells of every reason that an event, a container that waits and one that has ended can
// have, and of none that no program says any more.
func TestTheManualTellsOfEveryReason(t *testing.T) {
	l := hearSources(t)
	l.hold(t, "events", l.reasons)
}

func TestTheManualTellsOfEveryCondition(t *testing.T) {
	l := hearSources(t)
	l.hold(t, "conditions", l.conditions)
}

func TestTheManualTellsOfEveryCauseOfAnIncident(t *testing.T) {
	l, causes := hearSources(t), map[string]string{}
	for _, c := range diagnose.Causes() {
		causes[string(c)] = "hub/diagnose/rules.go"
	}
	l.hold(t, "incidents", causes)
}

func TestTheManualTellsOfEveryKind(t *testing.T) {
	var served []string
	for _, r := range state.Served() {
		served = append(served, r.In.GroupVersion.String()+"."+string(r.Kind))
	}
	slices.Sort(served)
	if told := slices.Sorted(slices.Values(book(t).Page("kinds").Entries())); !slices.Equal(told, slices.Compact(served)) {
		t.Errorf("web/manual/kinds.md tells of\n%q, and the API serves\n%q", told, served)
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

// hold compares the entries of a page with what there is.
func (l *said) hold(t *testing.T, page string, there map[string]string) {
	t.Helper()
	told := book(t).Page(page).Entries()
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if !slices.Contains(told, name) {
			t.Errorf("web/manual/%s.md does not tell of %s, which is said in %s", page, name, there[name])
		}
	}
	for _, entry := range told {
		name := entry
		if page == "conditions" {
			_, name, _ = strings.Cut(entry, ".")
		}
		known := l.words[name] || name == "NamespaceDeletionGroupVersionParsingFailure" // NamespaceDeletionGVParsingFailure in Go
		for n := range l.names {
			known = known || strings.Contains(n, name)
		}
		if !known {
			t.Errorf("web/manual/%s.md tells of %s, which there is not", page, entry)
		}
	}
	if len(there) < 5 {
		t.Errorf("only %d were found in the sources", len(there))
	}
}
