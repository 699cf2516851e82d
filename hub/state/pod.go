package state

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"flotilla.dev/shared/fleet"
)

// Delete returns the change that deletes a pod with the given grace period; nil means the pod's
// own. A pod without a node, a finished pod, or any pod with a grace period of 0 is removed at
// once. Any other pod stays Terminating until its device confirms that it has stopped.
//
// A second deletion can only shorten the grace period, and only if it gives one. A grace period of
// 0 also counts after the deadline, because then the hub stops waiting for the device. ok is false
// if nothing changes.
func Delete(p *corev1.Pod, now time.Time, grace *int64, why string) (c Change, ok bool) {
	seconds := int64(30)
	switch {
	case grace != nil:
		seconds = max(*grace, 0)
	case p.Spec.TerminationGracePeriodSeconds != nil:
		seconds = max(*p.Spec.TerminationGracePeriodSeconds, 1)
	}
	if len(p.Finalizers) == 0 && (seconds == 0 || p.Spec.NodeName == "" || Terminated(p)) {
		return Remove(p, why), true
	}
	due := now.Add(time.Duration(seconds) * time.Second)
	if p.DeletionTimestamp != nil {
		late := !due.Before(p.DeletionTimestamp.Time)
		if grace == nil || late && (seconds > 0 || Forced(p)) {
			return Change{}, false
		}
		if late {
			due = p.DeletionTimestamp.Time
		}
	}
	p = p.DeepCopy()
	at := metav1.NewTime(due.Truncate(time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
	p.Generation++
	return Put(p, why), true
}

// Evict is Delete, and also writes the reason into the pod's condition DisruptionTarget.
func Evict(p *corev1.Pod, now time.Time, reason, why string) (Change, bool) {
	if p.DeletionTimestamp != nil {
		return Change{}, false
	}
	c, _ := Delete(p, now, nil, why)
	if !c.Delete {
		SetPodCondition(c.Object.(*corev1.Pod), corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: why,
		}, now)
	}
	return c, true
}

// Forced tells whether a pod is removed without waiting for its device.
func Forced(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// Released tells whether a deleted object can be removed: it has no finalizer, and no device still
// runs it.
func Released(o Object) bool {
	if o.GetDeletionTimestamp() == nil || len(o.GetFinalizers()) > 0 {
		return false
	}
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec.NodeName == "" || Terminated(o) || Forced(o) // otherwise the device still has to stop the pod
	case *corev1.Namespace:
		return len(o.Spec.Finalizers) == 0
	}
	return true
}

// IsBuiltInNamespace tells whether a namespace always exists. It cannot be deleted, not even by
// garbage collection.
func IsBuiltInNamespace(namespace string) bool {
	switch namespace {
	case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease:
		return true
	}
	return false
}

// Display returns an object's name for people. It omits the namespace default.
func Display(o metav1.Object) string {
	if ns := o.GetNamespace(); ns != "" && ns != metav1.NamespaceDefault {
		return fmt.Sprintf("%s/%s", ns, o.GetName())
	}
	return o.GetName()
}

// A Usage is the sum of the requests of one node's pods. A pod that is being deleted counts until
// it is removed; a finished pod does not count.
type Usage struct {
	Pods     int64
	Requests corev1.ResourceList
	Ports    []HostPort
}

// A HostPort is a port of the device that a pod uses.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

// Requests returns the resources that a pod requests: the larger of the sum of its containers and
// each init container, plus overhead. While a pod is resized, the largest of its requested, granted
// and actual resources counts (KEP-1287).
func Requests(p *corev1.Pod) corev1.ResourceList { return resource.PodRequests(p, sizes(p)) }

// sizes returns the options for counting a pod.
func sizes(p *corev1.Pod) resource.PodResourcesOptions {
	return resource.PodResourcesOptions{UseStatusResources: Resizing(p)}
}

// Resizing tells whether the granted or actual resources of a container differ from the pod's spec.
// Otherwise only the spec counts.
func Resizing(p *corev1.Pod) bool {
	differs := func(list []corev1.Container, statuses []corev1.ContainerStatus) bool {
		for i := range statuses {
			st := &statuses[i]
			if st.Resources == nil {
				continue // not running yet, or an agent without support for resizing
			}
			at := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == st.Name })
			if at < 0 {
				continue
			}
			want := &list[at].Resources
			if !fleet.SameResources(want.Requests, st.AllocatedResources) ||
				!fleet.SameResources(want.Requests, st.Resources.Requests) ||
				!fleet.SameResources(want.Limits, st.Resources.Limits) {
				return true
			}
		}
		return false
	}
	return differs(p.Spec.Containers, p.Status.ContainerStatuses) ||
		differs(p.Spec.InitContainers, p.Status.InitContainerStatuses)
}

