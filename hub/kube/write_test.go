package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// send sends a request as admin, and expects this code. If out is not nil, it gets the answer.
func send(t *testing.T, s *Server, method, path, contentType, body string, code int, out any) {
	t.Helper()
	w := request{method: method, path: path, contentType: contentType, body: body}.do(s)
	if w.Code != code {
		t.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, code)
	}
	if out != nil {
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
		}
	}
}

func TestAnUnchangedObjectKeepsItsRevision(t *testing.T) {
	f := seeded()
	s := newServer(f)
	for _, c := range []struct{ name, contentType, path, body string }{
		{"a cordon of a cordoned node", smp, "/api/v1/nodes/pi-1", `{"spec":{"unschedulable":null}}`},
		{"an empty patch", mp, "/api/v1/nodes/pi-1", `{}`},
		{"a scale to the same number", mp, apps + "/deployments/web/scale", `{"spec":{"replicas":2}}`},
		{"a quantity written differently", mp, "/api/v1/nodes/pi-1/status", `{"status":{"capacity":{"memory":"4096Mi"}}}`},
	} {
		before := f.Snapshot().Revision
		send(t, s, "PATCH", c.path, c.contentType, c.body, 200, nil)
		if after := f.Snapshot().Revision; after != before {
			t.Errorf("%s must not change the fleet: revision %d became %d", c.name, before, after)
		}
	}
}

func TestTwoWritersOfOneRevision(t *testing.T) {
	f := seeded()
	s := newServer(f)
	var n corev1.Node
	send(t, s, "GET", "/api/v1/nodes/pi-1", "", "", 200, &n)
	n.Spec.Unschedulable = true
	body, _ := json.Marshal(n)
	send(t, s, "PUT", "/api/v1/nodes/pi-1", "", string(body), 200, nil)
	send(t, s, "PUT", "/api/v1/nodes/pi-1", "", string(body), 409, nil)
}

// A write is checked against the state to which the control loop applies it, because the handler's
// snapshot may be old.
func TestAWriteIsCheckedOnTheNewestState(t *testing.T) {
	f := seeded()
	s := newServer(f)
	f.before = func() {
		f.touch(fakeNode("pi-1", ""), "race", "won")
	}
	var n corev1.Node
	send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp, `{"metadata":{"labels":{"a":"b"}}}`, 200, &n)
	if n.Labels["race"] != "won" || n.Labels["a"] != "b" {
		t.Errorf("the node has the labels %v, want those of both writers", n.Labels)
	}
	rv := n.ResourceVersion
	f.before = func() {
		f.touch(fakeNode("pi-1", ""), "race", "again")
	}
	send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp,
		fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{"a":"c"}}}`, rv), 409, nil)
}

func TestGenerationCountsTheSpec(t *testing.T) {
	s := newServer(seeded())
	for _, c := range []struct {
		name, path, body string
		want             int64
	}{
		{"a status", "/deployments/web/status", `{"status":{"replicas":1}}`, 1},
		{"a label", "/deployments/web", `{"metadata":{"labels":{"a":"b"}}}`, 1},
		{"a spec", "/deployments/web", `{"spec":{"replicas":3}}`, 2},
		{"a deployment's annotation", "/deployments/web", `{"metadata":{"annotations":{"a":"b"}}}`, 3},
		{"a generation that the client sets", "/deployments/web", `{"metadata":{"generation":99,"labels":{"a":"c"}}}`, 3},
	} {
		var d appsv1.Deployment
		send(t, s, "PATCH", apps+c.path, mp, c.body, 200, &d)
		if d.Generation != c.want {
			t.Errorf("generation after %s: %d, want %d", c.name, d.Generation, c.want)
		}
	}
	send(t, s, "PATCH", apps+"/deployments/web/scale", mp, `{"spec":{"replicas":9}}`, 200, nil)
	var d appsv1.Deployment
	if send(t, s, "GET", apps+"/deployments/web", "", "", 200, &d); d.Generation != 4 {
		t.Errorf("after a scale the generation is %d, want 4", d.Generation)
	}
}

func TestFieldsThatOnlyTheServerSets(t *testing.T) {
	f := seeded()
	s := newServer(f)
	var n corev1.Node
	send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp,
		`{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z","labels":{"a":"b"}}}`, 200, &n)
	send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp, `{"metadata":{"deletionTimestamp":"2001-01-01T00:00:00Z"}}`, 422, nil)
	if !n.CreationTimestamp.Time.Equal(fakeStart) || n.DeletionTimestamp != nil {
		t.Errorf("the node was created %v and deleted %v, want the server's times", n.CreationTimestamp, n.DeletionTimestamp)
	}
	var cm corev1.ConfigMap
	send(t, s, "POST", ns+"/configmaps", "",
		`{"metadata":{"generateName":"c-","uid":"x","generation":7,"creationTimestamp":null,"deletionTimestamp":"2001-01-01T00:00:00Z"}}`, 201, &cm)
	if cm.UID == "x" || cm.UID == "" || cm.Generation != 0 || cm.DeletionTimestamp != nil || len(cm.Name) != len("c-")+5 ||
		cm.CreationTimestamp.IsZero() {
		t.Errorf("created with the client's metadata: %+v", cm.ObjectMeta)
	}
}

