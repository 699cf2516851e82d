package workload

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A workload creates no pod that the namespace forbids. There is one event and no polling. The pods
// are created once the namespace allows them.
func TestRefusedPodsAreReportedAndCreatedOnceAllowed(t *testing.T) {
	f := newFleet(t)
	f.d.Refuse = func(pod *corev1.Pod, ns *corev1.Namespace) string {
		if ns == nil || pod.Namespace != ns.Name || len(pod.Spec.Containers) == 0 {
			t.Errorf("Refuse is called for %+v in %v", pod.ObjectMeta, ns)
			return ""
		}
		if ns.Labels["level"] == "open" {
			return ""
		}
		return "the level is " + ns.Labels["level"]
	}
	ns := &corev1.Namespace{}
	ns.Name, ns.Labels = "default", map[string]string{"level": "strict"}
	ns.Status.Phase = corev1.NamespaceActive
	f.put(ns, node("pi-1"), deployment(2), daemonSet()).settle().quiet()
	if got := f.pods(); len(got) != 0 {
		t.Fatalf("pods %v, want none", got)
	}
	var messages []string
	for _, c := range f.changes {
		if c.Reason == failedCreate {
			messages = append(messages, c.Source+": "+c.Message)
		}
	}
	slices.Sort(messages)
	if len(messages) != 2 || !strings.HasPrefix(messages[0], "daemonset-controller: Error creating: pods ") ||
		!strings.HasSuffix(messages[1], "-\" is forbidden: the level is strict") {
		t.Errorf("the events are %q, want one for each workload", messages)
	}
	failure := func() (all []string) {
		for o := range f.s.All(state.Deployments, "") {
			for _, c := range o.(*appsv1.Deployment).Status.Conditions {
				if c.Type == appsv1.DeploymentReplicaFailure {
					all = append(all, string(c.Status)+" "+c.Reason)
				}
			}
		}
		for o := range f.s.All(state.DaemonSets, "") {
			for _, c := range o.(*appsv1.DaemonSet).Status.Conditions {
				all = append(all, string(c.Status)+" "+c.Reason)
			}
		}
		return all
	}
	if got := failure(); !slices.Equal(got, []string{"True FailedCreate", "True FailedCreate"}) {
		t.Errorf("the conditions are %q, want FailedCreate twice", got)
	}
	f.edit(state.Key{Kind: state.Namespaces, Name: "default"},
		func(o state.Object) { o.SetLabels(map[string]string{"level": "open"}) }).settle().quiet()
	if got := f.pods(); len(got) != 3 {
		t.Errorf("pods %v, want 3", got)
	}
	if got := failure(); len(got) != 0 {
		t.Errorf("conditions %q, want none", got)
	}
	// Running pods stay when the level becomes stricter; missing pods are not created.
	f.edit(state.Key{Kind: state.Namespaces, Name: "default"},
		func(o state.Object) { o.SetLabels(map[string]string{"level": "strict"}) }).settle().quiet()
	if got := f.pods(); len(got) != 3 {
		t.Errorf("pods %v, want 3", got)
	}
}

// The finalizers of a template are checked too, because users could not remove an invalid one from
// the pods.
func TestTheFinalizersOfATemplateAreChecked(t *testing.T) {
	f := newFleet(t)
	f.d.Refuse = func(pod *corev1.Pod, _ *corev1.Namespace) string { return strings.Join(pod.Finalizers, " ") }
	d, ds := deployment(1), daemonSet()
	d.Spec.Template.Finalizers, ds.Spec.Template.Finalizers = []string{"foo"}, []string{"foo"}
	f.put(node("pi-1"), d, ds).settle().quiet()
	if got := f.pods(); len(got) != 0 {
		t.Errorf("pods %v, want none", got)
	}
}

// If two templates are refused, a Deployment reports the reason for the new one.
func TestADeploymentReportsItsNewTemplateFirst(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), deployment(4)).settle().run("pi-1").settle()
	f.d.Refuse = func(pod *corev1.Pod, _ *corev1.Namespace) string { return "no " + pod.Spec.Containers[0].Image }
	for range 2 {
		f.remove(state.KeyOf(f.livePods()[0])).settle()
	}
	f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:2") })
	f.settle().quiet()
	var messages []string
	for _, rs := range f.sets("default") {
		for _, c := range rs.Status.Conditions {
			messages = append(messages, c.Message[strings.LastIndex(c.Message, ": ")+2:])
		}
	}
	if slices.Sort(messages); !slices.Equal(messages, []string{"no kiosk:1", "no kiosk:2"}) {
		t.Fatalf("the replica sets have the events %q", messages)
	}
	for _, c := range f.deploy().Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && !strings.HasSuffix(c.Message, ": no kiosk:2") {
			t.Errorf("the deployment's condition is %q, want the reason for kiosk:2", c.Message)
		}
	}
}
