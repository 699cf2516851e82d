package state

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentresource "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"flotilla.dev/shared/fleet"
)

// What a ResourceQuota counts, as Kubernetes' quota evaluators do. Events are never counted.

// objectCounts are the kinds that a quota may also name without "count/".
var objectCounts = []Kind{ConfigMaps, Claims, ResourceQuotas, Secrets, Services, "replicationcontrollers"}

const (
	countPrefix    = "count/"
	requestsPrefix = corev1.DefaultResourceRequestsPrefix
	classSuffix    = ".storageclass.storage.k8s.io/"
)

// countName returns the resource name by which a quota limits the number of a kind's objects.
func countName(k Kind) corev1.ResourceName {
	r := k.Row()
	if r == nil || r.Group == nil || k == Events {
		return ""
	}
	if r.Group.Group == "" {
		return corev1.ResourceName(countPrefix + string(k))
	}
	return corev1.ResourceName(countPrefix + string(k) + "." + r.Group.Group)
}

// Charge returns everything that an object uses which a quota can count.
func Charge(o Object, now time.Time) corev1.ResourceList {
	kind, one := KindOf(o), *resource.NewQuantity(1, resource.DecimalSI)
	name := countName(kind)
	if name == "" {
		return nil
	}
	use := corev1.ResourceList{name: one}
	if slices.Contains(objectCounts, kind) {
		use[corev1.ResourceName(kind)] = one
	}
	switch o := o.(type) {
	case *corev1.Pod:
		if usesResources(o, now) {
			use[corev1.ResourcePods] = one
			addComputeResources(use, Requests(o), componentresource.PodLimits(o, sizes(o)))
		}
	case *corev1.PersistentVolumeClaim:
		storage := o.Spec.Resources.Requests[corev1.ResourceStorage]
		use[corev1.ResourceRequestsStorage] = storage
		if class := o.Spec.StorageClassName; class != nil && *class != "" {
			use[corev1.ResourceName(*class+classSuffix+"persistentvolumeclaims")] = one
			use[corev1.ResourceName(*class+classSuffix+"requests.storage")] = storage
		}
	}
	return use
}

// usesResources tells whether a pod uses more than its name. Finished pods and pods past their
// deletion deadline do not.
func usesResources(p *corev1.Pod, now time.Time) bool {
	if Terminated(p) {
		return false
	}
	ends := QuotaEnds(p)
	return ends.IsZero() || !now.After(ends)
}

// QuotaEnds returns when a pod that is being deleted stops counting, even if its device says
// nothing; zero: it is not being deleted.
func QuotaEnds(p *corev1.Pod) time.Time {
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil || Terminated(p) {
		return time.Time{}
	}
	return p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
}

// addComputeResources adds the requests and limits of containers.
func addComputeResources(use, requests, limits corev1.ResourceList) {
	for name, q := range requests {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			use[name], use[requestsPrefix+name] = q, q
		case strings.Contains(string(name), "/"):
			use[requestsPrefix+name] = q // extended resources: only requests count
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage} {
		if q, ok := limits[name]; ok {
			use["limits."+name] = q
		}
	}
}

// Charged returns what an object uses of a quota: only the limited resources, and only if the
// object is in the quota's scopes. Nil: nothing.
func Charged(q *corev1.ResourceQuota, o Object, now time.Time) corev1.ResourceList {
	if o.GetNamespace() != q.Namespace || !InScopes(q, o) {
		return nil
	}
	use := Charge(o, now)
	maps.DeleteFunc(use, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, limited := q.Spec.Hard[name]
		return !limited
	})
	return use
}

// InScopes tells whether an object is in all scopes of a quota. Scopes match only pods.
func InScopes(q *corev1.ResourceQuota, o Object) bool {
	var all []corev1.ScopedResourceSelectorRequirement
	for _, s := range q.Spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		all = append(all, q.Spec.ScopeSelector.MatchExpressions...)
	}
	pod, ok := o.(*corev1.Pod)
	return len(all) == 0 || ok && !slices.ContainsFunc(all,
		func(r corev1.ScopedResourceSelectorRequirement) bool { return !inScope(pod, r) })
}

func inScope(p *corev1.Pod, r corev1.ScopedResourceSelectorRequirement) bool {
	ends := p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return ends
	case corev1.ResourceQuotaScopeNotTerminating:
		return !ends
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(p)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(p)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return selectsOtherNamespaces(p.Spec.Affinity)
	case corev1.ResourceQuotaScopePriorityClass:
		class := p.Spec.PriorityClassName
		switch r.Operator {
		case corev1.ScopeSelectorOpExists:
			return class != ""
		case corev1.ScopeSelectorOpDoesNotExist:
			return class == ""
		case corev1.ScopeSelectorOpIn:
			return class != "" && slices.Contains(r.Values, class)
		case corev1.ScopeSelectorOpNotIn:
			return class == "" || !slices.Contains(r.Values, class)
		}
	}
	return false
}