func TestAFinalizerKeepsAnObject(t *testing.T) {
	f := seeded()
	s := newServer(f)
	var cm corev1.ConfigMap
	send(t, s, "POST", ns+"/configmaps", "", `{"metadata":{"name":"c","finalizers":["example.com/hold"]}}`, 201, nil)
	send(t, s, "DELETE", ns+"/configmaps/c", "", "", 200, &cm)
	if cm.DeletionTimestamp == nil {
		t.Fatalf("the object has no deletionTimestamp: %+v", cm.ObjectMeta)
	}
	before := f.Snapshot().Revision
	send(t, s, "DELETE", ns+"/configmaps/c", "", "", 200, nil)
	if f.Snapshot().Revision != before {
		t.Error("a second deletion must change nothing")
	}
	var last corev1.ConfigMap
	send(t, s, "PATCH", ns+"/configmaps/c", mp, `{"metadata":{"finalizers":null}}`, 200, &last)
	if len(last.Finalizers) > 0 || last.ResourceVersion != resource.FormatRev(f.Snapshot().Revision) {
		t.Errorf("answer to removing the last finalizer: %+v at revision %d, want no finalizer at that revision", last.ObjectMeta,
			f.Snapshot().Revision)
	}
	send(t, s, "GET", ns+"/configmaps/c", "", "", 404, nil)
}

func TestAPodsFinalizerAndItsDevice(t *testing.T) {
	f := seeded()
	s := newServer(f)
	send(t, s, "PATCH", ns+"/pods/kiosk-1", mp, `{"metadata":{"finalizers":["example.com/hold"]}}`, 200, nil)
	send(t, s, "DELETE", ns+"/pods/kiosk-1", "", "", 200, nil)
	send(t, s, "PATCH", ns+"/pods/kiosk-1", mp, `{"metadata":{"finalizers":null}}`, 200, nil)
	send(t, s, "GET", ns+"/pods/kiosk-1", "", "", 200, nil) // the device must stop the pod first
	send(t, s, "DELETE", ns+"/pods/kiosk-1", "", `{"gracePeriodSeconds":0}`, 200, nil)
	send(t, s, "GET", ns+"/pods/kiosk-1", "", "", 404, nil)
}

