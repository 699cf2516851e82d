package bound

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// A Repairer repairs many texts and caches their types. One goroutine uses it.
type Repairer struct{ walk walk }

// Repair replaces each quantity beyond the limits in stored JSON by 0, and returns the paths of the
// replaced quantities. An older version may have stored such a quantity, and the rest of the object
// must stay readable.
func (k *Repairer) Repair(data []byte, into any) (mended []byte, places []string) {
	if !suspicious(data, inWord) {
		return data, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var tree any
	if d.Decode(&tree) != nil {
		return data, nil // the decoder reports it later
	}
	m := repairer{walk: &k.walk}
	tree = m.value(tree, typeOf(into), "")
	if len(m.places) == 0 {
		return data, nil
	}
	slices.Sort(m.places)
	mended, err := json.Marshal(tree)
	if err != nil {
		return data, nil // cannot fail: it was valid JSON
	}
	return mended, m.places
}

type repairer struct {
	*walk
	places []string
}

// value returns the repaired value.
func (m *repairer) value(v any, t reflect.Type, place string) any {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := v.(type) {
	case map[string]any:
		if t == rawExtension {
			t = reflect.TypeFor[template]()
		}
		for name, inside := range v {
			v[name] = m.value(inside, m.member(t, name), place+"."+name)
		}
	case []any:
		if t == nil || t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			t = nil
		} else {
			t = t.Elem()
		}
		for i := range v {
			v[i] = m.value(v[i], t, fmt.Sprintf("%s[%d]", place, i))
		}
	case json.Number:
		if t == quantityType {
			return m.quantity(v.String(), v, place)
		}
	case string:
		if t == quantityType {
			return m.quantity(v, v, place)
		}
	}
	return v
}

func (m *repairer) quantity(s string, as any, place string) any {
	if _, err := ParseQuantity(s); err != nil {
		m.places = append(m.places, place[1:])
		return "0"
	}
	return as
}
