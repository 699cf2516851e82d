package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// Objects have no version in the schema: fields may be added, but not removed or renamed.
// kept-N.txt has objects of every kind as hubs of schema N wrote them. Each is decoded like at a
// start, and no field is lost.
func TestObjectsOfOlderHubsAreReadCompletely(t *testing.T) {
	files, err := filepath.Glob("testdata/kept-*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := map[state.Kind]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		type kept struct {
			key  state.Key
			text string
		}
		var all []kept
		rev := uint64(0)
		for line := range strings.Lines(string(text)) {
			kind, object, _ := strings.Cut(strings.TrimSpace(line), " ")
			if kind == "#" {
				continue
			}
			var named struct {
				Metadata struct{ Name, Namespace, UID string }
			}
			if err := json.Unmarshal([]byte(object), &named); err != nil {
				t.Fatalf("%s: %s: %v", file, kind, err)
			}
			m := named.Metadata
			rev++
			row := store.Row{
				Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: fmt.Sprint(m.UID, "-", rev), Rev: rev,
				Object: []byte(object),
			}
			if err := st.Commit(t.Context(), store.Commit{Rev: rev, Rows: []store.Row{row}}); err != nil {
				t.Fatal(err)
			}
			key := state.Key{Kind: state.Kind(kind), Namespace: m.Namespace, Name: m.Name}
			// a later line replaces an earlier one of the same object
			all = slices.DeleteFunc(all, func(k kept) bool { return k.key == key })
			all = append(all, kept{key, object})
			seen[key.Kind] = true
		}
		s, repaired, err := Load(t.Context(), st, time.Now())
		if err != nil || len(repaired) > 0 {
			t.Fatalf("%s: repaired %v: %v", file, repaired, err)
		}
		for _, k := range all {
			o := s.Get(k.key)
			if o == nil {
				t.Errorf("%s is missing in the fleet", k.key)
				continue
			}
			again, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			var was, is any
			if err := errors.Join(json.Unmarshal([]byte(k.text), &was), json.Unmarshal(again, &is)); err != nil {
				t.Fatal(err)
			}
			for _, lost := range lostOf("", was, is) {
				t.Errorf("%s has lost %s", k.key, lost)
			}
		}
	}
	for _, k := range state.Kinds() {
		if !seen[k] {
			t.Errorf("testdata/kept-*.txt has no line of %s: add one as a hub writes it", k)
		}
	}
}

// lostOf lists the values of was that are missing in is.
func lostOf(at string, was, is any) (lost []string) {
	switch was := was.(type) {
	case nil:
	case map[string]any:
		now, _ := is.(map[string]any)
		for key, v := range was {
			lost = append(lost, lostOf(at+"."+key, v, now[key])...)
		}
	case []any:
		now, _ := is.([]any)
		for i, v := range was {
			var to any
			if i < len(now) {
				to = now[i]
			}
			lost = append(lost, lostOf(fmt.Sprintf("%s[%d]", at, i), v, to)...)
		}
	default:
		if fmt.Sprint(was) != fmt.Sprint(is) && fmt.Sprint(was) != "" && fmt.Sprint(was) != "0" &&
			fmt.Sprint(was) != "false" {
			lost = append(lost, fmt.Sprintf("%s=%v, but now %v", at, was, is))
		}
	}
	return lost
}