func TestPagesOfAListDuringChanges(t *testing.T) {
	f := newFake()
	for i := range 7 {
		f.put(fakeNode(fmt.Sprintf("pi-%d", i), "oslo"))
	}
	s := newServer(f)
	first := resource.FormatRev(f.Snapshot().Revision)
	var names []string
	next := ""
	for page := range 10 {
		var list corev1.NodeList
		send(t, s, "GET", "/api/v1/nodes?limit=3&continue="+url.QueryEscape(next), "", "", 200, &list)
		if list.ResourceVersion != first {
			t.Errorf("page %d has revision %s, want the first page's %s", page, list.ResourceVersion, first)
		}
		for _, n := range list.Items {
			names = append(names, n.Name)
		}
		if page == 0 {
			if list.RemainingItemCount == nil || *list.RemainingItemCount != 4 {
				t.Errorf("remaining items after the first page: %v, want 4", list.RemainingItemCount)
			}
			f.remove(fakeNode("pi-2", "")) // pi-2 is on a page that was already read
			f.put(fakeNode("pi-45", "oslo"))
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "pi-0 pi-1 pi-2 pi-3 pi-4 pi-45 pi-5 pi-6" {
		t.Errorf("the pages list %s", got)
	}
}

func TestServerSideApply(t *testing.T) {
	f := seeded()
	s := newServer(f)
	path := func(manager string, more string) string {
		return ns + "/configmaps/c?fieldManager=" + manager + more
	}
	const head = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":`
	var cm corev1.ConfigMap
	send(t, s, "PATCH", path("ann", ""), ssa, head+`{"a":"1","b":"1"}}`, 201, nil)
	send(t, s, "PATCH", path("bob", ""), ssa, head+`{"c":"1"}}`, 200, &cm)
	if len(cm.Data) != 3 || len(cm.ManagedFields) != 2 {
		t.Fatalf("data of two managers: %v, with %d managers; want 3 fields of 2 managers", cm.Data, len(cm.ManagedFields))
	}
	var st metav1.Status
	send(t, s, "PATCH", path("bob", ""), ssa, head+`{"a":"2","c":"1"}}`, 409, &st)
	if st.Details == nil || len(st.Details.Causes) != 1 ||
		st.Details.Causes[0].Type != metav1.CauseTypeFieldManagerConflict {
		t.Errorf("the conflict is %+v", st)
	}
	send(t, s, "PATCH", path("bob", "&force=true"), ssa, head+`{"a":"2","c":"1"}}`, 200, nil)
	cm = corev1.ConfigMap{}
	send(t, s, "PATCH", path("ann", ""), ssa, head+`{"b":"1"}}`, 200, &cm) // ann no longer sets a, which bob owns too
	if cm.Data["a"] != "2" {
		t.Errorf("data is %v, want bob's a=2", cm.Data)
	}
	cm = corev1.ConfigMap{}
	send(t, s, "PATCH", path("ann", ""), ssa, head+`{}}`, 200, &cm) // only ann owns b
	if _, ok := cm.Data["b"]; ok {
		t.Errorf("data is %v, want b removed with its last manager", cm.Data)
	}
	before := f.Snapshot().Revision
	send(t, s, "PATCH", path("ann", ""), ssa, head+`{}}`, 200, nil)
	if f.Snapshot().Revision != before {
		t.Error("a repeated apply must change nothing")
	}
}

func TestAFailureOfTheStoreIsReported(t *testing.T) {
	f := seeded()
	s := newServer(f)
	f.fail = errors.New("write the change: disk full")
	before := f.Snapshot().Revision
	var st metav1.Status
	send(t, s, "POST", ns+"/configmaps", "", configMap, 500, &st)
	if !strings.Contains(st.Message, "disk full") || f.Snapshot().Revision != before {
		t.Errorf("the answer is %q at revision %d, want the error at revision %d", st.Message, f.Snapshot().Revision, before)
	}
	f.fail = fmt.Errorf("store: %w", control.ErrFull)
	send(t, s, "POST", ns+"/configmaps", "", configMap, 507, &st)
	if st.Reason != "InsufficientStorage" || !strings.Contains(st.Message, "free space") ||
		f.Snapshot().Revision != before {
		t.Errorf("the answer is %q, %q at revision %d, want InsufficientStorage at revision %d", st.Reason, st.Message,
			f.Snapshot().Revision, before)
	}
}

// An event is one object in two API groups. Each group reads what the other wrote, and a write
// through one keeps the fields of the other.
func TestAnEventIsTheSameUnderBothGroups(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const core, newer = ns + "/events", "/apis/events.k8s.io/v1/namespaces/default/events"
	var e corev1.Event
	var n eventsv1.Event
	send(t, s, "POST", newer, "", `{"metadata":{"name":"e"},"eventTime":"2026-11-20T12:00:00.000000Z","reportingController":"tester","reportingInstance":"tester-1",`+
		`"action":"Testing","reason":"Tested","type":"Normal","regarding":{"kind":"Pod","namespace":"default","name":"kiosk-1"},"note":"it works","series":{"count":3,"lastObservedTime":"2026-11-20T12:00:01.000000Z"}}`, 201, nil)
	send(t, s, "GET", core+"/e", "", "", 200, &e)
	if e.Message != "it works" || e.InvolvedObject.Name != "kiosk-1" || e.ReportingController != "tester" ||
		e.Series == nil || e.Series.Count != 3 {
		t.Errorf("event in the core group: %+v", e)
	}
	send(t, s, "PATCH", core+"/e", mp, `{"message":"it still works","count":7}`, 200, nil)
	send(t, s, "PATCH", newer+"/e", mp, `{"type":"Warning"}`, 200, &n)
	if n.Note != "it still works" || n.Type != "Warning" || n.DeprecatedCount != 7 || n.Action != "Testing" {
		t.Errorf("event in its own group: %+v", n)
	}
	n.Reason = "Retested"
	body, _ := json.Marshal(n)
	send(t, s, "PUT", newer+"/e", "", string(body), 200, &n)
	send(t, s, "GET", core+"/e", "", "", 200, &e)
	if e.Reason != "Retested" || e.Message != "it still works" || e.UID != n.UID ||
		e.ResourceVersion != n.ResourceVersion {
		t.Errorf("event after an update: %+v", e)
	}
	send(t, s, "DELETE", newer+"/e", "", "", 200, nil)
	send(t, s, "GET", core+"/e", "", "", 404, nil)
}

func TestObjectsInASnapshotAreNeverChanged(t *testing.T) {
	f := seeded()
	s := newServer(f)
	snap := f.Snapshot()
	encode := func() string {
		var all strings.Builder
		for _, k := range state.Kinds() {
			for o := range snap.All(k, "") {
				b, _ := json.Marshal(o)
				all.Write(b)
			}
		}
		return all.String()
	}
	before := encode()
	for _, c := range cases {
		c.do(s)
	}
	if encode() != before {
		t.Error("requests must not change objects of earlier snapshots")
	}
}

// The answer to any patch is a Status or the object. A refused patch changes nothing.
func FuzzPatch(f *testing.F) {
	for _, c := range cases {
		if c.method == http.MethodPatch {
			f.Add(c.contentType, c.body)
		}
	}
	f.Add(smp, `{"spec":{"template":{"spec":{"containers":[{"name":"web","$patch":"delete"}],"$setElementOrder/containers":[{"name":"x"}]}}}}`)
	f.Add(smp, `{"spec":{"$retainKeys":["replicas"],"replicas":1}}`)
	f.Add(jp, `[{"op":"copy","from":"/spec","path":"/spec/template/spec"},{"op":"move","from":"/metadata/name","path":"/kind"}]`)
	f.Add(ssa, "apiVersion: apps/v1\nkind: Deployment\nspec: {template: {spec: {containers: [{name: web, ports: "+
		"[{containerPort: 1}, {containerPort: 1}]}]}}}")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		fake := seeded()
		s := newServer(fake)
		before := fake.Snapshot().Revision
		for _, path := range []string{apps + "/deployments/web?fieldManager=fuzz", "/api/v1/nodes/pi-1?fieldManager=fuzz"} {
			w := request{method: "PATCH", path: path, contentType: contentType, body: body}.do(s)
			if w.Code >= 500 {
				t.Errorf("PATCH %s %s %q: %d %s", path, contentType, body, w.Code, w.Body)
			}
			if after := fake.Snapshot().Revision; w.Code >= 400 && after != before {
				t.Errorf("PATCH %s %s %q: refused with %d, but changed the fleet", path, contentType, body, w.Code)
			}
			before = fake.Snapshot().Revision
			if !json.Valid(w.Body.Bytes()) {
				t.Errorf("PATCH %s: the answer is %q", path, w.Body)
			}
		}
	})
}

