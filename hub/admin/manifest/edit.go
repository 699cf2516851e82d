package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"flotilla.dev/hub/admin/diff"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	yamllines "flotilla.dev/hub/kube/lines"
)

type editData struct {
	Kind, Name, Namespace string
	Back                  string
	Text                  string // the text in the editor
	Was                   string // the text when the editor was opened
	Checked               string // the text whose diff was shown
	Whole                 string // the object with the fields that only the hub sets
	MayEdit               bool
	CSRF, Path            string

	Problem  string
	Causes   []string
	Warnings []string
	Changed  []diff.Hunk // what other users have changed since the editor was opened
	Diff     []diff.Hunk // what applying would change
	Nothing  bool        // applying would change nothing
	Done     bool        // the text has been applied
	Edited   bool        // the text has changed since it was checked
}

// editor reads the object that the address names.
func editor(c *frame.Call) (o objectPath, live manifest, d editData, err error) {
	o, ok := parseObjectPath(strings.TrimPrefix(c.Request().URL.Path, "/yaml"))
	if !ok {
		return o, nil, d, frame.MissingError("There is no object at this address.")
	}
	if live, err = object(c, o.path); err != nil {
		return o, nil, d, err
	}
	d = editData{
		Kind: live.text("kind"), Name: o.name, Namespace: o.namespace, Back: o.page(), Path: o.editor(),
		CSRF: c.User.CSRF,
		Text: live.tidy().yaml(), Whole: live.yaml(), MayEdit: c.Allow(c.User.Role, "update", o.resource),
		Done: c.QueryParam("done") != "",
	}
	d.Was = d.Text
	return o, live, d, nil
}

// object reads an object through the API, without its managed fields.
func object(c *frame.Call, path string) (manifest, error) {
	a, err := c.AskAPI(frame.APICall{Method: http.MethodGet, Path: path})
	if err != nil {
		return nil, err
	}
	if no := a.Err(); no != nil {
		return nil, no
	}
	var m manifest
	if err := json.Unmarshal(a.Body, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	delete(m.metadata(), "managedFields")
	return m, nil
}

func showEditor(c *frame.Call, code int, d editData) error {
	return c.ShowPage(code, frame.Page{Template: "edit", Title: "YAML of " + d.Name, Data: d})
}

// EditForm shows an object as YAML.
func EditForm(c *frame.Call) error {
	_, _, d, err := editor(c)
	if err != nil {
		return c.Refuse("No YAML", err)
	}
	return showEditor(c, http.StatusOK, d)
}

// Edit checks a text, and applies a checked one.
func Edit(c *frame.Call) error {
	o, live, d, err := editor(c)
	if err != nil {
		return c.Refuse("No YAML", err)
	}
	now, checked := d.Text, c.FormValue("checked")
	d.Text, d.Was, d.Done = unix(c.FormValue("text")), unix(c.FormValue("was")), false
	text, err := parseManifest(d.Text)
	if len(yamllines.Objects([]byte(d.Text))) > 1 {
		d.Problem = "This page is for one object: use Apply YAML for several."
		return showEditor(c, http.StatusUnprocessableEntity, d)
	}
	if err != nil {
		d.Problem = noYAML(d.Text, err)
		return showEditor(c, http.StatusUnprocessableEntity, d)
	}
	if d.Was != now {
		if c.FormValue("action") != "rebase" {
			d.Changed = diff.Of(d.Was, now)
			return showEditor(c, http.StatusConflict, d)
		}
		if text, err = rebased(d.Was, text, live.tidy()); err != nil {
			d.Problem = "Your text cannot be merged with the newest version: " + err.Error() + "."
			return showEditor(c, http.StatusUnprocessableEntity, d)
		}
		d.Text, d.Was = text.yaml(), now
	}
	// Status updates by others change the version all the time.
	if text.text("metadata", "resourceVersion") == "" {
		text.metadata()["resourceVersion"] = live.text("metadata", "resourceVersion")
	}
	result, warnings, err := replace(c, o, text, true)
	if err != nil {
		return editRefused(c, d, err)
	}
	d.Warnings, d.Diff = warnings, diff.Of(now, result.tidy().yaml())
	d.Nothing = len(d.Diff) == 0
	if c.FormValue("action") != "apply" || d.Nothing || unix(checked) != d.Text {
		d.Edited = c.FormValue("action") == "apply" && !d.Nothing
		d.Checked = d.Text
		return showEditor(c, http.StatusOK, d)
	}
	if _, _, err := replace(c, o, text, false); err != nil {
		return editRefused(c, d, err)
	}
	return c.Redirect(http.StatusSeeOther, o.editor()+"?done=1")
}

// unix converts the line ends of a browser's form to \n.
func unix(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// replace replaces the object at the path.
func replace(c *frame.Call, o objectPath, m manifest, dry bool) (result manifest, warnings []string, err error) {
	q := url.Values{"fieldValidation": {"Strict"}}
	if dry {
		q.Set("dryRun", "All")
	}
	a, err := c.AskAPI(frame.APICall{Method: http.MethodPut, Path: o.path, Query: q, Media: "application/json",
		Body: m.json()})
	if err != nil {
		return nil, nil, err
	}
	if no := a.Err(); no != nil {
		return nil, nil, no
	}
	if err := json.Unmarshal(a.Body, &result); err != nil {
		return nil, nil, fmt.Errorf("read the API's answer about %s: %w", o.path, err)
	}
	return result, a.Warnings, nil
}

func editRefused(c *frame.Call, d editData, err error) error {
	var no *frame.APIRefusal
	if !errors.As(err, &no) {
		return c.Refuse("Not applied", err)
	}
	d.Problem, d.Causes = tell(no, fieldLine(d.Text, 0))
	return showEditor(c, no.Code, d)
}

// noYAML says why a text is not the YAML of an object.
func noYAML(text string, err error) string {
	if why := yamllines.Syntax([]byte(text)); why != "" {
		return "Invalid YAML: " + why + "."
	}
	return "Invalid YAML: " + err.Error() + "."
}

// fieldLine finds the line of a field of the i-th object of a text; 0: none.
func fieldLine(text string, i int) func(field string) int {
	all := yamllines.Objects([]byte(text))
	if i >= len(all) {
		return func(string) int { return 0 }
	}
	return all[i].Of
}

// tell returns the refusal in one sentence, and each field's cause with its line.
func tell(e *frame.APIRefusal, line func(field string) int) (problem string, causes []string) {
	if e.Status.Details != nil {
		for _, cause := range e.Status.Details.Causes {
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
	return format.Capital(strings.TrimSuffix(e.Status.Message, ".")) + ".", nil
}

// rebased merges the text with the changes of other users. If both changed a field, the text's value
// wins.
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
