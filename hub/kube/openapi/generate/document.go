package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/admission"

	_ "embed"
)

type object = map[string]any

// A document is an OpenAPI document of version 2 or 3.
type document struct {
	object
	values enumsByField
}

//go:embed own.yaml
var own []byte // the hub's own schemas, in the form of version 3

const (
	refs3 = "#/components/schemas/"
	refs2 = "#/definitions/"
)

func load(file string, values enumsByField) (document, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return document{}, err
	}
	var d object
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&d); err != nil {
		return document{}, fmt.Errorf("read %s: %w", file, err)
	}
	return document{d, values}, nil
}

func (d document) at(keys ...string) object {
	o := d.object
	for _, k := range keys {
		next, _ := o[k].(object)
		if next == nil {
			next = object{}
			o[k] = next
		}
		o = next
	}
	return o
}

func (d document) schemas() object {
	if d.object["swagger"] != nil {
		return d.at("definitions")
	}
	return d.at("components", "schemas")
}

func (d document) refs() string {
	if d.object["swagger"] != nil {
		return refs2
	}
	return refs3
}

// bytes returns compact JSON with sorted keys, so that equal documents have equal bytes.
func (d document) bytes() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(d.object); err != nil {
		panic(err) // the value was decoded from JSON
	}
	return bytes.TrimSpace(b.Bytes())
}

// version3 makes the document of one group and version.
func version3(dir, version string, values enumsByField) (document, error) {
	upstream := func(version string) (document, error) {
		return load(filepath.Join(dir, "v3", strings.ReplaceAll(strings.TrimPrefix(root(version), "/"), "/", "__")+
			"_openapi.json"), values)
	}
	from := version
	if slices.ContainsFunc(served, func(r resource) bool { return r.version == version && r.like != "" }) {
		from = "v1" // the paths are made from those of v1
	}
	d, err := upstream(from)
	if err != nil {
		return document{}, err
	}
	return d, d.filter(func(r resource) bool { return r.version == version })
}

// version2 makes the only document of version 2.
func version2(dir string, values enumsByField) (document, error) {
	d, err := load(filepath.Join(dir, "swagger.json"), values)
	if err != nil {
		return document{}, err
	}
	return d, d.filter(func(resource) bool { return true })
}

// filter keeps only the paths of served resources, and the schemas that they need.
func (d document) filter(mine func(resource) bool) error {
	d.at("info")["title"] = "Flotilla, a Kubernetes-compatible API"
	if err := d.addOwn(); err != nil {
		return err
	}
	have, keep := d.at("paths"), object{}
	for _, r := range served {
		if !mine(r) {
			continue
		}
		for path, methods := range r.paths() {
			like := path
			if r.like != "" {
				like = strings.Replace(strings.Replace(path, root(r.version), root("v1"), 1), "/"+r.plural, "/"+r.like, 1)
			}
			item, ok := have[like].(object)
			if !ok {
				return fmt.Errorf("upstream has no path %s", like)
			}
			item = d.renamed(item, r)
			removeUnserved(item, r.unserved)
			for _, method := range []string{"get", "put", "post", "delete", "patch", "head", "options"} {
				if !slices.Contains(methods, method) {
					delete(item, method)
				}
			}
			for _, method := range methods {
				if item[method] == nil {
					return fmt.Errorf("upstream has no method %s of %s", method, like)
				}
			}
			keep[path] = item
		}
	}
	d.object["paths"] = keep
	for name, s := range d.schemas() {
		d.values.addTo(name, s.(object))
		annotate(name, s.(object))
		ofServed(s.(object))
		if properties, _ := s.(object)["properties"].(object); properties != nil {
			maps.DeleteFunc(properties, func(field string, _ any) bool { return slices.Contains(unread, field) })
		}
	}
	d.prune()
	return nil
}

// addOwn adds the schemas of the hub's own kinds.
func (d document) addOwn() error {
	text := own
	if d.refs() == refs2 {
		text = bytes.ReplaceAll(text, []byte(refs3), []byte(refs2))
	}
	var schemas object
	if err := yaml.UnmarshalStrict(text, &schemas); err != nil {
		return fmt.Errorf("read own.yaml: %w", err)
	}
	maps.Copy(d.schemas(), schemas)
	return nil
}

// renamed returns a copy of a path item. If the item is of the resource r.like, the copy has the
// names of r.
func (d document) renamed(item object, r resource) object {
	text := string(document{object: item}.bytes())
	if r.like != "" {
		group, version, _ := strings.Cut(r.version, "/")
		name := map[string]string{"flotilla.dev": "dev.flotilla.v1alpha1.",
			"metrics.k8s.io":       "io.k8s.metrics.pkg.apis.metrics.v1beta1.",
			"apiextensions.k8s.io": "dev.flotilla.empty.v1."}[group]
		id := map[string]string{"flotilla.dev": "FlotillaV1alpha1", "metrics.k8s.io": "MetricsV1beta1",
			"apiextensions.k8s.io": "ApiextensionsV1"}[group]
		for _, pair := range [][2]string{
			{`"io.k8s.api.core.v1.` + r.likeKind + `"`, `"` + name + r.kind + `"`},
			{d.refs() + "io.k8s.api.core.v1." + r.likeKind + `"`, d.refs() + name + r.kind + `"`},
			{d.refs() + "io.k8s.api.core.v1." + r.likeKind + `List"`, d.refs() + name + r.kind + `List"`},
			{`{"group":"","kind":"` + r.likeKind + `","version":"v1"}`,
				`{"group":"` + group + `","kind":"` + r.kind + `","version":"` + version + `"}`},
			{`"core_v1"`, `"` + strings.ReplaceAll(group, ".", "") + "_" + version + `"`},
			{"CoreV1Namespaced" + r.likeKind, id + "Namespaced" + r.kind},
			{"CoreV1Collection" + r.likeKind, id + "Collection" + r.kind},
			{"CoreV1CollectionNamespaced" + r.likeKind, id + "CollectionNamespaced" + r.kind},
			{"CoreV1" + r.likeKind, id + r.kind},
			{" " + r.likeKind + `"`, " " + r.kind + `"`},
			{"kind " + r.likeKind, "kind " + r.kind},
			{"the " + r.likeKind + `"`, "the " + r.kind + `"`},
			{"specified " + r.likeKind, "specified " + r.kind},
		} {
			text = strings.ReplaceAll(text, pair[0], pair[1])
		}
	}
	var out object
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&out); err != nil {
		panic(err) // the replacements keep the JSON valid
	}
	return out
}