// bestEffort tells whether no container of a pod has a request or limit of CPU or memory.
func bestEffort(p *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, have := range []corev1.ResourceList{list[i].Resources.Requests, list[i].Resources.Limits} {
				for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
					if q := have[name]; q.Sign() > 0 {
						return false
					}
				}
			}
		}
	}
	return true
}

// selectsOtherNamespaces tells whether an affinity refers to pods of other namespaces.
func selectsOtherNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for _, t := range preferred {
			terms = append(terms, t.PodAffinityTerm)
		}
	}
	if p := a.PodAffinity; p != nil {
		add(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		add(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		return len(t.Namespaces) > 0 || t.NamespaceSelector != nil
	})
}

// QuotaStatus returns the status that a quota should have. next is when the next pod that is being
// deleted stops counting; zero: there is none.
func QuotaStatus(s Snapshot, q *corev1.ResourceQuota, now time.Time) (st corev1.ResourceQuotaStatus, next time.Time) {
	st.Hard, st.Used = q.Spec.Hard.DeepCopy(), corev1.ResourceList{}
	for name := range q.Spec.Hard {
		st.Used[name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	self := false
	for _, kind := range names {
		if !kind.Namespaced() || !limitsKind(q, kind) {
			continue
		}
		for o := range s.All(kind, q.Namespace) {
			self = self || kind == ResourceQuotas && o.GetName() == q.Name
			add(st.Used, Charged(q, o, now))
			if p, ok := o.(*corev1.Pod); ok {
				if ends := QuotaEnds(p); !ends.IsZero() && !ends.Before(now) && (next.IsZero() || ends.Before(next)) {
					next = ends
				}
			}
		}
	}
	if !self { // a quota that is being created counts itself
		add(st.Used, Charged(q, q, now))
	}
	return st, next
}

// limitsKind tells whether a quota limits anything of a kind.
func limitsKind(q *corev1.ResourceQuota, k Kind) bool {
	if k == Pods || k == Claims {
		return true
	}
	_, byCount := q.Spec.Hard[countName(k)]
	_, byName := q.Spec.Hard[corev1.ResourceName(k)]
	return byCount && countName(k) != "" || byName
}

// add adds one list to another, in place.
func add(to, more corev1.ResourceList) {
	for name, q := range more {
		sum := to[name].DeepCopy()
		sum.Add(q)
		to[name] = sum
	}
}

// Quotas walks the quotas of a namespace.
func (s Snapshot) Quotas(namespace string) func(yield func(*corev1.ResourceQuota) bool) {
	return Each[*corev1.ResourceQuota](s, ResourceQuotas, namespace)
}

// WithUsage returns a copy of the quota with more usage in its status; nil if more is empty.
func WithUsage(q *corev1.ResourceQuota, more corev1.ResourceList) *corev1.ResourceQuota {
	if len(more) == 0 {
		return nil
	}
	q = q.DeepCopy()
	if q.Status.Used == nil {
		q.Status.Used = corev1.ResourceList{}
	}
	add(q.Status.Used, more)
	return q
}

// SameCharge tells whether a change of an object cannot matter to any quota.
func SameCharge(old, next Object) bool {
	was, ok := old.(*corev1.Pod)
	is, also := next.(*corev1.Pod)
	if !ok || !also {
		claim, ok := old.(*corev1.PersistentVolumeClaim)
		now, also := next.(*corev1.PersistentVolumeClaim)
		return old != nil && next != nil && (!ok || !also ||
			fleet.SameResources(claim.Spec.Resources.Requests, now.Spec.Resources.Requests) && ClassOf(claim) == ClassOf(now))
	}
	return Terminated(was) == Terminated(is) && was.DeletionTimestamp.Equal(is.DeletionTimestamp) &&
		sameRequests(was, is) && sameDeadline(was, is) && equalGrace(was.ObjectMeta, is.ObjectMeta)
}

// ClassOf returns the storage class that a claim names, "" for none.
func ClassOf(c *corev1.PersistentVolumeClaim) string { return ptr.Deref(c.Spec.StorageClassName, "") }

func sameDeadline(a, b *corev1.Pod) bool {
	return (a.Spec.ActiveDeadlineSeconds == nil) == (b.Spec.ActiveDeadlineSeconds == nil)
}

func equalGrace(a, b metav1.ObjectMeta) bool {
	x, y := a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds
	return x == y || x != nil && y != nil && *x == *y
}