// An auditing stores the audit's records.
type auditing struct {
	lines []string
	rows  []store.Audit
}

func (a *auditing) Record(_ context.Context, row store.Audit) { a.Note(row) }

func (a *auditing) Note(row store.Audit) {
	a.rows = append(a.rows, row)
	what, result := row.Resource, "done"
	if row.Namespace != "" {
		what += " " + row.Namespace + "/" + row.Name
	} else if row.Name != "" {
		what += " " + row.Name
	}
	if row.Code >= http.StatusBadRequest {
		result = "refused"
	} else if row.Message != "" {
		what += " " + row.Message
	}
	a.lines = append(a.lines, strings.Join([]string{row.Who, row.Verb, what, result}, " "))
}

func TestChangesAreAudited(t *testing.T) {
	s := newServer(seeded())
	var kept auditing
	s.Audit = &kept
	send(t, s, "GET", "/api/v1/nodes", "", "", 200, nil)
	send(t, s, "POST", ns+"/configmaps", "", configMap, 201, nil)
	send(t, s, "POST", ns+"/configmaps?dryRun=All", "", strings.Replace(configMap, `"c"`, `"d"`, 1), 201, nil)
	send(t, s, "POST", ns+"/configmaps", "", configMap, 409, nil)
	send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp, `{"spec":{"unschedulable":true}}`, 200, nil)
	send(t, s, "POST", ns+"/pods/kiosk-1/eviction", "", `{"apiVersion":"policy/v1","kind":"Eviction"}`, 201, nil)
	want := "admin create configmaps default/c done\nadmin create configmaps default/c refused\nadmin patch nodes pi-1 (cordon) done\nadmin create pods/eviction default/kiosk-1 done"
	if got := strings.Join(kept.lines, "\n"); got != want {
		t.Errorf("kept\n%s\nwant\n%s", got, want)
	}
}

