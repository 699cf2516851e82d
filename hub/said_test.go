package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A tongue finds what the programs say in words that others know them by: the reasons of
// events and the types of conditions. It reads the sources, and follows a value that is
// not written where it is used through the package: constants, assignments, parameters,
// results and fields, by their names. It so finds a word too many rather than too few.
type tongue struct {
	pkgs    map[string]*words            // by folder
	strange map[string]map[string]string // constants of others' packages, by the name they are imported under
	unknown []string                     // what led nowhere
}

// words are one package's.
type words struct {
	at        func(ast.Node) string
	consts    map[string]ast.Expr
	fields    map[string][]string // of its structs, in their order
	funcs     map[string][]*ast.FuncDecl
	calls     map[string][]*ast.CallExpr
	literals  map[string][]*ast.CompositeLit // by type
	callers   map[*ast.CallExpr]*ast.FuncDecl
	composers map[*ast.CompositeLit]*ast.FuncDecl
	sets      []set
	typed     map[string]string   // the types of constants and variables that say theirs
	untyped   []*ast.CompositeLit // those whose type stands around them
}

// A set gives a field of something another value: x.Reason = reason.
type set struct {
	fn    *ast.FuncDecl
	of    string // the type of x
	field string
	to    ast.Expr
}

func listenTo(t *testing.T) *tongue {
	t.Helper()
	l := &tongue{pkgs: map[string]*words{}, strange: map[string]map[string]string{}}
	for name, dir := range map[string]string{"corev1": "k8s.io/api core/v1", "appsv1": "k8s.io/api apps/v1", "batchv1": "k8s.io/api batch/v1", "policyv1": "k8s.io/api policy/v1", "certv1": "k8s.io/api certificates/v1"} {
		module, below, _ := strings.Cut(dir, " ")
		l.strange[name] = constants(t, filepath.Join(moduleDir(t, module), below))
	}
	l.strange["fleet"] = constants(t, "../shared/fleet")
	l.strange["state"] = constants(t, "state")
	walkSources(t, func(file string, f *ast.File, at func(ast.Node) string) {
		dir := path.Dir(file)
		p := l.pkgs[dir]
		if p == nil {
			p = &words{at: at, consts: map[string]ast.Expr{}, typed: map[string]string{}, fields: map[string][]string{}, funcs: map[string][]*ast.FuncDecl{}, calls: map[string][]*ast.CallExpr{},
				literals: map[string][]*ast.CompositeLit{}, callers: map[*ast.CallExpr]*ast.FuncDecl{}, composers: map[*ast.CompositeLit]*ast.FuncDecl{}}
			l.pkgs[dir] = p
		}
		for _, d := range f.Decls {
			p.read(d)
		}
	})
	return l
}

func (p *words) read(d ast.Decl) {
	fn, _ := d.(*ast.FuncDecl)
	if fn != nil {
		p.funcs[fn.Name.Name] = append(p.funcs[fn.Name.Name], fn)
	}
	for n := range ast.Preorder(d) {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if fn == nil && i < len(n.Values) {
					p.consts[name.Name], p.typed[name.Name] = n.Values[i], lastName(n.Type)
				}
			}
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						p.fields[n.Name.Name] = append(p.fields[n.Name.Name], name.Name)
					}
				}
			}
		case *ast.CallExpr:
			name := lastName(n.Fun)
			p.calls[name] = append(p.calls[name], n)
			p.callers[n] = fn
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if sel, ok := to.(*ast.SelectorExpr); ok && len(n.Lhs) == len(n.Rhs) {
					p.sets = append(p.sets, set{fn, typeOf(fn, sel.X), sel.Sel.Name, n.Rhs[i]})
				}
			}
		case *ast.CompositeLit:
			name := lastName(n.Type)
			p.literals[name] = append(p.literals[name], n)
			p.composers[n] = fn
			if n.Type == nil {
				p.untyped = append(p.untyped, n)
			}
			if a, ok := n.Type.(*ast.ArrayType); ok { // whose elements do not say their type again
				for _, e := range n.Elts {
					if e, ok := e.(*ast.CompositeLit); ok && e.Type == nil {
						p.literals[lastName(a.Elt)] = append(p.literals[lastName(a.Elt)], e)
						p.composers[e] = fn
					}
				}
			}
		}
	}
}

// lastName is the name of what is called or made: Put of state.Put.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return lastName(e.X)
	case *ast.ParenExpr:
		return lastName(e.X)
	case *ast.StarExpr:
		return lastName(e.X)
	}
	return ""
}

// fieldOf returns what a literal says of a field, nil if it says nothing.
func (p *words) fieldOf(lit *ast.CompositeLit, typ, field string) ast.Expr {
	for i, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if lastName(kv.Key) == field {
				return kv.Value
			}
		} else if i == slices.Index(p.fields[typ], field) {
			return e
		}
	}
	return nil
}

