package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/diff"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	yamllines "flotilla.dev/hub/kube/lines"
)

// A pasted object, and what was or would be done.
type pastedRow struct {
	Pill     frame.Pill
	Kind     string
	Name     string
	Href     string
	Diff     []diff.Hunk
	Problem  string
	Causes   []string
	Warnings []string
	Fight    bool // another field manager set the fields
	Later    bool // it can be checked only once its namespace exists
}

type pasteData struct {
	Text, Checked string
	Namespace     string
	Namespaces    []frame.Option
	Force         bool
	Problem       string
	Rows          []pastedRow
	Applied       bool // false: only checked
	Ready         bool // the objects can be applied
	Edited        bool
	CSRF          string
}

func newPaste(c *frame.Call) pasteData {
	d := pasteData{Text: unix(c.FormValue("text")), Checked: unix(c.FormValue("checked")),
		Namespace: cmp.Or(c.FormValue("namespace"), "default"), Force: c.FormValue("force") != "", CSRF: c.User.CSRF}
	a := &frame.Request{Snapshot: c.Fleet.Snapshot()}
	for _, o := range frame.NamespaceOptions(a, d.Namespace)[1:] {
		o.Text = "Namespace " + o.Text
		d.Namespaces = append(d.Namespaces, o)
	}
	return d
}

// PasteForm asks for YAML.
func PasteForm(c *frame.Call) error {
	return c.ShowPage(http.StatusOK, frame.Page{Template: "paste", Title: "Apply YAML", Data: newPaste(c)})
}

// Paste checks the objects of a text, and applies checked ones. Each is a server-side apply, as by
// kubectl apply --server-side.
func Paste(c *frame.Call) error {
	d := newPaste(c)
	show := func(code int) error {
		return c.ShowPage(code, frame.Page{Template: "paste", Title: "Apply YAML", Data: d})
	}
	all, err := documents(d.Text)
	if err != nil {
		if d.Problem = "This cannot be applied: " + err.Error() + "."; yamllines.Syntax([]byte(d.Text)) != "" {
			d.Problem = noYAML(d.Text, err)
		}
		return show(http.StatusUnprocessableEntity)
	}
	is := fmt.Sprintf("%s %v\n%s", d.Namespace, d.Force, d.Text) // what was checked
	d.Applied = c.FormValue("action") == "apply" && d.Checked == is
	d.Edited = c.FormValue("action") == "apply" && !d.Applied
	d.Ready = true
	coming := map[string]bool{} // namespaces that the text creates
	for i, m := range all {
		row, err := pasteOne(c, m, d, coming, fieldLine(d.Text, i))
		if err != nil {
			return c.Refuse("Not applied", err)
		}
		if row.Problem != "" {
			d.Ready = false
		}
		d.Rows = append(d.Rows, row)
	}
	d.Checked = ""
	if d.Ready && !d.Applied {
		d.Checked = is
	}
	return show(http.StatusOK)
}

// pasteOne checks or applies one object. An error is the hub's fault.
func pasteOne(c *frame.Call, m manifest, d pasteData, coming map[string]bool, line func(field string) int) (pastedRow,
	error) {
	r := pastedRow{Kind: m.text("kind"), Name: cmp.Or(m.text("metadata", "name"), "without a name"),
		Pill: frame.Pill{Kind: "bad", Text: "Refused"}}
	m = m.tidy()
	path, namespaced, err := place(c, m)
	if err != nil {
		r.Problem = format.Capital(err.Error()) + "."
		return r, nil
	}
	name := m.text("metadata", "name")
	if name == "" || strings.ContainsAny(name, "/%") {
		r.Problem = "metadata.name must be set to a name."
		return r, nil
	}
	namespace := ""
	if namespaced {
		namespace = cmp.Or(m.text("metadata", "namespace"), d.Namespace)
		path = inNamespace(path, namespace)
	}
	o, ok := parseObjectPath(path + "/" + name)
	if !ok {
		r.Problem = "metadata.name or metadata.namespace is invalid."
		return r, nil
	}
	r.Href = cmp.Or(o.page(), o.editor())
	live, err := object(c, o.path)
	var no *frame.APIRefusal
	if err != nil && (!errors.As(err, &no) || no.Code != http.StatusNotFound) {
		return refusedRow(c, r, err, line)
	}
	if no != nil && !d.Applied {
		r.Href = "" // it has no page before it exists
	}
	q := url.Values{"fieldManager": {"flotilla-page"}, "fieldValidation": {"Strict"}}
	if d.Force {
		q.Set("force", "true")
	}
	if !d.Applied {
		q.Set("dryRun", "All")
	}
	a, err := c.AskAPI(frame.APICall{Method: http.MethodPatch, Path: o.path, Query: q,
		Media: "application/apply-patch+yaml", Body: m.json()})
	if err != nil {
		return r, err
	}
	r.Warnings = a.Warnings
	if no := a.Err(); no != nil {
		if !d.Applied && no.Code == http.StatusNotFound && coming[namespace] {
			r.Pill, r.Diff, r.Href = frame.Pill{Kind: "idle", Text: "Create"}, diff.Of("", m.compared().yaml()), ""
			r.Later = true
			return r, nil
		}
		return refusedRow(c, r, no, line)
	}
	var result manifest
	if err := json.Unmarshal(a.Body, &result); err != nil {
		return r, fmt.Errorf("read the API's answer about %s: %w", o.path, err)
	}
	if result.text("kind") == "Namespace" {
		coming[name] = true
	}
	before := ""
	if live != nil {
		before = live.compared().yaml()
	}
	r.Diff = diff.Of(before, result.compared().yaml())
	r.Pill = pastedPill(live != nil, len(r.Diff) > 0, d.Applied)
	return r, nil
}

func pastedPill(existed, differs, applied bool) frame.Pill {
	switch {
	case !differs:
		return frame.Pill{Kind: "idle", Text: "Unchanged"}
	case applied && existed:
		return frame.Pill{Kind: "ok", Text: "Changed"}
	case applied:
		return frame.Pill{Kind: "ok", Text: "Created"}
	case existed:
		return frame.Pill{Kind: "warn", Text: "Change"}
	}
	return frame.Pill{Kind: "ok", Text: "Create"}
}

func refusedRow(c *frame.Call, r pastedRow, err error, line func(field string) int) (pastedRow, error) {
	var no *frame.APIRefusal
	if !errors.As(err, &no) {
		return r, err
	}
	r.Problem, r.Causes = tell(no, line)
	if r.Fight = fight(no); r.Fight {
		r.Problem = "Other field managers have set these fields:"
	}
	return r, nil
}

// fight tells whether the API refused because other field managers own some of the fields, and not
// because of a concurrent change.
func fight(e *frame.APIRefusal) bool {
	d := e.Status.Details
	return d != nil && slices.ContainsFunc(d.Causes,
		func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeFieldManagerConflict })
}
