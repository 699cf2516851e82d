package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/bound"
)

// FuzzRows compares the decoding of a row with encoding/json on the repaired text.
func FuzzRows(f *testing.F) {
	for _, row := range []string{
		`nodes {"metadata":{"name":"a","creationTimestamp":"2026-11-24T06:45:49Z","labels":{"a":"b","c":"a"},"managedFields":[{"time":null,"fieldsV1":{"f:a":{}}}]},"spec":{"podCIDRs":["10.0.0.0/26"],"taints":[{"key":"k","effect":"NoExecute","timeAdded":"2026-11-24T06:45:49+01:00"}]},"status":{"capacity":{"cpu":"4","memory":"3884Mi","pods":110,"x":null,"y":0.5},"allocatable":{"cpu":"1500m"},"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":null,"lastTransitionTime":"2026-11-24T06:45:49.123456789Z"}],"images":[{"names":["x"],"sizeBytes":12}]}}`,
		`nodes {"metadata":{"name":"a"},"STATUS":{"Capacity":{"cpu":1e3}},"status":{"capacity":{"memory":"1\u004di"}}}`,
		`nodes {"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1","cpu":"2"},"capacity":{"memory":"1"}}}`,
		`nodes {"metadata":{"name":"a","creationTimestamp":"2026-11-24T06:45:4\u0039Z"}}`,
		`nodes {"metadata":{"name":"a","creationTimestamp":"yesterday"}}`,
		`nodes {"metadata":{"name":"a","creationTimestamp":17}}`,
		`nodes {"metadata":{"name":"a","labels":{"a":1}}}`,
		`nodes {"metadata":{"name":"a","labels":{"a":"` + "\xff" + `"}}}`,
		`nodes {"metadata":{"name":"a"}} {}`,
		`nodes {"metadata":{"name":"a"`,
		`nodes null`,
		`nodes {"metadata":{"name":"a","labels":{"a":"a\u003cb\\n","b":"a"},"annotations":{},"finalizers":["x"]},"spec":{"podCIDR":"10.0.0.0/26","unschedulable":true,"taints":[{"key":"k","value":"v","effect":"NoExecute","timeAdded":null},{"key":"k\"","effect":""}]},"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-24T06:45:49Z","lastTransitionTime":null,"reason":"r","message":"m"}],"addresses":[{"type":"Hostname","address":"a"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"m","systemUUID":"","bootID":"","kernelVersion":"k","osImage":"o","containerRuntimeVersion":"c","kubeletVersion":"v","kubeProxyVersion":"","operatingSystem":"l","architecture":"a"},"images":[{"names":["a","b"],"sizeBytes":1}]}}`,
		`nodes {"metadata":{"name":"a","labels":{"a":"b","a":"c"},"labels":{"d":"e"}},"metadata":{"uid":"u"},"spec":{"podCIDRs":[]},"spec":{"podCIDRs":["a"],"podCIDRs":["b","c"]}}`,
		`nodes {"metadata":{"name":"a"},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"conditions":[],"images":[{"names":["a"}]}}`,
		`nodes {"metadata":{"name":"a"},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"daemonEndpoints":{"kubeletEndpoint":{"Port":0}}}}`,
		`nodes {"metadata":{"name":"a","uid":"` + "b\x1fcdefghij" + `"}}`,
		`nodes {"metadata":{"name":"a","uid":"bcdefghijkl` + "\xe4\xb8\xad\xff" + `"}}`,
		`nodes {"metadata":{"name":"a","uid":"abcdefgh\ud800ij"},"spec":{"externalID":"\`,
		`nodes {"metadata":{"name":"a",},"spec":{}}`,
		`nodes {"metadata":{"name":"a"},"spec":{},}`,
		`nodes {"metadata":{"name":"a"}"spec":{}}`,
		`nodes {"metadata":{"name":"a","generation":12345678901234567890}}`,
		`records {"metadata":{"name":"a"},"boot":"b","pastBoots":["c"],"agentVersion":"1","enrolled":"2026-11-24T06:45:49Z","key":"k","token":"t","site":"s","given":{"labels":{"a":"b"},"taints":[{"key":"k","effect":"NoSchedule"}]},"generation":12,"digest":"d","leaseSeconds":10,"paused":true,"history":[{"at":"2026-11-24T06:45:49.000000Z","ready":"True","out":true},{"at":null,"ready":"","out":false}]}`,
		`records {"metadata":{"name":"a"},"given":null,"generation":012,"leaseSeconds":1e1}`,
		`records {"metadata":{"name":"a"},"given":{"labels":{"a":"b"}},"given":{"labels":{"c":"d"}},"generation":1234567890,"leaseSeconds":-1}`,
		`records {"metadata":{"name":"a"},"enrolled":null,"expires":"2027-01-01T00:00:00Z","transitions":["2026-11-24T06:45:49.000001Z",null],"given":{},"history":[{"at":"2026-11-24T06:45:49.000000Z","ready":"True"}]}`,
		`records {"metadata":{"name":"a"},"transitions":["2026-11-24T06:45:49Z"]}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"100m"}},"ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"port":"http"},"periodSeconds":3}}],"overhead":{"cpu":"1e2"}}}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":80}}}]}}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":[]}}}]}}`,
		`secrets {"metadata":{"name":"a"},"data":{"k":"aGFsbG8="},"immutable":true}`,
		`secrets {"metadata":{"name":"a"},"data":{"k":"aGFs bG8=","n":null}}`,
		`configmaps {"metadata":{"name":"a"},"binaryData":{"k":[104]}}`,
		`events {"metadata":{"name":"a","namespace":"default"},"eventTime":null,"lastTimestamp":"2026-11-24T06:45:49Z","count":1,"series":{"lastObservedTime":"2026-11-24T06:45:49.000000Z"}}`,
		`events {"metadata":{"name":"a"},"count":1.5}`,
		`controllerrevisions {"metadata":{"name":"a"},"data":{"spec":{"template":{"spec":{"overhead":{"cpu":"1"}}}}},"revision":9007199254740993}`,
		`sites {"metadata":{"name":"a"},"spec":{"nodeMonitorGracePeriod":"40s"}}`,
		`boardprofiles {"metadata":{"name":"a"},"spec":{"labels":{"a":"b"},"title":"x"}}`,
		`devicereports {"metadata":{"name":"a"},"reported":"2026-11-24T06:45:49Z","hardware":{"board": {"model":"x"}}}`,
		`nodes {"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1e999999999","memory":" 1Gi ","x":"","y":"0x1"}}}`,
		`nodes {"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1e40"}}}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"cpu":1e999}}}],"overhead":{"cpu":"` + strings.Repeat("9", 400) + `"}}}`,
		`controllerrevisions {"metadata":{"name":"a"},"data":{"spec":{"template":{"spec":{"overhead":{"cpu":"1e99"}}}}},"revision":1}`,
		`controllerrevisions {"metadata":{"name":"a"},"data":{"x":"1e99"},"revision":1}`,
		`records {"metadata":{"name":"a"},"transitions":["2026-11-24T06:45:49.00001+Z"],"history":[{"at":"2026-11-24T24:45:49.000000Z"}]}`,
		`deployments {"metadata":{"name":"a"},"spec":{"replicas":3,"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}}}}`,
	} {
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row string) {
		kind, text, _ := strings.Cut(row, " ")
		want, err := state.New(state.Kind(kind))
		if err != nil {
			return
		}
		repaired, broken := new(bound.Repairer).Repair([]byte(text), want)
		std := json.Unmarshal(repaired, want)
		lent := []byte(text)
		read, zeroed, err := new(Decoder).Decode(store.Row{
			Kind: kind, Name: want.GetName(), Namespace: want.GetNamespace(), Object: lent,
		})
		for i := range lent {
			lent[i] = 'x' // overwrite the text like the next row
		}
		if (err == nil) != (std == nil) || err == nil && (zeroed != nil) != (len(broken) > 0) {
			t.Fatalf("%s: %v, repaired in %q, want %v, in %q", text, err, zeroed, std, broken)
		}
		if a, _ := json.Marshal(read); err == nil {
			if b, _ := json.Marshal(want); string(a) != string(b) {
				t.Fatalf("%s is\n%s, want\n%s", text, a, b)
			}
		}
	})
}

