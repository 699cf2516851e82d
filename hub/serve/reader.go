package serve

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/bound"
)

// A reader makes objects of rows, which share what they have in common. It is for one goroutine.
type reader struct {
	mender     bound.Repairer
	sharer     state.Sharer
	options    json.Options
	lists      map[string]corev1.ResourceList // by their text
	conditions conditions                     // decoded into, to make lists of what they hold and no more
	moments    [4]moment                      // read last: most of a node's conditions name the same ones
	oldest     int                            // of them
	field      []byte                         // that is read by itself
	pairs      [][2]string                    // of a map
}

type moment struct {
	text string // "": none
	at   metav1.Time
}

type conditions []corev1.NodeCondition

// Bounds of the lists that a reader knows: what is longer, or comes when it knows so much, is read anew.
const (
	mostLists   = 8192
	longestList = 256
)

// A row may hold what a request may, and who set each of it.
const (
	mostObjects = 8 * bound.MaxObjects
	longRow     = 128 << 10 // bytes; what is shorter is not counted
)

// object is the object of a row, and what of it had to be mended.
func (k *reader) object(r store.Row) (o state.Object, places []string, err error) {
	kind := state.Kind(r.Kind)
	if o, err = state.New(kind); err != nil {
		return nil, nil, fmt.Errorf("%s %s/%s: %w; restore a backup, or delete the row", r.Kind, r.Namespace, r.Name, err)
	}
	if len(r.Object) > longRow && bound.CountJSON(r.Object).Objects > mostObjects {
		return nil, nil, fmt.Errorf("%s %s/%s has more than %d objects and lists: that many are not read; restore a backup, or delete the row", r.Kind, r.Namespace, r.Name, mostObjects)
	}
	k.begin()
	written := k.written(r.Object, o)
	if !written && json.Unmarshal(r.Object, o, k.options) != nil {
		o, _ = state.New(kind) // without what has been read already
		var text []byte
		text, places = k.mender.Repair(r.Object, o)
		err = stdjson.Unmarshal(text, o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("decode %s %s/%s: %w; restore a backup, or delete the row", r.Kind, r.Namespace, r.Name, err)
	}
	if o.GetName() != r.Name || o.GetNamespace() != r.Namespace { // else the row outlives it, and comes back at every start
		return nil, nil, fmt.Errorf("the row of %s %s/%s holds %s/%s; restore a backup, or delete the row", r.Kind, r.Namespace, r.Name, o.GetNamespace(), bound.Text(o.GetName(), 300))
	}
	if !written {
		k.sharer.Share(o)
	}
	return o, places, nil
}

func (k *reader) begin() {
	if k.options == nil {
		k.options = json.JoinOptions(quick, json.WithUnmarshalers(json.JoinUnmarshalers(
			json.UnmarshalFromFunc(k.list), json.UnmarshalFromFunc(k.conditionsOf), json.UnmarshalFromFunc(k.time), plain)))
	}
}

// list reads what there is of resources: objects that say the same of them share one list.
func (k *reader) list(d *jsontext.Decoder, l *corev1.ResourceList) error {
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	return k.resources(text, l)
}

func (k *reader) resources(text []byte, l *corev1.ResourceList) error {
	if *l != nil {
		return errUnusual // it is there twice: one that is shared is not added to
	}
	if known, ok := k.lists[string(text)]; ok {
		*l = known
		return nil
	}
	if err := json.Unmarshal(text, (*map[corev1.ResourceName]resource.Quantity)(l), quick); err != nil {
		return err
	}
	if k.lists == nil {
		k.lists = map[string]corev1.ResourceList{}
	}
	if len(k.lists) < mostLists && len(text) <= longestList {
		k.lists[string(text)] = *l
	}
	return nil
}

// conditionsOf reads the conditions of a node into a list that has no room for more.
func (k *reader) conditionsOf(d *jsontext.Decoder, l *[]corev1.NodeCondition) error {
	if *l != nil {
		return errUnusual
	}
	clear(k.conditions[:cap(k.conditions)])
	k.conditions = k.conditions[:0]
	if err := json.UnmarshalDecode(d, &k.conditions); err != nil {
		return err
	}
	if k.conditions != nil {
		*l = append(make([]corev1.NodeCondition, 0, len(k.conditions)), k.conditions...)
	}
	return nil
}

// time reads a moment, as plain does.
func (k *reader) time(d *jsontext.Decoder, t *metav1.Time) error {
	text, err := d.ReadValue()
	if err == nil {
		*t, err = k.moment(text)
	}
	return err
}

func (k *reader) moment(text []byte) (t metav1.Time, err error) {
	for i := range k.moments {
		if k.moments[i].text == string(text) {
			return k.moments[i].at, nil
		}
	}
	if t.Time, err = momentOf(text, time.RFC3339); err == nil {
		k.moments[k.oldest] = moment{string(text), t}
		k.oldest = (k.oldest + 1) % len(k.moments)
	}
	return t, err
}

// quick is how rows are decoded in half the time of encoding/json, and as it does it. What is not
// accepted so, encoding/json has the last word on, when it is mended: nothing is checked first.
var quick = json.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false), json.WithUnmarshalers(plain))

// plain are the types of Kubernetes' that decode themselves.
var plain = json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, t *metav1.Time) error {
		text, err := d.ReadValue()
		if err == nil {
			t.Time, err = momentOf(text, time.RFC3339)
		}
		return err
	}),
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, t *metav1.MicroTime) error {
		text, err := d.ReadValue()
		if err == nil {
			t.Time, err = momentOf(text, metav1.RFC3339Micro)
		}
		return err
	}),
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, q *resource.Quantity) error {
		text, err := d.ReadValue()
		switch n := len(text); {
		case err != nil:
			return err
		case string(text) == "null":
			return q.UnmarshalJSON(text)
		case bytes.IndexByte(text, '\\') >= 0:
			return errUnusual
		case text[0] == '"':
			text = text[1 : n-1]
		}
		*q, err = bound.ParseQuantity(string(bytes.TrimSpace(text)))
		return err
	}),
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, r *runtime.RawExtension) error {
		text, err := d.ReadValue()
		if err != nil {
			return err
		}
		if _, places := new(bound.Repairer).Repair(text, r); len(places) > 0 {
			return errUnusual
		}
		return r.UnmarshalJSON(text)
	}),
)

var errUnusual = errors.New("it is written in an unusual way")

// momentOf reads a time as Kubernetes' types do: null is none.
func momentOf(text []byte, layout string) (t time.Time, err error) {
	switch n := len(text); {
	case string(text) == "null":
		return t, nil
	case n < 2 || text[0] != '"' || bytes.IndexByte(text, '\\') >= 0:
		return t, errUnusual
	}
	const micro = len(`"2006-01-02T15:04:05.000000Z"`)
	if n := len(text); layout == metav1.RFC3339Micro && n == micro && text[n-2] == 'Z' && text[n-9] == '.' {
		layout = time.RFC3339 // which reads what is written so just as well, and at once
	}
	t, err = time.Parse(layout, string(text[1:len(text)-1]))
	return t.Local(), err
}

// mendedWhy says what had to be mended of an object; "": nothing.
func mendedWhy(o state.Object, places []string) string {
	n := len(places)
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s was remembered with %d quantities that no machine can have, which are 0 now: %s",
		state.KeyOf(o), n, bound.Text(strings.Join(places[:min(n, 5)], ", "), 500))
}
