package admin

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

	yamllines "flotilla.dev/hub/kube/lines"
)

// A pasted object, and what became or would become of it.
type pastedRow struct {
	Pill     pill
	Kind     string
	Name     string
	Href     string
	Diff     []hunk
	Problem  string
	Causes   []string
	Warnings []string
	Fight    bool // another program set the fields
	Later    bool // it could not be checked before its namespace is there
}

type pasteData struct {
	Text, Checked string
	Namespace     string
	Namespaces    []option
	Force         bool
	Problem       string
	Rows          []pastedRow
	Applied       bool // else checked
	Ready         bool // nothing stands in the way of applying it
	Edited        bool
	CSRF          string
}

func (c *call) newPaste() pasteData {
	d := pasteData{Text: unix(c.FormValue("text")), Checked: unix(c.FormValue("checked")), Namespace: cmp.Or(c.FormValue("namespace"), "default"), Force: c.FormValue("force") != "", CSRF: c.user.CSRF}
	a := &request{Snapshot: c.Fleet.Snapshot()}
	for _, o := range namespaceOptions(a, d.Namespace)[1:] {
		o.Text = "Namespace " + o.Text
		d.Namespaces = append(d.Namespaces, o)
	}
	return d
}

// pasteForm asks for YAML.
func (c *call) pasteForm() error {
	return c.plain(http.StatusOK, page{Template: "paste", Title: "Apply YAML", Data: c.newPaste()})
}

// paste checks the objects of a text, and applies those that were checked. Each
// is one server-side apply, as by kubectl apply --server-side.
func (c *call) paste() error {
	d := c.newPaste()
	show := func(code int) error { return c.plain(code, page{Template: "paste", Title: "Apply YAML", Data: d}) }
	all, err := documents(d.Text)
	if err != nil {
		if d.Problem = "This cannot be applied: " + err.Error() + "."; yamllines.Syntax([]byte(d.Text)) != "" {
			d.Problem = noYAML(d.Text, err)
		}
		return show(http.StatusUnprocessableEntity)
	}
	is := fmt.Sprintf("%s %v\n%s", d.Namespace, d.Force, d.Text) // what the check is good for
	d.Applied = c.FormValue("action") == "apply" && d.Checked == is
	d.Edited = c.FormValue("action") == "apply" && !d.Applied
	d.Ready = true
	coming := map[string]bool{} // namespaces that this text makes
	for i, m := range all {
		row, err := c.pasteOne(m, d, coming, fieldLine(d.Text, i))
		if err != nil {
			return c.refuse("Not applied", err)
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

// pasteOne checks or applies one object. An error is the hub's own.
func (c *call) pasteOne(m manifest, d pasteData, coming map[string]bool, line func(field string) int) (pastedRow, error) {
	r := pastedRow{Kind: m.text("kind"), Name: cmp.Or(m.text("metadata", "name"), "without a name"), Pill: pill{"bad", "Refused"}}
	m = m.tidy()
	path, namespaced, err := c.place(m)
	if err != nil {
		r.Problem = capital(err.Error()) + "."
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
		r.Problem = "The name or the namespace is none."
		return r, nil
	}
	r.Href = cmp.Or(o.page(), o.editor())
	live, err := c.object(o.path)
	var no *apiRefusal
	if err != nil && (!errors.As(err, &no) || no.code != http.StatusNotFound) {
		return c.refusedRow(r, err, line)
	}
	if no != nil && !d.Applied {
		r.Href = "" // there is no page of it yet
	}
	q := url.Values{"fieldManager": {"flotilla-page"}, "fieldValidation": {"Strict"}}
	if d.Force {
		q.Set("force", "true")
	}
	if !d.Applied {
		q.Set("dryRun", "All")
	}
	a, err := c.api(apiCall{method: http.MethodPatch, path: o.path, query: q, media: "application/apply-patch+yaml", body: m.json()})
	if err != nil {
		return r, err
	}
	r.Warnings = a.warnings
	if no := a.err(); no != nil {
		if !d.Applied && no.code == http.StatusNotFound && coming[namespace] {
			r.Pill, r.Diff, r.Href = pill{"idle", "Create"}, diff("", m.compared().yaml()), ""
			r.Later = true
			return r, nil
		}
		return c.refusedRow(r, no, line)
	}
	var result manifest
	if err := json.Unmarshal(a.body, &result); err != nil {
		return r, fmt.Errorf("read the API's answer about %s: %w", o.path, err)
	}
	if result.text("kind") == "Namespace" {
		coming[name] = true
	}
	before := ""
	if live != nil {
		before = live.compared().yaml()
	}
	r.Diff = diff(before, result.compared().yaml())
	r.Pill = pastedPill(live != nil, len(r.Diff) > 0, d.Applied)
	return r, nil
}

func pastedPill(existed, differs, applied bool) pill {
	switch {
	case !differs:
		return pill{"idle", "Unchanged"}
	case applied && existed:
		return pill{"ok", "Changed"}
	case applied:
		return pill{"ok", "Created"}
	case existed:
		return pill{"warn", "Change"}
	}
	return pill{"ok", "Create"}
}

func (c *call) refusedRow(r pastedRow, err error, line func(field string) int) (pastedRow, error) {
	var no *apiRefusal
	if !errors.As(err, &no) {
		return r, err
	}
	r.Problem, r.Causes = no.tell(line)
	if r.Fight = no.fight(); r.Fight {
		r.Problem = "Others have set these fields:"
	}
	return r, nil
}

// fight tells whether the API refused because other programs have set some of the fields. It is
// no other conflict, such as with a change at the same moment.
func (e *apiRefusal) fight() bool {
	d := e.status.Details
	return d != nil && slices.ContainsFunc(d.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeFieldManagerConflict })
}
