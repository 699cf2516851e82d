package control_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/serve"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var update = flag.Bool("update", false, "rewrite the stories' outcomes")

// TestStories plays every story of testdata and compares the hub's sentences.
func TestStories(t *testing.T) {
	if nodetest.Raced {
		t.Skip("a stage is one goroutine: make test plays the stories without the race detector")
	}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newStage(t, acting()...).play(string(want))
			if got == string(want) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the story differs:\n%s\nwant:\n%s", got, want)
		})
	}
}

// A stage plays stories with the hub's deciders. Devices obey within a second and renew their
// leases unless they are silent.
type stage struct {
	t       *testing.T
	all     []control.Decider
	s       state.Snapshot
	settler *control.Settler
	start   time.Time
	now     time.Time
	silent  map[string]bool
	boards  map[string]*board
	rejects map[string]bool
	hush    bool           // write only the counts
	unsaid  map[string]int // number of lines left out, by first words
	counted map[string]int
	out     strings.Builder
	quiet   int
	watch   func(s state.Snapshot, made []state.Applied, now time.Time) // nil: no observer
}

var storyNoon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// deciders returns the hub's deciders with default settings.
func deciders() []control.Decider { return serve.Deciders(config.Default()) }

// acting returns the deciders that act. Incidents are tested in package incident, and their
// revisions would change the names of pods.
func acting() []control.Decider {
	return slices.DeleteFunc(deciders(), func(d control.Decider) bool { _, says := d.(incident.Decider); return says })
}

// decidersWith returns the deciders with another address range.
func decidersWith(cluster string, bits int) []control.Decider {
	cfg := config.Default()
	cfg.ClusterCIDR, cfg.NodeCIDRMaskSize = netip.MustParsePrefix(cluster), bits
	return serve.Deciders(cfg)
}

func newStage(t *testing.T, all ...control.Decider) *stage {
	all = append(all, node.Deliver{})
	// The built-in class exists from the start, so that its creation does not change the names in
	// stories.
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: state.LocalClass, UID: "local",
		Annotations: map[string]string{state.DefaultClassAnnotation: "true"}}, Provisioner: state.LocalProvisioner}
	return &stage{
		t: t, all: all, s: state.Load(state.Empty("story", storyNoon), []state.Object{class}, 0), start: storyNoon,
		now: storyNoon, silent: map[string]bool{}, rejects: map[string]bool{}, unsaid: map[string]int{},
		counted: map[string]int{},
		settler: control.NewSettler(node.Ended, all...),
	}
}

func (g *stage) play(story string) string {
	for line := range strings.Lines(story) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "=") {
			continue
		}
		g.out.WriteString(line + "\n")
		if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(line, "#") {
			g.do(f[0], f[1:])
		}
	}
	return g.out.String()
}

