package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A scenario is a line of testdata/scenarios.txt: a rule that Kubernetes' own tests assert, and the
// tests here that check it.
type scenario struct {
	line  int
	id    string
	rule  string
	where []string
}

const scenarioList = "testdata/scenarios.txt"

// anID matches an id of the list.
var anID = regexp.MustCompile(`^(?:[ZEULT][0-9]+'?|S[0-9]+\.(?:[a-z0-9]+\.)?[0-9]+)$`)

// TestScenarios compares the list with the tests. Each row has a case that begins with its id, or a
// reason why not. Each case's id is in the list.
func TestScenarios(t *testing.T) {
	list, err := readScenarios(scenarioList)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := findCases("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, complaint := range compareCases(list, cases) {
		t.Error(complaint)
	}
	kinds := map[string]int{}
	for _, s := range list {
		kind, text, _ := strings.Cut(s.where[0], ": ")
		if kinds[kind]++; kind == "open" {
			t.Logf("open: %s %s: %s", s.id, s.rule, text)
		}
	}
	t.Logf("%d rows: %d with a case, %d by other tests, %d not ours, %d open", len(list), kinds["test"],
		kinds["by"], kinds["not ours"], kinds["open"])
}

// compareCases returns the differences between the list and the cases.
func compareCases(list []scenario, cases map[string]caseSet) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	known := map[string]bool{}
	for _, s := range list {
		if !anID.MatchString(s.id) {
			complain("line %d: %q does not have the form of an id", s.line, s.id)
		}
		if known[s.id] {
			complain("line %d: %s is listed twice", s.line, s.id)
		}
		known[s.id] = true
		for _, w := range s.where {
			kind, text, _ := strings.Cut(w, ": ")
			found, there := cases[text]
			switch kind {
			case "test":
				if !there {
					complain("line %d: %s: %s not found", s.line, s.id, text)
				} else if !found[s.id] {
					complain("line %d: %s: no case of %s begins with the id", s.line, s.id, text)
				}
			case "by":
				if !there {
					complain("line %d: %s: %s not found", s.line, s.id, text)
				}
			case "not ours", "open":
				if len(strings.Fields(text)) < 4 {
					complain("line %d: %s: %q is not a reason", s.line, s.id, w)
				}
			default:
				complain("line %d: %s: %q must be test, by, not ours or open", s.line, s.id, w)
			}
		}
	}
	for name, ids := range cases {
		for id := range ids {
			if !known[id] {
				complain("%s has a case %s, which %s does not list", name, id, scenarioList)
			}
		}
	}
	slices.Sort(complaints)
	return complaints
}

func readScenarios(file string) (list []scenario, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, " | ")
		if len(f) != 3 || f[1] == "" {
			return nil, fmt.Errorf("%s:%d: want id | rule | where", file, i+1)
		}
		s := scenario{line: i + 1, id: f[0], rule: f[1], where: []string{f[2]}}
		if strings.HasPrefix(f[2], "test:") || strings.HasPrefix(f[2], "by:") { // a reason may have semicolons
			s.where = strings.Split(f[2], "; ")
		}
		list = append(list, s)
	}
	return list, nil
}

// A caseSet has the ids at the beginning of a test's cases, or of a story's header.
type caseSet map[string]bool

// findCases returns the ids of all tests by DIR/TestName, and of all stories by file, below root.
func findCases(root string) (map[string]caseSet, error) {
	cases := map[string]caseSet{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case d.IsDir():
			if strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
				return fs.SkipDir
			}
		case strings.HasSuffix(rel, "_test.go"):
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
					cases[path.Dir(rel)+"/"+fn.Name.Name] = idsIn(fn)
				}
			}
		case path.Base(path.Dir(rel)) == "testdata" && strings.HasSuffix(rel, ".txt") && rel != "hub/"+scenarioList:
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			header, _, _ := strings.Cut(string(text), "\n")
			if header, ok := strings.CutPrefix(header, "# "); ok {
				cases[rel] = leadingIDs(header)
			}
		}
		return nil
	})
	return cases, err
}

// idsIn returns the ids at the beginning of a test's strings.
func idsIn(fn *ast.FuncDecl) caseSet {
	ids := caseSet{}
	for n := range ast.Preorder(fn) {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				for id := range leadingIDs(s) {
					ids[id] = true
				}
			}
		}
	}
	return ids
}

// leadingIDs returns the ids at the beginning of a sentence.
func leadingIDs(s string) caseSet {
	words, ids := strings.Fields(s), caseSet{}
	for i, w := range words {
		if w = strings.TrimSuffix(w, ":"); !anID.MatchString(w) {
			break
		}
		if i < len(words)-1 {
			ids[w] = true
		}
	}
	return ids
}

// The comparison reports every kind of difference.
func TestDifferencesToTheScenariosAreReported(t *testing.T) {
	cases := map[string]caseSet{"hub/x/TestX": {"Z1": true}, "hub/x/testdata/y.txt": {"E1": true, "E2": true}}
	whole := []scenario{
		{id: "Z1", where: []string{"test: hub/x/TestX"}},
		{id: "E1", where: []string{"test: hub/x/testdata/y.txt", "by: hub/x/TestX"}},
		{id: "E2", where: []string{"test: hub/x/testdata/y.txt"}},
		{id: "S7.4", where: []string{"not ours: there is no such thing"}},
		{id: "S8.life.1", where: []string{"open: it does not do that yet"}},
	}
	for _, c := range []struct {
		name, want string
		change     func([]scenario) []scenario
	}{
		{"a matching list has no differences", "", func(l []scenario) []scenario { return l }},
		{"a row with a missing case", "no case of hub/x/TestX begins with the id", func(l []scenario) []scenario { l[0].id, l[1].id = "E1", "Z1"; return l }},
		{"a row with a missing test", "hub/x/TestY not found", func(l []scenario) []scenario { l[0].where = []string{"test: hub/x/TestY"}; return l }},
		{"a row by a missing test", "hub/x/TestY not found", func(l []scenario) []scenario { l[1].where[1] = "by: hub/x/TestY"; return l }},
		{"a row without a reason", "is not a reason", func(l []scenario) []scenario { l[3].where = []string{"not ours: no"}; return l }},
		{"a row without content", "must be test", func(l []scenario) []scenario { l[3].where = []string{""}; return l }},
		{"a repeated row", "twice", func(l []scenario) []scenario { return append(l, l[0]) }},
		{"an invalid id", "form of an id", func(l []scenario) []scenario { l[3].id = "S7"; return l }},
		{"a case without a row", "hub/x/testdata/y.txt has a case E2", func(l []scenario) []scenario { return slices.Delete(l, 2, 3) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := slices.Clone(whole)
			for i := range list {
				list[i].where = slices.Clone(list[i].where)
			}
			got := strings.Join(compareCases(c.change(list), cases), "\n")
			if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("complaints %q, want %q", got, c.want)
			}
		})
	}
	for text, want := range map[string]string{
		"Z1 a rule": "map[Z1:true]", "E6' a rule": "map[E6':true]", "S8.life.2 S8.life.3 a rule": "map[S8.life.2:true S8.life.3:true]", "E2: a rule": "map[E2:true]",
		"Z1": "map[]", "S10 a rule": "map[]", "a rule of Z1": "map[]", "S7.10 x": "map[S7.10:true]",
	} {
		if got := fmt.Sprint(leadingIDs(text)); got != want {
			t.Errorf("%q begins with %s, want %s", text, got, want)
		}
	}
}
