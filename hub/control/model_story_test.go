package control_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var modelSeed = flag.Uint64("model.seed", 0, "play the random story of this seed only")

// TestTheHubDoesAsTheModel plays random stories with a whole loop, and compares the result with the
// model. make test-long plays 200 stories.
func TestTheHubDoesAsTheModel(t *testing.T) {
	from, to := uint64(1), uint64(16) // two seeds for each of the groups
	switch {
	case nodetest.Long:
		to = 200
	case !nodetest.Raced:
		to = 40
	}
	if *modelSeed != 0 {
		from, to = *modelSeed, *modelSeed
	}
	const together = 8 // groups that run in parallel
	for group := range uint64(together) {
		t.Run(fmt.Sprint("group ", group), func(t *testing.T) {
			t.Parallel()
			for seed := from + group; seed <= to; seed += together {
				modelStory(t, seed)
			}
		})
	}
}

// FuzzTheHubDoesAsTheModel plays random stories without limit.
func FuzzTheHubDoesAsTheModel(f *testing.F) {
	f.Add(uint64(1001))
	f.Fuzz(modelStory)
}

func modelStory(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		w := newModelWorld(t, seed)
		w.up()
		defer func() {
			if w.loop != nil {
				w.stop()
			}
		}()
		sites, size := 1+w.rand.IntN(3), 3+w.rand.IntN(9)
		for i := range size {
			r := &robot{name: fmt.Sprintf("n-%02d", i), site: fmt.Sprint("s", i*i%sites), ready: corev1.ConditionTrue,
				has: map[types.UID]*robotPod{}}
			w.robots = append(w.robots, r)
			if w.rand.IntN(8) > 0 {
				w.join(r)
			}
		}
		w.wait(3 * time.Second)
		for range 2 {
			w.deploy()
		}
		for range 30 {
			w.something(sites)
			if w.rand.IntN(3) > 0 {
				w.wait(time.Duration(w.rand.Int64N(int64(90 * time.Second))))
			}
		}
		w.heal()
		w.wait(12 * time.Minute)
		w.mu.Lock()
		w.model.atRest(time.Now())
		wrong := w.model.wrong
		w.mu.Unlock()
		if wrong != "" {
			w.t.Fatalf("seed %d: at rest: %s\n\n%s", seed, wrong, w.story())
		}
	})
}

func (w *modelWorld) join(r *robot) {
	w.say("%s joins", r.name)
	r.has, r.stored, r.joined = map[types.UID]*robotPod{}, 0, true
	r.reboot()
}

// edit changes a Node like a user.
func (w *modelWorld) edit(node, what string, change func(n *corev1.Node)) {
	w.do(node+": "+what, func(s state.Snapshot, _ time.Time) []state.Change {
		n := s.Node(node)
		if n == nil {
			return nil
		}
		n = n.DeepCopy()
		change(n)
		return []state.Change{state.Put(n, "")}
	})
}

// taint adds or removes a user's taint.
func (w *modelWorld) taint(node string, taint corev1.Taint, give bool) {
	if w.loop == nil || w.loop.Snapshot().Node(node) == nil {
		return
	}
	key := taint.Key + ":" + string(taint.Effect)
	w.edit(node, fmt.Sprintf("taint %s %v", key, give), func(n *corev1.Node) {
		w.mu.Lock()
		w.model.written = append(w.model.written, userTaint{node, key, give})
		w.mu.Unlock()
		var keep []corev1.Taint
		for _, t := range n.Spec.Taints {
			if t.Key != taint.Key || t.Effect != taint.Effect || give {
				keep = append(keep, t)
			}
			if t.Key == taint.Key && t.Effect == taint.Effect && give {
				return
			}
		}
		if give {
			keep = append(keep, taint)
		}
		n.Spec.Taints = keep
	})
}

var modelTaints = []corev1.Taint{
	{Key: "mine", Effect: corev1.TaintEffectNoExecute}, {Key: "yours", Effect: corev1.TaintEffectNoExecute},
	{Key: "mine", Effect: corev1.TaintEffectNoSchedule}, {Key: "mine", Effect: corev1.TaintEffectPreferNoSchedule},
}

// deploy creates a deployment, or scales it.
func (w *modelWorld) deploy() {
	w.deployAs(fmt.Sprint("d", w.rand.IntN(3)), w.rand.IntN(7))
}

