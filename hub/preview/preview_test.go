package preview_test

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/serve"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// A world runs all deciders of the hub, and devices that execute their desired state each second.
// It shows what really happens.
type world struct {
	testing.TB
	s       state.Snapshot
	settler *control.Settler
	now     time.Time
	silent  map[string]bool
}

func newWorld(t testing.TB) *world {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: state.LocalClass, UID: "local",
		Annotations: map[string]string{state.DefaultClassAnnotation: "true"}}, Provisioner: state.LocalProvisioner}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "default"}}
	all := slices.DeleteFunc(serve.Deciders(config.Default()), func(d control.Decider) bool {
		_,
			says := d.(incident.Decider)
		return says
	})
	return &world{TB: t, s: state.Load(state.Empty("world", noon), []state.Object{class, space}, 0),
		settler: control.NewSettler(node.Ended, all...), now: noon, silent: map[string]bool{}}
}

func (w *world) do(changes ...state.Change) {
	w.Helper()
	for n := range w.s.Nodes() {
		if !w.silent[n.Name] {
			w.s = w.s.WithSeen(n.Name, w.now)
		}
	}
	var done []state.Applied
	w.s, done = state.Apply(w.s, changes)
	var settled bool
	if w.s, _, settled = w.settler.Settle(w.s, done, w.now); !settled {
		w.Fatal("the deciders do not settle")
	}
}

func (w *world) put(objects ...state.Object) {
	w.Helper()
	for _, o := range objects {
		admission.Default(o, admission.Settings{NotReadySeconds: 300, UnreachableSeconds: 300})
		w.do(state.Put(o, ""))
	}
}

func (w *world) wait(d time.Duration) {
	w.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Second)
		var changes []state.Change
		for n := range w.s.Nodes() {
			if w.silent[n.Name] {
				continue
			}
			for p := range w.s.PodsOn(n.Name) {
				ready := state.PodCondition(p, corev1.PodReady)
				switch {
				case p.DeletionTimestamp != nil && len(p.Finalizers) == 0:
					changes = append(changes, state.Remove(p, ""))
				case p.DeletionTimestamp != nil && !state.Terminated(p):
					p = p.DeepCopy()
					p.Status.Phase = corev1.PodFailed
					changes = append(changes, state.Put(p, ""))
				case p.DeletionTimestamp == nil && !state.Terminated(p) && (ready == nil || ready.Status != corev1.ConditionTrue):
					p = p.DeepCopy()
					p.Status.Phase = corev1.PodRunning
					state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, w.now)
					changes = append(changes, state.Put(p, ""))
				}
			}
		}
		w.do(changes...)
	}
}

func (w *world) node(name, site, cpu string) {
	w.Helper()
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("110")}
	w.do(state.Put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Boot: "b"}, ""))
	w.do(state.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(w.now),
			Labels: map[string]string{corev1.LabelTopologyZone: site, corev1.LabelHostname: name, fleet.LabelBoard: "pi"}},
		Status: corev1.NodeStatus{Capacity: list, Allocatable: list, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now),
			LastHeartbeatTime: metav1.NewTime(w.now)}}},
	}, ""))
}

func template(app, cpu string, also ...func(*corev1.PodSpec)) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/" + app + ":1"}}}
	if cpu != "" {
		spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	for _, f := range also {
		f(&spec)
	}
	labels := map[string]string{"app": app}
	return &metav1.LabelSelector{MatchLabels: labels},
		corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(noon)}
}

func deployment(name string, replicas int32, cpu string, also ...func(*corev1.PodSpec)) *appsv1.Deployment {
	selector, t := template(name, cpu, also...)
	return &appsv1.Deployment{ObjectMeta: meta(name), Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector,
		Template: t}}
}

func stateful(name string, replicas int32, claim bool) *appsv1.StatefulSet {
	selector, t := template(name, "100m")
	set := &appsv1.StatefulSet{ObjectMeta: meta(name), Spec: appsv1.StatefulSetSpec{Replicas: &replicas,
		Selector: selector, Template: t, ServiceName: name}}
	if claim {
		set.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}}
	}
	return set
}

func daemons(name string) *appsv1.DaemonSet {
	selector, t := template(name, "")
	return &appsv1.DaemonSet{ObjectMeta: meta(name), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: t}}
}

func task(name string, replicas int32) *batchv1.Job {
	_, t := template(name, "100m")
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: meta(name), Spec: batchv1.JobSpec{Parallelism: &replicas, Completions: &replicas,
		Template: t}}
}

func bare(name, on string) *corev1.Pod {
	_, t := template(name, "")
	p := &corev1.Pod{ObjectMeta: meta(name), Spec: t.Spec}
	p.Spec.NodeName = on
	return p
}

func budget(app string, set func(*policyv1.PodDisruptionBudgetSpec)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: meta(app),
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	set(&b.Spec)
	return b
}