// unread are the parameters and fields of DeleteOptions and ListMeta that the hub ignores.
var unread = []string{"ignoreStoreReadErrorWithClusterBreakingPotential", "shardInfo", "shardSelector"}

// unserved reports whether the hub does not serve the resource in a media type.
func (r resource) unserved(media string) bool {
	return strings.Contains(media, "cbor") || r.plain && strings.Contains(media, "vnd.kubernetes.protobuf")
}

// removeUnserved removes unserved media types and ignored parameters from a path item.
func removeUnserved(v any, silent func(media string) bool) {
	switch v := v.(type) {
	case object:
		for key, value := range v {
			list, _ := value.([]any)
			switch {
			case list != nil && (key == "consumes" || key == "produces"):
				v[key] = slices.DeleteFunc(list, func(media any) bool { return silent(fmt.Sprint(media)) })
			case list != nil && key == "parameters":
				v[key] = slices.DeleteFunc(list, func(p any) bool {
					ref, _ := p.(object)["$ref"].(string) // version 2: a reference to the name and a hash
					name, _, _ := strings.Cut(strings.TrimPrefix(ref, "#/parameters/"), "-")
					return slices.Contains(unread, name) || slices.Contains(unread, fmt.Sprint(p.(object)["name"]))
				})
			case silent(key):
				delete(v, key)
				continue
			}
			removeUnserved(v[key], silent)
		}
	case []any:
		for _, item := range v {
			removeUnserved(item, silent)
		}
	}
}

var typeOf = regexp.MustCompile(`^io\.k8s\.api\.(core|coordination)\.v1\.(\w+)$`)

// annotate marks a schema's fields that have no effect here or are refused. It removes the schemas
// of refused fields.
func annotate(name string, schema object) {
	m := typeOf.FindStringSubmatch(name)
	if m == nil {
		return
	}
	properties, _ := schema["properties"].(object)
	for field, p := range properties {
		p := p.(object)
		text, _ := p["description"].(string)
		switch support, why := admission.SupportOf(m[2], field); support {
		case admission.Ignored:
			p["description"] = "Has no effect here: " + why + ". " + text
		case admission.Refused:
			refused := object{"description": "Not supported here: " + why + "."}
			switch p["type"] {
			case "string", "boolean", "integer", "number":
				refused["type"] = p["type"]
			case "array":
				refused["type"], refused["items"] = "array", object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
				if items, _ := p["items"].(object); items != nil && items["type"] == "string" {
					refused["items"] = object{"type": "string"}
				}
			default:
				refused["type"], refused["x-kubernetes-preserve-unknown-fields"] = "object", true
			}
			properties[field] = refused
		}
	}
}

// ofServed removes the unserved groups from the list of groups that share a schema, such as
// DeleteOptions.
func ofServed(schema object) {
	list, _ := schema["x-kubernetes-group-version-kind"].([]any)
	if len(list) < 2 {
		return
	}
	schema["x-kubernetes-group-version-kind"] = slices.DeleteFunc(list, func(v any) bool {
		gvk := v.(object)
		version := strings.TrimPrefix(fmt.Sprint(gvk["group"], "/", gvk["version"]), "/")
		return !slices.Contains(versions(), version)
	})
}

// prune removes unreferenced schemas and parameters.
func (d document) prune() {
	need := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case object:
			if ref, ok := v["$ref"].(string); ok && !need[ref] {
				need[ref] = true
				name := ref[strings.LastIndex(ref, "/")+1:]
				if strings.HasPrefix(ref, d.refs()) {
					walk(d.schemas()[name])
				} else {
					walk(d.at("parameters")[name])
				}
			}
			for _, value := range v {
				walk(value)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(d.object["paths"])
	maps.DeleteFunc(d.schemas(), func(name string, _ any) bool { return !need[d.refs()+name] })
	if d.refs() == refs2 {
		maps.DeleteFunc(d.at("parameters"), func(name string, _ any) bool { return !need["#/parameters/"+name] })
	}
}

// stripDescriptions removes the texts for people from schemas. It also removes lists of values,
// because admission checks them.
func stripDescriptions(v any) {
	switch v := v.(type) {
	case object:
		for key, value := range v {
			if _, text := value.(string); text && key == "description" {
				delete(v, key)
				continue
			}
			if _, list := value.([]any); list && key == "enum" {
				delete(v, key)
				continue
			}
			stripDescriptions(value)
		}
	case []any:
		for _, item := range v {
			stripDescriptions(item)
		}
	}
}