// Decoded objects share equal resource lists. One row does not change another row's list.
func TestRowsShareTheirResources(t *testing.T) {
	var d Decoder
	read := func(kind, text string) state.Object {
		o, repaired, err := d.Decode(store.Row{Kind: kind, Name: "a", Object: []byte(text)})
		if err != nil || repaired != nil {
			t.Fatal(err, repaired)
		}
		return o
	}
	node := func(list string) *corev1.Node {
		return read("nodes", `{"metadata":{"name":"a"},"status":{"capacity":`+list+`,"allocatable":`+list+`,"conditions":[{"type":"A"},{"type":"B"},{"type":"Ready","status":"True"}]}}`).(*corev1.Node)
	}
	const list = `{"cpu":"4","memory":"1Gi"}`
	one, other := node(list), node(list)
	at := func(l corev1.ResourceList) uintptr { return reflect.ValueOf(l).Pointer() }
	if at(one.Status.Capacity) != at(other.Status.Allocatable) {
		t.Error("equal resource lists are not shared")
	}
	twice := read("nodes", `{"metadata":{"name":"a"},"status":{"capacity":`+list+`,"capacity":{"pods":"7"}}}`).(*corev1.Node)
	if l := twice.Status.Capacity; len(l) != 3 || l.Pods().Value() != 7 {
		t.Errorf("a duplicate list is %v", l)
	}
	if l := one.Status.Capacity; len(l) != 2 || l.Cpu().Value() != 4 || l.Memory().Value() != 1<<30 {
		t.Errorf("another row changed the node's resources to %v", l)
	}
	c := one.Status.Conditions
	if len(c) != 3 || cap(c) != 3 || c[2].Status != corev1.ConditionTrue || &c[0] == &other.Status.Conditions[0] {
		t.Errorf("the conditions are %v, with capacity %d", c, cap(c))
	}
	few := read("nodes", `{"metadata":{"name":"a"},"status":{"conditions":[{"type":"C"}]}}`).(*corev1.Node).Status.Conditions
	if !reflect.DeepEqual(few, []corev1.NodeCondition{{Type: "C"}}) {
		t.Errorf("values of another row are in %v", few)
	}
}

