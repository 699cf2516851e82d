package sim

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
)

// sidecar adds a second container to a pod.
func sidecar(name string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Containers = append(s.Containers, corev1.Container{Name: name, Image: "example.org/" + name + ":1"})
	}
}

func TestFleetThePodsContainersStartAndStopTogether(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo", "bergen")
		w.deploy("kiosk", 4, sidecar("screen"), sidecar("sound"), tolerating(time.Minute))
		w.settleWithin(15*time.Second, "the deployment")
		whole := func(d *simDevice) {
			t.Helper()
			for uid, name := range d.running() {
				if n := d.containersOf(uid); n != 3 {
					t.Errorf("at %s: %d of 3 containers of pod %s run on %s", w.clock(), n, name, d.key)
				}
			}
		}
		each := func() {
			t.Helper()
			for _, d := range w.devices {
				whole(d)
			}
		}
		each()
		d := w.on(w.pods("kiosk")[0].Spec.NodeName)
		d.kill() // the agent finds running containers and starts none
		w.restartHub(10 * time.Second)
		d.start()
		w.until(70*time.Second, "connected", func() bool { return w.connected() == len(w.devices) })
		w.settleWithin(twoLeases, "a restart of agent and hub")
		each()

		d.crash() // one of three containers crashes, and only that one restarts
		w.until(time.Minute, "the container runs again", func() bool {
			for uid := range d.running() {
				if d.containersOf(uid) != 3 {
					return false
				}
			}
			return len(d.running()) > 0
		})

		d.powerCut()
		d.powerOn()
		w.until(70*time.Second, "connected", func() bool { return w.connected() == len(w.devices) })
		w.settleWithin(twoLeases, "a boot")
		each()

		lost := d.running()
		w.cut(d)
		w.until(3*time.Minute, "the evictions", func() bool { return len(w.look.sentences("evict kiosk")) == len(lost) })
		w.restartHub(10 * time.Second)
		time.Sleep(time.Minute)
		whole(d)
		for uid, name := range lost {
			if p, _ := w.snapshot().ByUID(uid).(*corev1.Pod); p == nil || p.DeletionTimestamp == nil {
				t.Errorf("pod %s is not terminating, and its containers run", name)
			}
		}
		w.heal(d)
		w.until(70*time.Second, "connected", func() bool { return w.connected() == len(w.devices) })
		w.settleWithin(twoLeases, "the heal")
		for uid, name := range lost {
			if n := d.containersOf(uid); n > 0 {
				t.Errorf("%d containers of pod %s exist", n, name)
			}
		}
	})
}

// tolerate changes how long an existing pod tolerates a missing node.
func (w *world) tolerate(p *corev1.Pod, d time.Duration) {
	w.t.Helper()
	now := w.snapshot().Pod(p.Namespace, p.Name).DeepCopy()
	for i := range now.Spec.Tolerations {
		if t := &now.Spec.Tolerations[i]; t.TolerationSeconds != nil {
			t.TolerationSeconds = new(int64(d / time.Second))
		}
	}
	w.put(now)
}

func TestFleetATolerationThatChangesMovesTheDeadline(t *testing.T) {
	t.Parallel()
	const first = 5 * time.Minute
	for _, tt := range []struct {
		name    string
		after   time.Duration // time of the change after the taint
		to      time.Duration
		restart bool
		want    time.Duration // time of the eviction after the taint
	}{
		{"lengthened: the toleration still counts from the taint", 2 * time.Minute, 10 * time.Minute, false, 10 * time.Minute},
		{"lengthened, and the hub restarted", 2 * time.Minute, 10 * time.Minute, true, 10 * time.Minute},
		{"shortened to a future moment", time.Minute, 3 * time.Minute, false, 3 * time.Minute},
		{"shortened, and the hub restarted", time.Minute, 3 * time.Minute, true, 3 * time.Minute},
		{"shortened to a past moment: the toleration ends at once", 2 * time.Minute, time.Minute, false, 2 * time.Minute},
		{"shortened to 0: the toleration ends at once", 2 * time.Minute, 0, false, 2 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				_, name, tainted := w.oneSilent()
				p := w.snapshot().Pod("default", name)
				time.Sleep(tt.after - time.Since(tainted))
				w.tolerate(p, tt.to)
				if tt.restart {
					w.restartHub(20 * time.Second)
				}
				w.until(20*time.Minute, "the eviction", func() bool { return len(w.look.sentences("evict "+name)) > 0 })
				at := w.born.Add(w.look.sentences("evict " + name)[0].at).Sub(tainted)
				if at < tt.want || at > tt.want+detection {
					t.Errorf("evicted %s after the taint, want %s", at, tt.want)
				}
				for _, other := range w.pods("kiosk") { // a pod on the same device whose toleration was not changed
					if other.Name != name && other.Spec.NodeName == p.Spec.NodeName {
						w.until(20*time.Minute, "the other pod's eviction",
							func() bool { return len(w.look.sentences("evict "+other.Name)) > 0 })
						if at := w.born.Add(w.look.sentences("evict " + other.Name)[0].at).Sub(tainted); at < first ||
							at > first+detection {
							t.Errorf("%s was evicted %s after the taint, want 5 min", other.Name, at)
						}
					}
				}
			})
		})
	}
}

// api sends a request to the Kubernetes API like an administrator's kubectl.
func (w *world) api(method, path, body string) (code int, answer metav1.Status) {
	w.t.Helper()
	r := httptest.NewRequest(method, "https://127.0.0.1"+path, strings.NewReader(body))
	r.TLS.PeerCertificates = w.administrator()
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	rec := httptest.NewRecorder()
	w.hub.Handler().ServeHTTP(rec, r)
	_ = json.Unmarshal(rec.Body.Bytes(), &answer) // if the response is not a Status, its code is enough
	return rec.Code, answer
}