// values are the words that an expression in a function can be.
func (l *tongue) values(p *words, fn *ast.FuncDecl, e ast.Expr, seen map[ast.Node]bool) map[string]bool {
	out := map[string]bool{}
	if e == nil || seen[e] {
		return out
	}
	seen[e] = true
	all := func(es ...ast.Expr) {
		for _, e := range es {
			maps.Copy(out, l.values(p, fn, e, seen))
		}
	}
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			out[s] = true
		}
	case *ast.ParenExpr:
		all(e.X)
	case *ast.StarExpr:
		all(e.X)
	case *ast.Ident:
		l.local(p, fn, e, seen, out)
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if v, ok := l.strange[x.Name][e.Sel.Name]; ok {
				out[v] = true
				return out
			}
		}
		types := []string{typeOf(fn, e.X)}
		if types[0] == "" {
			types = nil
			for typ, fields := range p.fields {
				if slices.Contains(fields, e.Sel.Name) {
					types = append(types, typ)
				}
			}
		}
		for _, typ := range types {
			for _, lit := range p.literals[typ] {
				maps.Copy(out, l.values(p, p.composers[lit], p.fieldOf(lit, typ, e.Sel.Name), seen))
			}
		}
	case *ast.BinaryExpr: // as much of it as is written: OutOf of "OutOf"+name
		all(e.X)
	case *ast.CallExpr:
		if fns := p.funcs[lastName(e.Fun)]; len(fns) > 0 {
			for _, f := range fns {
				l.results(p, f, 0, seen, out)
			}
		} else if len(e.Args) > 0 { // a conversion, cmp.Or
			all(e.Args...)
		}
	}
	return out
}

// typeOf is the type of a name in a function, "" if it does not say so in so many words.
func typeOf(fn *ast.FuncDecl, e ast.Expr) string {
	id, ok := e.(*ast.Ident)
	if !ok || fn == nil {
		return ""
	}
	for n := range ast.Preorder(fn) {
		switch n := n.(type) {
		case *ast.FuncType:
			for _, f := range n.Params.List {
				if slices.ContainsFunc(f.Names, func(name *ast.Ident) bool { return name.Name == id.Name }) {
					return lastName(f.Type)
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				from := n.Rhs[min(i, len(n.Rhs)-1)]
				if ref, ok := from.(*ast.UnaryExpr); ok {
					from = ref.X
				}
				if lit, ok := from.(*ast.CompositeLit); ok && n.Tok == token.DEFINE && lastName(to) == id.Name {
					return lastName(lit.Type)
				}
			}
		}
	}
	return ""
}

// local finds what a name in a function stands for.
func (l *tongue) local(p *words, fn *ast.FuncDecl, name *ast.Ident, seen map[ast.Node]bool, out map[string]bool) {
	add := func(fn *ast.FuncDecl, e ast.Expr) { maps.Copy(out, l.values(p, fn, e, seen)) }
	if fn != nil {
		for n := range ast.Preorder(fn) {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if lastName(to) != name.Name {
						continue
					}
					if len(n.Lhs) == len(n.Rhs) {
						add(fn, n.Rhs[i])
					} else if call, ok := n.Rhs[0].(*ast.CallExpr); ok {
						for _, f := range p.funcs[lastName(call.Fun)] {
							l.results(p, f, i, seen, out)
						}
					}
				}
			case *ast.ValueSpec:
				for i, to := range n.Names {
					if to.Name == name.Name && i < len(n.Values) {
						add(fn, n.Values[i])
					}
				}
			case *ast.RangeStmt: // over a literal
				if lit, ok := n.X.(*ast.CompositeLit); ok && n.Value != nil && lastName(n.Value) == name.Name {
					for _, e := range lit.Elts {
						add(fn, e)
					}
				}
			case *ast.FuncLit: // its own parameters: what it is called with, if that has a name
				for i, param := range names(n.Type.Params) {
					if param == name.Name {
						for _, to := range assignedTo(fn, n) {
							for _, call := range p.calls[to] {
								if p.callers[call] == fn && i < len(call.Args) {
									add(fn, call.Args[i])
								}
							}
						}
					}
				}
			}
		}
		for i, param := range names(fn.Type.Params) {
			if param == name.Name {
				for _, call := range p.calls[fn.Name.Name] {
					if i < len(call.Args) {
						add(p.callers[call], call.Args[i])
					}
				}
			}
		}
	}
	if e, ok := p.consts[name.Name]; ok && len(out) == 0 {
		add(nil, e)
	}
}

// assignedTo are the names that a function literal gets in the function around it.
func assignedTo(fn *ast.FuncDecl, lit *ast.FuncLit) (to []string) {
	for n := range ast.Preorder(fn) {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, e := range a.Rhs {
				if e == lit {
					to = append(to, lastName(a.Lhs[i]))
				}
			}
		}
	}
	return to
}

