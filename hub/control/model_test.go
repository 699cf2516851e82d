package control_test

import (
	"fmt"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// The settings of the random stories. They are repeated here, so that a wrong constant of the hub
// does not also change the model.
const (
	theGrace     = 40 * time.Second
	theStartup   = 60 * time.Second
	theRate      = 0.1
	theSecondary = 0.01
	theThreshold = 0.55
	theLarge     = 50
	judgedFrom   = 10400 * time.Millisecond // one lease interval with its jitter
	judgedBy     = 12 * time.Second
	theLater     = 60 * time.Millisecond // tolerance for deadlines
	theLost      = 40 * time.Second      // quarantine of the pods of a deleted Node
)

// A model is a second implementation of what a hub must do. It watches what is stored, knows what
// the devices really sent and when, and compares both. It calls no decider: its site states, token
// buckets, tolerations and deadlines are its own arithmetic.
type model struct {
	wrong    string // the first error
	up       bool
	started  time.Time
	forgiven time.Time // last start, or end of a full disruption; every node counts as seen at that time
	master   bool
	nodes    map[string]*modelNode
	lastSeen map[string]time.Time   // time of each node's last lease or status
	ready    map[string]readyReport // the newest Ready status that each device reported
	sites    map[string]*modelSite
	pods     map[types.NamespacedName]*modelPod
	sets     map[string]*modelSet // deployments by name
	drained  map[string]bool      // nodes with a drain order
	forced   map[types.UID]bool   // pods that were deleted by force
	over     map[types.UID]bool   // pods that their devices report as stopped
	absent   map[string]time.Time // deleted Nodes, with the time of the deletion
	held     func(node string, uid types.UID) bool
	tainted  map[string]map[string]bool // users' taints by node, as key:effect
	written  []userTaint                // users' taints in the commit that runs; valid once it succeeds
	lastRev  uint64
}

// userTaint is a taint that a user has added or removed.
type userTaint struct {
	node, key string
	given     bool
}

type readyReport struct {
	status corev1.ConditionStatus
	at     time.Time
}

type modelNode struct {
	node    *corev1.Node
	ready   corev1.ConditionStatus
	left    time.Time // when Ready changed from True; zero: Ready is True
	key     string    // key of the lifecycle's NoExecute taint; "": not tainted
	since   time.Time
	spells  []modelSpell         // earlier taints of this outage
	noexec  map[string]time.Time // users' NoExecute taints by key, with the time of their addition
	created time.Time
}

type modelSpell struct {
	key      string
	from, to time.Time
}

type modelSite struct {
	spec     fleet.SiteSpec
	rate     float64
	tokens   float64
	at       time.Time // last update of rate and tokens
	eligible time.Time // since when a node of the site should be tainted; zero: no node should
}

func newModel() *model {
	return &model{
		nodes: map[string]*modelNode{}, lastSeen: map[string]time.Time{}, ready: map[string]readyReport{},
		sites: map[string]*modelSite{}, pods: map[types.NamespacedName]*modelPod{},
		sets: map[string]*modelSet{}, drained: map[string]bool{}, forced: map[types.UID]bool{}, over: map[types.UID]bool{},
		absent: map[string]time.Time{}, tainted: map[string]map[string]bool{},
	}
}

func (m *model) fail(now time.Time, format string, args ...any) {
	if m.wrong == "" {
		m.wrong = fmt.Sprintf("%s: ", now.Format("15:04:05.000")) + fmt.Sprintf(format, args...)
	}
}

func (m *model) start(now time.Time) {
	m.up, m.started, m.forgiven = true, now, now
	m.settle(now)
}

// saw updates the model after a commit.
func (m *model) saw(rows []control.Row, rev uint64, now time.Time) {
	if !m.up {
		m.fail(now, "%d rows are written while the hub is down", len(rows))
	}
	if rev-m.lastRev > uint64(200+50*(len(m.nodes)+len(m.pods))) {
		m.fail(now, "a storm: %d changes in one pass", rev-m.lastRev)
	}
	m.lastRev = rev
	for _, w := range m.written {
		if m.tainted[w.node] == nil {
			m.tainted[w.node] = map[string]bool{}
		}
		if m.tainted[w.node][w.key] = true; !w.given {
			delete(m.tainted[w.node], w.key)
		}
	}
	m.written = nil
	m.settle(now)
	var given []*modelNode
	for _, r := range rows {
		if r.Key.Kind == state.Sites {
			site := m.site(r.Key.Name, now)
			site.spec = fleet.SiteSpec{}
			if o, ok := r.State.(*fleet.Site); ok && o != nil {
				site.spec = o.Spec
			}
		}
		if o, ok := r.State.(*appsv1.Deployment); ok && o != nil {
			m.deployment(o)
		}
	}
	for _, r := range rows {
		if r.Key.Kind == state.Nodes {
			o, _ := r.State.(*corev1.Node)
			if n := m.node(r.Key.Name, o, now); n != nil {
				given = append(given, n)
			}
		}
	}
	m.settle(now)
	m.checkTainted(given, now)
	for _, gone := range []bool{true, false} { // deletions first: another pod may be bound in the freed place
		for _, r := range rows {
			if o, _ := r.State.(*corev1.Pod); r.Key.Kind == state.Pods && (o == nil) == gone {
				m.pod(types.NamespacedName{Namespace: r.Key.Namespace, Name: r.Key.Name}, o, now)
			}
		}
	}
	m.look(now, false)
}

func (m *model) site(name string, now time.Time) *modelSite {
	if m.sites[name] == nil {
		m.sites[name] = &modelSite{rate: theRate, tokens: 1, at: now}
	}
	return m.sites[name]
}

func modelZone(n *corev1.Node) string {
	if zone := n.Labels["topology.kubernetes.io/zone"]; zone != "" {
		return zone
	}
	return "default"
}

func conditionOf(n *corev1.Node, t corev1.NodeConditionType) (status corev1.ConditionStatus) {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			status = c.Status
		}
	}
	return status
}

