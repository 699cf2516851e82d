package control_test

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

type modelPod struct {
	pod     *corev1.Pod
	created time.Time
	bound   time.Time // zero: not bound
	leave   *window   // when the pod must leave if its Node was deleted, by the state at the deletion
}

// A window is when a pod must leave: from lo to hi; zero: the pod may stay for ever.
type window struct{ lo, hi time.Time }

// A modelSet is a deployment.
type modelSet struct {
	replicas int
	most     int // most replicas in the last hour
	credit   int // pods that may be deleted because there are too many
	made     []time.Time
	driven   []time.Time // when its pods were evicted
	under    time.Time   // since when it has too few pods
	gone     bool
}

// deployment sets a deployment's wanted pods. It is called after the commit: until then the hub may
// still create pods for the old version.
func (m *model) deployment(d *appsv1.Deployment) {
	app, replicas := d.Spec.Template.Labels["app"], int(*d.Spec.Replicas)
	set := m.sets[app]
	if set == nil {
		set = &modelSet{}
		m.sets[app] = set
	}
	if set.gone {
		return
	}
	set.credit += max(0, set.replicas-replicas)
	set.replicas, set.most = replicas, set.most+max(0, replicas-set.replicas)
}

func setOf(p *corev1.Pod) string { return p.Labels["app"] }

func active(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
}

// tolerates is the rule of the API: an empty effect and key match all.
func tolerates(tol corev1.Toleration, key, value string, effect corev1.TaintEffect) bool {
	if tol.Effect != "" && tol.Effect != effect || tol.Key != "" && tol.Key != key {
		return false
	}
	if tol.Operator == corev1.TolerationOpExists {
		return true
	}
	return tol.Key != "" && tol.Value == value
}

// stay narrows a pod's window by the toleration of one taint.
func (w *window) stay(p *modelPod, key string, since time.Time) {
	lo, hi := p.bound, p.bound
	if since.After(lo) {
		lo, hi = since, since
	}
	for _, tol := range p.pod.Spec.Tolerations {
		if !tolerates(tol, key, "", corev1.TaintEffectNoExecute) {
			continue
		}
		if tol.TolerationSeconds == nil {
			return
		}
		if *tol.TolerationSeconds > 0 {
			lo = lo.Add(time.Duration(*tol.TolerationSeconds) * time.Second)
			hi = lo.Add(time.Second) // API times are rounded up to whole seconds
		}
		break
	}
	if w.lo.IsZero() || lo.Before(w.lo) {
		w.lo = lo
	}
	if w.hi.IsZero() || hi.Before(w.hi) {
		w.hi = hi
	}
}

// window returns when a pod must leave its node.
func (m *model) window(p *modelPod, n *modelNode) (w window) {
	if p.leave != nil {
		return *p.leave
	}
	if n == nil {
		return w
	}
	for key, since := range n.noexec {
		w.stay(p, key, since)
	}
	if n.key == "" {
		return w
	}
	// A pod that was bound while one taint replaced another may have either taint's deadline.
	early, late := p.spells(n, -time.Second), p.spells(n, time.Second)
	ours := early
	if !late.lo.IsZero() && (ours.lo.IsZero() || late.lo.Before(ours.lo)) {
		ours.lo = late.lo
	}
	if late.hi.IsZero() || !ours.hi.IsZero() && late.hi.After(ours.hi) {
		ours.hi = late.hi
	}
	if !ours.hi.IsZero() {
		if again := m.started.Add(m.grace(n)); ours.hi.Before(again) { // a started hub waits for a grace period
			ours.hi = again
		}
	}
	if !ours.lo.IsZero() && (w.lo.IsZero() || ours.lo.Before(w.lo)) {
		w.lo = ours.lo
	}
	if !ours.hi.IsZero() && (w.hi.IsZero() || ours.hi.Before(w.hi)) {
		w.hi = ours.hi
	}
	return w
}

// spells returns the window that the taints not-ready and unreachable allow. The first limit
// counts, until a taint is tolerated for ever or not at all. shift is added to the time of the
// pod's binding.
func (p *modelPod) spells(n *modelNode, shift time.Duration) (w window) {
	for _, s := range append(slices.Clone(n.spells), modelSpell{key: n.key, from: n.since}) {
		if !s.to.IsZero() && !p.bound.Add(shift).Before(s.to) {
			continue
		}
		var next window
		next.stay(p, s.key, s.from)
		i := slices.IndexFunc(p.pod.Spec.Tolerations,
			func(tol corev1.Toleration) bool { return tolerates(tol, s.key, "", corev1.TaintEffectNoExecute) })
		if w.lo.IsZero() || next.lo.IsZero() || i < 0 {
			w = next
		}
	}
	return w
}

// leftBehind stores the running deadlines of the pods of a deleted Node.
func (m *model) leftBehind(node string, now time.Time) {
	for _, p := range m.pods {
		if p.pod.Spec.NodeName == node {
			w := m.window(p, m.nodes[node])
			p.leave = &w
		}
	}
}

