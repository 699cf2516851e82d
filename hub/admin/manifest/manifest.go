// Package manifest shows objects as YAML and applies what users write. The hub's API checks and
// stores it in the user's name.
package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
)

// A manifest is an object as decoded YAML.
type manifest map[string]any

// parseManifest reads one document; a duplicate key is an error.
func parseManifest(text string) (m manifest, err error) {
	if err := bound.LimitYAML([]byte(text)); err != nil {
		return nil, err
	}
	if err := bound.Document([]byte(text)); err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
		return nil, errors.New(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "),
			"yaml: "))
	}
	if m == nil {
		return nil, errors.New("the document is empty")
	}
	return m, nil
}

func (m manifest) metadata() map[string]any {
	meta, _ := m["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		m["metadata"] = meta
	}
	return meta
}

func (m manifest) text(keys ...string) string {
	var at any = map[string]any(m)
	for _, k := range keys {
		in, _ := at.(map[string]any)
		at = in[k]
	}
	s, _ := at.(string)
	return s
}

// tidy removes the fields that only the hub sets, because users neither write nor compare them.
func (m manifest) tidy() manifest {
	out := manifest{}
	for k, v := range m {
		if k != "status" {
			out[k] = v
		}
	}
	if old, ok := m["metadata"].(map[string]any); ok {
		meta := map[string]any{}
		for k, v := range old {
			switch k {
			case "managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink",
				"deletionTimestamp", "deletionGracePeriodSeconds":
			default:
				meta[k] = v
			}
		}
		out["metadata"] = meta
	}
	return out
}

// compared returns the manifest for a diff, without the copy that kubectl stores in an annotation.
func (m manifest) compared() manifest {
	out := m.tidy()
	meta, _ := out["metadata"].(map[string]any)
	have, _ := meta["annotations"].(map[string]any)
	if _, ok := have[corev1.LastAppliedConfigAnnotation]; !ok {
		return out
	}
	have = maps.Clone(have)
	delete(have, corev1.LastAppliedConfigAnnotation)
	meta["annotations"] = have // tidy has copied the metadata
	if len(have) == 0 {
		delete(meta, "annotations")
	}
	return out
}

func (m manifest) yaml() string {
	b, err := yaml.Marshal(map[string]any(m))
	if err != nil {
		return err.Error() // decoded JSON or YAML can always be encoded
	}
	return string(b)
}

func (m manifest) json() []byte {
	b, err := json.Marshal(map[string]any(m))
	if err != nil {
		return nil
	}
	return b
}

const maxDocuments = 100

// documents returns the objects of a text. A list becomes its items.
func documents(text string) (all []manifest, err error) {
	if err := bound.LimitYAML([]byte(text)); err != nil {
		return nil, err
	}
	r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for n := 1; ; n++ {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read document %d: %w", n, err)
		}
		if blank(doc) {
			continue
		}
		m, err := parseManifest(string(doc))
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		items, isList := m["items"].([]any)
		if !isList || !strings.HasSuffix(m.text("kind"), "List") {
			all = append(all, m)
			continue
		}
		for _, item := range items {
			object, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("document %d: an item of the list is not an object", n)
			}
			all = append(all, object)
		}
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("there is nothing to apply: paste the YAML of one or more objects")
	case len(all) > maxDocuments:
		return nil, fmt.Errorf("there are %d objects: apply at most %d at once, or use kubectl", len(all), maxDocuments)
	}
	return all, nil
}

// blank tells whether a document has only comments.
func blank(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// place finds the API's collection for m: its path, and whether it is namespaced.
func place(c *frame.Call, m manifest) (path string, namespaced bool, err error) {
	version, kind := m.text("apiVersion"), m.text("kind")
	if version == "" || kind == "" {
		return "", false, errors.New("apiVersion and kind must be set, such as apps/v1 and Deployment")
	}
	root := "/apis/" + version
	if !strings.Contains(version, "/") {
		root = "/api/" + version
	}
	a, err := c.AskAPI(frame.APICall{Method: http.MethodGet, Path: root})
	if err != nil {
		return "", false, err
	}
	var list metav1.APIResourceList
	if a.Code == http.StatusOK {
		if err := json.Unmarshal(a.Body, &list); err != nil {
			return "", false, fmt.Errorf("read what the API serves as %s: %w", version, err)
		}
	}
	for _, r := range list.APIResources {
		if r.Kind == kind && !strings.Contains(r.Name, "/") {
			return root + "/" + r.Name, r.Namespaced, nil
		}
	}
	return "", false, fmt.Errorf("unknown kind %s in %s", kind, version)
}

// inNamespace returns a collection's path in a namespace.
func inNamespace(path, namespace string) string {
	i := strings.LastIndexByte(path, '/')
	return path[:i] + "/namespaces/" + namespace + path[i:]
}

// An objectPath is the API's path of one object, such as
// /apis/apps/v1/namespaces/default/deployments/kiosk.
type objectPath struct{ path, namespace, resource, name string }

// parseObjectPath accepts only paths of whole objects, not of subresources or lists.
func parseObjectPath(path string) (o objectPath, ok bool) {
	s := strings.Split(path, "/")
	if len(s) < 2 || s[0] != "" {
		return o, false
	}
	switch s = s[1:]; {
	case s[0] == "api" && len(s) > 2:
		s = s[2:]
	case s[0] == "apis" && len(s) > 3:
		s = s[3:]
	default:
		return o, false
	}
	switch len(s) {
	case 2:
		o = objectPath{path, "", s[0], s[1]}
	case 4:
		if s[0] != "namespaces" || s[1] == "" {
			return o, false
		}
		o = objectPath{path, s[1], s[2], s[3]}
	}
	return o, o.resource != "" && o.name != ""
}

// page returns the object's own page; "": it has only its YAML.
func (o objectPath) page() string {
	switch kind := state.Kind(o.resource); {
	case o.path != frame.ObjectURL(kind, o.namespace, o.name): // of another API group, such as metrics of a node
		return ""
	case kind == state.BoardProfiles:
		return "/boards"
	default:
		return frame.ObjectHref(kind, frame.Item{Namespace: o.namespace, Name: o.name})
	}
}

// editor returns the address of an object's YAML.
func (o objectPath) editor() string { return "/yaml" + (&url.URL{Path: o.path}).EscapedPath() }