// An object that is being deleted can be read, changed and written back.
func TestAnObjectThatIsBeingDeletedIsUpdated(t *testing.T) {
	f := seeded()
	s := newServer(f)
	send(t, s, "PATCH", ns+"/pods/kiosk-1", mp, `{"metadata":{"finalizers":["example.com/hold"]}}`, 200, nil)
	send(t, s, "DELETE", ns+"/pods/kiosk-1", "", "", 200, nil)
	var p corev1.Pod
	send(t, s, "PATCH", ns+"/pods/kiosk-1", smp, `{"metadata":{"labels":{"a":"b"}}}`, 200, nil)
	send(t, s, "PATCH", ns+"/pods/kiosk-1/status", mp, `{"status":{"message":"stopping"}}`, 200, &p)
	p.Labels["c"] = "d"
	body, _ := json.Marshal(p)
	send(t, s, "PUT", ns+"/pods/kiosk-1", "", string(body), 200, nil)
	p.ResourceVersion, p.DeletionTimestamp, p.DeletionGracePeriodSeconds = "", nil, nil // some clients omit the fields of the deletion
	body, _ = json.Marshal(p)
	send(t, s, "PUT", ns+"/pods/kiosk-1", "", string(body), 200, &p)
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil {
		t.Errorf("the pod was not deleted: %+v", p.ObjectMeta)
	}
}

