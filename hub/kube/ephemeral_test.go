package kube

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

func TestEphemeralContainersAreAddedByTheirOwnPath(t *testing.T) {
	f := seeded()
	s := newServer(f)
	declare(f, fleet.FeatureEphemeralContainers)
	const path = ns + "/pods/kiosk-1/ephemeralcontainers"
	var p corev1.Pod
	send(t, s, "GET", path, "", "", 200, &p)
	before := p.Generation
	// as kubectl debug does
	send(t, s, "PATCH", path, smp, `{"spec":{"ephemeralContainers":[{"name":"debugger-x","image":"busybox","stdin":true,"tty":true,"resources":{},"terminationMessagePolicy":"File"}]}}`, 200, &p)
	if len(p.Spec.EphemeralContainers) != 1 || p.Generation != before+1 ||
		p.Spec.EphemeralContainers[0].ImagePullPolicy != corev1.PullAlways {
		t.Fatalf("generation %d, want %d with one defaulted container: %+v", p.Generation, before+1,
			p.Spec.EphemeralContainers)
	}
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
		corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "second", Image: "b:1"}})
	p.Labels, p.Spec.Containers[0].Image = map[string]string{"changed": "yes"}, "changed" // fields that this path does not change
	body, _ := json.Marshal(p)
	p = corev1.Pod{}
	send(t, s, "PUT", path, "", string(body), 200, &p)
	if len(p.Spec.EphemeralContainers) != 2 || p.Labels["changed"] != "" || p.Spec.Containers[0].Image == "changed" {
		t.Errorf("another field has changed, or no container is added: labels %v, %+v", p.Labels, p.Spec)
	}
	stale := string(body)
	send(t, s, "PUT", path, "", stale, 409, nil)
	send(t, s, "PATCH", path, mp, `{"spec":{"ephemeralContainers":[]}}`, 422, nil)
	send(t, s, "PATCH", path, smp, `{"spec":{"ephemeralContainers":[{"name":"second","image":"c"}]}}`, 422, nil)
	send(t, s, "PATCH", ns+"/pods/kiosk-1", smp, `{"spec":{"ephemeralContainers":[{"name":"third","image":"c"}]}}`, 422,
		nil)
	send(t, s, "POST", ns+"/pods", "", `{"metadata":{"name":"new"},"spec":{"containers":[{"name":"c","image":"c"}],"ephemeralContainers":[{"name":"e","image":"c"}]}}`, 422, nil)
	send(t, s, "PATCH", ns+"/pods/nobody/ephemeralcontainers", smp, `{}`, 404, nil)
	// with a pod security level in its namespace
	send(t, s, "PATCH", "/api/v1/namespaces/default", mp,
		`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`, 200, nil)
	var st metav1.Status
	send(t, s, "PATCH", path, smp, `{"spec":{"ephemeralContainers":[{"name":"root","image":"c"}]}}`, 403, &st)
	if !strings.Contains(st.Message, `violates PodSecurity "restricted`) {
		t.Errorf("the answer is %q", st.Message)
	}
}

// An old agent would ignore ephemeral containers silently.
func TestAnOldAgentGetsNoEphemeralContainers(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const path = ns + "/pods/kiosk-1/ephemeralcontainers"
	const patch = `{"spec":{"ephemeralContainers":[{"name":"e","image":"a"}]}}`
	n := declare(f)
	var st metav1.Status
	send(t, s, "PATCH", path, smp, patch, 403, &st)
	if want := "the agent of node " + n.Name +
		" does not support ephemeral containers: update flotilla-device there"; !strings.Contains(st.Message, want) {
		t.Errorf("the answer is %q, want %q", st.Message, want)
	}
	declare(f, fleet.FeatureEphemeralContainers)
	send(t, s, "PATCH", path, smp, patch, 200, nil)
}

// declare sets the features that the agent on kiosk-1's node reports.
func declare(f *fakeFleet, features ...string) *corev1.Node {
	n := f.snap.Node(f.snap.Pod("default", "kiosk-1").Spec.NodeName).DeepCopy()
	n.Status.NodeInfo.KubeletVersion, n.Status.DeclaredFeatures = "v1.37.0+flotilla.0.0.9", features
	f.put(n)
	return n
}
