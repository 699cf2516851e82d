package admin

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

// The list names the cause for every kind of workload with trouble.
func TestTheListOfWorkloadsNamesTheCause(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/x:1"}}}}
	two := int32(2)
	for i, o := range []state.Object{
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "watch"}, Spec: appsv1.DaemonSetSpec{Template: template}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 1}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: &two, Template: template}, Status: appsv1.StatefulSetStatus{Replicas: 2, AvailableReplicas: 1}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: appsv1.ReplicaSetSpec{Replicas: &two, Template: template}, Status: appsv1.ReplicaSetStatus{Replicas: 2, AvailableReplicas: 1}},
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "report"}, Spec: batchv1.JobSpec{Template: template}, Status: batchv1.JobStatus{Failed: 1}},
	} {
		o.SetNamespace("default")
		m.Put(t, o)
		o = m.Snapshot().Get(state.KeyOf(o))
		kind := state.KindOf(o)
		m.Put(t, admintest.Pod(fmt.Sprintf("%s-pod", o.GetName()), "pi-1", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(o, kind.GroupVersionKind())}
			p.Status.ContainerStatuses[0].RestartCount = 3
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			p.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(i + 10)}}
		}))
	}
	_, body := start(t, configOf(m)).ask(t, "viewer", "GET", "/workloads?status=attention", nil)
	for i, name := range []string{"watch", "db", "bare", "report"} {
		if want := fmt.Sprintf(`<a href="/pods/default/%s-pod">crash loop, exit %d</a>`, name, i+10); !strings.Contains(body, want) {
			t.Errorf("the list does not say %s", want)
		}
	}
	if !strings.Contains(body, "1 of 2 pods are available.") {
		t.Error("the list does not say how many there are")
	}
}

// The list of workloads counts the pods without one, and links them.
func TestPodsWithoutAWorkloadAreCounted(t *testing.T) {
	m := admintest.Stuck(t) // it has the pod big without an owner
	srv := acting(t, m)
	_, body := srv.ask(t, "viewer", "GET", "/workloads", nil)
	if !strings.Contains(body, `<a href="/pods?q=-owner%3A*">1 pod without a workload</a>`) {
		t.Errorf("the list does not count it: %s", wordsOf(body))
	}
	_, body = srv.ask(t, "viewer", "GET", "/pods?q=-owner%3A*", nil)
	if words := wordsOf(body); !strings.Contains(words, " big Running") || strings.Contains(words, "vision") {
		t.Errorf("the link leads to %s", words)
	}
}

// The list says in a few words why pods have no node, without the scheduler's text.
func TestPodsSayInAFewWordsWhyTheyHaveNoNode(t *testing.T) {
	_, body := acting(t, admintest.Stuck(t)).ask(t, "viewer", "GET", "/pods", nil)
	words := wordsOf(body)
	for _, want := range []string{"Needs gpu=true, 1 node is not ready.", "No node has 64Gi of memory free."} {
		if !strings.Contains(words, want) {
			t.Errorf("the list does not say %q: %s", want, words)
		}
	}
	if strings.Contains(words, "nodes are available") {
		t.Errorf("the list has the scheduler's text: %s", words)
	}
}
