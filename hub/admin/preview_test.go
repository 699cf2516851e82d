package admin

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/control"
	draining "flotilla.dev/hub/drain"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/volume"
	making "flotilla.dev/hub/workload"
)

// foresight are the hub's rules for a preview.
var foresight = preview.Rules{Deciders: []control.Decider{draining.Decider{}, making.Decider{}, volume.Decider{}, schedule.Decider{}}}

// harbour is a fleet of four nodes in which a drain of pier-1 has every kind of trouble.
func harbour(t testing.TB) *admintest.Memory {
	m := admintest.New(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "default"}})
	node := func(name, site, cpu string) {
		m.Put(t, admintest.Node(name, site, func(n *corev1.Node) {
			n.Labels[corev1.LabelHostname] = name
			n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(cpu)
		}))
	}
	node("pier-1", "oslo", "8")
	node("pier-2", "oslo", "3")
	node("pier-3", "bergen", "3")
	node("pier-4", "bergen", "1")
	set := func(app, cpu string, replicas int32, volumes ...corev1.Volume) {
		labels := map[string]string{"app": app}
		spec := corev1.PodSpec{Volumes: volumes, Containers: []corev1.Container{{Name: "main", Image: "registry.example/" + app + ":1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default", UID: types.UID("d-" + app)}, Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}
		admission.Default(d, admission.Settings{})
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: app + "-hash", Namespace: "default", UID: types.UID("rs-" + app), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
			Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: d.Spec.Selector, Template: *d.Spec.Template.DeepCopy()}}
		m.Put(t, d, rs)
		for i := range replicas {
			m.Put(t, admintest.Pod(fmt.Sprintf("%s-hash-%d", app, i), "pier-1", func(p *corev1.Pod) {
				p.Labels, p.Spec = labels, *d.Spec.Template.Spec.DeepCopy()
				p.Spec.NodeName = "pier-1"
				p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			}))
		}
	}
	budget := func(app string, most int) {
		v := intstr.FromInt32(int32(most))
		m.Put(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"},
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &v, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}})
	}
	set("shop", "100m", 2, corev1.Volume{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	set("door", "100m", 2)
	set("pump", "4", 1)
	set("cam", "100m", 3, corev1.Volume{Name: "films", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/films"}}})
	budget("door", 0)
	budget("shop", 1)
	m.Put(t, admintest.Pod("lonely", "pier-1", func(p *corev1.Pod) { p.OwnerReferences = nil }))
	return m
}

var space = regexp.MustCompile(`\s+`)

// wordsOf is the text of a page's main part, without tags.
func wordsOf(body string) string {
	return strings.TrimSpace(space.ReplaceAllString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(mainOf(body), " "), " "))
}

func TestADrainTellsBeforehandWhatBecomesOfEachPod(t *testing.T) {
	m := harbour(t)
	srv := start(t, configOf(m))
	_, body := srv.ask(t, "admin", "GET", "/actions/nodes/drain?"+url.Values{"item": {m.Form(state.Nodes, "", "pier-1")}}.Encode(), nil)
	words := wordsOf(body)
	for _, want := range []string{
		"3 pods do not leave.", "1 pod has to leave and stays pending: no node can have it.", "5 pods go elsewhere: ",
		"The disruption budget door never allows a pod to leave, even with all of them ready: maxUnavailable is 0 of 2 pods. Here it keeps 2 pods",
		"The disruption budget shop lets them leave one after the other, as others become ready: maxUnavailable is 1 of 2 pods, and 2 ready now. At first it keeps 1 pod here.",
		"Lost data in 2 emptyDirs: shop-hash-0 (cache), shop-hash-1 (cache).",
		"hostPaths: cam-hash-0 (/srv/films on pier-1)",
		"Insufficient cpu", "It has no owner, so it is not made again: tick the box below", "Waits for its turn: the budget shop.",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the page does not tell %q:\n%s", want, words)
		}
	}
	if m.Order("pier-1") != "" || m.Snapshot().Node("pier-1").Spec.Unschedulable {
		t.Error("telling of a drain began it")
	}
	_, body = srv.ask(t, "admin", "GET", "/actions/nodes/drain?"+url.Values{"item": {m.Form(state.Nodes, "", "pier-1")}, "bare": {"yes"}}.Encode(), nil)
	if words := wordsOf(body); !strings.Contains(words, "1 pod is deleted: it has no owner that makes a new one.") || !strings.Contains(words, "Not made again: lonely.") {
		t.Errorf("with bare pods it tells\n%s", words)
	}
}

func TestADeletionTellsBeforehandWhatBecomesOfEachPod(t *testing.T) {
	m := harbour(t)
	srv := start(t, configOf(m))
	_, body := srv.ask(t, "admin", "GET", "/actions/nodes/delete?"+url.Values{"item": {m.Form(state.Nodes, "", "pier-1")}}.Encode(), nil)
	words := wordsOf(body)
	for _, want := range []string{"7 pods go elsewhere: ", "1 pod has to leave and stays pending", "Disruption budgets do not apply", "1 node is ready now. Drain first", "Not made again: lonely."} {
		if !strings.Contains(words, want) {
			t.Errorf("the page does not tell %q:\n%s", want, words)
		}
	}
}

// What the preview of a drain foretells in a browser is what then happens.
func TestTheConfirmPageOfADrainInABrowser(t *testing.T) {
	t.Parallel()
	m := harbour(t)
	var objects []state.Object
	for _, k := range []state.Kind{state.Namespaces, state.Nodes, state.Deployments, state.ReplicaSets, state.PodDisruptionBudgets, state.Pods} {
		for o := range m.Snapshot().All(k, "") {
			objects = append(objects, o)
		}
	}
	k := newKitOf(t, objects...)
	k.open("/nodes/pier-1")
	k.press(`a[href^="/actions/nodes/drain?"]`)
	k.says("What would happen", "5 pods go elsewhere", "The disruption budget door never allows a pod to leave", "What is lost or left behind")
	for _, c := range []struct{ says, not string }{{"Not made again: lonely.", "tick the box below"}, {"tick the box below", "Not made again: lonely."}} {
		k.do(chromedp.Click(chromedp.CSS(`input[name=bare]`)))
		k.press(`button[name=look]`)
		k.says("What would happen", c.says)
		if strings.Contains(k.text(), c.not) || k.fleet.Snapshot().Node("pier-1").Spec.Unschedulable {
			t.Errorf("looking again tells the old, or drains: %s", k.text())
		}
	}
	k.sizes("drain-foreseen")
	k.width(768, false)
	k.fits("drain-foreseen-768")
	k.shot("drain-foreseen-768-light")
}