// Rows are decoded in parallel and returned in order, although the store reuses the memory of their
// text.
func TestParallelDecodingKeepsTheOrder(t *testing.T) {
	const n = 1000
	load := func(bad int) func(context.Context, func(store.Row) error) error {
		return func(_ context.Context, fn func(store.Row) error) error {
			var text []byte
			for i := range n {
				name := fmt.Sprintf("ns-%04d", i)
				text = fmt.Appendf(text[:0], `{"metadata":{"name":%q}}`, name)
				r := store.Row{Kind: string(state.Namespaces), Name: name, Object: text}
				if i == bad {
					r.Object = []byte("no JSON")
				}
				if err := fn(r); err != nil {
					return err
				}
			}
			return nil
		}
	}
	var objects []state.Object
	add := func(more []state.Object) { objects = append(objects, more...) }
	_, err := decodeAll(t.Context(), load(-1), add)
	if err != nil || len(objects) != n {
		t.Fatalf("%d objects, %v, want %d", len(objects), err, n)
	}
	for i, o := range objects {
		if want := fmt.Sprintf("ns-%04d", i); o.GetName() != want {
			t.Fatalf("object %d is %s, want %s", i, o.GetName(), want)
		}
	}
	for _, bad := range []int{0, 300, n - 1} {
		if _, err := decodeAll(t.Context(), load(bad), add); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("ns-%04d", bad)) {
			t.Errorf("row %d is damaged: %v", bad, err)
		}
	}
	lost := errors.New("the disk fails")
	if _, err := decodeAll(t.Context(), func(_ context.Context, fn func(store.Row) error) error { return lost },
		add); !errors.Is(err, lost) {
		t.Errorf("a store that cannot be read: %v", err)
	}
	for range 100 { // a part of the fleet is never returned as the whole, whichever goroutine ends first
		ctx, cancel := context.WithCancel(t.Context())
		objects = nil
		_, err := decodeAll(ctx, func(ctx context.Context, fn func(store.Row) error) error {
			defer cancel()
			return load(-1)(ctx, fn)
		}, add)
		if err == nil && len(objects) != n || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("%d objects of %d, %v", len(objects), n, err)
		}
	}
}