// HostPorts returns the device ports that a pod uses while it runs: those of its containers and
// sidecars.
func HostPorts(p *corev1.Pod) (ports []HostPort) {
	take := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				ports = append(ports, HostPort{port.HostIP, port.Protocol, port.HostPort})
			}
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	for i := range p.Spec.Containers {
		take(&p.Spec.Containers[i])
	}
	return ports
}

// Add counts a pod unless it has finished.
func (u *Usage) Add(p *corev1.Pod) {
	if Terminated(p) {
		return
	}
	u.Pods++
	for name, q := range Requests(p) {
		if u.Requests == nil {
			u.Requests = corev1.ResourceList{}
		}
		sum := u.Requests[name]
		sum.Add(q)
		u.Requests[name] = sum
	}
	u.Ports = append(u.Ports, HostPorts(p)...)
}

// sameRequests tells whether two versions of a pod use the same resources and ports of their node.
func sameRequests(a, b *corev1.Pod) bool {
	one := func(x, y corev1.Container) bool {
		return fleet.SameResources(x.Resources.Requests, y.Resources.Requests) && slices.Equal(x.Ports, y.Ports) &&
			(x.RestartPolicy == nil) == (y.RestartPolicy == nil)
	}
	whole := func(p *corev1.Pod) corev1.ResourceList {
		if p.Spec.Resources == nil {
			return nil
		}
		return p.Spec.Resources.Requests
	}
	if Resizing(a) || Resizing(b) {
		return false // count the requests again; resizes are rare and short
	}
	return slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, one) &&
		slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, one) &&
		fleet.SameResources(a.Spec.Overhead, b.Spec.Overhead) && fleet.SameResources(whole(a), whole(b))
}

// The built-in priority classes, and the highest value of all other classes.
const (
	NodeCritical        = "system-node-critical"
	ClusterCritical     = "system-cluster-critical"
	SystemClassPrefix   = "system-"
	HighestUserPriority = 1000000000 // of user-defined classes and of pods without a class
)

// SystemClasses are the built-in priority classes with their values and descriptions.
var SystemClasses = []schedulingv1.PriorityClass{
	systemClass(NodeCritical, 2000001000, "Used for system critical pods that must not be moved from their current node."),
	systemClass(ClusterCritical, 2000000000, "Used for system critical pods that must run in the cluster, but can be "+
		"moved to another node if necessary."),
}

func systemClass(name string, value int32, text string) (c schedulingv1.PriorityClass) {
	c.Name, c.Value, c.Description, c.PreemptionPolicy = name, value, text, new(corev1.PreemptLowerPriority)
	return c
}

// SystemClass returns the built-in class with the name, nil for none.
func SystemClass(name string) *schedulingv1.PriorityClass {
	if !strings.HasPrefix(name, SystemClassPrefix) {
		return nil
	}
	for i := range SystemClasses {
		if SystemClasses[i].Name == name {
			return &SystemClasses[i]
		}
	}
	return nil
}

// PriorityClass returns a priority class, nil if there is none. The built-in classes always exist;
// the database cannot change them.
func (s Snapshot) PriorityClass(name string) *schedulingv1.PriorityClass {
	if c := SystemClass(name); c != nil {
		return c
	}
	return get[*schedulingv1.PriorityClass](s, Key{Kind: PriorityClasses, Name: name})
}

// DefaultPriorityClass returns the class of pods without one, nil if there is none. Of several
// defaults the one with the lowest value counts, as in Kubernetes.
func (s Snapshot) DefaultPriorityClass() (lowest *schedulingv1.PriorityClass) {
	for c := range Each[*schedulingv1.PriorityClass](s, PriorityClasses, "") {
		if c.GlobalDefault && SystemClass(c.Name) == nil && (lowest == nil || c.Value < lowest.Value) {
			lowest = c
		}
	}
	return lowest
}

// SameObjects tells whether two snapshots share the table of a kind, so that no object of the kind
// has changed.
func (s Snapshot) SameObjects(o Snapshot, k Kind) bool {
	return s.tables[k.index()] == o.tables[k.index()]
}
