package frame

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"flotilla.dev/hub/state"
)

// Remove deletes an object, if it is still that one.
func Remove(ctx context.Context, w *Worker, o state.Object) (Undo, error) {
	return nil, w.Send(ctx, APICall{Method: http.MethodDelete,
		Path: ObjectURL(state.KindOf(o), o.GetNamespace(), o.GetName()), Media: PlainJSON},
		JSON{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": JSON{"uid": o.GetUID()}})
}

// If is why, where something is so.
func If(is bool, why string) string {
	if is {
		return why
	}
	return ""
}

// asTree is a value as its JSON.
func asTree(v any) (t JSON, err error) {
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is set now: %w", err)
	}
	return t, nil
}

// SetSpec changes fields of an object's spec; to take them back it puts those that were, unless
// somebody has changed them since.
func SetSpec(ctx context.Context, w *Worker, o state.Object, fields JSON) (Undo, error) {
	before, err := SpecOf(o, fields)
	if err != nil {
		return nil, err
	}
	now, err := w.patched(ctx, o, JSON{"spec": fields})
	if err != nil {
		return nil, err
	}
	after := SpecFields(now, fields)
	return func(ctx context.Context, w *Worker) error {
		if left, err := w.AsLeft(o, before, after); !left {
			return err
		}
		return w.Patch(ctx, o, JSON{"spec": before})
	}, nil
}

// AsLeft tells whether fields of an object's spec are still as an action has left them. Where they
// are as before it, nothing is to be taken back; where they are neither, somebody means something else.
func (w *Worker) AsLeft(o state.Object, before, after JSON) (bool, error) {
	o, err := w.Find(state.KindOf(o), ItemOf(o))
	if err != nil {
		return false, err
	}
	now, err := SpecOf(o, after)
	switch {
	case err != nil || reflect.DeepEqual(now, before):
		return false, err
	case !reflect.DeepEqual(now, after):
		return false, ErrChangedSince
	}
	return true, nil
}

// ErrChangedSince is why what was done is not taken back.
const ErrChangedSince = UserError("somebody has changed it since: look at it first")

// SpecOf returns those fields of an object's spec, nil where they are not set.
func SpecOf(o state.Object, fields JSON) (JSON, error) {
	all, err := asTree(o)
	return SpecFields(all, fields), err
}

// SpecFields are those fields of an object's spec, nil where they are not set.
func SpecFields(object, fields JSON) JSON {
	spec, _ := object["spec"].(JSON)
	have := JSON{}
	for name := range fields {
		have[name] = spec[name]
	}
	return have
}

// Seen is the generation of each object, by its uid, as somebody saw it who wants something done that
// is meant for what they saw: done twice, or after somebody else has done it, it is another thing.
type Seen map[string]string

const seenName = "seen"

// SeenField has a page before an action carry what it was made of.
func SeenField(with []state.Object) Field {
	var all strings.Builder
	for _, o := range with {
		fmt.Fprintf(&all, "%s=%d ", o.GetUID(), o.GetGeneration())
	}
	return Field{Name: seenName, Type: "hidden", Value: all.String()}
}

// ParseSeen reads what a form says was seen.
func ParseSeen(form url.Values) Seen {
	all := Seen{}
	for _, one := range strings.Fields(form.Get(seenName)) {
		uid, generation, _ := strings.Cut(one, "=")
		all[uid] = generation
	}
	return all
}

var errChanged = errors.New("somebody has changed it since you looked at it: look at it again first")

// Changed fails where the spec of an object is another than the one that was seen, if it was.
func (s Seen) Changed(o state.Object) error {
	if was, ok := s[string(o.GetUID())]; ok && was != fmt.Sprint(o.GetGeneration()) {
		return errChanged
	}
	return nil
}