func TestAConditionOpensAReadinessGate(t *testing.T) {
	s := newServer(seeded())
	body := func(name, gate string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"nodeName":"` + gate +
			`","readinessGates":[{"conditionType":"example.org/served"}],"containers":[{"name":"c","image":"c"}]}}`
	}
	const closed = `{"status":{"conditions":[{"type":"ContainersReady","status":"True"},{"type":"Ready","status":"False"}]}}`
	const open = `{"status":{"conditions":[{"type":"example.org/served","status":"True"}]}}`
	ready := func(p corev1.Pod) string {
		c := state.PodCondition(&p, corev1.PodReady)
		return string(c.Status) + " " + c.Reason
	}
	for node, want := range map[string]string{"pi-1": "True ", "nowhere": "False "} {
		var p corev1.Pod
		send(t, s, "POST", ns+"/pods", "", body("gated-"+node, node), 201, nil)
		send(t, s, "PATCH", ns+"/pods/gated-"+node+"/status", smp, closed, 200, &p)
		if node == "pi-1" && ready(p) != "False ReadinessGatesNotReady" {
			t.Errorf("the pod with a gate is %s", ready(p))
		}
		send(t, s, "PATCH", ns+"/pods/gated-"+node+"/status", smp, open, 200, &p)
		if ready(p) != want {
			t.Errorf("on %s: Ready is %s, want %s", node, ready(p), want)
		}
	}
	send(t, s, "POST", ns+"/pods", "", `{"metadata":{"name":"held"},"spec":{"schedulingGates":[{"name":"a"}],"containers":[{"name":"c","image":"c"}]}}`, 201, nil)
	send(t, s, "POST", ns+"/pods/held/binding", "", `{"target":{"name":"pi-1"}}`, 409, nil)
	send(t, s, "PATCH", ns+"/pods/held", jp, `[{"op":"remove","path":"/spec/schedulingGates"}]`, 200, nil)
	send(t, s, "POST", ns+"/pods/held/binding", "", `{"target":{"name":"pi-1"}}`, 201, nil)
}

// A slow step is always made outside of the control loop, because it would delay every device.
func TestTheLoopDoesNotRemakeSlowSteps(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   time.Duration
		changes int // number of changes to the objects while the step is made
		makes   int // how often the step is made
		inLoop  int // how often the control loop makes it
		want    bool
	}{
		{"a slow step on unchanged objects is made once", time.Second, 0, 1, 0, true},
		{"a quick step on changed objects is made again by the control loop", time.Millisecond, 1, 2, 1, true},
		{"a slow step on changed objects is made again, but not by the control loop", time.Second, 1, 2, 0, true},
		{"a slow step on objects that keep changing is a conflict", time.Second, 100, 1 + maxRemakes, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
				caller := &call{Server: s, w: httptest.NewRecorder(), r: httptest.NewRequest("PATCH", "/api/v1/nodes/pi-1", nil),
					verb: "patch", user: access.User{Name: "ola", Role: access.Operator}}
				caller.target, _ = parsePath("/api/v1/nodes/pi-1")
				caller.res = s.find(caller.target)
				change := caller.request()
				makes, inLoop := 0, 0
				step := func(now state.Snapshot, at time.Time) (write.Step, error) {
					makes++
					if !f.mu.TryLock() {
						inLoop++
					} else {
						f.mu.Unlock()
					}
					time.Sleep(c.takes)
					if makes <= c.changes {
						f.before = func() { f.touch(fakeNode("pi-1", ""), "moved", fmt.Sprint(makes)) }
					}
					return change.Patch(now, body.Body{Data: []byte(`{"metadata":{"labels":{"a":"b"}}}`)}, types.MergePatchType, at)
				}
				_, err := caller.commit(false, step)
				if (err == nil) != c.want || !c.want && !apierrors.IsConflict(err) || makes != c.makes || inLoop != c.inLoop {
					t.Errorf("step made %d times, %d of them by the control loop, %v; want %d, %d, done %v", makes, inLoop, err,
						c.makes, c.inLoop, c.want)
				}
				if done := f.Snapshot().Node("pi-1").Labels["a"] == "b"; done != c.want {
					t.Errorf("the label is set: %v, want %v", done, c.want)
				}
			})
		})
	}
}