func (w *modelWorld) deployAs(name string, replicas int) {
	if w.loop == nil {
		return
	}
	d := w.loop.Snapshot().Deployment("default", name)
	app := ""
	if d != nil {
		d = d.DeepCopy()
		d.Generation++
		d.Spec.Replicas = ptr.To(int32(replicas))
		app = d.Spec.Template.Labels["app"]
	} else {
		w.tags++
		app = fmt.Sprintf("%s-%d", name, w.tags)
		made := (&stage{s: w.loop.Snapshot()}).deployment(name, map[string]string{"replicas": fmt.Sprint(replicas)})
		made.Spec.Selector.MatchLabels, made.Spec.Template.Labels = map[string]string{"app": app},
			map[string]string{"app": app}
		for _, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "mine", "yours"} {
			if w.rand.IntN(2) > 0 {
				continue
			}
			tol := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
			if w.rand.IntN(3) > 0 {
				tol.TolerationSeconds = ptr.To(w.rand.Int64N(100))
			}
			if w.rand.IntN(4) == 0 {
				tol.Effect = ""
			}
			made.Spec.Template.Spec.Tolerations = append(made.Spec.Template.Spec.Tolerations, tol)
			if w.rand.IntN(3) == 0 { // a second toleration, which has no effect
				again := tol
				again.Effect, again.TolerationSeconds = "", ptr.To(w.rand.Int64N(200))
				made.Spec.Template.Spec.Tolerations = append(made.Spec.Template.Spec.Tolerations, again)
			}
		}
		made.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		d = made
	}
	w.do(fmt.Sprintf("deployment %s of %d %v", app, replicas, tolerationsOf(d.Spec.Template.Spec)),
		func(state.Snapshot, time.Time) []state.Change { return []state.Change{state.Put(d, "")} })
}

func tolerationsOf(spec corev1.PodSpec) (out []string) {
	for _, t := range spec.Tolerations {
		text := t.Key + ":" + string(t.Effect)
		if t.TolerationSeconds != nil {
			text += fmt.Sprint("=", *t.TolerationSeconds)
		}
		out = append(out, text)
	}
	return out
}

// something does one random action.
func (w *modelWorld) something(sites int) {
	r := w.robots[w.rand.IntN(len(w.robots))]
	site := fmt.Sprint("s", w.rand.IntN(sites))
	switch w.rand.IntN(24) {
	case 0, 1, 2:
		w.say("%s cut", r.name)
		r.cut = true
	case 3, 4:
		w.say("%s back", r.name)
		r.cut = false
	case 5:
		w.say("site %s cut", site)
		w.dark[site] = true
	case 6, 7:
		w.say("site %s back", site)
		w.dark[site] = false
	case 8:
		w.say("everybody cut")
		for i := range sites {
			w.dark[fmt.Sprint("s", i)] = true
		}
	case 9:
		r.ready = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[w.rand.IntN(2)]
		w.say("%s says Ready=%s", r.name, r.ready)
		if w.loop != nil && r.joined && !r.cut && !w.dark[r.site] && w.heardOf(r) {
			w.report(r)
		}
	case 10:
		if r.joined {
			w.say("%s reboots", r.name)
			r.reboot()
		}
	case 11, 12:
		w.taint(r.name, modelTaints[w.rand.IntN(len(modelTaints))], true)
	case 13:
		for _, t := range modelTaints {
			w.taint(r.name, t, false)
		}
	case 14:
		cordon := w.rand.IntN(2) == 0
		w.edit(r.name, fmt.Sprint("cordon ", cordon), func(n *corev1.Node) { n.Spec.Unschedulable = cordon })
	case 15:
		w.remove(r)
	case 16:
		if !r.joined {
			w.join(r)
		}
	case 17, 18:
		w.deploy()
	case 19:
		w.undeploy(fmt.Sprint("d", w.rand.IntN(3)))
	case 20:
		w.force()
	case 21:
		w.restart()
	case 22:
		w.override(site)
	case 23:
		switch w.rand.IntN(6) {
		case 0:
			w.drain(r.name)
		case 1:
			w.taint(r.name, corev1.Taint{Key: "node.kubernetes.io/out-of-service", Effect: corev1.TaintEffectNoExecute},
				w.rand.IntN(3) > 0)
		case 2:
			w.byHand(r)
		case 3:
			out := w.rand.IntN(2) == 0
			w.edit(r.name, fmt.Sprint("excluded ", out), func(n *corev1.Node) {
				delete(n.Labels, "node.kubernetes.io/exclude-disruption")
				if out {
					n.Labels["node.kubernetes.io/exclude-disruption"] = ""
				}
			})
		default:
			w.edit(r.name, "moves to "+site, func(n *corev1.Node) {
				n.Labels["topology.kubernetes.io/zone"], r.site = site, site
			})
		}
	}
}

// remove deletes a Node; the device receives the deletion and stops.
func (w *modelWorld) remove(r *robot) {
	w.do("delete node "+r.name, func(s state.Snapshot, _ time.Time) []state.Change {
		if n := s.Node(r.name); n != nil {
			r.joined = false
			return []state.Change{state.Remove(n, "")}
		}
		return nil
	})
}

