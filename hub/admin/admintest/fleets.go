package admintest

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func Work(t testing.TB) *Memory {
	m := New(Sample()...)
	labels := map[string]string{"app": "shop"}
	two := int32(2)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default",
		Annotations: map[string]string{"deployment.kubernetes.io/revision": "2"}},
		Spec: appsv1.DeploymentSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web",
					Image: "registry.example/shop:2"}}}}}}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "watch", Namespace: "default"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: *d.Spec.Template.DeepCopy()}}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"},
		Spec: appsv1.StatefulSetSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: *d.Spec.Template.DeepCopy(),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.
						ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}}}}
	for _, o := range []state.Object{d, ds, set} {
		admission.Default(o, admission.Settings{})
	}
	m.Put(t, d, ds, set, Node("pi-8", "oslo", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "old", Value: "1", Effect: "NoSchedule"},
			{Key: "old", Effect: "NoExecute"}}
	}))
	watch := m.Snapshot().Get(state.Key{Kind: state.DaemonSets, Namespace: "default", Name: "watch"})
	for i := 1; i <= 3; i++ {
		m.Put(t, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("watch-hash%d", i),
			Namespace: "default", Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: fmt.Sprintf("hash%d",
				i)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(watch,
				appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}}, Revision: int64(i),
			Data: runtime.RawExtension{Raw: fmt.Appendf(nil,
				`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"shop"}},"spec":{"containers":[{"name":"web","image":"registry.example/watch:%d"}]}}}}`, i)}})
	}
	m.Put(t, Pod("watch-1", "pi-8", func(p *corev1.Pod) {
		p.Labels[appsv1.ControllerRevisionHashLabelKey] = "hash3"
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(watch,
			appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	}))
	db := m.Snapshot().Get(state.Key{Kind: state.StatefulSets, Namespace: "default", Name: "db"})
	for i := 1; i <= 2; i++ {
		m.Put(t, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("db-hash%d", i),
			Namespace: "default", Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: fmt.Sprintf("hash%d", i)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(db,
				appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}}, Revision: int64(i),
			Data: runtime.RawExtension{Raw: fmt.Appendf(nil,
				`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"shop"}},"spec":{"containers":[{"name":"web","image":"registry.example/db:%d"}]}}}}`, i)}})
	}
	m.Put(t, Pod("db-0", "pi-8", func(p *corev1.Pod) {
		p.Labels[appsv1.ControllerRevisionHashLabelKey] = "db-hash2"
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(db,
			appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	}))
	kept := m.Snapshot().Deployment("default", "shop")
	for i := 1; i <= 2; i++ {
		hash := fmt.Sprintf("hash%d", i)
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "shop-" + hash, Namespace: "default",
			Annotations: map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(i)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(kept,
				appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
			Spec: appsv1.ReplicaSetSpec{Replicas: &two, Selector: d.Spec.Selector.DeepCopy(),
				Template: *kept.Spec.Template.DeepCopy()}}
		rs.Spec.Template.Labels = map[string]string{"app": "shop", "pod-template-hash": hash}
		rs.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("registry.example/shop:%d", i)
		m.Put(t, rs)
	}
	return m
}

// Many returns a fleet of n healthy nodes on 20 sites, with a pod each.
func Many(n int) *Memory {
	var changes []state.Change
	for i := range n {
		name := fmt.Sprintf("node-%04d", i)
		changes = append(changes, state.Put(Node(name, fmt.Sprintf("site-%d", i%20), nil), ""),
			state.Put(Pod("pod-"+name, name, nil), ""))
	}
	m := New()
	m.Apply(changes)
	return m
}

// Crashed returns a pod whose container crashed four minutes ago.
func Crashed(name, node string, change func(*corev1.ContainerStatus)) *corev1.Pod {
	return Pod(name, node, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("256Mi")}
		st := corev1.ContainerStatus{Name: "web", RestartCount: 6,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
				Message: "back-off 5m0s restarting failed container=web"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
				Reason: "OOMKilled", StartedAt: Ago(4*time.Minute + 12*time.Second), FinishedAt: Ago(4 * time.Minute)}}}
		if change != nil {
			change(&st)
		}
		p.Status.ContainerStatuses[0] = st
	})
}

// Drained returns a fleet with two nodes whose pods have an owner.
func Drained(t testing.TB) *Memory {
	m := Work(t)
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"})
	for _, name := range []string{"pi-a", "pi-b"} {
		m.Put(t, Node(name, "oslo", nil), Pod("shop-on-"+name, name, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs,
				appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		}))
	}
	return m
}

// Silent makes some of a fleet's nodes dark, and gives a few others different trouble.
func Silent(m *Memory, dark int) *Memory {
	var changes []state.Change
	i := 0
	for n := range m.Snapshot().Nodes() {
		n = n.DeepCopy()
		switch {
		case i < dark:
			Condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
		case i%41 == 0:
			Condition("Ready", "False", "KubeletNotReady", "the engine does not answer")(n)
		case i%37 == 0:
			Condition("PowerOK", "False", "UnderVoltage", "the supply voltage is too low now")(n)
		case i%31 == 0:
			n.Spec.Unschedulable = true
		}
		i++
		changes = append(changes, state.Put(n, ""))
	}
	m.Apply(changes)
	return m
}