// results are the words that a function's i-th result can be.
func (l *tongue) results(p *words, fn *ast.FuncDecl, i int, seen map[ast.Node]bool, out map[string]bool) {
	named := names(fn.Type.Results)
	for n := range ast.Preorder(fn) {
		if r, ok := n.(*ast.ReturnStmt); ok {
			if i < len(r.Results) {
				maps.Copy(out, l.values(p, fn, r.Results[i], seen))
			} else if len(r.Results) == 1 {
				if call, ok := r.Results[0].(*ast.CallExpr); ok && !seen[call] {
					seen[call] = true
					for _, f := range p.funcs[lastName(call.Fun)] {
						l.results(p, f, i, seen, out)
					}
				}
			}
		}
	}
	if i < len(named) {
		l.local(p, fn, ast.NewIdent(named[i]), seen, out)
	}
}

func names(fields *ast.FieldList) (out []string) {
	if fields == nil {
		return nil
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			out = append(out, n.Name)
		}
	}
	return out
}

// word is what reasons and types of conditions look like.
var word = regexp.MustCompile(`^([a-z.]+/)?[A-Z][A-Za-z]+$`)

// say adds the words that an expression can be, or that none was found.
func (l *tongue) say(p *words, fn *ast.FuncDecl, e ast.Expr, into map[string][]string) {
	found := 0
	for v := range l.values(p, fn, e, map[ast.Node]bool{}) {
		if word.MatchString(v) {
			into[v] = append(into[v], p.at(e))
			found++
		}
	}
	if found == 0 {
		l.unknown = append(l.unknown, p.at(e))
	}
}

// told are the types that become events, and why the types by which the device says what
// is the matter with a container.
var (
	told = []string{"Said", "Change", "Event"}
	why  = []string{"Verdict", "ContainerStateWaiting", "ContainerStateTerminated", "PodStatus"}
)

// passes are where the words of somebody else are handed on.
var passes = []string{"hub/node/event.go", "hub/node/desired.go", "hub/state/plan.go", "hub/kube/show.go", "hub/lifecycle/health.go", "hub/workload/controller.go", "hub/workload/daemonroll.go", "hub/workload/namespace.go", "hub/kube/table/pod.go", "device/agent/podstatus.go"}

// reasons are those of all events, and of all containers that wait or have ended, with where.
func (l *tongue) reasons() map[string][]string {
	out := map[string][]string{}
	for _, p := range l.programs() {
		for _, method := range []string{"Event", "Warning"} {
			for _, call := range p.calls[method] {
				if len(call.Args) == 1 && typeOf(p.callers[call], call.Args[0]) != "Event" && (p.calls["Put"] != nil || p.calls["Remove"] != nil) {
					l.say(p, p.callers[call], call.Args[0], out)
				}
			}
		}
		l.fields(p, func(typ string) bool { return slices.Contains(told, typ) || slices.Contains(why, typ) }, "Reason", func(string) map[string][]string { return out })
	}
	return out
}

// conditions are the types of conditions that the programs set, as Node.Ready, with where.
func (l *tongue) conditions() map[string][]string {
	byKind := map[string]map[string][]string{}
	for _, p := range l.programs() {
		l.fields(p, func(typ string) bool { return strings.HasSuffix(typ, "Condition") }, "Type", func(typ string) map[string][]string {
			kind := strings.TrimSuffix(typ, "Condition")
			if kind == "" { // metav1's, which has them all
				kind = "PodDisruptionBudget"
				if p == l.pkgs["hub/rollout"] {
					kind = "FirmwareRollout"
				}
			}
			if byKind[kind] == nil {
				byKind[kind] = map[string][]string{}
			}
			return byKind[kind]
		})
	}
	out := map[string][]string{}
	for kind, types := range byKind {
		for typ, at := range types {
			out[kind+"."+typ] = at
		}
	}
	return out
}

// programs are the packages that are no tests' helpers and no attackers.
func (l *tongue) programs() (all []*words) {
	for dir, p := range l.pkgs {
		if !strings.HasPrefix(dir, "hub/e2e/") && !strings.HasSuffix(dir, "test") {
			all = append(all, p)
		}
	}
	return all
}

// fields says what a field is given in values of some types.
func (l *tongue) fields(p *words, of func(typ string) bool, field string, into func(typ string) map[string][]string) {
	for typ, lits := range p.literals {
		for _, lit := range lits {
			if e := p.fieldOf(lit, typ, field); e != nil && of(typ) {
				l.say(p, p.composers[lit], e, into(typ))
			}
		}
	}
	for _, s := range p.sets {
		if s.field == field && of(s.of) {
			l.say(p, s.fn, s.to, into(s.of))
		}
	}
}

// constants are those of a package that have a text for a value.
func constants(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources in %s: %v", dir, err)
	}
	out := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(filepath.Base(file), "generated") || strings.HasPrefix(filepath.Base(file), "zz_") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for n := range ast.Preorder(f) {
			if s, ok := n.(*ast.ValueSpec); ok {
				for i, v := range s.Values {
					if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						out[s.Names[i].Name], _ = strconv.Unquote(lit.Value)
					}
				}
			}
		}
	}
	return out
}

func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("where is %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}
