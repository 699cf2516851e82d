package kube

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// 5,000 nodes as kubectl lists them: as a table, page by page.
func BenchmarkTableOf5000Nodes(b *testing.B) {
	f := newFake()
	for i := range 5000 {
		f.put(fakeNode(fmt.Sprintf("pi-%04d", i), "oslo"))
	}
	s := newServer(f)
	for b.Loop() {
		next, rows := "", 0
		for {
			r := httptest.NewRequest("GET", "/api/v1/nodes?limit=500&continue="+url.QueryEscape(next), nil)
			r.Header.Set("Authorization", "Bearer viewer")
			r.Header.Set("Accept", aTab)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			var t struct {
				Metadata metav1.ListMeta
				Rows     []json.RawMessage
			}
			b.StopTimer()
			if err := json.Unmarshal(w.Body.Bytes(), &t); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			rows += len(t.Rows)
			if next = t.Metadata.Continue; next == "" {
				break
			}
		}
		if rows != 5000 {
			b.Fatalf("%d rows", rows)
		}
	}
}

// One change of a node, and a hundred watchers of all nodes.
func BenchmarkChangeFor100Watchers(b *testing.B) {
	f := newFake()
	f.put(fakeNode("pi-1", "oslo"))
	s := newServer(f)
	n := f.Snapshot().Node("pi-1")
	change := state.Applied{Rev: 10, Key: state.KeyOf(n), Old: n, New: n}
	sel, err := resource.NewSelection(state.Nodes, "", nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	var watchers []*watcher
	for range 100 {
		c := &call{Server: s, res: s.find(target{version: "v1", resource: "nodes"})}
		watchers = append(watchers, &watcher{call: c, form: resource.Form{Media: resource.MediaJSON}, sel: sel, out: discard{}})
	}
	for b.Loop() {
		change.Rev++
		for _, w := range watchers {
			w.tell(change)
			w.flush()
		}
	}
}

type discard struct{}

func (discard) write([]byte) error { return nil }
