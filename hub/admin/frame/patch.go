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

// Remove deletes an object, if its UID is still the same.
func Remove(ctx context.Context, w *Worker, o state.Object) (Undo, error) {
	return nil, w.Send(ctx, APICall{Method: http.MethodDelete,
		Path: ObjectURL(state.KindOf(o), o.GetNamespace(), o.GetName()), Media: PlainJSON},
		JSON{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": JSON{"uid": o.GetUID()}})
}

// If returns why if the condition holds, otherwise "".
func If(is bool, why string) string {
	if is {
		return why
	}
	return ""
}

// asTree converts a value to JSON.
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

// SetSpec changes fields of an object's spec. Its undo restores the old values, unless somebody has
// changed them since.
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

// AsLeft tells whether fields of an object's spec are still as an action left them. If they are as
// before the action, there is nothing to undo; any other value is an error.
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

// ErrChangedSince refuses an undo of what somebody has changed since.
const ErrChangedSince = UserError("somebody has changed it since: look at it first")

// SpecOf returns the named fields of an object's spec; nil for fields that are not set.
func SpecOf(o state.Object, fields JSON) (JSON, error) {
	all, err := asTree(o)
	return SpecFields(all, fields), err
}

// SpecFields returns the named fields of an object's spec; nil for fields that are not set.
func SpecFields(object, fields JSON) JSON {
	spec, _ := object["spec"].(JSON)
	have := JSON{}
	for name := range fields {
		have[name] = spec[name]
	}
	return have
}

// Seen is the generation of each object, by UID, when the form was made. Some actions are wrong if
// the spec has changed since: a restart would happen twice.
type Seen map[string]string

const seenName = "seen"

// SeenField carries the generations through the form.
func SeenField(with []state.Object) Field {
	var all strings.Builder
	for _, o := range with {
		fmt.Fprintf(&all, "%s=%d ", o.GetUID(), o.GetGeneration())
	}
	return Field{Name: seenName, Type: "hidden", Value: all.String()}
}

// ParseSeen reads the generations from a form.
func ParseSeen(form url.Values) Seen {
	all := Seen{}
	for _, one := range strings.Fields(form.Get(seenName)) {
		uid, generation, _ := strings.Cut(one, "=")
		all[uid] = generation
	}
	return all
}

var errChanged = errors.New("somebody has changed it since you looked at it: look at it again first")

// Changed fails if the spec of an object has changed since the form was made.
func (s Seen) Changed(o state.Object) error {
	if was, ok := s[string(o.GetUID())]; ok && was != fmt.Sprint(o.GetGeneration()) {
		return errChanged
	}
	return nil
}
