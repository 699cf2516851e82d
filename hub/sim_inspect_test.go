package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// An inspector watches every change that the hub makes, and from time to time the
// whole fleet, for what must never be:
//
//   - NoExecute given faster than the site's rate, or in a site whose rate is 0, or
//     while every site is dark, or before its turn after that;
//   - a pod evicted before its deadline, or after it still there;
//   - a pod that the hub takes for stopped and that runs;
//   - a container that is stopped although nobody wanted it, or started again;
//   - two containers of one pod on devices that the hub believes in.
//
// It computes all of it by itself from the changes, not with the deciders' code.
type inspector struct {
	w     *world
	every time.Duration // between two surveys

	mu       sync.Mutex
	nodes    map[string]*corev1.Node
	pods     map[state.Key]*corev1.Pod
	sites    map[string]*fleet.Site
	expelled map[string]time.Time // by site: when a node was last given NoExecute
	dark     bool                 // no site has a ready node
	lightAt  time.Time            // when that ended
	ready    map[string]int       // changes of Ready, by node
	said     []sentence

	cancel context.CancelFunc
	over   sync.WaitGroup
}

// A sentence is what the hub said of a change.
type sentence struct {
	at   time.Duration // since the world began
	text string
}

func newInspector(w *world) *inspector {
	return &inspector{w: w, every: 7 * time.Second, expelled: map[string]time.Time{}, ready: map[string]int{}}
}

// broken tells of a broken promise.
func (i *inspector) broken(format string, args ...any) {
	i.w.t.Errorf("at %s: %s", i.w.clock(), fmt.Sprintf(format, args...))
}

