// Package state is the hub's current knowledge of the fleet, as immutable values.
//
// A Snapshot never changes, so every reader can use one without a lock. Deciders (lifecycle,
// eviction, workload, schedule) read a Snapshot and return a Plan. Apply turns a Snapshot and a
// Plan's changes into the next Snapshot and maintains the indexes, so a decider finds its objects
// without walking the fleet. The package never writes to disk (package store does) and never acts
// on a plan (package control does).
package state

import (
	"iter"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidwall/btree"

	"flotilla.dev/shared/fleet"
)

type table[V any] = btree.Map[string, V]

// degree is small because every change copies the tree nodes on its path: it copies a third of what
// the library's default of 32 copies.
const degree = 8

// A Snapshot is the fleet at one moment. All walks are in the order of namespace and name.
type Snapshot struct {
	Revision uint64    // the revision of the newest change of any kind; it never decreases
	Salt     string    // the hub's identity, which makes uids unique among hubs
	Started  time.Time // when this hub process began to accept devices

	tables       [len(kinds)]*table[Object]
	byUID        *table[location]       // uid
	owned        *table[Object]         // owner uid, kind, namespace, name
	onNode       *table[*corev1.Pod]    // node ("" = not placed yet), namespace, name
	usage        *table[*Usage]         // node
	antiAffinity *table[*corev1.Pod]    // namespace, name
	affinity     *table[*corev1.Pod]    // namespace, name
	priorities   *btree.Map[int32, int] // priority: number of placed pods
	inSite       *table[struct{}]       // site, node
	counts       *table[*SiteCount]     // site
	waits        *table[struct{}]       // site, moment of failure, node
	blocks       *table[[]string]       // family, size, address: the nodes with that block
	withoutBlock *table[struct{}]       // creation, node
	eventsFrom   *table[*corev1.Event]  // host, moment, namespace, name
	drains       *table[struct{}]       // nodes with a drain annotation
	claimants    *table[struct{}]       // namespace, claim, pod
	volumesOn    *table[struct{}]       // node, persistent volume
	seen         *table[time.Time]      // node
	all          SiteTally              // the counts of all sites
	seenReset    time.Time              // every node counts as seen at or after this moment
	diskFull     bool                   // see DiskFull
	listening    time.Time              // since when the hub accepts devices; see Listening
}

// Empty returns the snapshot of a new hub.
func Empty(salt string, started time.Time) Snapshot {
	s := Snapshot{Salt: salt, Started: started, seenReset: started}
	for i := range s.tables {
		s.tables[i] = btree.NewMap[string, Object](degree)
	}
	s.byUID, s.owned = btree.NewMap[string, location](degree), btree.NewMap[string, Object](degree)
	s.onNode, s.usage = btree.NewMap[string, *corev1.Pod](degree), btree.NewMap[string, *Usage](degree)
	s.antiAffinity, s.affinity = btree.NewMap[string, *corev1.Pod](degree), btree.NewMap[string, *corev1.Pod](degree)
	s.priorities = btree.NewMap[int32, int](degree)
	s.inSite, s.counts, s.waits = btree.NewMap[string, struct{}](degree), btree.NewMap[string, *SiteCount](degree),
		btree.NewMap[string, struct{}](degree)
	s.blocks, s.withoutBlock = btree.NewMap[string, []string](degree), btree.NewMap[string, struct{}](degree)
	s.seen, s.eventsFrom = btree.NewMap[string, time.Time](degree), btree.NewMap[string, *corev1.Event](degree)
	s.drains = btree.NewMap[string, struct{}](degree)
	s.claimants, s.volumesOn = btree.NewMap[string, struct{}](degree), btree.NewMap[string, struct{}](degree)
	return s
}

// Get returns the object with the key, nil if there is none.
func (s Snapshot) Get(k Key) Object {
	i := k.Kind.index()
	if i < 0 {
		return nil
	}
	o, ok := s.tables[i].Get(path(k.Namespace, k.Name))
	if !ok {
		return nil
	}
	return o
}

// ByUID returns the object with the uid, nil if there is none.
func (s Snapshot) ByUID(uid types.UID) Object {
	at, ok := s.byUID.Get(string(uid))
	if !ok {
		return nil
	}
	o, _ := s.tables[at.kind.index()].Get(at.path)
	return o
}

// Len returns the number of objects of a kind.
func (s Snapshot) Len(k Kind) int { return s.tables[k.index()].Len() }