func (g *stage) do(verb string, args []string) {
	g.t.Helper()
	opts := map[string]string{}
	var names []string
	for _, a := range args {
		if k, v, ok := strings.Cut(a, "="); ok {
			opts[k] = v
		} else {
			names = append(names, a)
		}
	}
	switch verb {
	case "wait":
		d, err := time.ParseDuration(names[0])
		if err != nil {
			g.t.Fatal(err)
		}
		g.wait(d)
	case "silence":
		for _, n := range g.nodes(names) {
			g.silent[n] = true
		}
	case "return": // return NODES: the devices are back; they report, and stop deleted pods
		for _, n := range g.nodes(names) {
			delete(g.silent, n)
			g.report(n, corev1.ConditionTrue)
		}
	case "unwell":
		for _, n := range g.nodes(names) {
			g.report(n, corev1.ConditionFalse)
		}
	case "node":
		for _, n := range expand(names[0]) {
			g.node(n, opts)
		}
	case "site":
		site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: names[0]}}
		if have := g.s.Site(names[0]); have != nil {
			site = have.DeepCopy()
		}
		site.Spec.DisruptionPolicy = fleet.DisruptionPolicy(opts["policy"])
		g.put(site)
	case "drain": // drain NODES: as by kubectl annotate, for all nodes at one moment
		order := strings.Join(args[1:], " ")
		var changes []state.Change
		for _, name := range expand(args[0]) {
			n := g.s.Node(name).DeepCopy()
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			if n.Annotations[state.DrainAnnotation] = order; order == "" {
				n.Annotations[state.DrainAnnotation] = "true"
			}
			changes = append(changes, state.Put(n, ""))
		}
		g.apply(changes...)
	case "stop-drain":
		n := g.s.Node(names[0]).DeepCopy()
		delete(n.Annotations, state.DrainAnnotation)
		g.put(n)
	case "budget":
		g.put(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names[0],
			Generation: 1}, Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": names[0]}},
			MinAvailable: ptr.To(intstr.Parse(opts["min"]))}})
	case "pod": // pod NAME: without a controller
		t := template(names[0], opts)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names[0],
			CreationTimestamp: metav1.NewTime(g.now)}, Spec: t.template.Spec}
		p.Spec.NodeName = opts["node"]
		g.put(p)
	case "claim":
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names[0],
			CreationTimestamp: metav1.NewTime(g.now)}}
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(opts["mode"])}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		g.put(c)
	case "delete-claim":
		c := g.s.Claim("default", names[0]).DeepCopy()
		c.DeletionTimestamp = ptr.To(metav1.NewTime(g.now))
		g.put(c)
	case "delete-pod":
		if c, ok := state.Delete(g.s.Pod("default", names[0]), g.now, nil, ""); ok {
			g.apply(c)
		}
	case "drains": // drains: prints the drain statuses of the nodes
		for n := range g.s.NodesWithDrain() {
			_, ordered := n.Annotations[state.DrainAnnotation]
			if st := state.DrainStatusOf(n); st != nil {
				fmt.Fprintf(&g.out, "= %8s  (%s: %s, %d of %d left, ordered %v, cordoned %v)\n", g.now.Sub(g.start), n.Name,
					st.State, st.Pods-st.Left, st.Pods, ordered, n.Spec.Unschedulable)
			}
		}
	case "cordon", "uncordon", "taint", "untaint":
		for _, name := range expand(names[0])[1:] {
			g.do(verb, append([]string{name}, names[1:]...))
		}
		n := g.s.Node(expand(names[0])[0]).DeepCopy()
		switch verb {
		case "cordon", "uncordon":
			n.Spec.Unschedulable = verb == "cordon"
		case "taint":
			key, effect, _ := strings.Cut(names[1], ":")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
		default:
			var keep []corev1.Taint
			for _, t := range n.Spec.Taints {
				if t.Key != names[1] {
					keep = append(keep, t)
				}
			}
			n.Spec.Taints = keep
		}
		g.put(n)
	case "deployment":
		g.put(g.deployment(names[0], opts))
	case "daemonset":
		spec := template(names[0], opts)
		g.put(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names[0], Generation: 1},
			Spec: appsv1.DaemonSetSpec{
				Selector: spec.selector, Template: spec.template,
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType}}})
	case "rejects", "accepts": // rejects NODES: the devices reject new pods, for example for lack of memory
		for _, n := range g.nodes(names) {
			g.rejects[n] = verb == "rejects"
		}
	case "count": // count WORDS: how many lines of the hub begin with these words
		said := strings.Count(g.out.String(), "  "+names[0]+" ") + g.unsaid[names[0]]
		fmt.Fprintf(&g.out, "= %8s  %d times %s\n", g.now.Sub(g.start).Truncate(time.Millisecond), said-g.counted[names[0]],
			names[0])
		g.counted[names[0]] = said
	case "hush", "speak":
		g.hush = verb == "hush"
	case "delete-node":
		g.apply(state.Remove(g.s.Node(names[0]), "delete node "+names[0]))
	case "restart": // restart the hub, possibly after a while: stored state stays, and every node counts as seen now
		off, _ := time.ParseDuration(opts["after"])
		g.now = g.now.Add(off)
		g.s = g.s.ResetSeen(g.now)
		g.s.Started = g.now
		g.settler = control.NewSettler(node.Ended, g.all...)
		g.settle(nil)
	default:
		if !g.doFirmware(verb, names, opts) {
			g.t.Fatalf("unknown verb %q", verb)
		}
	}
}