// follow begins to watch a hub that starts from a snapshot.
func (i *inspector) follow(ctx context.Context, h *simHub, start state.Snapshot) {
	ctx, i.cancel = context.WithCancel(ctx)
	i.mu.Lock()
	i.nodes, i.pods, i.sites = map[string]*corev1.Node{}, map[state.Key]*corev1.Pod{}, map[string]*fleet.Site{}
	for n := range start.Nodes() {
		i.nodes[n.Name] = n
	}
	for p := range start.Pods("") {
		i.pods[state.KeyOf(p)] = p
	}
	for s := range state.Each[*fleet.Site](start, state.Sites, "") {
		i.sites[s.Name] = s
	}
	i.dark = i.isDark()
	i.mu.Unlock()
	i.over.Go(func() {
		rev := start.Revision
		for {
			changes, more, err := h.loop.Since(rev)
			if err != nil {
				i.broken("watch the hub: %v", err)
				return
			}
			if len(changes) > 0 {
				i.changed(changes, h.loop.Now())
				rev = changes[len(changes)-1].Rev
				continue
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	})
	i.over.Go(func() {
		for {
			select {
			case <-time.After(i.every):
				i.survey(h)
			case <-ctx.Done():
				return
			}
		}
	})
}

func (i *inspector) unfollow() {
	i.cancel()
	i.over.Wait()
}

// changed looks at the changes of a pass.
func (i *inspector) changed(changes []state.Applied, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, a := range changes {
		if a.Change.Why != "" {
			i.said = append(i.said, sentence{i.w.clock(), a.Change.Why})
		}
		switch a.Key.Kind {
		case state.Nodes:
			old := i.nodes[a.Key.Name]
			n, _ := a.New.(*corev1.Node)
			if n == nil {
				delete(i.nodes, a.Key.Name)
				continue
			}
			if old != nil && state.ReadyOf(old) != state.ReadyOf(n) {
				i.ready[n.Name]++
			}
			if ours(n) != nil && (old == nil || ours(old) == nil) {
				i.expelling(n, now)
			}
			i.nodes[n.Name] = n
		case state.Sites:
			if s, _ := a.New.(*fleet.Site); s != nil {
				i.sites[s.Name] = s
			} else {
				delete(i.sites, a.Key.Name)
			}
		case state.Pods:
			old := i.pods[a.Key]
			p, _ := a.New.(*corev1.Pod)
			if p == nil {
				i.gone(old)
				delete(i.pods, a.Key)
				continue
			}
			if old != nil && old.DeletionTimestamp == nil && p.DeletionTimestamp != nil {
				i.leaving(p, now)
			}
			i.pods[a.Key] = p
		}
	}
	if was := i.dark; was != i.isDark() {
		if i.dark = !was; was {
			i.lightAt = now
		}
	}
}

// A tally counts a site's nodes, as the specification does.
type tally struct{ ready, not int }

func (i *inspector) tallies() map[string]tally {
	out := map[string]tally{}
	for _, n := range i.nodes {
		site := siteOf(n)
		c := out[site]
		r := state.NodeCondition(n, corev1.NodeReady)
		switch {
		case r == nil || r.Reason == "NodeStatusNeverUpdated":
		case r.Status == corev1.ConditionTrue:
			c.ready++
		default:
			c.not++
		}
		out[site] = c
	}
	return out
}

func siteOf(n *corev1.Node) string { return n.Labels[corev1.LabelTopologyZone] }

func (i *inspector) isDark() bool {
	some := false
	for _, c := range i.tallies() {
		if c.ready > 0 {
			return false
		}
		some = some || c.not > 0
	}
	return some
}

// ours returns the lifecycle's own NoExecute taint of a node.
func ours(n *corev1.Node) *corev1.Taint {
	for k := range n.Spec.Taints {
		t := &n.Spec.Taints[k]
		if t.Effect == corev1.TaintEffectNoExecute && strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			return t
		}
	}
	return nil
}

// expelling checks that a node may be given NoExecute now.
func (i *inspector) expelling(n *corev1.Node, now time.Time) {
	site := siteOf(n)
	c := i.tallies()[site]
	cfg := i.w.cfg
	rate, policy := cfg.NodeEvictionRate, cfg.SiteDisruptionPolicy
	if s := i.sites[site]; s != nil {
		if s.Spec.NodeEvictionRate != nil {
			rate = *s.Spec.NodeEvictionRate
		}
		if s.Spec.DisruptionPolicy != "" {
			policy = s.Spec.DisruptionPolicy
		}
		if m := s.Spec.Maintenance; m != nil && now.Before(m.Until.Time) {
			i.broken("%s was given NoExecute during the maintenance of %s", n.Name, site)
		}
	}
	switch {
	case i.isDark():
		i.broken("%s was given NoExecute although no site has a ready node", n.Name)
	case c.ready == 0 && policy == fleet.Hold:
		i.broken("%s was given NoExecute although %s holds its pods", n.Name, site)
	case c.ready > 0 && c.not > 2 && float64(c.not)/float64(c.not+c.ready) >= cfg.UnhealthyZoneThreshold:
		if rate = cfg.SecondaryNodeEvictionRate; c.ready+c.not <= cfg.LargeClusterSizeThreshold {
			i.broken("%s was given NoExecute although %d of %d nodes of %s are not ready", n.Name, c.not, c.not+c.ready, site)
		}
	}
	interval := time.Duration(float64(time.Second)/rate) - time.Millisecond
	if last, ok := i.expelled[site]; ok && now.Sub(last) < interval {
		i.broken("%s was given NoExecute %s after another one of %s; the rate is %g/s", n.Name, now.Sub(last), site, rate)
	}
	if !i.lightAt.IsZero() && now.Sub(i.lightAt) < interval {
		i.broken("%s was given NoExecute %s after every site was dark; the rate is %g/s", n.Name, now.Sub(i.lightAt), rate)
	}
	i.expelled[site] = now
}

// deadline returns until when a pod may stay on a node with this taint; the zero
// time: for ever.
func deadline(p *corev1.Pod, t *corev1.Taint) time.Time {
	for _, tol := range p.Spec.Tolerations {
		if (tol.Key == "" || tol.Key == t.Key) && (tol.Effect == "" || tol.Effect == t.Effect) && (tol.Operator == corev1.TolerationOpExists || tol.Value == t.Value) {
			if tol.TolerationSeconds == nil {
				return time.Time{}
			}
			return t.TimeAdded.Add(time.Duration(*tol.TolerationSeconds) * time.Second)
		}
	}
	return t.TimeAdded.Time
}

// leaving checks that a pod that is evicted had to go.
func (i *inspector) leaving(p *corev1.Pod, now time.Time) {
	c := state.PodCondition(p, corev1.DisruptionTarget)
	if c == nil || c.Reason != "DeletionByTaintManager" {
		return
	}
	n := i.nodes[p.Spec.NodeName]
	switch t := ours(n); {
	case t == nil:
		i.broken("pod %s was evicted from %s, which has no NoExecute taint", p.Name, n.Name)
	case deadline(p, t).IsZero():
		i.broken("pod %s was evicted from %s although it tolerates that for ever", p.Name, n.Name)
	case now.Before(deadline(p, t)):
		i.broken("pod %s was evicted from %s %s before its deadline", p.Name, n.Name, deadline(p, t).Sub(now))
	case i.isDark():
		i.broken("pod %s was evicted from %s although no site has a ready node", p.Name, n.Name)
	case i.holds(siteOf(n)):
		i.broken("pod %s was evicted from %s although %s holds its pods", p.Name, n.Name, siteOf(n))
	}
}

// holds tells whether a site is dark, and its policy is Hold.
func (i *inspector) holds(site string) bool {
	c, s := i.tallies()[site], i.sites[site]
	return c.ready == 0 && c.not > 0 && s != nil && s.Spec.DisruptionPolicy == fleet.Hold
}

// gone checks that a pod that the hub takes for stopped does not run.
func (i *inspector) gone(p *corev1.Pod) {
	if p == nil || p.Spec.NodeName == "" {
		return
	}
	if i.w.runningOn(p.Spec.NodeName)[p.UID] != "" && i.nodes[p.Spec.NodeName] != nil {
		i.broken("pod %s is gone from the hub, and runs on %s", p.Name, p.Spec.NodeName)
	}
}

// stopping checks that a container that is stopped was to be stopped.
func (i *inspector) stopping(d *simDevice, uid types.UID, name string) {
	i.w.mu.Lock()
	h := i.w.hub
	i.w.mu.Unlock()
	var p *corev1.Pod
	if h != nil {
		p, _ = h.loop.Snapshot().ByUID(uid).(*corev1.Pod)
	} else {
		i.mu.Lock()
		for _, q := range i.pods {
			if q.UID == uid {
				p = q
			}
		}
		i.mu.Unlock()
	}
	if p != nil && p.DeletionTimestamp == nil && !state.Terminated(p) {
		i.broken("a container of pod %s is stopped on %s, and nobody wanted that", name, d.key)
	}
}

// survey looks at the whole fleet.
func (i *inspector) survey(h *simHub) {
	s, now := h.loop.Snapshot(), h.loop.Now()
	lives := map[string]string{}
	for n := range s.Nodes() {
		if state.ReadyOf(n) == corev1.ConditionTrue {
			for uid, name := range i.w.runningOn(n.Name) {
				for _, id := range []string{string(uid), name} {
					if other := lives[id]; other != "" {
						i.broken("pod %s runs on %s and on %s", name, other, n.Name)
					}
					lives[id] = n.Name
				}
			}
		}
		t := ours(n)
		if t == nil || now.Sub(h.began) < i.w.cfg.NodeMonitorGracePeriod+time.Second {
			continue
		}
		for p := range s.PodsOn(n.Name) {
			if until := deadline(p, t); !until.IsZero() && now.Sub(until) > 100*time.Millisecond && p.DeletionTimestamp == nil && !state.Terminated(p) {
				i.broken("pod %s is still on %s, %s after its deadline", p.Name, n.Name, now.Sub(until))
			}
		}
	}
}

// sentences returns what the hub has said so far that contains part.
func (i *inspector) sentences(part string) (out []sentence) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.said {
		if strings.Contains(s.text, part) {
			out = append(out, s)
		}
	}
	return out
}

func (i *inspector) transitions(node string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ready[node]
}