// All walks the objects of a kind; namespace "" means all namespaces.
func (s Snapshot) All(k Kind, namespace string) iter.Seq[Object] {
	return s.From(k, namespace, "", "")
}

// From walks the objects of a kind that follow the named one, in the namespace or ("") in all.
func (s Snapshot) From(k Kind, namespace, afterNamespace, afterName string) iter.Seq[Object] {
	prefix := ""
	if namespace != "" {
		prefix = namespace + "\x00"
	}
	pivot := prefix
	if afterName != "" {
		pivot = path(afterNamespace, afterName) + "\x00"
	}
	return func(yield func(Object) bool) {
		s.tables[k.index()].Ascend(pivot, func(key string, o Object) bool {
			return strings.HasPrefix(key, prefix) && yield(o)
		})
	}
}

// Each walks the objects of one kind with their Go type.
func Each[T Object](s Snapshot, k Kind, namespace string) iter.Seq[T] {
	return func(yield func(T) bool) {
		for o := range s.All(k, namespace) {
			if !yield(o.(T)) {
				return
			}
		}
	}
}

func get[T Object](s Snapshot, k Key) T {
	o, _ := s.Get(k).(T)
	return o
}

// Node returns the node with the name, nil if there is none.
func (s Snapshot) Node(name string) *corev1.Node {
	return get[*corev1.Node](s, Key{Kind: Nodes, Name: name})
}

// Record returns the record of a node, nil if there is none.
func (s Snapshot) Record(node string) *Record { return get[*Record](s, Key{Kind: Records, Name: node}) }

// Report returns the hardware report of the node's device, nil if there is none.
func (s Snapshot) Report(node string) *fleet.DeviceReport {
	return get[*fleet.DeviceReport](s, Key{Kind: DeviceReports, Name: node})
}

// Site returns the site with the name, nil if there is none.
func (s Snapshot) Site(name string) *fleet.Site {
	return get[*fleet.Site](s, Key{Kind: Sites, Name: name})
}

// Pod returns a pod, nil if there is none.
func (s Snapshot) Pod(namespace, name string) *corev1.Pod {
	return get[*corev1.Pod](s, Key{Pods, namespace, name})
}

// Deployment returns a deployment, nil if there is none.
func (s Snapshot) Deployment(namespace, name string) *appsv1.Deployment {
	return get[*appsv1.Deployment](s, Key{Deployments, namespace, name})
}

// Nodes walks all nodes.
func (s Snapshot) Nodes() iter.Seq[*corev1.Node] { return Each[*corev1.Node](s, Nodes, "") }

// NodeAt returns the i-th node by name, for samples of a large fleet.
func (s Snapshot) NodeAt(i int) *corev1.Node {
	_, o, _ := s.tables[nodesTable].GetAt(i)
	n, _ := o.(*corev1.Node)
	return n
}

// Pods walks the pods of a namespace, "" for all.
func (s Snapshot) Pods(namespace string) iter.Seq[*corev1.Pod] {
	return Each[*corev1.Pod](s, Pods, namespace)
}

// PodsOn walks the pods of a node; PodsOn("") walks the pods without a node.
func (s Snapshot) PodsOn(node string) iter.Seq[*corev1.Pod] { return under(s.onNode, node) }

// AntiAffinityPods walks the placed, unfinished pods with a required anti-affinity.
func (s Snapshot) AntiAffinityPods() iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		s.antiAffinity.Scan(func(_ string, p *corev1.Pod) bool { return yield(p) })
	}
}

// AffinityPods walks the placed, unfinished pods with a required affinity, a preferred affinity or
// a preferred anti-affinity.
func (s Snapshot) AffinityPods() iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		s.affinity.Scan(func(_ string, p *corev1.Pod) bool { return yield(p) })
	}
}

// LowestPriority returns the lowest priority of a placed, unfinished pod; false: there is no such
// pod.
func (s Snapshot) LowestPriority() (int32, bool) {
	priority, _, ok := s.priorities.Min()
	return priority, ok
}

// NodesIn walks the nodes of a site.
func (s Snapshot) NodesIn(site string) iter.Seq[*corev1.Node] {
	return s.indexedNodes(s.inSite, site+"\x00")
}

// Waiting walks the nodes of a site that are not ready and have no NoExecute taint yet, in the
// order of their failure.
func (s Snapshot) Waiting(site string) iter.Seq[*corev1.Node] {
	return s.indexedNodes(s.waits, site+"\x00")
}