func atLeast(n string) func(*policyv1.PodDisruptionBudgetSpec) {
	return func(b *policyv1.PodDisruptionBudgetSpec) { b.MinAvailable = ptr.To(intstr.Parse(n)) }
}

func atMost(n string) func(*policyv1.PodDisruptionBudgetSpec) {
	return func(b *policyv1.PodDisruptionBudgetSpec) { b.MaxUnavailable = ptr.To(intstr.Parse(n)) }
}

// tell writes a forecast as lines. They have the names of workloads, because pod names are random.
func tell(f preview.Forecast) string {
	var lines []string
	for _, x := range f.Fates {
		line := app(x.Pod) + " " + string(x.End)
		if x.Node != "" {
			line += " to " + x.Node
		}
		if x.Hold != nil && x.Hold.Budget != "" {
			line += ", held by " + x.Hold.Budget
		}
		if x.Silent {
			line += ", silent"
		}
		if x.Why != "" {
			line += ": " + x.Why
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	for _, b := range f.Budgets {
		lines = append(lines, fmt.Sprintf("budget %s holds %d, never %v", b.Name, b.Pods, b.Never))
	}
	for _, p := range f.Others {
		lines = append(lines, "also "+app(p))
	}
	if f.Short {
		lines = append(lines, "short")
	}
	return strings.Join(lines, "\n")
}

func app(p *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil || owner.Kind == "StatefulSet" {
		return p.Name
	}
	if owner.Kind == "ReplicaSet" {
		return owner.Name[:strings.LastIndexByte(owner.Name, '-')]
	}
	return owner.Name
}

var rules = serve.Foresight(config.Default())

func TestForecastOfADrain(t *testing.T) {
	for _, c := range []struct {
		name  string
		order state.DrainOrder
		set   func(w *world)
		want  string
	}{
		{"the pods of a deployment move to nodes with space", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 2, "1"))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
			w.node("c", "oslo", "4")
		}, "web Moves to b\nweb Moves to c"},
		{"without space they stay pending", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 1, "3"))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "2")
		}, "web Pending: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."},
		{"pods of daemon sets stay, and bare pods without force", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(daemons("watch"), bare("lonely", "a"))
			w.wait(3 * time.Second)
		}, "lonely Remains: nothing recreates it: set force, or delete it\nwatch Daemon"},
		{"nothing recreates a bare pod", state.DrainOrder{Force: true}, func(w *world) {
			w.node("a", "oslo", "4")
			w.node("b", "oslo", "4")
			w.put(bare("lonely", "a"))
			w.wait(3 * time.Second)
		}, "lonely Lost: it has no owner"},
		{"a budget delays the second pod until the first is replaced", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 2, "1"), budget("web", atMost("1")))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "web Moves to b\nweb Moves to b, held by web\nbudget web holds 1, never false"},
		{"a budget that allows no disruption blocks all pods permanently", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 2, "1"), budget("web", atMost("0")))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "web Remains, held by web\nweb Remains, held by web\nbudget web holds 2, never true"},
		{"a budget that needs all pods blocks them permanently", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 2, "1"), budget("web", atLeast("2")))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "web Remains, held by web\nweb Remains, held by web\nbudget web holds 2, never true"},
		{"a budget blocks permanently if the replacement has no space", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 2, "2"), budget("web", atMost("1")))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "1")
		}, "web Pending: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.\nweb Remains, held by web\nbudget web holds 1, never false"},
		{"without evictions budgets do not count", state.DrainOrder{DisableEviction: true}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 1, "1"), budget("web", atMost("0")))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "web Moves to b"},
		{"a stateful pod waits for the device that has its volume", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(stateful("db", 1, true))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "db-0 Pending: 0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 node(s) were unschedulable."},
		{"a stateful pod without a volume moves", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(stateful("db", 1, false))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "db-0 Moves to b"},
		{"a job's pod is recreated after its back-off", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(task("night", 1))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
		}, "night Moves to b"},
		{"a pod of higher priority preempts others", state.DrainOrder{}, func(w *world) {
			w.put(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000})
			w.node("a", "oslo", "4")
			high := deployment("high", 1, "3")
			high.Spec.Template.Spec.PriorityClassName = "high"
			w.put(high)
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
			w.do(state.Put(cordoned(w.s.Node("a"), true), ""))
			w.put(deployment("low", 1, "3"))
			w.wait(3 * time.Second)
			w.do(state.Put(cordoned(w.s.Node("a"), false), ""))
		}, "high Moves to b\nalso low"},
		{"pods of a silent device are replaced and stay Terminating", state.DrainOrder{}, func(w *world) {
			w.node("a", "oslo", "4")
			w.put(deployment("web", 1, "1"))
			w.wait(3 * time.Second)
			w.node("b", "oslo", "4")
			w.silent["a"] = true
			w.wait(time.Minute)
		}, "web Moves to b, silent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.set(w)
			if got := tell(rules.Drain(w.s, []string{"a"}, c.order, w.now)); got != c.want {
				t.Errorf("foretold:\n%s\nwants:\n%s", got, c.want)
			}
		})
	}
}