// byHand creates the Node of a device that has not joined.
func (w *modelWorld) byHand(r *robot) {
	ready := w.rand.IntN(2) == 0
	if r.joined {
		return
	}
	w.do("make node "+r.name, func(s state.Snapshot, now time.Time) []state.Change {
		if s.Node(r.name) != nil {
			return nil
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.name,
			CreationTimestamp: metav1.NewTime(now.Truncate(time.Second)),
			Labels:            map[string]string{corev1.LabelTopologyZone: r.site}}}
		if ready {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}
		return []state.Change{state.Put(n, "")}
	})
}

func (w *modelWorld) undeploy(name string) {
	w.do("delete deployment "+name, func(s state.Snapshot, _ time.Time) []state.Change {
		d := s.Deployment("default", name)
		if d == nil {
			return nil
		}
		w.mu.Lock()
		set := w.model.sets[d.Spec.Template.Labels["app"]]
		set.gone, set.replicas = true, 0
		w.mu.Unlock()
		return []state.Change{state.Remove(d, "")}
	})
}

// force deletes a pod as kubectl delete --force does.
func (w *modelWorld) force() {
	nth := w.rand.IntN(10)
	w.do("force", func(s state.Snapshot, _ time.Time) []state.Change {
		for p := range s.Pods("") {
			if nth--; nth < 0 {
				w.say("  delete %s on %s by force", p.Name, p.Spec.NodeName)
				w.mu.Lock()
				w.model.forced[p.UID] = true
				w.mu.Unlock()
				return []state.Change{state.Remove(p, "")}
			}
		}
		return nil
	})
}

func (w *modelWorld) restart() {
	if w.loop == nil {
		return
	}
	w.stop()
	down := time.Duration(w.rand.Int64N(int64(100 * time.Second)))
	w.say("the hub is down for %s", down)
	w.wait(down)
	w.up()
	w.say("the hub is up")
}

// override replaces a Site's spec, or deletes the Site.
func (w *modelWorld) override(site string) {
	var spec fleet.SiteSpec
	seconds := func(least, more int) *metav1.Duration {
		return &metav1.Duration{Duration: time.Duration(least+w.rand.IntN(more)) * time.Second}
	}
	for i := range 7 {
		if w.rand.IntN(3) > 0 {
			continue
		}
		switch i {
		case 0:
			spec.NodeEvictionRate = ptr.To([]float64{0, 0.02, 0.05, 0.5}[w.rand.IntN(4)])
		case 1:
			spec.SecondaryNodeEvictionRate = ptr.To(0.03)
			spec.LargeClusterSizeThreshold = ptr.To(int32(2 + w.rand.IntN(3)))
		case 2:
			spec.UnhealthyZoneThreshold = ptr.To(0.3 + w.rand.Float64()/2)
		case 3:
			spec.DisruptionPolicy = fleet.Hold
		case 4:
			spec.Maintenance = &fleet.Maintenance{Until: metav1.NewTime(time.Now().Add(time.Duration(w.rand.IntN(200)) * time.Second).Truncate(time.Second))}
		case 5:
			spec.NodeMonitorGracePeriod = seconds(25, 60)
		case 6:
			spec.NodeStartupGracePeriod = seconds(25, 100)
		}
	}
	w.write(site, spec)
}

func (w *modelWorld) write(site string, spec fleet.SiteSpec) {
	text, _ := json.Marshal(spec)
	w.do(fmt.Sprintf("site %s %s", site, text), func(s state.Snapshot, now time.Time) []state.Change {
		o := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: site, CreationTimestamp: metav1.NewTime(now)}}
		if have := s.Site(site); have != nil {
			o = have.DeepCopy()
		}
		o.Spec = spec
		return []state.Change{state.Put(o, "")}
	})
}

func (w *modelWorld) drain(node string) {
	w.mu.Lock()
	w.model.drained[node] = true
	w.mu.Unlock()
	order := []string{"true", `{"timeout":"2m"}`, `{"timeout":"5m","force":true,"gracePeriodSeconds":1}`}[w.rand.IntN(3)]
	w.edit(node, "drain "+order, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, "flotilla.dev/drain", order)
	})
}

// heal ends every disturbance: cuts, taints, drains and overrides.
func (w *modelWorld) heal() {
	w.say("all is well again")
	clear(w.dark)
	for _, r := range w.robots {
		r.cut, r.ready = false, corev1.ConditionTrue
		for _, t := range append([]corev1.Taint{{Key: "node.kubernetes.io/out-of-service",
			Effect: corev1.TaintEffectNoExecute}}, modelTaints...) {
			w.taint(r.name, t, false)
		}
		w.edit(r.name, "in use", func(n *corev1.Node) {
			n.Spec.Unschedulable = false
			delete(n.Annotations, "flotilla.dev/drain")
		})
		if !r.joined {
			w.join(r)
		}
		if w.heardOf(r) {
			w.report(r)
		}
	}
	for site := range w.model.sites {
		w.write(site, fleet.SiteSpec{})
	}
}