// administrator returns the certificate chain of an administrator.
func (w *world) administrator() (chain []*x509.Certificate) {
	w.t.Helper()
	text, _, err := w.hub.Guard.Authority.IssueClient(pki.Admin, "someone", time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			w.t.Fatal(err)
		}
		chain = append(chain, c)
	}
	return chain
}

// drain evicts the pods of a node, except those of daemon sets, like kubectl: it repeats refused
// evictions every five seconds. It returns the refusals.
func (w *world) drain(node string, most time.Duration) (refused []metav1.Status) {
	w.t.Helper()
	if code, answer := w.api(http.MethodPatch, "/api/v1/nodes/"+node, `{"spec":{"unschedulable":true}}`); code != http.StatusOK {
		w.t.Fatalf("cordon: %d %s", code, answer.Message)
	}
	var mine []*corev1.Pod
	for p := range w.snapshot().PodsOn(node) {
		if owner := metav1.GetControllerOf(p); owner == nil || owner.Kind != "DaemonSet" {
			mine = append(mine, p)
		}
	}
	for end := w.clock() + most; len(mine) > 0; {
		p := mine[0]
		code, answer := w.api(http.MethodPost, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/eviction", p.Namespace, p.Name), `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+p.Name+`"}}`)
		switch {
		case code == http.StatusCreated:
			mine = mine[1:]
			continue
		case code != http.StatusTooManyRequests:
			w.t.Fatalf("evict %s: %d %s", p.Name, code, answer.Message)
		case w.clock() >= end:
			w.t.Fatalf("%s could not be evicted in %s: %s", p.Name, most, answer.Message)
		}
		refused = append(refused, answer)
		time.Sleep(5 * time.Second)
	}
	return refused
}

func TestFleetADrainWaitsForTheBudgetAndForTheDevice(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(1, "oslo", "bergen", "bodo")
		w.deploy("kiosk", 6)
		w.daemonSet("meter")
		w.settleWithin(15*time.Second, "the workloads")
		w.put(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: new(intstr.FromInt32(5)),
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}},
			}})
		working := func(s state.Snapshot) (n int) {
			for p := range s.Pods("default") {
				if p.Labels["app"] == "kiosk" && p.DeletionTimestamp == nil && readyOf(&p.Status) == corev1.ConditionTrue {
					n++
				}
			}
			return n
		}
		fewest := 6
		over := make(chan struct{})
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			for {
				select {
				case <-over:
					return
				case <-time.After(100 * time.Millisecond):
					w.mu.Lock()
					h := w.hub
					w.mu.Unlock()
					if h != nil {
						fewest = min(fewest, working(h.Loop.Snapshot()))
					}
				}
			}
		}()
		oslo := w.on("oslo-1")
		had := oslo.running()
		refused := w.drain("oslo-1", 2*time.Minute)
		if len(refused) == 0 {
			t.Fatal("two pods were evicted at once, although five of six must be ready")
		}
		first := refused[0]
		if first.Message != "Cannot evict pod as it would violate the pod's disruption budget." || first.Details == nil ||
			len(first.Details.Causes) != 1 ||
			first.Details.Causes[0].Message != "The disruption budget kiosk needs 5 healthy pods and has 5 currently" {
			t.Errorf("refused with %+v", first)
		}
		w.settleWithin(twoLeases, "the drain")
		if n := len(w.runningOn("oslo-1")); n != 1 {
			t.Errorf("%d pods run on the drained node, want only the daemon set's", n)
		}
		for uid, name := range had {
			if strings.HasPrefix(name, "default/kiosk") && oslo.runs(uid) {
				t.Errorf("%s still runs", name)
			}
		}

		// The next device falls silent while it is drained. Its pods stay Terminating until it
		// reports that they have stopped, also across a restart of the hub.
		bergen := w.on("bergen-1")
		w.freeze(bergen)
		left := []types.UID{}
		for uid, name := range bergen.running() {
			if strings.HasPrefix(name, "default/kiosk") {
				left = append(left, uid)
			}
		}
		w.drain("bergen-1", 2*time.Minute)
		w.restartHub(15 * time.Second)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		for _, uid := range left {
			p, _ := w.snapshot().ByUID(uid).(*corev1.Pod)
			if p == nil || p.DeletionTimestamp == nil || !bergen.runs(uid) {
				t.Errorf("a pod of the silent device: %v, runs %v; want Terminating and running", p, bergen.runs(uid))
			}
		}
		if n := working(w.snapshot()); n != 6 {
			t.Errorf("%d of 6 pods run elsewhere", n)
		}
		close(over)
		<-watched
		if fewest < 5 {
			t.Errorf("at some moment only %d pods were ready, and the budget needs 5", fewest)
		}
		w.heal(bergen)
		w.until(70*time.Second, "all connected", func() bool { return w.connected() == 3 })
		w.settleWithin(twoLeases, "the heal")
		for _, uid := range left {
			if bergen.runs(uid) || w.snapshot().ByUID(uid) != nil {
				t.Error("an evicted pod still exists")
			}
		}
		for _, node := range []string{"oslo-1", "bergen-1"} {
			if code, _ := w.api(http.MethodPatch, "/api/v1/nodes/"+node, `{"spec":{"unschedulable":null}}`); code != http.StatusOK {
				t.Errorf("uncordon %s: %d", node, code)
			}
			for _, taint := range w.node(node).Spec.Taints {
				t.Errorf("%s still has the taint %s", node, taint.ToString())
			}
		}
	})
}
