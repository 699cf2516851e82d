package frame

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/state"
)

// An Action is something that people can do to objects of one kind. It sends its changes to the API
// in the user's name; the page itself changes nothing.
type Action struct {
	Name    string // its name in the address
	Label   string // text of its button
	Save    string // text of the button that confirms; "": the label and the number of objects
	Done    string // its result, such as "cordoned"
	Means   string // what it does, in one sentence
	Destroy bool   // it cannot be undone
	Quick   bool   // one object needs no confirmation, because it can be undone
	Single  bool   // only for one object at a time
	Aside   bool   // not in a menu: the page links to it elsewhere

	Kind           state.Kind
	One            string // one object of the kind, such as "node"
	Verb, Resource string // what a role must be allowed
	List, Listed   string // the list of the kind: its path and its title

	// Fields returns the inputs of the form; with are the objects that the action would change.
	Fields func(s state.Snapshot, with []state.Object) []Field
	// Parse turns the form into Worker.Given. nil: there is nothing to fill in.
	Parse func(form url.Values) (any, error)
	// Idle says why an object needs no change; "": it needs one.
	Idle func(o state.Object) string
	// Notes are warnings shown before the action.
	Notes func(s state.Snapshot, with []state.Object) []string
	// Foresee says what would happen to pods, instead of Notes. form is what was filled in so far.
	Foresee func(a *Request, with []state.Object, form url.Values) *Foreseen
	// Check asks the API whether it would accept the change. nil: only Do finds out.
	Check func(ctx context.Context, w *Worker, o state.Object) error
	// Do changes one object. undo is nil where the change cannot be undone.
	Do func(ctx context.Context, w *Worker, o state.Object) (undo Undo, err error)
	// All changes all objects together, instead of Do.
	All func(ctx context.Context, j *Job)
	// each holds the actions, one per kind, that this action combines; see jointly.
	each []*Action
}

// allowed tells whether a role may do the action.
func (a *Action) allowed(may func(verb, resource string) bool) bool {
	if len(a.each) == 0 {
		return may(a.Verb, a.Resource)
	}
	return !slices.ContainsFunc(a.each, func(one *Action) bool { return !may(one.Verb, one.Resource) })
}

// An Undo reverts what an action did to one object.
type Undo func(ctx context.Context, w *Worker) error

// A Field is one input of an action's form.
type Field struct {
	Name, Label, Hint string
	Type              string // text, textarea, number, checkbox, select, datetime-local, hidden
	Value             string
	Options           []Option
	Required          bool
	Min, Max          string
	Pattern           string
	// Was is the value when the form was made. If Changes is set it is sent with the form, so that
	// an unchanged field changes nothing.
	Was     string
	Changes bool
}

// wasOf returns the form's name of a field's earlier value.
func wasOf(field string) string { return "was-" + field }

// WasIn is the value that a field had when the form was made.
func WasIn(form url.Values, field string) string { return form.Get(wasOf(field)) }

// Unchanged tells whether a field still has the value that it had when the form was made.
func Unchanged(form url.Values, field string) bool {
	return form.Has(wasOf(field)) && form.Get(field) == form.Get(wasOf(field))
}

// Path is the address of the action.
func (a *Action) Path() string { return "/actions/" + string(a.Kind) + "/" + a.Name }

// many is such as "3 nodes".
func (a *Action) many(n int) string { return format.Plural(n, a.One) }

// An Item names an object in a form. With a UID it is exactly that object, not a later one with the
// same name.
type Item struct {
	Kind            state.Kind // "": the action's
	Namespace, Name string
	UID             types.UID
}

// ItemOf names an object in a form.
func ItemOf(o state.Object) Item { return Item{"", o.GetNamespace(), o.GetName(), o.GetUID()} }

// pickOf names an object in a check box, with its kind.
func pickOf(o state.Object) Item {
	return Item{state.KindOf(o), o.GetNamespace(), o.GetName(), o.GetUID()}
}