// The fleet that was read during the check is valid until the next write.
func TestAPrefetchIsValidUntilTheNextWrite(t *testing.T) {
	o := store.Options{Dir: t.TempDir(), Version: "test", Log: slog.New(slog.DiscardHandler)}
	row := func(name string, rev uint64) store.Commit {
		return store.Commit{Rev: rev, Rows: []store.Row{{
			Kind: "nodes", Name: name, UID: "u-" + name, Rev: rev,
			Object: fmt.Appendf(nil, `{"metadata":{"name":%q,"uid":"u-%s"}}`, name, name),
		}}}
	}
	st, err := store.Open(t.Context(), o)
	if err == nil {
		err = errors.Join(st.Commit(t.Context(), row("a", 1)), st.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	var early Prefetch
	o.Reads = early.Read
	if st, err = store.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	began := time.Unix(1_700_000_000, 0)
	s, _, ok := early.Take(t.Context(), st, began)
	want, _, err := Load(t.Context(), st, began)
	if err != nil || !ok || !s.Started.Equal(began) || !s.SeenReset().Equal(want.SeenReset()) || s.Salt != want.Salt ||
		s.Revision != want.Revision || s.Node("a") == nil {
		t.Errorf("%v, %v: started at %v, forgiven at %v, revision %d", err, ok, s.Started, s.SeenReset(), s.Revision)
	}
	if err := st.Commit(t.Context(), row("b", 2)); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := early.Take(t.Context(), st, began); ok {
		t.Error("the prefetch is valid after a write")
	}
	if _, _, ok := (&Prefetch{}).Take(t.Context(), st, began); ok {
		t.Error("an empty prefetch is valid")
	}
}

// A row with another object's name is refused. The hub does not start, and its error names the row.
func TestARowWithAnotherNameIsRefused(t *testing.T) {
	for what, r := range map[string]store.Row{
		"another name": {
			Kind: "pods", Namespace: "default", Name: "a", Object: []byte(`{"metadata":{"name":"b","namespace":"default","uid":"u"}}`),
		},
		"another namespace": {
			Kind: "pods", Namespace: "default", Name: "a", Object: []byte(`{"metadata":{"name":"a","namespace":"shop","uid":"u"}}`),
		},
		"no object": {Kind: "pods", Namespace: "default", Name: "a", Object: []byte(`null`)},
		"an unknown kind": {
			Kind: "wishes", Namespace: "default", Name: "a", Object: []byte(`{"metadata":{"name":"a","namespace":"default"}}`),
		},
		"no JSON": {Kind: "pods", Namespace: "default", Name: "a", Object: []byte(`{"metadata":{`)},
		"a list":  {Kind: "pods", Namespace: "default", Name: "a", Object: []byte(`[]`)},
	} {
		st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		r.UID, r.Rev = "u", 1
		if err := st.Commit(t.Context(), store.Commit{Rev: 1, Rows: []store.Row{r}}); err != nil {
			t.Logf("%s: the store itself returns %v", what, err)
		} else if _, _, err := Load(t.Context(), st, time.Now()); err == nil ||
			!strings.Contains(err.Error(), "default/a") || !strings.Contains(err.Error(), "restore a backup") {
			t.Errorf("%s: %v, want the row and advice", what, err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The objects in a row are counted before the row is decoded, because the row may come from a
// manipulated backup.
func TestARowWithTooManyObjectsIsRefused(t *testing.T) {
	r := store.Row{Kind: string(state.Pods), Namespace: "default", Name: "a",
		Object: json.RawMessage(`{"metadata":{"name":"a","namespace":"default"},"spec":{"containers":[` + strings.Repeat("{},", 1<<20) + "{}]}}")}
	if _, _, err := new(Decoder).Decode(r); err == nil || !strings.Contains(err.Error(), "objects and lists") ||
		!strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("the error is %.200v, want the limit and advice", err)
	}
}

// Nodes share equal strings, except strings that are unique to a node.
func TestNodesShareEqualStrings(t *testing.T) {
	var d Decoder
	read := func(name string) *corev1.Node {
		text := fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"kubernetes.io/hostname":%q,"kubernetes.io/os":"linux"}},"status":{"conditions":[{"type":"Ready","status":"True","message":"is posting"}],"nodeInfo":{"machineID":"m","osImage":"Debian"},"images":[{"names":["example.com/a:1"]}]}}`, name, name)
		o, _, err := d.Decode(store.Row{Kind: "nodes", Name: name, Object: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		return o.(*corev1.Node)
	}
	a, b := read("node-1"), read("node-2")
	for _, words := range [][2]string{
		{a.Labels["kubernetes.io/os"], b.Labels["kubernetes.io/os"]},
		{a.Status.Conditions[0].Message, b.Status.Conditions[0].Message},
		{a.Status.NodeInfo.OSImage, b.Status.NodeInfo.OSImage},
		{a.Status.Images[0].Names[0], b.Status.Images[0].Names[0]},
		{b.Labels["kubernetes.io/hostname"], b.Name},
	} {
		if words[0] == "" || words[0] != words[1] || unsafe.StringData(words[0]) != unsafe.StringData(words[1]) {
			t.Errorf("%q and %q are not shared", words[0], words[1])
		}
	}
	if again := read("node-1"); unsafe.StringData(again.Name) == unsafe.StringData(a.Name) {
		t.Error("a unique name is shared")
	}
}