// Night returns a fleet of two sites, one with ten nodes, and pods in trouble.
func Night() []state.Object {
	since := metav1.NewTime(Now.Add(-time.Hour))
	next := metav1.NewMicroTime(Now.Add(12 * time.Second))
	objects := []state.Object{
		&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"},
			Status: fleet.SiteStatus{State: fleet.SiteNormal, Since: &since, EvictionRate: "0.1"}},
		&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "bergen"},
			Status: fleet.SiteStatus{State: fleet.SiteFullDisruption, Since: &since, EvictionRate: "0.1", Waiting: 10,
				NextEviction: &next}},
		Node("oslo-1", "oslo", nil), Node("oslo-2", "oslo",
			Condition(fleet.ConditionPowerOK, "False", "UnderVoltage",
				"the supply voltage is too low now: use a stronger power supply or a shorter cable")),
		Pod("till-5c6b-x2x4z", "oslo-1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", RestartCount: 7,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
					Reason: "OOMKilled"}}}}
		}),
		Pod("menu-77d8-plm2k", "oslo-1", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "registry.example/menu:2.0.0"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
					Message: "registry.example said: manifest unknown"}}}}
		}),
		&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "oslo-dark-0a0b0c", UID: "1"}, State: fleet.IncidentClosed,
			Cause: "NodeDark", Severity: fleet.SeverityCritical, Message: "oslo-2 does not answer",
			About: fleet.IncidentObject{Kind: "Site", Name: "oslo"},
			Since: Ago(5 * time.Hour), Opened: Ago(5 * time.Hour), Closed: new(Ago(4 * time.Hour)),
			Most: fleet.IncidentCount{Nodes: 1, Pods: 6, Workloads: 2}, Evicted: 5, ShortSeconds: 340},
	}
	for i := range 10 {
		name := fmt.Sprintf("brg-%04d", i)
		objects = append(objects, Node(name, "bergen", nil),
			&state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Boot: "b"}, Pod("kiosk-"+name, name, Tolerates))
	}
	return objects
}

// Tolerates makes a pod tolerate a silent node for five minutes.
func Tolerates(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))}}
}

// Pending makes a pod wait for a node.
func Pending(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Status = corev1.PodStatus{Phase: corev1.PodPending,
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Reason: "Unschedulable",
			Message: "0/9 nodes are available: 9 of us."}}}
}

// Stuck returns a fleet in which pods of two Deployments find no node: one for a label, one for memory.
func Stuck(t testing.TB) *Memory {
	m := New(StuckFleet()...)
	for i, name := range []string{"vision", "ledger"} {
		StuckWorkload(t, m, name, func(p *corev1.PodSpec) {
			if i == 0 {
				p.NodeSelector = map[string]string{"gpu": "true"}
			} else {
				p.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("64Gi"),
					"cpu": resource.MustParse("1")}
			}
		})
	}
	return m
}

func StuckFleet() (all []state.Object) {
	for i := range 24 {
		all = append(all, Node(fmt.Sprintf("brg-%04d", i), []string{"bergen", "oslo"}[i%2], func(n *corev1.Node) {
			switch i {
			case 3:
				n.Spec.Unschedulable = true
				n.Labels["gpu"] = "true"
			case 5:
				n.Status.Allocatable["memory"] = resource.MustParse("7372Mi")
			case 7:
				n.Spec.Taints = []corev1.Taint{{Key: "camera", Value: "broken", Effect: "NoSchedule"}}
				n.Labels["gpu"] = "true"
			case 9:
				Condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: "NoSchedule"}}
			}
		}))
	}
	return append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		Pod("big", "brg-0005", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("6Gi")
		}))
}

// StuckWorkload adds a Deployment with one pod that waits for a node.
func StuckWorkload(t testing.TB, m *Memory, name string, change func(*corev1.PodSpec)) {
	t.Helper()
	one := int32(1)
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/" + name +
					":2"}}}}},
		Status: appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1}}
	change(&d.Spec.Template.Spec)
	admission.Default(d, admission.Settings{})
	m.Put(t, d)
	d = m.Snapshot().Deployment("default", name)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name + "-6f9c", Namespace: "default", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d,
			appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &one, Selector: d.Spec.Selector, Template: d.Spec.Template}}
	m.Put(t, rs)
	made := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: rs.Name})
	m.Put(t, Pod(rs.Name+"-x2x4z", "", func(p *corev1.Pod) {
		p.Labels, p.Spec = labels, *d.Spec.Template.Spec.DeepCopy()
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(made,
			appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		Pending(p)
	}))
}

// Choosy gives a pod every kind of scheduling rule.
func Choosy(p *corev1.Pod) {
	like := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	term := func(app string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{LabelSelector: like(app), TopologyKey: "kubernetes.io/hostname"}
	}
	p.Spec.PriorityClassName, p.Spec.Priority = "tills", new(int32(1000))
	p.Spec.NodeSelector = map[string]string{"room": "2", "disk": "ssd"}
	p.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.
			NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "gpu", Operator: "Exists"},
				{Key: "old", Operator: "DoesNotExist"}}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "board", Operator: "In",
				Values: []string{"a", "b"}}}}}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 5,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fast",
					Operator: "In", Values: []string{"yes"}}}}}}},
		PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(
			"cache")}},
		PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.
			WeightedPodAffinityTerm{{Weight: 7, PodAffinityTerm: term("till")}}},
	}
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
		TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway}}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: "Exists",
		Effect: "NoExecute", TolerationSeconds: new(int64(300))},
		{Key: "camera", Value: "broken", Effect: "NoSchedule"}, {Operator: "Exists"},
		{Key: "old", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(1 << 62))}}
	p.Spec.HostNetwork, p.Spec.ServiceAccountName = true, "robot"
	p.Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.
			VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "ledger"}}},
		{Name: "colours", VolumeSource: corev1.
			VolumeSource{ConfigMap: &corev1.
			ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "colours"}}}},
		{Name: "scratch", VolumeSource: corev1.
			VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("64Mi"))}}},
		{Name: "video", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/video0"}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"},
		{Name: "colours", MountPath: "/etc/colours", ReadOnly: true}}
}

func Moments(t time.Time) *metav1.MicroTime { m := metav1.NewMicroTime(t); return &m }