func cordoned(n *corev1.Node, is bool) *corev1.Node {
	n = n.DeepCopy()
	n.Spec.Unschedulable = is
	return n
}

func TestForecastOfADeletion(t *testing.T) {
	w := newWorld(t)
	w.node("a", "oslo", "4")
	w.put(deployment("web", 2, "1"), daemons("watch"), bare("lonely", "a"), stateful("db", 1, true),
		budget("web", atMost("0")))
	w.wait(5 * time.Second)
	w.node("b", "oslo", "4")
	want := "db-0 Pending: 0/1 nodes are available: 1 node(s) had volume node affinity conflict.\nlonely Lost: it has no owner\n" +
		"watch Lost: its daemon set has one pod per node, and this node is gone\nweb Moves to b\nweb Moves to b"
	if got := tell(rules.Delete(w.s, []string{"a"}, w.now)); got != want {
		t.Errorf("foretold:\n%s\nwants:\n%s", got, want)
	}
}

// Above the limit the forecast does not search for new nodes.
func TestTooManyPodsAreOnlyCounted(t *testing.T) {
	s := crowd(50, preview.MaxPods/50+1)
	var all []string
	for n := range s.Nodes() {
		all = append(all, n.Name)
	}
	want := map[preview.End]int{preview.Open: s.Len(state.Pods)}
	for i, f := range []preview.Forecast{rules.Drain(s, all, state.DrainOrder{Force: true}, noon),
		rules.Delete(s, all, noon)} {
		got := map[preview.End]int{}
		for _, x := range f.Fates {
			got[x.End]++
		}
		if !f.Many || !maps.Equal(got, want) {
			t.Errorf("%d pods: %v, %v, want %v", i, f.Many, got, want)
		}
	}
}

// FuzzDrainForecasts compares forecasts for random fleets with the results of the actions.
func FuzzDrainForecasts(f *testing.F) {
	for seed := range int64(60) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		w := newWorld(t)
		nodes := 2 + r.Intn(6)
		name := func() string { return fmt.Sprint("n-", r.Intn(nodes)) }
		for i := range nodes {
			w.node(fmt.Sprint("n-", i), fmt.Sprint("s-", i%3), fmt.Sprint(1+r.Intn(4)))
		}
		spread := func(app string) func(*corev1.PodSpec) {
			kind := r.Intn(4)
			return func(p *corev1.PodSpec) {
				term := corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
					TopologyKey: corev1.LabelHostname}
				switch kind {
				case 0:
					p.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
				case 1:
					p.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
						TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
						LabelSelector: term.LabelSelector}}
				}
			}
		}
		cpu := func() string { return []string{"", "100m", "500m", "1500m"}[r.Intn(4)] }
		for i := range 1 + r.Intn(4) {
			app := fmt.Sprint("d", i)
			w.put(deployment(app, int32(r.Intn(6)), cpu(), spread(app)))
			switch r.Intn(5) {
			case 0:
				w.put(budget(app, atMost(fmt.Sprint(r.Intn(3)))))
			case 1:
				w.put(budget(app, atLeast(fmt.Sprint(r.Intn(4)))))
			case 2:
				w.put(budget(app, atLeast("50%")))
			}
			w.wait(time.Second)
		}
		w.put(daemons("watch"), stateful("db", int32(r.Intn(4)), r.Intn(2) == 0), task("night", int32(1+r.Intn(2))),
			bare("lonely", name()))
		w.wait(30 * time.Second)
		if r.Intn(3) == 0 {
			w.silent[name()] = true
			w.wait(50 * time.Second)
		}
		targets := map[string]bool{name(): true}
		if r.Intn(3) == 0 {
			targets[name()] = true
		}
		var drained []string
		for n := range w.s.Nodes() {
			if targets[n.Name] {
				drained = append(drained, n.Name)
			}
		}
		order := state.DrainOrder{Force: r.Intn(2) == 0, DeleteEmptyDirData: true, Timeout: "1h"}
		forecast := rules.Drain(w.s, drained, order, w.now)
		if forecast.Short {
			t.Skip("the forecast reached its limit")
		}
		before := map[string]bool{}
		for p := range w.s.Pods("") {
			before[string(p.UID)] = true
		}
		var changes []state.Change
		for _, n := range drained {
			next := w.s.Node(n).DeepCopy()
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, state.DrainAnnotation, order.String())
			changes = append(changes, state.Put(next, ""))
		}
		w.do(changes...)
		for range 90 { // from here on no node becomes silent, and pods of silent nodes are not evicted
			w.wait(time.Second)
		}
		if len(w.silent) > 0 {
			return // the forecast ends where evictions begin, so only the events before are compared
		}
		var want, got []string
		for _, x := range forecast.Fates {
			switch x.End {
			case preview.Moves:
				want = append(want, app(x.Pod)+" on "+x.Node)
			case preview.Pending:
				if x.Why != preview.InOrder {
					want = append(want, app(x.Pod)+" pending")
				}
			case preview.Remains, preview.Daemon:
				if now := w.s.Pod(x.Pod.Namespace, x.Pod.Name); now == nil || now.UID != x.Pod.UID || now.DeletionTimestamp != nil {
					t.Errorf("seed %d: %s left, but was forecast to stay (%s)", seed, x.Pod.Name, x.End)
				}
			case preview.Open:
				t.Errorf("seed %d: the forecast lacks %s", seed, x.Pod.Name)
			}
			if now := w.s.Pod(x.Pod.Namespace, x.Pod.Name); x.End != preview.Remains && x.End != preview.Daemon && now != nil &&
				now.UID == x.Pod.UID {
				t.Errorf("seed %d: %s stayed, but was forecast to leave (%s)", seed, x.Pod.Name, x.End)
			}
		}
		for p := range w.s.Pods("") {
			switch {
			case before[string(p.UID)] || state.Terminated(p):
			case p.Spec.NodeName != "":
				got = append(got, app(p)+" on "+p.Spec.NodeName)
			default:
				got = append(got, app(p)+" pending")
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(forecast.Others) == 0 && !slices.Equal(want, got) {
			t.Errorf("seed %d, draining %v: the forecast is\n%s\nthe result is\n%s", seed, drained, strings.Join(want, "\n"),
				strings.Join(got, "\n"))
		}
	})
}

