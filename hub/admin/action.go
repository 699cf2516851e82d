package admin

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
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// An action is something that people can have done to things of one kind. What it
// does, it asks of the API, in the name of whoever wants it: the page itself
// changes nothing.
type action struct {
	Name    string // in the address
	Label   string // on a button
	Save    string // on the button that does it, where that says no number
	Done    string // what stands in the result, such as "cordoned"
	Means   string // what it does, in a sentence
	Destroy bool   // what it takes cannot be had back
	quick   bool   // needs no page of its own before, for one thing: it can be undone
	single  bool   // is done to one thing only
	aside   bool   // is offered where it belongs, and in no menu

	kind           state.Kind
	one            string // of the kind, such as "node"
	verb, resource string // what a role must be allowed
	list, listed   string // the page where things of the kind are, and what it is called

	// fields are what people fill in; with is what it would be done to.
	fields func(s state.Snapshot, with []state.Object) []field
	// parse turns the form into what do is given. nil: there is nothing to fill in.
	parse func(form url.Values) (any, error)
	// idle tells why an object needs nothing, "" where it does.
	idle func(o state.Object) string
	// notes are what people should know before.
	notes func(s state.Snapshot, with []state.Object) []string
	// foresee tells what would happen to pods, instead of notes; form is what is filled in so far.
	foresee func(a *request, with []state.Object, form url.Values) *foreseen
	// check tells whether the API would accept it for an object; nil: only do tells.
	check func(ctx context.Context, w *worker, o state.Object) error
	// do does it to one object. undo is nil where nothing takes it back.
	do func(ctx context.Context, w *worker, o state.Object) (undo undo, err error)
	// all does it to all of them together, instead of do.
	all func(ctx context.Context, j *job)
	// each are the actions of several kinds that this one is together; see jointly.
	each []*action
}

// allowed tells whether a role may do it.
func (a *action) allowed(may func(verb, resource string) bool) bool {
	if len(a.each) == 0 {
		return may(a.verb, a.resource)
	}
	return !slices.ContainsFunc(a.each, func(one *action) bool { return !may(one.verb, one.resource) })
}

// An undo takes back what was done to one object.
type undo func(ctx context.Context, w *worker) error

// A field is something to fill in before an action.
type field struct {
	Name, Label, Hint string
	Type              string // text, number, checkbox, select, datetime-local, hidden
	Value             string
	Options           []option
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

// leftAlone tells whether a form says of a field that it was left as it was.
func leftAlone(form url.Values, field string) bool {
	return form.Has(wasOf(field)) && form.Get(field) == form.Get(wasOf(field))
}

// actions lists everything that can be done, in the order of menus.
func actions(now func() time.Time) []*action {
	return slices.Concat(nodeActions(), podActions(), workloadActions(now), jobActions(), siteActions(now), requestActions(now), rolloutActions())
}

// path is where an action is asked for.
func (a *action) path() string { return "/actions/" + string(a.kind) + "/" + a.Name }

// many names a number of what it is done to.
func (a *action) many(n int) string { return plural(n, a.one) }

// An item is one thing that an action is done to, as forms name it: exactly that one,
// not another of the same name that has come since.
type item struct {
	Kind            state.Kind // "": that of the action
	Namespace, Name string
	UID             types.UID
}

// itemOf is an object as forms name it.
func itemOf(o state.Object) item { return item{"", o.GetNamespace(), o.GetName(), o.GetUID()} }

// pickOf is the item of a check box, which tells its kind too.
func pickOf(o state.Object) item {
	return item{state.KindOf(o), o.GetNamespace(), o.GetName(), o.GetUID()}
}

func (i item) String() string {
	if i.Namespace == "" || i.Namespace == "default" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

// Form is the item in a form.
func (i item) Form() string {
	text := i.Namespace + "/" + i.Name + "=" + string(i.UID)
	if i.Kind != "" {
		return string(i.Kind) + "/" + text
	}
	return text
}

// parseItem reads an item from a form. Without a uid it is whatever has the name.
func parseItem(text string) (i item, ok bool) {
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

// A worker does an action in somebody's name.
type worker struct {
	caller
	fleet Fleet
	given any // what parse made of the form
}

// errGone is an item that is not there any more; its text says what is there instead.
type errGone string

func (e errGone) Error() string { return string(e) }

// find returns the object that an item means, as it is now.
func (w *worker) find(kind state.Kind, i item) (state.Object, error) {
	o := w.fleet.Snapshot().Get(state.Key{Kind: cmp.Or(i.Kind, kind), Namespace: i.Namespace, Name: i.Name})
	switch {
	case o == nil:
		return nil, errGone("it is gone")
	case i.UID != "" && o.GetUID() != i.UID:
		return nil, errGone("it has gone, and another of its name has come: look at that one first")
	}
	return o, nil
}

// objectURL is the API's path of an object.
func objectURL(kind state.Kind, namespace, name string) string {
	gv := kind.GroupVersionKind().GroupVersion()
	root := "/apis/" + gv.String()
	if gv.Group == "" {
		root = "/api/" + gv.Version
	}
	if namespace != "" {
		root += "/namespaces/" + namespace
	}
	return root + "/" + string(kind) + "/" + name
}

// A tree is JSON that is made here.
type tree = map[string]any

// Media types of what is asked of the API.
const (
	mergePatch = "application/merge-patch+json"
	plainJSON  = "application/json"
)

// patch merges a patch into an object, if it is still that one.
func (w *worker) patch(ctx context.Context, o state.Object, patch tree) error {
	_, err := w.patched(ctx, o, patch)
	return err
}

// patched is patch, and returns what has become of the object.
func (w *worker) patched(ctx context.Context, o state.Object, patch tree) (now tree, err error) {
	meta, _ := patch["metadata"].(tree)
	if meta == nil {
		meta = tree{}
		patch["metadata"] = meta
	}
	meta["uid"] = o.GetUID()
	a, err := w.answer(ctx, apiCall{method: http.MethodPatch, path: objectURL(state.KindOf(o), o.GetNamespace(), o.GetName()), media: mergePatch}, patch)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(a.body, &now); err != nil {
		return nil, fmt.Errorf("read the API's answer: %w", err)
	}
	return now, nil
}

// send asks the API for a change.
func (w *worker) send(ctx context.Context, q apiCall, body any) error {
	_, err := w.answer(ctx, q, body)
	return err
}

// answer asks the API for a change, and returns what it says.
func (w *worker) answer(ctx context.Context, q apiCall, body any) (a apiAnswer, err error) {
	if q.body, err = json.Marshal(body); err != nil {
		return a, fmt.Errorf("encode what to ask the API for: %w", err)
	}
	if a, err = w.ask(ctx, q); err != nil {
		return a, err
	}
	if no := a.err(); no != nil {
		return a, no
	}
	return a, nil
}

// sentence is an error as people read it: what the API refused, in its own words.
func sentence(err error) string {
	var no *apiRefusal
	if !errors.As(err, &no) {
		return err.Error()
	}
	if d := no.status.Details; d != nil && len(d.Causes) > 0 {
		var parts []string
		for _, c := range d.Causes {
			parts = append(parts, strings.TrimPrefix(c.Field+": ", ": ")+c.Message)
		}
		return strings.Join(parts, "; ")
	}
	return no.status.Message
}

// refusedWith tells whether the API refused with a code.
func refusedWith(err error, code int) bool {
	var no *apiRefusal
	return errors.As(err, &no) && no.code == code
}