// pod updates a pod.
func (m *model) pod(key types.NamespacedName, o *corev1.Pod, now time.Time) {
	p := m.pods[key]
	if p != nil && (o == nil || o.UID != p.pod.UID) {
		m.gone(p, now)
		delete(m.pods, key)
		p = nil
	}
	if o == nil {
		return
	}
	if p == nil {
		p = &modelPod{pod: &corev1.Pod{}, created: now}
		m.pods[key] = p
		if set := m.sets[setOf(o)]; set != nil {
			set.made = append(set.made, now)
		}
	}
	was := p.pod
	p.pod = o
	if was.Spec.NodeName == "" && o.Spec.NodeName != "" {
		p.bound = now
		m.placed(p, now)
	}
	if active(was) && o.DeletionTimestamp != nil {
		m.asked(p, now)
	}
}

// placed checks that a bound pod tolerates the taints of its node and fits.
func (m *model) placed(p *modelPod, now time.Time) {
	n := m.nodes[p.pod.Spec.NodeName]
	if n == nil {
		m.fail(now, "%s is bound to %s, which does not exist", p.pod.Name, p.pod.Spec.NodeName)
		return
	}
	for _, t := range n.node.Spec.Taints {
		ok := t.Effect == corev1.TaintEffectPreferNoSchedule
		for _, tol := range p.pod.Spec.Tolerations {
			ok = ok || tolerates(tol, t.Key, t.Value, t.Effect)
		}
		if !ok {
			m.fail(now, "%s is bound to %s, whose taint %s:%s it does not tolerate", p.pod.Name, n.node.Name, t.Key, t.Effect)
		}
	}
	used := int64(0)
	for _, other := range m.pods {
		if other.pod.Spec.NodeName == n.node.Name && other.pod.Status.Phase != corev1.PodFailed {
			for _, c := range other.pod.Spec.Containers {
				used += c.Resources.Requests.Cpu().MilliValue()
			}
		}
	}
	if have := n.node.Status.Allocatable.Cpu().MilliValue(); used > have {
		m.fail(now, "%s is bound to %s, whose pods now request %dm cpu of %dm", p.pod.Name, n.node.Name, used, have)
	}
}

// asked checks that the deletion of a pod has a reason.
func (m *model) asked(p *modelPod, now time.Time) {
	name, why := p.pod.Name, corev1.PodCondition{}
	for _, c := range p.pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			why = c
		}
	}
	set := m.sets[setOf(p.pod)]
	if set != nil && why.Reason != "" {
		set.driven = append(set.driven, now)
	}
	if why.Reason == "" && set != nil && m.nodes[p.pod.Spec.NodeName] != nil && m.outOfService(p.pod.Spec.NodeName) &&
		active(p.pod) {
		why.Reason = "DeletionByTaintManager"
		set.driven = append(set.driven, now)
	}
	switch why.Reason {
	case "DeletionByTaintManager":
		w := m.window(p, m.nodes[p.pod.Spec.NodeName])
		if w.lo.IsZero() {
			m.fail(now, "%s is evicted from %s, where it may stay", name, p.pod.Spec.NodeName)
		} else if now.Before(w.lo) {
			m.fail(now, "%s is evicted from %s early: it may stay until %s", name, p.pod.Spec.NodeName,
				w.lo.Format("15:04:05.000"))
		}
	case "EvictionByEvictionAPI":
		if !m.drained[p.pod.Spec.NodeName] {
			m.fail(now, "%s is evicted from %s without a drain", name, p.pod.Spec.NodeName)
		}
	case "":
		switch {
		case m.forced[p.pod.UID], set == nil, set.gone:
		case set.credit > 0:
			set.credit--
		default:
			m.fail(now, "%s is deleted without a reason", name)
		}
	default:
		m.fail(now, "%s is evicted for the unknown reason %s", name, why.Reason)
	}
}

func (m *model) outOfService(node string) bool {
	return m.tainted[node]["node.kubernetes.io/out-of-service:NoExecute"] && m.nodes[node].ready != corev1.ConditionTrue
}

// gone checks the removal of a pod against its device's reports.
func (m *model) gone(p *modelPod, now time.Time) {
	node := p.pod.Spec.NodeName
	if set := m.sets[setOf(p.pod)]; set != nil && active(p.pod) {
		switch {
		case m.forced[p.pod.UID], set.gone:
		case m.nodes[node] != nil && m.outOfService(node): // evicted and removed at one moment
			m.asked(p, now)
			return
		case m.nodes[node] == nil && node != "":
			set.driven = append(set.driven, now)
		case set.credit > 0:
			set.credit--
		default:
			m.fail(now, "%s is removed without a reason", p.pod.Name)
		}
	}
	if node == "" || m.forced[p.pod.UID] || !active(p.pod) && p.pod.DeletionTimestamp == nil {
		return
	}
	n := m.nodes[node]
	if n == nil {
		if since := now.Sub(m.absent[node]); since < theLost {
			m.fail(now, "%s is removed only %s after its Node", p.pod.Name, since)
		}
		return
	}
	if m.outOfService(node) {
		return
	}
	if m.over[p.pod.UID] = true; m.held(node, p.pod.UID) {
		m.fail(now, "%s is removed, and %s still has it", p.pod.Name, node)
	}
}