// Unknown fields of a scale are refused, warned about or ignored, as in every patch.
func TestUnknownFieldsInAPatchOfAScale(t *testing.T) {
	s := newServer(seeded())
	const path = apps + "/deployments/web/scale"
	for _, c := range []struct {
		kind, body, validation string
		code                   int
		warned                 bool
	}{
		{mp, `{"spec":{"replica":3}}`, "", 200, true},
		{mp, `{"spec":{"replica":3}}`, "Warn", 200, true},
		{mp, `{"spec":{"replica":3}}`, "Ignore", 200, false},
		{mp, `{"spec":{"replica":3}}`, "Strict", 422, false},
		{smp, `{"spec":{"replica":3}}`, "Strict", 422, false},
		{"application/json-patch+json", `[{"op":"add","path":"/spec/replica","value":3}]`, "Strict", 422, false},
		{mp, `{"spec":{"replicas":3}}`, "Strict", 200, false},
		{mp, `{"spec":{"replicas":"three"}}`, "", 422, false},
		{mp, `{"metadata":{"name":"other"}}`, "", 400, false},
	} {
		w := request{method: "PATCH", path: path + "?fieldValidation=" + c.validation, contentType: c.kind,
			body: c.body}.do(s)
		if warned := w.Header().Get("Warning") != ""; w.Code != c.code || warned != c.warned {
			t.Errorf("%s %s with %q: %d %s, warnings %q", c.kind, c.body, c.validation, w.Code, w.Body, w.Header()["Warning"])
		}
	}
}

// Removing a namespace's finalizers keeps its status, as in kube-apiserver.
func TestFinalizeLeavesTheStatusAlone(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const path = "/api/v1/namespaces/going"
	send(t, s, "POST", "/api/v1/namespaces", "application/json",
		`{"metadata":{"name":"going"},"spec":{"finalizers":["example.com/x"]}}`, 201, nil)
	send(t, s, "DELETE", path, "", "", 200, nil)
	var ns corev1.Namespace
	send(t, s, "PUT", path+"/finalize", "application/json",
		`{"metadata":{"name":"going"},"spec":{"finalizers":["example.com/x"]}}`, 200, &ns)
	if ns.Status.Phase != corev1.NamespaceTerminating || len(ns.Spec.Finalizers) != 1 {
		t.Errorf("the namespace is %s, with finalizers %q", ns.Status.Phase, ns.Spec.Finalizers)
	}
	send(t, s, "PUT", path+"/finalize", "application/json", `{"metadata":{"name":"going"},"spec":{"finalizers":[]}}`, 200,
		nil)
	send(t, s, "GET", path, "", "", 404, nil)
}

// The namespace of a cluster-scoped object is ignored, as in kube-apiserver. Many rendered
// manifests have one.
func TestAClusterScopedObjectMayNameANamespace(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const all = "/apis/scheduling.k8s.io/v1/priorityclasses"
	const body = `{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"%s","namespace":"default"},"value":%d}`
	for _, c := range []struct {
		method, path, kind, body string
		code                     int
	}{
		{"POST", all, "application/json", fmt.Sprintf(body, "one", 5), 201},
		{"PATCH", all + "/one", mp, `{"metadata":{"namespace":"default","labels":{"a":"b"}}}`, 200},
		{"PATCH", all + "/one", smp, `{"metadata":{"namespace":"default","labels":{"a":"c"}}}`, 200},
		{"PUT", all + "/one", "application/json", fmt.Sprintf(body, "one", 5), 200},
		{"PATCH", all + "/two?fieldManager=me", "application/apply-patch+yaml", fmt.Sprintf(body, "two", 6), 201},
		{"PATCH", all + "/two?fieldManager=me", "application/apply-patch+yaml", fmt.Sprintf(body, "two", 6), 200},
	} {
		var o metav1.PartialObjectMetadata
		send(t, s, c.method, c.path, c.kind, c.body, c.code, &o)
		if o.Namespace != "" {
			t.Errorf("%s %s: the object's namespace is %q", c.method, c.path, o.Namespace)
		}
	}
	if !strings.Contains(request{method: "PATCH", path: ns + "/pods/kiosk-1", contentType: mp,
		body: `{"metadata":{"namespace":"other"}}`}.do(s).Body.String(), "metadata.namespace") {
		t.Error("a pod must not name another namespace")
	}
}
