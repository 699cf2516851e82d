package table

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/state"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var now = time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)

// render formats a table with all columns for people.
func render(t *metav1.Table) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, c := range t.ColumnDefinitions {
		name := strings.ToUpper(c.Name)
		if c.Priority > 0 {
			name = "(w)" + name
		}
		if c.Type != "string" {
			name += ":" + c.Type
		}
		fmt.Fprint(w, name, []string{"\t", "\n"}[min(1, (i+1)/len(t.ColumnDefinitions))])
	}
	for _, r := range t.Rows {
		for i, c := range r.Cells {
			fmt.Fprint(w, c, []string{"\t", "\n"}[min(1, (i+1)/len(r.Cells))])
		}
	}
	w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestEveryTableEqualsItsGoldenFile(t *testing.T) {
	seen := func(node string) time.Time {
		if node == "pi-1" {
			return now.Add(-7 * time.Second)
		}
		return time.Time{}
	}
	kinds := append([]state.Kind{"widgets"}, state.Kinds()...)
	for _, k := range kinds {
		if !k.Served() {
			continue // not served
		}
		t.Run(string(k), func(t *testing.T) {
			objs := samples(k)
			if len(objs) == 0 {
				t.Fatalf("sample objects of %s are missing", k)
			}
			got := render(For(k, objs, Options{Now: now, LastSeen: seen}))
			file := filepath.Join("testdata", string(k)+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the table of %s has changed (-update accepts it):\n%s\nwant:\n%s", k, got, want)
			}
		})
	}
}

func TestEveryRowHasACellForEveryColumnOfTheRightType(t *testing.T) {
	for _, k := range state.Kinds() {
		if !k.Served() {
			continue
		}
		empty, err := state.New(k)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := layouts[k]; !ok {
			t.Errorf("%s must have its own layout", k)
		}
		tab := For(k, append(samples(k), empty), Options{Now: now})
		for _, r := range tab.Rows {
			if len(r.Cells) != len(tab.ColumnDefinitions) {
				t.Fatalf("%s: %d cells for %d columns", k, len(r.Cells), len(tab.ColumnDefinitions))
			}
			for i, c := range r.Cells {
				_, isInt := c.(int64)
				col := tab.ColumnDefinitions[i]
				// Kubernetes puts integers into these columns of type string
				loose := map[string]bool{"Up-to-date": true, "Available": true, "Data": true, "Count": true, "Revision": true}
				if isInt != (col.Type == "integer") && !loose[col.Name] {
					t.Errorf("%s: column %s is %s, its cell is %T", k, col.Name, col.Type, c)
				}
			}
		}
	}
}

func TestTheObjectOfARow(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "shop", ResourceVersion: "7"}}
	before := pod.DeepCopy()
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"metadata by default", Options{},
			`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"kiosk","namespace":"shop","resourceVersion":"7"}}`},
		{"metadata on request", Options{Include: metav1.IncludeMetadata},
			`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"kiosk","namespace":"shop","resourceVersion":"7"}}`},
		{"nothing on request", Options{Include: metav1.IncludeNone}, `null`},
		{"the whole object with its kind", Options{Include: metav1.IncludeObject},
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"kiosk","namespace":"shop","resourceVersion":"7"},"spec":{"containers":null},"status":{}}`},
		{"the whole object as the caller converts it", Options{Include: metav1.IncludeObject,
			Object: func(state.Object) runtime.Object {
				return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Converted"}}
			}},
			`{"kind":"Converted","metadata":{}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := For(state.Pods, []state.Object{pod}, c.o).Rows[0]
			got, err := json.Marshal(row.Object)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	if pod.Kind != before.Kind {
		t.Error("the stored object must not change")
	}
}

func TestATableIsNeverNull(t *testing.T) {
	b, err := json.Marshal(For(state.Pods, nil, Options{NoHeaders: true}))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":null,"rows":[]}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	if n := len(For(state.Services, nil, Options{}).ColumnDefinitions); n != 7 {
		t.Errorf("services have %d columns, want 7", n)
	}
}
