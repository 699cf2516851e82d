package control_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/state"
)

// FuzzRich plays random actions of users, devices and other programs, with every kind of workload.
// Its only check is the stage's: incremental decisions equal a decision about everything.
func FuzzRich(f *testing.F) {
	if nodetest.Raced {
		f.Skip("a stage is one goroutine: make test plays this without the race detector")
	}
	for seed := range int64(20) {
		f.Add(seed)
	}
	f.Add(int64(143)) // seed 143: a Deployment is deleted after its pod
	f.Add(int64(134)) // seed 134: a namespace is deleted whose pods cannot be created
	f.Add(int64(956)) // seed 956: a finalizer keeps a ReplicaSet whose Deployment is deleted
	f.Fuzz(rich)
}

func rich(t *testing.T, seed int64) {
	r := rand.New(rand.NewSource(seed))
	g := newStage(t, deciders()...)
	var did []string
	defer func() {
		if t.Failed() {
			for _, d := range did {
				t.Log(d)
			}
		}
	}()
	say := func(f string, a ...any) {
		did = append(did, fmt.Sprintf("%s ", g.now.Sub(g.start))+fmt.Sprintf(f, a...))
	}
	one := func(of ...string) string { return of[r.Intn(len(of))] }
	set := admission.Settings{NotReadySeconds: 30, UnreachableSeconds: 30}
	podSpec := func() corev1.PodSpec {
		spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/x:1"}}}
		c := &spec.Containers[0]
		if r.Intn(2) == 0 {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(one("500m", "1", "3", "4"))}
		}
		sel := &metav1.LabelSelector{MatchLabels: map[string]string{"app": one("a", "b", "c")}}
		term := corev1.PodAffinityTerm{LabelSelector: sel, TopologyKey: one(corev1.LabelTopologyZone, corev1.LabelHostname)}
		if r.Intn(6) == 0 {
			term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": one("x", "y")}}
		}
		switch r.Intn(12) {
		case 0:
			spec.NodeSelector = map[string]string{"tier": one("a", "b")}
		case 1:
			spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
		case 2:
			spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
		case 3, 4:
			k := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: sel}
			if r.Intn(2) == 0 {
				k.MinDomains = ptr.To(int32(2))
			}
			if r.Intn(2) == 0 {
				k.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
			}
			if r.Intn(2) == 0 {
				k.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
			}
			spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{k}
		case 5:
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: one("", "10.0.0.1"),
				Protocol: corev1.Protocol(one("TCP", "UDP"))}}
		case 6, 7:
			spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: one("c-0", "c-1", "c-2")}}}}
		case 8:
			spec.Tolerations = []corev1.Toleration{{Key: "mine", Operator: corev1.TolerationOpExists, TolerationSeconds: nil}}
		}
		switch r.Intn(5) {
		case 0:
			spec.Priority = ptr.To(int32(1000))
		case 1:
			spec.Priority = ptr.To(int32(100))
			spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
		default:
			spec.Priority = ptr.To(int32(0))
		}
		if r.Intn(10) == 0 {
			spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x/y"}}
		}
		return spec
	}
	ns := func() string { return one("default", "default", "other") }
	tmpl := func(app string) (corev1.PodTemplateSpec, *metav1.LabelSelector) {
		t := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: podSpec()}
		t.Spec.SchedulingGates = nil
		return t, &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: ns(), Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(g.now)}
	}
	upsert := func(o state.Object) {
		if have := g.s.Get(state.KeyOf(o)); have != nil {
			o.SetUID(have.GetUID())
			o.SetGeneration(have.GetGeneration() + 1)
			o.SetCreationTimestamp(have.GetCreationTimestamp())
			o.SetFinalizers(have.GetFinalizers())
			o.SetOwnerReferences(have.GetOwnerReferences())
			o.SetAnnotations(have.GetAnnotations())
			o.SetDeletionTimestamp(have.GetDeletionTimestamp())
		}
		admission.Default(o, set)
		say("put %s", state.KeyOf(o))
		g.put(o)
	}
	drop := func(o state.Object) {
		if o == nil {
			return
		}
		say("delete %s", state.KeyOf(o))
		if p, ok := o.(*corev1.Pod); ok {
			if c, ok := state.Delete(p, g.now, nil, ""); ok {
				g.apply(c)
			}
			return
		}
		if len(o.GetFinalizers()) > 0 {
			o = o.DeepCopyObject().(state.Object)
			o.SetDeletionTimestamp(ptr.To(metav1.NewTime(g.now)))
			g.put(o)
			return
		}
		g.apply(state.Remove(o, ""))
	}
	random := func(k state.Kind) (o state.Object) {
		n := 0
		for x := range g.s.All(k, "") {
			if n++; r.Intn(n) == 0 {
				o = x
			}
		}
		return o
	}
	node := func() string { return fmt.Sprint("n-", r.Intn(5)) }
	join := func(n string) {
		if g.s.Node(n) == nil {
			say("join %s", n)
			delete(g.silent, n)
			g.do("node", []string{n, "site=s" + fmt.Sprint(r.Intn(3)), "cpu=" + fmt.Sprint(1+r.Intn(4))})
		}
	}
	edit := func(n, what string, f func(n *corev1.Node)) {
		if have := g.s.Node(n); have != nil {
			say("%s: %s", n, what)
			have = have.DeepCopy()
			f(have)
			g.put(have)
		}
	}
	for _, name := range []string{"default", "other"} {
		g.put(namespace(name))
	}
	for i := range 3 {
		join(fmt.Sprint("n-", i))
	}
	for range 60 {
		switch r.Intn(41) {
		case 0, 1:
			join(node())
		case 2:
			if n := node(); g.s.Node(n) != nil {
				say("silence %s", n)
				g.do("silence", []string{n})
			}
		case 3, 4:
			if n := node(); g.s.Node(n) != nil {
				say("return %s", n)
				g.do("return", []string{n})
			}
		case 5:
			if n := node(); g.s.Node(n) != nil {
				say("delete %s", n)
				g.do("delete-node", []string{n})
			}
		case 6:
			edit(node(), "label", func(n *corev1.Node) { n.Labels["tier"] = one("a", "b", "") })
		case 7:
			edit(node(), "site", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = one("s0", "s1", "s2", "") })
		case 8:
			edit(node(), "cordon", func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
		case 9:
			edit(node(), "taint", func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "mine",
					Effect: corev1.TaintEffect(one("NoExecute", "NoSchedule", "PreferNoSchedule"))})
			})
		case 10:
			edit(node(), "untaint", func(n *corev1.Node) {
				var keep []corev1.Taint
				for _, t := range n.Spec.Taints {
					if t.Key != "mine" {
						keep = append(keep, t)
					}
				}
				n.Spec.Taints = keep
			})
		case 11, 12, 13, 14:
			name := fmt.Sprint("p-", r.Intn(6))
			p := &corev1.Pod{ObjectMeta: meta(name), Spec: podSpec()}
			p.Labels = map[string]string{"app": one("a", "b", "c")}
			if r.Intn(4) == 0 {
				p.Spec.NodeName = node()
				p.Spec.SchedulingGates = nil
			}
			if r.Intn(8) == 0 {
				p.Finalizers = []string{"x/y"}
			}
			if g.s.Pod(p.Namespace, name) == nil {
				upsert(p)
			}
		case 15:
			drop(random(state.Pods))
		case 16:
			if p, _ := random(state.Pods).(*corev1.Pod); p != nil {
				p = p.DeepCopy()
				p.Spec.SchedulingGates, p.Finalizers = nil, nil
				p.Labels = map[string]string{"app": one("a", "b", "c")}
				say("ungate, relabel %s", p.Name)
				g.put(p)
			}
		case 17, 18:
			name := fmt.Sprint("c-", r.Intn(3))
			c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(name),
				Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(one("ReadWriteOnce",
				"ReadWriteOncePod"))}
			c.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
			if r.Intn(2) == 0 {
				c.Spec.StorageClassName = ptr.To(one("local", "keeps", ""))
			}
			if g.s.Claim(c.Namespace, name) == nil {
				upsert(c)
			}
		case 19:
			drop(random(state.Claims))
		case 20:
			drop(random(state.Volumes))
		case 21:
			keep, mode := corev1.PersistentVolumeReclaimRetain, storagev1.VolumeBindingWaitForFirstConsumer
			upsert(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "keeps",
				Annotations: map[string]string{state.DefaultClassAnnotation: one("true", "false")}},
				Provisioner: state.LocalProvisioner, ReclaimPolicy: &keep, VolumeBindingMode: &mode})
		case 22:
			drop(random(state.StorageClasses))
		case 23:
			upsert(&policyv1.PodDisruptionBudget{ObjectMeta: meta(one("b-0", "b-1")), Spec: policyv1.PodDisruptionBudgetSpec{
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": one("a", "b", "c")}},
				MinAvailable: ptr.To(intstr.Parse(one("0", "1", "50%")))}})
		case 24:
			drop(random(state.PodDisruptionBudgets))
		case 25:
			app := one("a", "b")
			t, sel := tmpl(app)
			upsert(&appsv1.Deployment{ObjectMeta: meta("d-" + app),
				Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(r.Intn(4))), Selector: sel, Template: t}})
		case 26:
			app := one("sa", "sb")
			t, sel := tmpl(app)
			o := &appsv1.StatefulSet{ObjectMeta: meta("s-" + app),
				Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(int32(r.Intn(4))), Selector: sel, Template: t, ServiceName: "x",
					PodManagementPolicy: appsv1.PodManagementPolicyType(one("OrderedReady", "Parallel"))}}
			o.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}}}}}
			upsert(o)
		case 27:
			t, sel := tmpl("ds")
			upsert(&appsv1.DaemonSet{ObjectMeta: meta("ds"),
				Spec: appsv1.DaemonSetSpec{Selector: sel, Template: t,
					UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType}}})
		case 28:
			name := one("j-0", "j-1")
			t, sel := tmpl(name)
			t.Spec.RestartPolicy = corev1.RestartPolicyNever
			j := &batchv1.Job{ObjectMeta: meta(name),
				Spec: batchv1.JobSpec{Completions: ptr.To(int32(2)), Parallelism: ptr.To(int32(1 + r.Intn(2))), Selector: sel,
					Template: t, BackoffLimit: ptr.To(int32(2))}}
			if g.s.Get(state.KeyOf(j)) == nil {
				upsert(j)
			}
		case 29:
			if p, _ := random(state.Pods).(*corev1.Pod); p != nil && p.Status.Phase == corev1.PodRunning &&
				!g.silent[p.Spec.NodeName] {
				p = p.DeepCopy()
				p.Status.Phase = corev1.PodPhase(one("Succeeded", "Failed"))
				say("%s has %s", p.Name, p.Status.Phase)
				g.put(p)
			}
		case 30:
			drop(random([]state.Kind{state.Deployments, state.StatefulSets, state.DaemonSets, state.Jobs,
				state.ReplicaSets}[r.Intn(5)]))
		case 31:
			// The quota has space for all pods. Otherwise an incremental decision would retry a
			// refused pod later than a decision about everything.
			q := &corev1.ResourceQuota{ObjectMeta: meta("q"),
				Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse(fmt.Sprint(900 + r.Intn(12))),
					"persistentvolumeclaims": resource.MustParse(fmt.Sprint(900 + r.Intn(5)))}}}
			if r.Intn(2) == 0 {
				upsert(q)
			} else {
				drop(g.s.Get(state.KeyOf(q)))
			}
		case 32:
			n := g.s.Get(state.Key{Kind: state.Namespaces, Name: "other"})
			if n != nil {
				n = n.DeepCopyObject().(state.Object)
				n.SetLabels(map[string]string{"team": one("x", "y")})
				say("relabel namespace")
				g.put(n)
			}
		case 34:
			app := one("ca", "cb")
			t, _ := tmpl(app)
			t.Spec.RestartPolicy = corev1.RestartPolicyNever
			c := &batchv1.CronJob{ObjectMeta: meta(app),
				Spec: batchv1.CronJobSpec{Schedule: one("* * * * *", "*/2 * * * *"),
					ConcurrencyPolicy: batchv1.ConcurrencyPolicy(one("Allow", "Forbid", "Replace")),
					Suspend:           ptr.To(r.Intn(5) == 0), JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: t}}}}
			if r.Intn(3) == 0 {
				c.Spec.JobTemplate.Spec.TTLSecondsAfterFinished = ptr.To(int32(r.Intn(20)))
				c.Spec.JobTemplate.Spec.ActiveDeadlineSeconds = ptr.To(int64(1 + r.Intn(40)))
			}
			upsert(c)
		case 35:
			drop(random(state.CronJobs))
		case 36:
			if n := g.s.Get(state.Key{Kind: state.Namespaces, Name: "other"}); n == nil {
				say("create namespace")
				g.put(namespace("other"))
			} else if r.Intn(2) == 0 && n.GetDeletionTimestamp() == nil {
				gone := n.DeepCopyObject().(*corev1.Namespace)
				gone.DeletionTimestamp, gone.Status.Phase = ptr.To(metav1.NewTime(g.now)), corev1.NamespaceTerminating
				say("delete namespace")
				g.put(gone)
			}
		case 37: // another program adds or removes a finalizer
			kind := []state.Kind{state.Deployments, state.StatefulSets, state.DaemonSets, state.Jobs, state.ReplicaSets,
				state.Claims, state.Pods}[r.Intn(7)]
			if o := random(kind); o != nil {
				o = o.DeepCopyObject().(state.Object)
				if had := o.GetFinalizers(); slices.Contains(had, "x/y") {
					o.SetFinalizers(slices.DeleteFunc(had, func(f string) bool { return f == "x/y" }))
				} else if o.GetDeletionTimestamp() == nil {
					o.SetFinalizers(append(had, "x/y"))
				}
				say("finalizers of %s: %v", state.KeyOf(o), o.GetFinalizers())
				g.put(o)
			}
		case 38:
			s := &corev1.Service{ObjectMeta: meta(one("a", "b")),
				Spec: corev1.ServiceSpec{Selector: map[string]string{"app": one("a", "b", "sa")}, ClusterIP: "None",
					Ports: []corev1.ServicePort{{Port: 80}}, PublishNotReadyAddresses: r.Intn(2) == 0}}
			if r.Intn(3) == 0 {
				drop(random(state.Services))
			} else {
				upsert(s)
			}
		case 39:
			say("firmware")
			if g.s.Get(state.Key{Kind: state.BoardProfiles, Name: "board"}) == nil {
				g.do("profile", []string{"board", "quiet"})
			}
			if v := r.Intn(4); v == 0 && g.s.Rollout("r") != nil {
				g.do("delete-firmware", []string{"r"})
			} else {
				g.do("firmware", []string{"r", "profile=board", "zone=" + one("", "s0", "s1"), "paused=" + one("true", "false"),
					"undo=" + one("false", "false", "true"), "batch=" + one("1", "2")})
			}
		case 40:
			say("fate")
			g.do("fate", []string{node(), one("breaks", "dies", "refuses", "")})
		case 33:
			switch r.Intn(4) {
			case 0:
				say("restart")
				g.do("restart", nil)
			case 1:
				order := one("true", `{"force":true,"deleteEmptyDirData":true,"timeout":"1m"}`)
				edit(node(), "drain", func(n *corev1.Node) {
					metav1.SetMetaDataAnnotation(&n.ObjectMeta, state.DrainAnnotation, order)
				})
			default:
				d := fmt.Sprintf("%ds", 1+r.Intn(90))
				say("wait %s", d)
				g.do("wait", []string{d})
			}
		}
		g.do("wait", []string{fmt.Sprintf("%dms", r.Intn(3)*700)})
	}
	say("wait 2m")
	g.do("wait", []string{"2m"})
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
}