// deadline returns the last moment at which a silent node counts as alive.
func (m *model) deadline(name string, n *modelNode) time.Time {
	at := m.lastSeen[name]
	if at.Before(m.forgiven) {
		at = m.forgiven
	}
	spec := m.sites[modelZone(n.node)].spec
	if _, reported := m.lastSeen[name]; !reported {
		if n.created.After(at) {
			at = n.created
		}
		if d := spec.NodeStartupGracePeriod; d != nil {
			return at.Add(d.Duration)
		}
		return at.Add(theStartup)
	}
	return at.Add(m.grace(n))
}

func (m *model) grace(n *modelNode) time.Duration {
	if d := m.sites[modelZone(n.node)].spec.NodeMonitorGracePeriod; d != nil {
		return d.Duration
	}
	return theGrace
}

// node updates a node, and returns it if this commit has tainted it.
func (m *model) node(name string, o *corev1.Node, now time.Time) (given *modelNode) {
	n := m.nodes[name]
	if o == nil {
		if n != nil {
			m.leftBehind(name, now)
		}
		delete(m.nodes, name)
		delete(m.lastSeen, name)
		delete(m.ready, name)
		delete(m.tainted, name)
		m.absent[name] = now
		return nil
	}
	if n == nil || n.node.UID != o.UID {
		n = &modelNode{created: o.CreationTimestamp.Time, noexec: map[string]time.Time{}}
		m.nodes[name] = n
		delete(m.absent, name)
	}
	n.node = o
	m.site(modelZone(o), now)
	was, is := n.ready, conditionOf(o, corev1.NodeReady)
	n.ready = is
	if was != is {
		switch {
		case is == corev1.ConditionUnknown:
			if d := m.deadline(name, n); !now.After(d) {
				m.fail(now, "%s is Unknown before its deadline %s", name, d.Format("15:04:05.000"))
			}
		case was != "" && (m.ready[name].status != is || !m.ready[name].at.Equal(now)):
			m.fail(now, "%s changes to Ready=%s from %s without a report of its device", name, is, was)
		}
	}
	switch {
	case is == corev1.ConditionTrue:
		n.left = time.Time{}
	case n.left.IsZero() && is != "":
		n.left = now
	}
	key, noexec := "", map[string]time.Time{}
	for _, t := range o.Spec.Taints {
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if t.Key != "node.kubernetes.io/not-ready" && t.Key != "node.kubernetes.io/unreachable" {
			noexec[t.Key] = now
			if at, ok := n.noexec[t.Key]; ok {
				noexec[t.Key] = at
			}
			continue
		}
		if key != "" {
			m.fail(now, "%s has both NoExecute taints", name)
		}
		key = t.Key
	}
	n.noexec = noexec
	switch {
	case key == "":
		n.spells = nil
	case n.key == "":
		given, n.since = n, now
	case n.key != key:
		n.spells = append(n.spells, modelSpell{n.key, n.since, now})
		n.since = now
	}
	n.key = key
	return given
}

