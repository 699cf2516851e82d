package sim

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

// An inspector checks every change of the hub, and from time to time the whole fleet, for
// violations:
//
//   - NoExecute faster than the site's rate, in a site with rate 0, while every site is dark, or too early after that;
//   - a change of that taint's time, from which every pod's deadline counts;
//   - a pod evicted before its deadline, still bound after it, or evicted while its site is on hold or in maintenance;
//   - a pod that the hub considers stopped, but that runs;
//   - a container stopped without a reason, or started again;
//   - two containers of one pod on devices of current nodes.
//
// It computes everything from the changes, without the deciders' code.
type inspector struct {
	w     *world
	every time.Duration // time between two surveys

	mu       sync.Mutex
	nodes    map[string]*corev1.Node
	pods     map[state.Key]*corev1.Pod
	sites    map[string]*fleet.Site
	before   map[string][]corev1.Taint // by node: earlier NoExecute taints of its outage
	expelled map[string]time.Time      // by site: when one of its nodes last got NoExecute
	dark     bool                      // no site has a ready node
	lightAt  time.Time                 // when a site last had a ready node again
	ready    map[string]int            // changes of Ready, by node
	said     []sentence

	cancel context.CancelFunc
	over   sync.WaitGroup
}

// A sentence is the hub's sentence about a change.
type sentence struct {
	at   time.Duration // time since the world began
	text string
}

// of tells whether the sentence reports a pod's eviction from the node.
func (s sentence) of(node string) bool { return strings.Contains(s.text, " from "+node+":") }

func newInspector(w *world) *inspector {
	return &inspector{w: w, every: 7 * time.Second, before: map[string][]corev1.Taint{}, expelled: map[string]time.Time{},
		ready: map[string]int{}}
}

// broken reports a violation.
func (i *inspector) broken(format string, args ...any) {
	i.w.t.Errorf("at %s: %s", i.w.clock(), fmt.Sprintf(format, args...))
}

// follow starts to watch a hub from a snapshot.
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
			changes, more, err := h.Loop.Since(rev)
			if err != nil {
				i.broken("watch the hub: %v", err)
				return
			}
			if len(changes) > 0 {
				i.changed(changes, h.Loop.Now())
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

// changed checks the changes of a pass.
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
			switch t := ours(n); {
			case t == nil:
			case old == nil || ours(old) == nil:
				i.expelling(n, now)
			case t.Key != ours(old).Key: // the new taint has its own time; the first deadlines stay, see deadline
				i.before[n.Name] = append(i.before[n.Name], *ours(old))
			case !t.TimeAdded.Equal(ours(old).TimeAdded):
				i.broken("%s had NoExecute since %s, and now since %s", n.Name, ours(old).TimeAdded, t.TimeAdded)
			}
			if ours(n) == nil {
				delete(i.before, n.Name)
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

// expelling checks that a node may get NoExecute now.
func (i *inspector) expelling(n *corev1.Node, now time.Time) {
	site := siteOf(n)
	rate, none := i.allowed(site, now)
	if rate == 0 {
		i.broken("%s got NoExecute although the rate is 0: %s", n.Name, none)
	}
	interval := time.Duration(float64(time.Second)/rate) - time.Millisecond
	if last, ok := i.expelled[site]; ok && now.Sub(last) < interval {
		i.broken("%s got NoExecute %s after another node of %s; the rate is %g/s", n.Name, now.Sub(last), site, rate)
	}
	if !i.lightAt.IsZero() && now.Sub(i.lightAt) < interval {
		i.broken("%s got NoExecute %s after every site was dark; the rate is %g/s", n.Name, now.Sub(i.lightAt), rate)
	}
	i.expelled[site] = now
}

// leaving checks that an evicted pod had to leave.
func (i *inspector) leaving(p *corev1.Pod, now time.Time) {
	c := state.PodCondition(p, corev1.DisruptionTarget)
	if c == nil || c.Reason != "DeletionByTaintManager" {
		return
	}
	n := i.nodes[p.Spec.NodeName]
	site := siteOf(n)
	until, bounded := i.deadline(p, n)
	switch {
	case !bounded:
		i.broken("pod %s was evicted from %s, whose taints it tolerates: %v", p.Name, n.Name, n.Spec.Taints)
	case now.Before(until):
		i.broken("pod %s was evicted from %s %s before its deadline", p.Name, n.Name, until.Sub(now))
	case ours(n) == nil: // a user's taint evicts in every state of the site
	case i.isDark():
		i.broken("pod %s was evicted from %s although no site has a ready node", p.Name, n.Name)
	case i.holds(site):
		i.broken("pod %s was evicted from %s although %s is on hold", p.Name, n.Name, site)
	case now.Before(i.settingsOf(site).maintained):
		i.broken("pod %s was evicted from %s during the maintenance of %s", p.Name, n.Name, site)
	}
}

// gone checks that a removed pod does not run.
func (i *inspector) gone(p *corev1.Pod) {
	if p == nil || p.Spec.NodeName == "" {
		return
	}
	if i.w.runningOn(p.Spec.NodeName)[p.UID] != "" && i.nodes[p.Spec.NodeName] != nil {
		i.broken("pod %s is removed from the hub, and runs on %s", p.Name, p.Spec.NodeName)
	}
}

// stopping checks that there is a reason to stop a container.
func (i *inspector) stopping(d *simDevice, uid types.UID, name string) {
	i.w.mu.Lock()
	h := i.w.hub
	i.w.mu.Unlock()
	var p *corev1.Pod
	if h != nil {
		p, _ = h.Loop.Snapshot().ByUID(uid).(*corev1.Pod)
	} else {
		i.mu.Lock()
		for _, q := range i.pods {
			if q.UID == uid {
				p = q
			}
		}
		i.mu.Unlock()
	}
	if p != nil && p.DeletionTimestamp == nil && !state.Terminated(p) && d.dismissed() == nil {
		i.broken("a container of pod %s is stopped on %s without a reason", name, d.key)
	}
}

// survey checks the whole fleet.
func (i *inspector) survey(h *simHub) {
	s, now := h.Loop.Snapshot(), h.Loop.Now()
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
		if now.Sub(h.began) < i.w.cfg.NodeMonitorGracePeriod+time.Second {
			continue
		}
		for p := range s.PodsOn(n.Name) {
			i.mu.Lock()
			until, bounded := i.deadline(p, n)
			i.mu.Unlock()
			if bounded && now.Sub(until) > 100*time.Millisecond && p.DeletionTimestamp == nil && !state.Terminated(p) {
				i.broken("pod %s is still on %s, %s after its deadline", p.Name, n.Name, now.Sub(until))
			}
		}
	}
}

// sentences returns the hub's sentences so far that contain part.
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