// crowd returns a fleet with each running pods on each node, fifty of each deployment.
func crowd(nodes, each int) state.Snapshot {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("250")}
	var objects []state.Object
	var rs *appsv1.ReplicaSet
	for i := range nodes {
		name := fmt.Sprintf("pi-%05d", i)
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
				Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("site-", i/50), corev1.LabelHostname: name}},
			Status: corev1.NodeStatus{Capacity: list, Allocatable: list,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
		for k := range each {
			if n := i*each + k; n%50 == 0 {
				d := deployment(fmt.Sprint("web-", n/50), int32(min(50, nodes*each-n)), "100m")
				admission.Default(d, admission.Settings{})
				d.UID = types.UID(d.Name)
				rs = &appsv1.ReplicaSet{ObjectMeta: meta(d.Name + "-hash"), Spec: appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas,
					Selector: d.Spec.Selector, Template: d.Spec.Template}}
				rs.UID, rs.OwnerReferences = types.UID(rs.Name), []metav1.OwnerReference{*metav1.NewControllerRef(d,
					appsv1.SchemeGroupVersion.WithKind("Deployment"))}
				objects = append(objects, d, rs)
			}
			p := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("%s-%d-%d", rs.Name, i, k)), Spec: *rs.Spec.Template.Spec.DeepCopy()}
			p.UID, p.Labels, p.Spec.NodeName, p.Status.Phase = types.UID(p.Name), rs.Spec.Template.Labels, name,
				corev1.PodRunning
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs,
				appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
			for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.ContainersReady, corev1.PodReady} {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
			}
			objects = append(objects, p)
		}
	}
	return state.Load(state.Empty("crowd", noon), objects, uint64(len(objects)))
}

// BenchmarkDrain forecasts a drain of one of 5,000 nodes, which may take 200 ms, and of the largest
// number of pods for which new nodes are searched.
func BenchmarkDrain(b *testing.B) {
	held := budget("web-0", atMost("1"))
	held.UID = "held"
	for _, c := range []struct {
		name        string
		nodes, each int
		drain       int
		held        bool
	}{
		{"one of 5000", 5000, 10, 1, false}, {"one of 5000, blocked", 5000, 10, 1, true}, {"MaxPods pods", 1000, 50, preview.MaxPods / 50, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := crowd(c.nodes, c.each)
			if c.held {
				s, _ = state.Apply(s, []state.Change{state.Put(held, "")})
			}
			var names []string
			for i := range c.drain {
				names = append(names, fmt.Sprintf("pi-%05d", i))
			}
			for b.Loop() {
				f := rules.Drain(s, names, state.DrainOrder{DeleteEmptyDirData: true}, noon)
				moved := 0
				for _, x := range f.Fates {
					if x.End == preview.Moves {
						moved++
					}
				}
				if len(f.Fates) != c.drain*c.each || moved != len(f.Fates) && !c.held {
					b.Fatal(len(f.Fates), moved, f.Short)
				}
				b.ReportMetric(float64(moved), "moved")
			}
		})
	}
}