// expand turns pi-1..3 into three names.
func expand(name string) (out []string) {
	head, last, ok := strings.Cut(name, "..")
	if !ok {
		return []string{name}
	}
	i := strings.LastIndex(head, "-")
	from, _ := strconv.Atoi(head[i+1:])
	to, _ := strconv.Atoi(last)
	for n := from; n <= to; n++ {
		out = append(out, fmt.Sprintf("%s-%d", head[:i], n))
	}
	return out
}

func (g *stage) nodes(args []string) (out []string) {
	for _, a := range args {
		out = append(out, expand(a)...)
	}
	return out
}

func (g *stage) node(name string, opts map[string]string) {
	cpu, memory := resource.MustParse("4"), resource.MustParse("4Gi")
	if v := opts["cpu"]; v != "" {
		cpu = resource.MustParse(v)
	}
	list := corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory,
		corev1.ResourcePods: resource.MustParse("110")}
	g.put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Boot: "b"})
	g.put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(g.now),
			Labels: map[string]string{corev1.LabelTopologyZone: opts["site"], corev1.LabelHostname: name,
				fleet.LabelProfile: opts["profile"]}},
		Status: corev1.NodeStatus{Capacity: list, Allocatable: list, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(g.now),
			LastHeartbeatTime: metav1.NewTime(g.now)}}},
	})
}

type podTemplate struct {
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
}

func template(name string, opts map[string]string) podTemplate {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
		Image: "example/" + name + ":" + opts["version"]}}}
	if v := opts["toleration"]; v != "" { // toleration=KEY:10s, for NoExecute
		key, of, _ := strings.Cut(v, ":")
		d, _ := time.ParseDuration(of)
		seconds := int64(d / time.Second)
		spec.Tolerations = append(spec.Tolerations,
			corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &seconds})
	}
	spec.NodeName = opts["on"]
	if v := opts["tolerate"]; v != "" {
		d, _ := time.ParseDuration(v)
		seconds := int64(d / time.Second)
		for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			spec.Tolerations = append(spec.Tolerations,
				corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
					TolerationSeconds: &seconds})
		}
	}
	if v := opts["cpu"]; v != "" {
		spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(v)}
	}
	if v := opts["claim"]; v != "" {
		spec.Volumes = []corev1.Volume{{Name: "data",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v}}}}
	}
	labels := map[string]string{"app": name}
	t := podTemplate{&metav1.LabelSelector{MatchLabels: labels},
		corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}
	admission.DefaultPodTemplate(&t.template)
	return t
}

func (g *stage) deployment(name string, opts map[string]string) *appsv1.Deployment {
	n, _ := strconv.Atoi(opts["replicas"])
	replicas := int32(n)
	t := template(name, opts)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}}
	if have := g.s.Deployment("default", name); have != nil {
		d = have.DeepCopy()
		d.Generation++
	}
	d.Spec.Replicas, d.Spec.Selector, d.Spec.Template = &replicas, t.selector, t.template
	admission.Default(d, admission.Settings{})
	return d
}

func (g *stage) put(o state.Object) { g.apply(state.Put(o, "")) }

func (g *stage) apply(changes ...state.Change) {
	var done []state.Applied
	g.s, done = state.Apply(g.s, changes)
	g.settle(done)
}

func (g *stage) report(node string, ready corev1.ConditionStatus) {
	g.s = g.s.WithSeen(node, g.now)
	n := g.s.Node(node).DeepCopy()
	var conditions []corev1.NodeCondition
	for _, c := range n.Status.Conditions {
		if c.Type == fleet.ConditionFlapping {
			conditions = append(conditions, c)
		}
	}
	n.Status.Conditions = append(conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: ready,
		LastTransitionTime: metav1.NewTime(g.now)})
	c := state.Put(n, fmt.Sprintf("node %s Ready=%s", node, ready))
	g.apply(c)
}

