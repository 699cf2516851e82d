package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kubernetes' published documents lack the values that fields can have. A kube-apiserver takes the
// values from its generated code, so this program reads them there.
const enumSource = "pkg/generated/openapi/zz_generated.openapi.go"

// An enum lists the values of a field, or of the elements of a list.
type enum struct {
	values []any
	text   string // meaning of each value, from the field's description
	items  bool
}

// enumsByField has every enum by schema and field, such as "io.k8s.api.core.v1.Container
// imagePullPolicy".
type enumsByField map[string]enum

// refusedValues are valid in Kubernetes, but package admission refuses them. A test of package kube
// compares this list with admission.
var refusedValues = map[string][]string{
	"core.v1.GRPCAction mode":                                    {"TLS"},
	"apps.v1.StatefulSetUpdateStrategy type":                     {"Recreate"},
	"core.v1.PersistentVolumeClaimSpec accessModes":              {"ReadOnlyMany", "ReadWriteMany"},
	"core.v1.PersistentVolumeSpec accessModes":                   {"ReadOnlyMany", "ReadWriteMany"},
	"core.v1.PersistentVolumeClaimSpec volumeMode":               {"Block"},
	"core.v1.PersistentVolumeSpec volumeMode":                    {"Block"},
	"core.v1.PersistentVolumeSpec persistentVolumeReclaimPolicy": {"Recycle"},
	"core.v1.ResourceQuotaSpec scopes":                           {"VolumeAttributesClass"},
	"core.v1.ScopedResourceSelectorRequirement scopeName":        {"VolumeAttributesClass"},
	"core.v1.Toleration operator":                                {"Gt", "Lt"},
	"storage.v1.StorageClass reclaimPolicy":                      {"Recycle"},
	"storage.v1.StorageClass volumeBindingMode":                  {"Immediate"},
}

var schemaFunc = regexp.MustCompile(`^schema_k8sio_api_([a-z0-9]+)_([a-z0-9]+)_(\w+)$`)

// enums reads the values of all fields from Kubernetes' generated code.
func enums(module string) (enumsByField, error) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(module, filepath.FromSlash(enumSource)), nil,
		parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("read the values of fields: %w", err)
	}
	all := enumsByField{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		m := schemaFunc.FindStringSubmatch(fn.Name.Name)
		if m == nil {
			continue
		}
		name := m[1] + "." + m[2] + "." + m[3]
		ast.Inspect(fn, func(n ast.Node) bool {
			p, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			field, ok := text(p.Key)
			if !ok {
				return true
			}
			if e, ok := enumOf(p.Value); ok {
				refused := refusedValues[name+" "+field]
				e.values = slices.DeleteFunc(e.values, func(v any) bool { return slices.Contains(refused, v.(string)) })
				head, lines, listed := strings.Cut(e.text, "\n - ")
				kept := slices.DeleteFunc(strings.Split(lines, "\n - "), func(line string) bool {
					return slices.ContainsFunc(refused, func(v string) bool {
						return strings.HasPrefix(line, "`"+strconv.Quote(v)+"`")
					})
				})
				if listed {
					e.text = strings.Join(append([]string{head}, kept...), "\n - ")
				}
				all["io.k8s.api."+name+" "+field] = e
			}
			return false
		})
	}
	if len(all) < 100 {
		return nil, fmt.Errorf("%s: %d fields have values: is the code written in another way now?", enumSource, len(all))
	}
	return all, nil
}

// enumOf finds the values in the literal of a property.
func enumOf(property ast.Expr) (e enum, ok bool) {
	var walk func(n ast.Node, items bool)
	walk = func(n ast.Node, items bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			kv, is := n.(*ast.KeyValueExpr)
			if !is {
				return true
			}
			switch key, _ := kv.Key.(*ast.Ident); {
			case key == nil:
			case key.Name == "AdditionalProperties": // a map's values, for which documents have no field
				return false
			case key.Name == "Items":
				walk(kv.Value, true)
				return false
			case key.Name == "Description" && !items:
				description, _ := text(kv.Value)
				if i := strings.Index(description, "\n\nPossible enum values:\n"); i >= 0 {
					e.text = description[i:]
				}
			case key.Name == "Enum":
				for _, v := range kv.Value.(*ast.CompositeLit).Elts {
					s, _ := text(v)
					e.values = append(e.values, s)
				}
				e.items, ok = items, true
				return false
			}
			return true
		})
	}
	walk(property, false)
	return e, ok
}

// text returns the value of a string literal.
func text(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// addTo adds the values to the fields of a schema.
func (all enumsByField) addTo(name string, schema object) {
	properties, _ := schema["properties"].(object)
	for field, p := range properties {
		e, ok := all[name+" "+field]
		if !ok {
			continue
		}
		p := p.(object)
		if e.items {
			p = p["items"].(object)
		}
		p["enum"] = e.values
		if e.text != "" {
			description, _ := p["description"].(string)
			p["description"] = description + e.text
		}
	}
}
