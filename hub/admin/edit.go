package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	yamllines "flotilla.dev/hub/kube/lines"
)

type editData struct {
	Kind, Name, Namespace string
	Back                  string
	Text                  string // as it stands in the editor
	Was                   string // as it was when the editor was opened
	Checked               string // the text whose differences were shown
	Whole                 string // with what only the hub says
	MayEdit               bool
	CSRF, Path            string

	Problem  string
	Causes   []string
	Warnings []string
	Changed  []hunk // by others, since the editor was opened
	Diff     []hunk // what applying would do
	Nothing  bool   // it would do nothing
	Done     bool   // it has been applied
	Edited   bool   // the text has been changed since it was checked
}

// editor reads the object that the address names.
func (c *call) editor() (o objectPath, live manifest, d editData, err error) {
	o, ok := parseObjectPath(strings.TrimPrefix(c.Request().URL.Path, "/yaml"))
	if !ok {
		return o, nil, d, errMissing("There is no object at this address.")
	}
	if live, err = c.object(o.path); err != nil {
		return o, nil, d, err
	}
	d = editData{
		Kind: live.text("kind"), Name: o.name, Namespace: o.namespace, Back: o.page(), Path: o.editor(), CSRF: c.user.CSRF,
		Text: live.tidy().yaml(), Whole: live.yaml(), MayEdit: c.Allow(c.user.Role, "update", o.resource), Done: c.QueryParam("done") != "",
	}
	d.Was = d.Text
	return o, live, d, nil
}

// object reads an object through the API, without the managed fields, which nobody reads.
func (c *call) object(path string) (manifest, error) {
	a, err := c.api(apiCall{method: http.MethodGet, path: path})
	if err != nil {
		return nil, err
	}
	if no := a.err(); no != nil {
		return nil, no
	}
	var m manifest
	if err := json.Unmarshal(a.body, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	delete(m.metadata(), "managedFields")
	return m, nil
}

func (c *call) showEditor(code int, d editData) error {
	return c.plain(code, page{Template: "edit", Title: "YAML of " + d.Name, Data: d})
}

// editForm shows an object as YAML.
func (c *call) editForm() error {
	_, _, d, err := c.editor()
	if err != nil {
		return c.refuse("No YAML", err)
	}
	return c.showEditor(http.StatusOK, d)
}

// edit checks what was written, and applies what was checked.
func (c *call) edit() error {
	o, live, d, err := c.editor()
	if err != nil {
		return c.refuse("No YAML", err)
	}
	now, checked := d.Text, c.FormValue("checked")
	d.Text, d.Was, d.Done = unix(c.FormValue("text")), unix(c.FormValue("was")), false
	text, err := parseManifest(d.Text)
	if len(yamllines.Objects([]byte(d.Text))) > 1 {
		d.Problem = "Here is more than one object, and this page is for one: use Apply YAML for several."
		return c.showEditor(http.StatusUnprocessableEntity, d)
	}
	if err != nil {
		d.Problem = noYAML(d.Text, err)
		return c.showEditor(http.StatusUnprocessableEntity, d)
	}
	if d.Was != now {
		if c.FormValue("action") != "rebase" {
			d.Changed = diff(d.Was, now)
			return c.showEditor(http.StatusConflict, d)
		}
		if text, err = rebased(d.Was, text, live.tidy()); err != nil {
			d.Problem = "What you wrote does not fit onto the newest version: " + err.Error() + "."
			return c.showEditor(http.StatusUnprocessableEntity, d)
		}
		d.Text, d.Was = text.yaml(), now
	}
	// What others have set beside, such as the status, changes the version all the time.
	if text.text("metadata", "resourceVersion") == "" {
		text.metadata()["resourceVersion"] = live.text("metadata", "resourceVersion")
	}
	result, warnings, err := c.replace(o, text, true)
	if err != nil {
		return c.editRefused(d, err)
	}
	d.Warnings, d.Diff = warnings, diff(now, result.tidy().yaml())
	d.Nothing = len(d.Diff) == 0
	if c.FormValue("action") != "apply" || d.Nothing || unix(checked) != d.Text {
		d.Edited = c.FormValue("action") == "apply" && !d.Nothing
		d.Checked = d.Text
		return c.showEditor(http.StatusOK, d)
	}
	if _, _, err := c.replace(o, text, false); err != nil {
		return c.editRefused(d, err)
	}
	return c.Redirect(http.StatusSeeOther, o.editor()+"?done=1")
}

// unix undoes what browsers do to the ends of lines in a form.
func unix(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// replace puts an object in the place of the one at the path.
func (c *call) replace(o objectPath, m manifest, dry bool) (result manifest, warnings []string, err error) {
	q := url.Values{"fieldValidation": {"Strict"}}
	if dry {
		q.Set("dryRun", "All")
	}
	a, err := c.api(apiCall{method: http.MethodPut, path: o.path, query: q, media: "application/json", body: m.json()})
	if err != nil {
		return nil, nil, err
	}
	if no := a.err(); no != nil {
		return nil, nil, no
	}
	if err := json.Unmarshal(a.body, &result); err != nil {
		return nil, nil, fmt.Errorf("read the API's answer about %s: %w", o.path, err)
	}
	return result, a.warnings, nil
}

func (c *call) editRefused(d editData, err error) error {
	var no *apiRefusal
	if !errors.As(err, &no) {
		return c.refuse("Not applied", err)
	}
	d.Problem, d.Causes = no.tell(fieldLine(d.Text, 0))
	return c.showEditor(no.code, d)
}

// noYAML says what makes a text no YAML, or no object.
func noYAML(text string, err error) string {
	if why := yamllines.Syntax([]byte(text)); why != "" {
		return "This is no YAML: " + why + "."
	}
	return "This is no YAML: " + err.Error() + "."
}

// fieldLine finds the line in which a field of the i-th object of a text stands; 0: none.
func fieldLine(text string, i int) func(field string) int {
	all := yamllines.Objects([]byte(text))
	if i >= len(all) {
		return func(string) int { return 0 }
	}
	return all[i].Of
}

// tell is the refusal in one sentence, and each field's part in it, with its line.
func (e *apiRefusal) tell(line func(field string) int) (problem string, causes []string) {
	if e.status.Details != nil {
		for _, cause := range e.status.Details.Causes {
			text := cause.Message
			if cause.Field != "" {
				text = cause.Field + ": " + text
			}
			if n := line(cause.Field); n > 0 {
				text += fmt.Sprintf(" (line %d)", n)
			}
			causes = append(causes, text)
		}
	}
	if len(causes) > 0 {
		return "The hub does not accept this:", causes
	}
	return capital(strings.TrimSuffix(e.status.Message, ".")) + ".", nil
}

// rebased is the text with what others have changed meanwhile. Where both have
// changed a field, the text's stands.
func rebased(was string, text, live manifest) (manifest, error) {
	base, err := parseManifest(was)
	if err != nil {
		return nil, err
	}
	mine, err := jsonpatch.CreateMergePatch(base.json(), text.json())
	if err != nil {
		return nil, err
	}
	both, err := jsonpatch.MergePatch(live.json(), mine)
	if err != nil {
		return nil, err
	}
	return parseManifest(string(both))
}
