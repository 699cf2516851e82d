package kube

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubectl lists 5,000 nodes as a table, page by page.
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