// lookAtPods finds pods that stay too long, and deployments with a wrong number of pods.
func (m *model) lookAtPods(now time.Time, idle bool) {
	count := map[string]int{}
	for _, p := range m.pods {
		node := p.pod.Spec.NodeName
		if m.nodes[node] != nil {
			p.leave = nil
		}
		if active(p.pod) {
			count[setOf(p.pod)]++
		}
		if node == "" {
			continue
		}
		if w := m.window(p, m.nodes[node]); active(p.pod) && !w.hi.IsZero() && now.After(w.hi.Add(theLater)) {
			m.fail(now, "%s stays too long on %s: it had to leave by %s", p.pod.Name, node, w.hi.Format("15:04:05.000"))
		}
		if since, gone := m.absent[node]; gone {
			if since.Before(m.started) {
				since = m.started
			}
			if now.After(since.Add(theLost + theLater)) {
				m.fail(now, "%s is not removed %s after its Node", p.pod.Name, now.Sub(since))
			}
		}
	}
	for name, set := range m.sets {
		if count[name] > set.replicas && !set.gone {
			m.fail(now, "%s has %d pods, want %d", name, count[name], set.replicas)
		}
		if idle {
			m.storm(name, set, now)
			m.few(name, set, count[name], now)
		}
	}
}

// few finds a deployment that has too few pods without a reason. Only a deployment that loses pods
// again and again may wait, at most 5 min.
func (m *model) few(name string, set *modelSet, have int, now time.Time) {
	if have >= set.replicas || set.gone {
		set.under = time.Time{}
		return
	}
	if set.under.IsZero() {
		set.under = now
	}
	waits, last := 2*time.Second, time.Time{}
	for i, at := range set.driven {
		if now.Sub(at) < 45*time.Minute && i > 0 && at.After(set.driven[i-1]) {
			waits = 5*time.Minute + 2*time.Second
		}
		last = at
	}
	from := set.under
	if last.After(from) {
		from = last
	}
	if from.Before(m.started) {
		from = m.started
	}
	if now.Sub(from) > waits {
		m.fail(now, "%s has had only %d of %d pods for %s", name, have, set.replicas, now.Sub(from))
	}
}

// storm limits the pods that a workload creates and loses in an hour. With waits from 1 s to 5 min,
// doubled each time, an hour has some twenty rounds of its replicas.
func (m *model) storm(name string, set *modelSet, now time.Time) {
	recent := func(all []time.Time) []time.Time {
		for len(all) > 0 && now.Sub(all[0]) > time.Hour {
			all = all[1:]
		}
		return all
	}
	set.made, set.driven = recent(set.made), recent(set.driven)
	if most := 25 * set.most; len(set.made) > most || len(set.driven) > most {
		m.fail(now, "%s created %d pods and lost %d in an hour, with %d replicas", name, len(set.made), len(set.driven),
			set.most)
	}
}

// atRest checks that an undisturbed fleet has all that users want.
func (m *model) atRest(now time.Time) {
	count := map[string]int{}
	for _, p := range m.pods {
		n := m.nodes[p.pod.Spec.NodeName]
		ready := false
		for _, c := range p.pod.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		switch {
		case p.pod.DeletionTimestamp != nil:
			m.fail(now, "%s is still being deleted", p.pod.Name)
		case n == nil, n.ready != corev1.ConditionTrue, p.pod.Status.Phase != corev1.PodRunning, !ready:
			m.fail(now, "%s does not run on %q: it is %s, ready %v", p.pod.Name, p.pod.Spec.NodeName, p.pod.Status.Phase, ready)
		case !m.held(n.node.Name, p.pod.UID):
			m.fail(now, "%s runs on %s, which does not have it", p.pod.Name, n.node.Name)
		}
		count[setOf(p.pod)]++
	}
	for name, set := range m.sets {
		if !set.gone && count[name] != set.replicas || set.gone && count[name] > 0 {
			m.fail(now, "%s has %d of %d pods at the end", name, count[name], set.replicas)
		}
	}
	for name, n := range m.nodes {
		if _, reported := m.lastSeen[name]; !reported {
			continue
		}
		for _, t := range n.node.Spec.Taints {
			if strings.HasPrefix(t.Key, "node.kubernetes.io/") || t.Effect == corev1.TaintEffectNoExecute {
				m.fail(now, "%s keeps %s:%s at the end", name, t.Key, t.Effect)
			}
		}
	}
}
