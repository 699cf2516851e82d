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

// An Action is something that people can have done to things of one kind. What it
// does, it asks of the API, in the name of whoever wants it: the page itself
// changes nothing.
type Action struct {
	Name    string // in the address
	Label   string // on a button
	Save    string // on the button that does it, where that says no number
	Done    string // what stands in the result, such as "cordoned"
	Means   string // what it does, in a sentence
	Destroy bool   // what it takes cannot be had back
	Quick   bool   // needs no page of its own before, for one thing: it can be undone
	Single  bool   // is done to one thing only
	Aside   bool   // is offered where it belongs, and in no menu

	Kind           state.Kind
	One            string // of the kind, such as "node"
	Verb, Resource string // what a role must be allowed
	List, Listed   string // the page where things of the kind are, and what it is called

	// fields are what people fill in; with is what it would be done to.
	Fields func(s state.Snapshot, with []state.Object) []Field
	// parse turns the form into what do is given. nil: there is nothing to fill in.
	Parse func(form url.Values) (any, error)
	// idle tells why an object needs nothing, "" where it does.
	Idle func(o state.Object) string
	// notes are what people should know before.
	Notes func(s state.Snapshot, with []state.Object) []string
	// foresee tells what would happen to pods, instead of notes; form is what is filled in so far.
	Foresee func(a *Request, with []state.Object, form url.Values) *Foreseen
	// check tells whether the API would accept it for an object; nil: only do tells.
	Check func(ctx context.Context, w *Worker, o state.Object) error
	// do does it to one object. undo is nil where nothing takes it back.
	Do func(ctx context.Context, w *Worker, o state.Object) (undo Undo, err error)
	// all does it to all of them together, instead of do.
	All func(ctx context.Context, j *Job)
	// each are the actions of several kinds that this one is together; see jointly.
	each []*Action
}

// allowed tells whether a role may do it.
func (a *Action) allowed(may func(verb, resource string) bool) bool {
	if len(a.each) == 0 {
		return may(a.Verb, a.Resource)
	}
	return !slices.ContainsFunc(a.each, func(one *Action) bool { return !may(one.Verb, one.Resource) })
}

// An Undo takes back what was done to one object.
type Undo func(ctx context.Context, w *Worker) error

// A Field is something to fill in before an action.
type Field struct {
	Name, Label, Hint string
	Type              string // text, textarea, number, checkbox, select, datetime-local, hidden
	Value             string
	Options           []Option
	Required          bool
	Min, Max          string
	Pattern           string
	// Was is what it was when the form was made, which goes with it: whoever has left it so
	// wants nothing changed. Only where Changes is set.
	Was     string
	Changes bool
}

// wasOf is the name under which a form has what a field was.
func wasOf(field string) string { return "was-" + field }

// WasIn is what a form says that a field was when it was made.
func WasIn(form url.Values, field string) string { return form.Get(wasOf(field)) }

// Unchanged tells whether a form says of a field that it was left as it was.
func Unchanged(form url.Values, field string) bool {
	return form.Has(wasOf(field)) && form.Get(field) == form.Get(wasOf(field))
}

// Path is where an action is asked for.
func (a *Action) Path() string { return "/actions/" + string(a.Kind) + "/" + a.Name }

// many names a number of what it is done to.
func (a *Action) many(n int) string { return format.Plural(n, a.One) }

// An Item is one thing that an action is done to, as forms name it: exactly that one,
// not another of the same name that has come since.
type Item struct {
	Kind            state.Kind // "": that of the action
	Namespace, Name string
	UID             types.UID
}

// ItemOf is an object as forms name it.
func ItemOf(o state.Object) Item { return Item{"", o.GetNamespace(), o.GetName(), o.GetUID()} }

// pickOf is the item of a check box, which tells its kind too.
func pickOf(o state.Object) Item {
	return Item{state.KindOf(o), o.GetNamespace(), o.GetName(), o.GetUID()}
}

func (i Item) String() string {
	if i.Namespace == "" || i.Namespace == "default" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

// Form is the item in a form.
func (i Item) Form() string {
	text := i.Namespace + "/" + i.Name + "=" + string(i.UID)
	if i.Kind != "" {
		return string(i.Kind) + "/" + text
	}
	return text
}

// parseItem reads an item from a form. Without a uid it is whatever has the name.
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

// A Worker does an action in somebody's name.
type Worker struct {
	caller
	Fleet Fleet
	Given any // what parse made of the form
}

// errGone is an item that is not there any more; its text says what is there instead.
type errGone string

func (e errGone) Error() string { return string(e) }

// Find returns the object that an item means, as it is now.
func (w *Worker) Find(kind state.Kind, i Item) (state.Object, error) {
	o := w.Fleet.Snapshot().Get(state.Key{Kind: cmp.Or(i.Kind, kind), Namespace: i.Namespace, Name: i.Name})
	switch {
	case o == nil:
		return nil, errGone("it is gone")
	case i.UID != "" && o.GetUID() != i.UID:
		return nil, errGone("it has gone, and another of its name has come: look at that one first")
	}
	return o, nil
}

// A JSON is JSON that is made here.
type JSON = map[string]any

// Media types of what is asked of the API.
const (
	MergePatch = "application/merge-patch+json"
	PlainJSON  = "application/json"
)

// Patch merges a patch into an object, if it is still that one.
func (w *Worker) Patch(ctx context.Context, o state.Object, patch JSON) error {
	_, err := w.patched(ctx, o, patch)
	return err
}

// patched is patch, and returns what has become of the object.
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

// Send asks the API for a change.
func (w *Worker) Send(ctx context.Context, q APICall, body any) error {
	_, err := w.Answer(ctx, q, body)
	return err
}

// Answer asks the API for a change, and returns what it says.
func (w *Worker) Answer(ctx context.Context, q APICall, body any) (a apiAnswer, err error) {
	if q.Body, err = json.Marshal(body); err != nil {
		return a, fmt.Errorf("encode what to ask the API for: %w", err)
	}
	if a, err = w.ask(ctx, q); err != nil {
		return a, err
	}
	if no := a.Err(); no != nil {
		return a, no
	}
	return a, nil
}

// ErrorText is an error as people read it: what the API refused, in its own words.
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
