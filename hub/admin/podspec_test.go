package admin

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// choosy asks for all that a pod can ask for.
func choosy(p *corev1.Pod) {
	like := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	term := func(app string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{LabelSelector: like(app), TopologyKey: "kubernetes.io/hostname"}
	}
	p.Spec.PriorityClassName, p.Spec.Priority = "tills", new(int32(1000))
	p.Spec.NodeSelector = map[string]string{"room": "2", "disk": "ssd"}
	p.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "gpu", Operator: "Exists"}, {Key: "old", Operator: "DoesNotExist"}}}, {MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "board", Operator: "In", Values: []string{"a", "b"}}}}}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 5, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fast", Operator: "In", Values: []string{"yes"}}}}}}},
		PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term("cache")}},
		PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 7, PodAffinityTerm: term("till")}}},
	}
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway}}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))}, {Key: "camera", Value: "broken", Effect: "NoSchedule"}, {Operator: "Exists"},
		{Key: "old", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(1 << 62))}}
	p.Spec.HostNetwork, p.Spec.ServiceAccountName = true, "robot"
	p.Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "ledger"}}},
		{Name: "colours", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "colours"}}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("64Mi"))}}},
		{Name: "video", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/video0"}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "colours", MountPath: "/etc/colours", ReadOnly: true}}
}

func TestWhatAPodAsksForInWords(t *testing.T) {
	want := []Fact{
		{"Priority", "1000, tills"}, {"Node selector", "disk=ssd, room=2"},
		{"Affinity", "needs a node with the label gpu and no label old, or board in (a, b); prefers a node with fast=yes (weight 5); must be near pods with app=cache, by kubernetes.io/hostname; would rather be away from pods with app=till, by kubernetes.io/hostname (weight 7)"},
		{"Spread", "over topology.kubernetes.io/zone, by 1 at most, if it can be"},
		{"Tolerates", "node.kubernetes.io/unreachable:NoExecute for 5m; camera=broken:NoSchedule; every taint; old:NoExecute for 292y"}, {"Service account", "robot"}, {"Network", "that of its node"},
	}
	if got := askFacts(testPod("p", "pi-1", choosy)); !slices.Equal(got, want) {
		t.Errorf("%v, want\n%v", got, want)
	}
	if got := askFacts(testPod("p", "pi-1", nil)); len(got) > 0 {
		t.Errorf("who asks for nothing asks for %v", got)
	}
	for text, r := range map[string]corev1.ResourceRequirements{
		"Requests nothing, and has no limit.":           {},
		"Requests 250m cpu, 64Mi memory; has no limit.": {Requests: corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("250m")}},
		"Requests nothing; limit 1 example.com/tpu.":    {Limits: corev1.ResourceList{"example.com/tpu": resource.MustParse("1")}},
		"Requests 250m cpu; limit 1 cpu.":               {Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	} {
		if got := asksText(corev1.Container{Resources: r}); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
}

func TestOwnersAreLinkedUpToTheWorkload(t *testing.T) {
	m := newMemory(sample()...)
	below := func(o, up state.Object) state.Object {
		o.SetNamespace("default")
		if up != nil {
			o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(up, state.KindOf(up).GroupVersionKind())})
		}
		m.put(t, o)
		return m.Snapshot().Get(state.KeyOf(o))
	}
	d := below(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, nil)
	rs := below(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "shop-1"}}, d)
	cron := below(&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "night"}}, nil)
	job := below(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "night-1"}}, cron)
	for _, c := range []struct {
		up   state.Object
		want string
	}{
		{rs, "ReplicaSet shop-1 /yaml/apis/apps/v1/namespaces/default/replicasets/shop-1, Deployment shop /workloads/deployments/default/shop"},
		{job, "Job night-1 /pods?namespace=default&owner=job%2Fnight-1, CronJob night /yaml/apis/batch/v1/namespaces/default/cronjobs/night"},
		{nil, ""},
	} {
		p := below(testPod("p", "pi-1", nil), c.up)
		var got []string
		for _, l := range ownerLinks(m.Snapshot(), p) {
			got = append(got, l.Kind+" "+l.Name+" "+l.Href)
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%q, want %q", text, c.want)
		}
	}
}

// TestAPodThatAsksForMuchInABrowser looks at a page with all of it.
func TestAPodThatAsksForMuchInABrowser(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, append(sample(), testPod("choosy", "pi-1", choosy), configMap(nil))...)
	k.open("/pods/default/choosy")
	k.says("Requests 250m cpu, 192Mi memory; has no limit.", "Where it may run", "Volumes", "Persistent volume claim: ledger (not there)", "web: /etc/colours (read only)", "at most 64Mi")
	if !k.eval(`document.querySelector(".volumes a").getAttribute("href").startsWith("/yaml/api/v1/namespaces/default/configmaps/colours")`) {
		t.Error("the config map is not linked")
	}
	k.look("choosy")
}