// count counts the ready and not ready nodes of a site. Excluded nodes and nodes that have never
// reported do not count.
func (m *model) count(site string) (ready, not int) {
	for name, n := range m.nodes {
		_, out := n.node.Labels["node.kubernetes.io/exclude-disruption"]
		if _, reported := m.lastSeen[name]; !reported || out || modelZone(n.node) != site {
			continue
		}
		if n.ready == corev1.ConditionTrue {
			ready++
		} else {
			not++
		}
	}
	return ready, not
}

// settle updates states, rates and buckets.
func (m *model) settle(now time.Time) {
	counting, full := 0, 0
	for name := range m.sites {
		ready, not := m.count(name)
		if ready+not > 0 {
			counting++
		}
		if ready == 0 && not > 0 {
			full++
		}
	}
	master := counting > 0 && counting == full
	if m.master && !master {
		m.forgiven = now
	}
	m.master = master
	for name, s := range m.sites {
		if w := s.spec.Maintenance; w != nil && w.Until.After(s.at) && !w.Until.After(now) {
			at := w.Until.Time
			if at.Before(m.started) {
				at = m.started
			}
			s.change(m.rate(name, s, at), at)
		}
		s.change(m.rate(name, s, now), now)
	}
}

// rate returns how many nodes of a site may be tainted per second.
func (m *model) rate(name string, s *modelSite, now time.Time) float64 {
	rate, second, threshold, large := theRate, theSecondary, theThreshold, theLarge
	if v := s.spec.NodeEvictionRate; v != nil {
		rate = *v
	}
	if v := s.spec.SecondaryNodeEvictionRate; v != nil {
		second = *v
	}
	if v := s.spec.UnhealthyZoneThreshold; v != nil {
		threshold = *v
	}
	if v := s.spec.LargeClusterSizeThreshold; v != nil {
		large = int(*v)
	}
	ready, not := m.count(name)
	switch w := s.spec.Maintenance; {
	case m.master, w != nil && now.Before(w.Until.Time):
		return 0
	case ready == 0 && not > 0:
		if s.spec.DisruptionPolicy == "Hold" {
			return 0
		}
	case not >= 3 && float64(not) >= threshold*float64(not+ready):
		if not+ready <= large {
			return 0
		}
		return second
	}
	return rate
}

func (s *modelSite) change(rate float64, now time.Time) {
	s.tokens = math.Min(1, s.tokens+s.rate*now.Sub(s.at).Seconds())
	s.at = now
	if rate != s.rate {
		if s.tokens < 1-1e-5 || s.rate == 0 {
			s.tokens = 0
		}
		s.rate = rate
	}
}

