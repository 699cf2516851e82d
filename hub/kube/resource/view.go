package resource

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Leases returns when the hub last received a lease of each node, as objects of the namespace
// kube-node-lease.
type Leases interface {
	Seen(node string) time.Time       // zero if none since the hub started
	Lease(node string) *coordv1.Lease // nil if the node does not exist
	Leases() []*coordv1.Lease
}

// A View is the fleet as the API shows it: a snapshot, and the nodes' leases, which are only in
// memory.
type View struct {
	Leases Leases
	Now    func() time.Time // returns the hub's time
}

// Get returns the named object, or nil if it does not exist.
func (v *View) Get(snap state.Snapshot, r *Resource, namespace, name string) state.Object {
	switch {
	case r.Empty:
		return nil
	case r.NodeLease(namespace):
		if l := v.Leases.Lease(name); l != nil {
			return Stamp(l, snap)
		}
		return nil
	}
	return snap.Get(state.Key{Kind: r.State, Namespace: namespace, Name: name})
}

// leases returns the leases of a namespace, including those of nodes. "" means all namespaces.
func (v *View) leases(snap state.Snapshot, namespace string) (list []state.Object) {
	for o := range snap.All(state.Leases, namespace) {
		list = append(list, o)
	}
	if namespace == "" || namespace == corev1.NamespaceNodeLease {
		for _, l := range v.Leases.Leases() {
			list = append(list, Stamp(l, snap))
		}
	}
	slices.SortFunc(list, func(a, b state.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return list
}

// Stamp sets an object's resourceVersion to the snapshot's revision. It is for objects that are
// only in memory, such as nodes' leases.
func Stamp(o state.Object, snap state.Snapshot) state.Object {
	o = Shallow(o)
	o.SetResourceVersion(FormatRev(snap.Revision))
	return o
}

// Walk yields the selected objects after the named object, sorted by namespace and name.
func (v *View) Walk(snap state.Snapshot, sel *Selection, afterNamespace, afterName string) iter.Seq[state.Object] {
	return func(yield func(state.Object) bool) {
		for o := range v.candidates(snap, sel, afterNamespace, afterName) {
			if sel.Matches(o) && !yield(o) {
				return
			}
		}
	}
}

// candidates uses the snapshot's indexes, so that Walk visits fewer objects.
func (v *View) candidates(snap state.Snapshot, sel *Selection, afterNamespace,
	afterName string) iter.Seq[state.Object] {
	behind := func(o state.Object) bool {
		if n := strings.Compare(o.GetNamespace(), afterNamespace); n != 0 || afterName == "" {
			return n >= 0
		}
		return o.GetName() > afterName
	}
	if sel.Kind.Row() == nil {
		return func(func(state.Object) bool) {}
	}
	if sel.Kind == state.Leases {
		return slices.Values(slices.DeleteFunc(v.leases(snap, sel.Namespace), func(o state.Object) bool {
			return !behind(o)
		}))
	}
	if name, ok := sel.exactly("metadata.name"); ok && (sel.Namespace != "" || !sel.Kind.Namespaced()) {
		return func(yield func(state.Object) bool) {
			if o := snap.Get(state.Key{Kind: sel.Kind, Namespace: sel.Namespace, Name: name}); o != nil && behind(o) {
				yield(o)
			}
		}
	}
	if node, ok := sel.exactly("spec.nodeName"); ok && sel.Kind == state.Pods {
		return func(yield func(state.Object) bool) {
			for p := range snap.PodsOn(node) {
				if behind(p) && !yield(p) {
					return
				}
			}
		}
	}
	return snap.From(sel.Kind, sel.Namespace, afterNamespace, afterName)
}

// One returns an object in the requested form.
func (v *View) One(r *Resource, o state.Object, f Form, headers bool) runtime.Object {
	switch f.As {
	case "Table":
		t := v.table(r, []state.Object{o}, f, headers)
		t.ResourceVersion = o.GetResourceVersion()
		return f.Versioned(t)
	case "PartialObjectMetadata":
		return f.Versioned(partial(o))
	}
	return v.shown(r, o)
}

// Many returns a list in the requested form.
func (v *View) Many(r *Resource, objs []state.Object, f Form, m metav1.ListMeta) (runtime.Object, error) {
	switch f.As {
	case "Table":
		t := v.table(r, objs, f, true)
		t.ListMeta = m
		return f.Versioned(t), nil
	case "PartialObjectMetadataList":
		list := &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: f.As, APIVersion: metav1.SchemeGroupVersion.String()}, ListMeta: m,
			Items: make([]metav1.PartialObjectMetadata, 0, len(objs)),
		}
		for _, o := range objs {
			list.Items = append(list.Items, *partial(o)) // each item has its kind, as in Kubernetes
		}
		return f.Versioned(list), nil
	}
	if r.Empty && r.Plain { // the hub does not have the Go types of these kinds
		return &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: r.Kind + "List", APIVersion: r.GroupVersion().String()}, ListMeta: m,
			Items: []metav1.PartialObjectMetadata{},
		}, nil
	}
	list, err := Scheme.New(r.ListKind())
	if err != nil {
		return nil, err
	}
	items := make([]runtime.Object, 0, len(objs))
	for _, o := range objs {
		item := v.shown(r, o)
		if r.Plain {
			items = append(items, item) // as in Kubernetes' lists of custom resources
			continue
		}
		item.GetObjectKind().SetGroupVersionKind(noKind)
		items = append(items, item)
	}
	if err := meta.SetList(list, items); err != nil {
		return nil, err
	}
	list.GetObjectKind().SetGroupVersionKind(r.ListKind())
	acc, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	acc.SetResourceVersion(m.ResourceVersion)
	acc.SetContinue(m.Continue)
	acc.SetRemainingItemCount(m.RemainingItemCount)
	return list, nil
}

// noKind is an empty kind, because items of a list have none.
var noKind = schema.GroupVersionKind{}

func (v *View) table(r *Resource, objs []state.Object, f Form, headers bool) *metav1.Table {
	return table.For(r.State, objs, table.Options{
		Include: f.Include, NoHeaders: !headers, Now: v.Now(), LastSeen: v.Leases.Seen,
		Object: func(o state.Object) runtime.Object { return v.shown(r, o) },
	})
}

// shown returns an object as clients see it: after Show, and with a node's heartbeats.
func (v *View) shown(r *Resource, o state.Object) runtime.Object {
	if n, ok := o.(*corev1.Node); ok {
		o = withHeartbeats(n, v.Leases.Seen(n.Name))
	}
	return r.Show(o)
}

// withHeartbeats sets the heartbeat times of the conditions that a device reports to the time of
// its last lease, which confirms them. The node does not change, and the times are not stored. The
// hub's own conditions keep their times.
func withHeartbeats(n *corev1.Node, seen time.Time) *corev1.Node {
	at := metav1.NewTime(seen.UTC().Truncate(time.Second))
	conditions := slices.Clone(n.Status.Conditions)
	for i := range conditions {
		switch c := &conditions[i]; c.Type {
		case fleet.ConditionFlapping, fleet.ConditionIdentityConflict, fleet.ConditionPodCIDRAvailable:
		default:
			if at.After(c.LastHeartbeatTime.Time) {
				c.LastHeartbeatTime = at
			}
		}
	}
	like := *n
	like.Status.Conditions = conditions
	return &like
}
