package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/snapshot"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// still is a fleet that never changes, read by a user with a role.
type still struct {
	snap state.Snapshot
	role access.Role
}

func (f still) Snapshot() state.Snapshot { return f.snap }
func (still) Do(context.Context, control.News) ([]state.Applied, error) {
	return nil, errors.New("nothing changes here")
}
func (still) Since(uint64) ([]state.Applied, <-chan struct{}, error) { return nil, nil, nil }
func (still) Seen(string) time.Time                                  { return time.Time{} }
func (still) Lease(string) *coordv1.Lease                            { return nil }
func (still) Leases() []*coordv1.Lease                               { return nil }
func (f still) Authenticate(*http.Request) (access.User, error) {
	return access.User{Name: "anna", Role: f.role}, nil
}
func (still) CheckForm(*http.Request, access.User) error { return nil }

// A kind's row in the table is enough: the kind is stored, loaded and, if it is served, shown as
// JSON and as a table, and documented.
func TestARowIsAllThatAKindNeeds(t *testing.T) {
	snap := restored(t)
	for _, k := range state.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			o := one(t, k)
			if got := snap.Get(state.KeyOf(o)); got == nil || got.GetUID() != o.GetUID() || state.KindOf(got) != k {
				t.Fatalf("the loaded object is %v", got)
			}
			if !k.Served() {
				return
			}
			for _, err := range admission.Validate(o, admission.Settings{}) {
				if err.Type == field.ErrorTypeInternal {
					t.Errorf("admission has no rules for the kind: %v", err)
				}
			}
			roles := slices.DeleteFunc([]access.Role{access.Viewer, access.Operator},
				func(r access.Role) bool { return !access.Allow(r, "list", string(k)) })
			if len(roles) == 0 {
				t.Fatal("a viewer may not read the kind")
			}
			served(t, kube.New(kube.Config{Fleet: still{snap, roles[0]}, Leases: still{}, Access: still{role: roles[0]}}), k)
		})
	}
}

// one returns an object of the kind with only a name.
func one(t *testing.T, k state.Kind) state.Object {
	t.Helper()
	o, err := state.New(k)
	if err != nil {
		t.Fatal(err)
	}
	o.SetName("a")
	o.SetUID(types.UID("uid-" + k))
	if k.Namespaced() {
		o.SetNamespace("default")
	}
	return o
}

// restored returns a fleet with one object of every kind, loaded from a database.
func restored(t *testing.T) state.Snapshot {
	t.Helper()
	o := store.Options{Dir: t.TempDir(), Version: "test"}
	st, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Commit{Rev: 1}
	for _, k := range state.Kinds() {
		o := one(t, k)
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		c.Rows = append(c.Rows, store.Row{Kind: string(k), Namespace: o.GetNamespace(), Name: o.GetName(),
			UID: string(o.GetUID()), Rev: 1, Object: text})
	}
	if err := st.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	st.Close()
	if st, err = store.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s, mended, err := snapshot.Load(t.Context(), st, time.Unix(0, 0))
	if err != nil || len(mended) > 0 {
		t.Fatal(err, mended)
	}
	return s
}

// served checks the API's responses for a kind.
func served(t *testing.T, s http.Handler, k state.Kind) {
	t.Helper()
	gvk := k.GroupVersionKind()
	root := "/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		root = "/api/" + gvk.Version
	}
	get := func(path, accept string, into any) {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
			t.Fatalf("GET %s: %d %v %.300s", path, w.Code, err, w.Body)
		}
	}
	var list metav1.PartialObjectMetadataList
	if get(root+"/"+string(k), "application/json", &list); len(list.Items) != 1 || list.Items[0].Name != "a" ||
		list.Kind != gvk.Kind+"List" {
		t.Errorf("the list is a %s of %v", list.Kind, list.Items)
	}
	var table metav1.Table
	get(root+"/"+string(k), "application/json;as=Table;g=meta.k8s.io;v=v1", &table)
	if len(table.Rows) != 1 || k != state.LimitRanges && slices.ContainsFunc(table.ColumnDefinitions,
		func(c metav1.TableColumnDefinition) bool { return c.Name == "Created At" }) {
		t.Errorf("kubectl prints only default columns: %v", table.ColumnDefinitions)
	}
	var found metav1.APIResourceList
	get(root, "application/json", &found)
	if !slices.ContainsFunc(found.APIResources, func(r metav1.APIResource) bool {
		return r.Name == string(k) &&
			r.Kind == gvk.Kind
	}) {
		t.Errorf("discovery does not list the kind")
	}
	var doc struct {
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct {
				Kinds []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
			}
		}
	}
	get("/openapi/v3"+root, "application/json", &doc)
	if doc.Paths[root+"/"+string(k)] == nil {
		t.Errorf("the documents lack %s/%s: run go generate ./hub/kube/openapi", root, k)
	}
	for _, s := range doc.Components.Schemas {
		if slices.Contains(s.Kinds, gvk) {
			return
		}
	}
	t.Errorf("the documents have no schema of a %s: run go generate ./hub/kube/openapi", gvk.Kind)
}