// checkTainted checks each node that this commit has tainted: the node is not ready, its site may
// evict, and the minimum delay has passed. No other node of the site failed earlier and still waits
// for its taint.
func (m *model) checkTainted(given []*modelNode, now time.Time) {
	for _, n := range given {
		name := n.node.Name
		s := m.sites[modelZone(n.node)]
		switch {
		case n.ready != corev1.ConditionFalse && n.ready != corev1.ConditionUnknown:
			m.fail(now, "%s is tainted although it is Ready=%s", name, n.ready)
		case s.rate == 0:
			ready, not := m.count(modelZone(n.node))
			m.fail(now, "%s is tainted although its site must not evict (%d ready, %d not, full disruption %v)", name, ready,
				not, m.master)
		case now.Sub(n.left) < judgedFrom:
			m.fail(now, "%s is tainted %s after it failed, want at least %s", name, now.Sub(n.left), judgedFrom)
		case s.tokens < 1-1e-4:
			m.fail(now, "%s is tainted with %.3f of a token at %g tokens a second, want 1 token", name, s.tokens, s.rate)
		}
		s.tokens--
		for _, other := range m.nodes {
			if other.key == "" && m.waits(other) && modelZone(other.node) == modelZone(n.node) && before(other, n) {
				m.fail(now, "%s is tainted before %s, which failed earlier", name, other.node.Name)
			}
		}
	}
}

func (m *model) waits(n *modelNode) bool {
	return n.key == "" && (n.ready == corev1.ConditionFalse || n.ready == corev1.ConditionUnknown)
}

func before(a, b *modelNode) bool {
	x, y := a.left.Truncate(time.Millisecond), b.left.Truncate(time.Millisecond)
	return x.Before(y) || x.Equal(y) && a.node.Name < b.node.Name
}

// look checks all rules. If idle is set, this moment had no commit, so every due action must be
// done.
func (m *model) look(now time.Time, idle bool) {
	for name, n := range m.nodes {
		if d := m.deadline(name, n).Add(theLater); now.After(d) && n.ready != corev1.ConditionUnknown {
			m.fail(now, "%s is still Ready=%s after its deadline %s", name, n.ready, d.Format("15:04:05.000"))
		}
		m.taints(name, n, now)
		if m.master && n.key != "" {
			m.fail(now, "%s keeps %s while no site has a ready node", name, n.key)
		}
	}
	if idle {
		m.settle(now)
		m.overdue(now)
	}
	m.lookAtPods(now, idle)
}

// taints checks the taints of a node against its conditions and users' taints.
func (m *model) taints(name string, n *modelNode, now time.Time) {
	want := map[string]bool{
		"node.kubernetes.io/not-ready:NoSchedule":     n.ready == corev1.ConditionFalse || n.ready == "",
		"node.kubernetes.io/unreachable:NoSchedule":   n.ready == corev1.ConditionUnknown,
		"node.kubernetes.io/unschedulable:NoSchedule": n.node.Spec.Unschedulable,
		"node.kubernetes.io/not-ready:NoExecute":      n.key != "" && n.ready == corev1.ConditionFalse,
		"node.kubernetes.io/unreachable:NoExecute":    n.key != "" && n.ready == corev1.ConditionUnknown,
	}
	have := map[string]bool{}
	for _, t := range n.node.Spec.Taints {
		have[t.Key+":"+string(t.Effect)] = true
	}
	for t := range m.tainted[name] {
		want[t] = true
	}
	for t, must := range want {
		if must != have[t] {
			m.fail(now, "%s is Ready=%s: it has taint %s: %v, want %v", name, n.ready, t, have[t], must)
		}
		delete(have, t)
	}
	delete(have, "flotilla.dev/flapping:PreferNoSchedule")
	for t := range have {
		m.fail(now, "%s has a taint %s that nobody added", name, t)
	}
}

// overdue finds the site whose next node should have been tainted.
func (m *model) overdue(now time.Time) {
	for name, s := range m.sites {
		var head *modelNode
		for _, n := range m.nodes {
			if m.waits(n) && modelZone(n.node) == name && (head == nil || before(n, head)) {
				head = n
			}
		}
		due := head != nil && s.rate > 0 && s.tokens >= 1
		if due {
			from := head.left
			if again := m.started.Add(m.grace(head)); again.After(from) { // a started hub waits for a grace period
				from = again
			}
			due = now.After(from.Add(judgedBy))
		}
		switch {
		case !due:
			s.eligible = time.Time{}
		case s.eligible.IsZero():
			s.eligible = now
		case now.Sub(s.eligible) > 2*time.Second:
			m.fail(now, "%s should have been tainted %s ago: its site may taint %g nodes a second", head.node.Name,
				now.Sub(s.eligible), s.rate)
		}
	}
}