func (i Item) String() string {
	if i.Namespace == "" || i.Namespace == "default" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

// Form writes the item into a form.
func (i Item) Form() string {
	text := i.Namespace + "/" + i.Name + "=" + string(i.UID)
	if i.Kind != "" {
		return string(i.Kind) + "/" + text
	}
	return text
}

// parseItem reads an item from a form. Without a UID it means any object with the name.
func parseItem(text string) (i Item, ok bool) {
	at, uid, _ := strings.Cut(text, "=")
	if strings.Count(at, "/") == 2 {
		var kind string
		kind, at, _ = strings.Cut(at, "/")
		i.Kind = state.Kind(kind)
	}
	i.Namespace, i.Name, ok = strings.Cut(at, "/")
	i.UID = types.UID(uid)
	return i, ok && i.Name != "" && !strings.Contains(i.Name, "/")
}

// A Worker does an action in a user's name.
type Worker struct {
	caller
	Fleet Fleet
	Given any // what Parse returned
}

// errGone is the error for an item that does not exist any more; its text says what exists instead.
type errGone string

func (e errGone) Error() string { return string(e) }

// Find returns the object that an item names.
func (w *Worker) Find(kind state.Kind, i Item) (state.Object, error) {
	o := w.Fleet.Snapshot().Get(state.Key{Kind: cmp.Or(i.Kind, kind), Namespace: i.Namespace, Name: i.Name})
	switch {
	case o == nil:
		return nil, errGone("it is gone")
	case i.UID != "" && o.GetUID() != i.UID:
		return nil, errGone("it was deleted, and a new object has its name: look at that one first")
	}
	return o, nil
}

// A JSON is a JSON object.
type JSON = map[string]any

// Media types of requests to the API.
const (
	MergePatch = "application/merge-patch+json"
	PlainJSON  = "application/json"
)

// Patch merges a patch into an object, if its UID is still the same.
func (w *Worker) Patch(ctx context.Context, o state.Object, patch JSON) error {
	_, err := w.patched(ctx, o, patch)
	return err
}

// patched does what Patch does, and returns the changed object.
func (w *Worker) patched(ctx context.Context, o state.Object, patch JSON) (now JSON, err error) {
	meta, _ := patch["metadata"].(JSON)
	if meta == nil {
		meta = JSON{}
		patch["metadata"] = meta
	}
	meta["uid"] = o.GetUID()
	a, err := w.Answer(ctx, APICall{Method: http.MethodPatch,
		Path: ObjectURL(state.KindOf(o), o.GetNamespace(), o.GetName()), Media: MergePatch}, patch)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(a.Body, &now); err != nil {
		return nil, fmt.Errorf("read the API's answer: %w", err)
	}
	return now, nil
}

// Send sends a change to the API.
func (w *Worker) Send(ctx context.Context, q APICall, body any) error {
	_, err := w.Answer(ctx, q, body)
	return err
}

// Answer sends a change to the API and returns its answer.
func (w *Worker) Answer(ctx context.Context, q APICall, body any) (a apiAnswer, err error) {
	if q.Body, err = json.Marshal(body); err != nil {
		return a, fmt.Errorf("encode the request to the API: %w", err)
	}
	if a, err = w.ask(ctx, q); err != nil {
		return a, err
	}
	if no := a.Err(); no != nil {
		return a, no
	}
	return a, nil
}

// ErrorText writes an error for people; a refusal of the API keeps the API's words.
func ErrorText(err error) string {
	var no *APIRefusal
	if !errors.As(err, &no) {
		return err.Error()
	}
	if d := no.Status.Details; d != nil && len(d.Causes) > 0 {
		var parts []string
		for _, c := range d.Causes {
			parts = append(parts, strings.TrimPrefix(c.Field+": ", ": ")+c.Message)
		}
		return strings.Join(parts, "; ")
	}
	return no.Status.Message
}

// RefusedWith tells whether the API refused with a code.
func RefusedWith(err error, code int) bool {
	var no *APIRefusal
	return errors.As(err, &no) && no.Code == code
}