// Owned walks the objects of a kind with an owner reference to the uid.
func (s Snapshot) Owned(owner types.UID, k Kind) iter.Seq[Object] {
	return under(s.owned, string(owner)+"\x00"+string(k))
}

// Dependents walks every object with an owner reference to the uid.
func (s Snapshot) Dependents(owner types.UID) iter.Seq[Object] { return under(s.owned, string(owner)) }

// Usage returns the sum of what the pods of a node request.
func (s Snapshot) Usage(node string) Usage {
	if u, ok := s.usage.Get(node); ok {
		return *u
	}
	return Usage{}
}

// Count returns the count of a site's nodes.
func (s Snapshot) Count(site string) SiteCount {
	if c, ok := s.counts.Get(site); ok {
		return *c
	}
	return SiteCount{}
}

// Counts walks every site that has nodes.
func (s Snapshot) Counts() iter.Seq2[string, SiteCount] {
	return func(yield func(string, SiteCount) bool) {
		s.counts.Scan(func(site string, c *SiteCount) bool { return yield(site, *c) })
	}
}

// Sites returns the counts of all sites.
func (s Snapshot) Sites() SiteTally { return s.all }

// EventsFrom walks the events from a node's device, the oldest first.
func (s Snapshot) EventsFrom(node string) iter.Seq[*corev1.Event] { return under(s.eventsFrom, node) }

// Seen returns when a node was last seen, by the hub's clock. A node that this process has not seen
// yet counts as seen at its start.
func (s Snapshot) Seen(node string) time.Time {
	t, ok := s.seen.Get(node)
	if !ok || t.Before(s.seenReset) {
		return s.seenReset
	}
	return t
}

// WithSeen returns the snapshot in which the node was last seen at t.
func (s Snapshot) WithSeen(node string, t time.Time) Snapshot {
	return s.WithAllSeen(func(yield func(string, time.Time) bool) { yield(node, t) })
}

// WithAllSeen returns the snapshot with new times of many nodes. It copies the table once, since
// thousands of nodes can be due at one moment.
func (s Snapshot) WithAllSeen(all iter.Seq2[string, time.Time]) Snapshot {
	seen := s.seen
	for node, t := range all {
		if seen == s.seen {
			seen = s.seen.Copy()
		}
		seen.Set(node, t)
	}
	s.seen = seen
	return s
}

// ResetSeen returns the snapshot in which every node counts as seen at t.
func (s Snapshot) ResetSeen(t time.Time) Snapshot {
	s.seenReset = t
	return s
}

// SeenReset returns when every node last counted as seen.
func (s Snapshot) SeenReset() time.Time { return s.seenReset }

// Listen returns the snapshot of a hub that could not receive anything until t. Every node counts
// as seen at t.
func (s Snapshot) Listen(t time.Time) Snapshot {
	s.listening = t
	if t.After(s.seenReset) {
		s.seenReset = t
	}
	return s
}

// Listening returns since when the hub has received without a break: since its start, or since the
// end of its last suspension.
func (s Snapshot) Listening() time.Time {
	if s.listening.After(s.Started) {
		return s.listening
	}
	return s.Started
}

// WithDiskSpace returns the snapshot of a hub whose disk has, or lacks, space for new objects.
func (s Snapshot) WithDiskSpace(room bool) Snapshot {
	s.diskFull = !room
	return s
}

// DiskFull tells whether the hub's disk has no space for new objects. Changes and deletions still
// succeed.
func (s Snapshot) DiskFull() bool { return s.diskFull }

func under[V any](t *table[V], first string) iter.Seq[V] {
	return func(yield func(V) bool) {
		if t.Len() == 0 {
			return
		}
		prefix := first + "\x00"
		t.Ascend(prefix, func(key string, v V) bool { return strings.HasPrefix(key, prefix) && yield(v) })
	}
}

// namesUnder walks the names in an index whose key starts with first.
func namesUnder(t *table[struct{}], first string) iter.Seq[string] {
	return func(yield func(string) bool) {
		prefix := first + "\x00"
		t.Ascend(prefix, func(key string, _ struct{}) bool {
			return strings.HasPrefix(key, prefix) && yield(key[len(prefix):])
		})
	}
}

// indexedNodes walks the nodes whose names are in an index under a prefix.
func (s Snapshot) indexedNodes(t *table[struct{}], prefix string) iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		t.Ascend(prefix, func(key string, _ struct{}) bool {
			return strings.HasPrefix(key, prefix) && yield(s.Node(key[strings.LastIndexByte(key, 0)+1:]))
		})
	}
}