// settle lets the hub settle, and writes its sentences.
func (g *stage) settle(recent []state.Applied) {
	g.t.Helper()
	for n := range g.s.Nodes() {
		if !g.silent[n.Name] {
			g.s = g.s.WithSeen(n.Name, g.now)
		}
	}
	for _, a := range recent {
		g.say(a)
	}
	next, made, settled := g.settler.Settle(g.s, recent, g.now)
	if !settled {
		g.t.Fatalf("the deciders do not settle; last: %s", made[len(made)-1].Change)
	}
	for _, a := range made {
		g.say(a)
	}
	g.s = next
	if g.watch != nil {
		g.watch(g.s, made, g.now)
	}
	// A decision about everything at the same moment must change nothing. While nothing happens,
	// only every 60th moment is checked.
	if g.quiet++; len(recent)+len(made) == 0 && g.quiet%60 != 0 {
		return
	}
	// A settler that wakes at once must change nothing either.
	if wake := g.settler.Wake(); !wake.IsZero() && wake.Sub(g.now) <= time.Millisecond {
		return
	}
	if _, again, _ := control.NewSettler(node.Ended, g.all...).Settle(g.s, nil, g.now); len(again) > 0 {
		g.t.Fatalf("at %s the deciders, asked about everything, still want: %s (%s)", g.now.Sub(g.start), again[0].Change,
			again[0].Key)
	}
}

func (g *stage) say(a state.Applied) {
	if why := a.Change.Why; why != "" && g.hush {
		g.unsaid[strings.Fields(why)[0]]++
	} else if why != "" {
		fmt.Fprintf(&g.out, "= %8s  %s\n", g.now.Sub(g.start).Truncate(time.Millisecond), why)
	}
}

// wait advances the time: due alarms fire, and devices act every second.
func (g *stage) wait(d time.Duration) {
	end := g.now.Add(d)
	for g.now.Before(end) {
		next := g.now.Truncate(time.Second).Add(time.Second)
		if wake := g.settler.Wake(); !wake.IsZero() && wake.Before(next) && wake.After(g.now) {
			next = wake
		}
		if next.After(end) {
			next = end
		}
		g.now = next
		g.settle(g.obey())
	}
}

// obey does for each reachable device what its node's state demands.
func (g *stage) obey() (done []state.Applied) {
	changes := g.bootBoards()
	for n := range g.s.Nodes() {
		if g.silent[n.Name] {
			continue
		}
		for v := range g.s.VolumesOn(n.Name) {
			if state.MustRemoveData(v) {
				changes = append(changes, state.Remove(v, fmt.Sprintf("%s has removed the data of volume %s", n.Name, v.Name)))
			}
		}
		for p := range g.s.PodsOn(n.Name) {
			switch {
			case p.DeletionTimestamp != nil:
				changes = append(changes, state.Remove(p, fmt.Sprintf("pod %s on %s has stopped", p.Name, n.Name)))
			case state.Terminated(p):
			case g.rejects[n.Name] && p.Status.Phase == corev1.PodPending:
				p = p.DeepCopy()
				p.Status.Phase, p.Status.Reason = corev1.PodFailed, "OutOfcpu"
				changes = append(changes, state.Put(p, fmt.Sprintf("pod %s on %s Failed", p.Name, n.Name)))
			case p.Status.Phase != corev1.PodRunning || state.PodCondition(p, corev1.PodReady) == nil ||
				state.PodCondition(p, corev1.PodReady).Status != corev1.ConditionTrue && state.ReadyOf(n) == corev1.ConditionTrue:
				p = p.DeepCopy()
				p.Status.Phase = corev1.PodRunning
				state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, g.now)
				changes = append(changes, state.Put(p, ""))
			}
		}
	}
	g.s, done = state.Apply(g.s, changes)
	return done
}
