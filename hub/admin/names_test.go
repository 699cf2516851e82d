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
	"flotilla.dev/shared/fleet"
)

// The longest names, without a place to break, do not make a page wider than its window.
func TestTheLongestNamesFitTheWindow(t *testing.T) {
	t.Parallel()
	label, name := strings.Repeat("x", 63), (strings.Repeat(strings.Repeat("y", 62)+".", 4) + "z")[:253]
	one := int32(1)
	notes := map[string]string{"note": "שלום עולם 👩‍🚒 مرحبا", "description": strings.Repeat("w", 400)}
	objects := []state.Object{
		admintest.Node(name, label, func(n *corev1.Node) {
			n.Annotations = notes
			n.Labels["example.org/"+label] = label
			admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x")(n)
		}),
		&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: label, Annotations: notes}, Spec: fleet.SiteSpec{Description: "שלום " + strings.Repeat("d", 200)}, Status: fleet.SiteStatus{State: fleet.SiteFullDisruption}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: label}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: label, UID: "d1", Annotations: notes}, Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": label}}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": label}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: label, Image: "registry.example/" + name + ":1"}}}}}},
		&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: label[:52], Namespace: label, UID: "c1"}, Spec: batchv1.CronJobSpec{Schedule: "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30 * * * *"}},
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: label, Namespace: label, UID: "j1"}},
		admintest.Pod(name, name, func(p *corev1.Pod) {
			p.Namespace = label
			p.Annotations = notes
			p.Spec.Containers[0].Name = label
			p.Spec.Containers[0].Image = "registry.example/" + name + ":1"
			p.Status.ContainerStatuses[0].Name = label
		}),
		&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "a-dark-123456"}, State: fleet.IncidentOpen, Cause: "SiteDark", Severity: fleet.SeverityCritical, Site: label, About: fleet.IncidentObject{Kind: "Site", Name: label}, Message: label + " is dark: no node of the site answers", Examples: []string{name}, Count: fleet.IncidentCount{Nodes: 1, Pods: 1}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name[:200] + ".1", Namespace: label}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: label, Name: name}, Reason: "Failed", Message: strings.Repeat("m", 900), Type: "Warning"},
		&fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: label}, Spec: fleet.FirmwareRolloutSpec{Profile: "x"}, Status: fleet.FirmwareRolloutStatus{Phase: fleet.RolloutStopped, Sentence: strings.Repeat("s", 300)}},
	}
	k := newKit(t, objects...)
	node, thing := "/nodes/"+name, "/"+label+"/"+name
	for _, path := range []string{
		"/", "/nodes", node, "/sites", "/workloads", "/workloads/deployments" + thing, "/pods", "/pods" + thing, "/pods" + thing + "/logs", "/pods" + thing + "/terminal", "/events", "/rollouts", "/rollouts/" + label,
		"/actions/nodes/cordon?item=/" + name + "&item=/pi-1", "/actions/nodes/label?item=/" + name, "/actions/sites/settings?item=/" + label, "/actions/deployments/undo?item=" + label + "/" + name,
		"/find?q=" + label[:20], "/yaml/apis/apps/v1/namespaces/" + label + "/deployments/" + name,
	} {
		k.open(path)
		for _, width := range []int64{360, 1280} {
			k.width(width, false)
			k.fits(fmt.Sprintf("%s at %d pixels", path, width))
		}
	}
}
