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

// Delete is the change by which a pod is asked to leave, with the grace given or
// (nil) its own. A pod that has no node or has finished goes at once, and so does
// one with a grace of 0. Any other stays, Terminating, until its device confirms
// that it has stopped. Asking again can only shorten the grace, and only by one that
// is given: its own is not what it was given to leave. One of 0 counts also when that
// time is over: what holds the pod then is no device. Where it changes nothing, ok is false.
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

// Evict is Delete for a reason that the pod is told in its condition
// DisruptionTarget.
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

// Forced tells whether a pod is to be forgotten, whatever its device does.
func Forced(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// Released tells whether nothing holds an object any more that is to go.
func Released(o Object) bool {
	if o.GetDeletionTimestamp() == nil || len(o.GetFinalizers()) > 0 {
		return false
	}
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec.NodeName == "" || Terminated(o) || Forced(o) // else the device still has to stop it
	case *corev1.Namespace:
		return len(o.Spec.Finalizers) == 0
	}
	return true
}

// IsBuiltInNamespace tells whether a namespace is one that is always there: nobody deletes it, and it goes with no owner.
func IsBuiltInNamespace(namespace string) bool {
	switch namespace {
	case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease:
		return true
	}
	return false
}

// Display names a pod for people: without the namespace where that is default.
func Display(o metav1.Object) string {
	if ns := o.GetNamespace(); ns != "" && ns != metav1.NamespaceDefault {
		return fmt.Sprintf("%s/%s", ns, o.GetName())
	}
	return o.GetName()
}

// A Usage is what the pods of one node ask for together. Pods that are being
// deleted count until they are gone; finished ones do not.
type Usage struct {
	Pods     int64
	Requests corev1.ResourceList
	Ports    []HostPort
}

// A HostPort is a port of the device that a pod takes.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

// Requests returns what a pod asks for: the greater of the sum of its
// containers and each init container, plus overhead. Of a pod that is being
// resized it is the most of what it is to have, what its device has granted, and
// what its containers have (KEP-1287).
func Requests(p *corev1.Pod) corev1.ResourceList { return resource.PodRequests(p, sizes(p)) }

// sizes tells how to count a pod.
func sizes(p *corev1.Pod) resource.PodResourcesOptions {
	return resource.PodResourcesOptions{UseStatusResources: Resizing(p)}
}

// Resizing tells whether a device has granted a container, or a container has,
// anything else than its pod says. While that is not so, the spec alone counts.
func Resizing(p *corev1.Pod) bool {
	differs := func(list []corev1.Container, said []corev1.ContainerStatus) bool {
		for i := range said {
			st := &said[i]
			if st.Resources == nil {
				continue // not running yet, or an agent from before there was resizing
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

// HostPorts returns the ports of the device that a pod takes as long as it runs: those of
// its containers and sidecars.
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

// Add counts a pod, unless it has finished.
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

// sameRequests tells whether a pod takes the same of its node as before.
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
		return false // it is rare, and soon over
	}
	return slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, one) &&
		slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, one) &&
		fleet.SameResources(a.Spec.Overhead, b.Spec.Overhead) && fleet.SameResources(whole(a), whole(b))
}

// The priority classes that are always there, and what is said of the others.
const (
	NodeCritical        = "system-node-critical"
	ClusterCritical     = "system-cluster-critical"
	SystemClassPrefix   = "system-"
	HighestUserPriority = 1000000000 // of a class that is none of the system's, and of a pod without a class
)

// SystemClasses are the priority classes that are always there: what they are worth, and what for.
var SystemClasses = []schedulingv1.PriorityClass{
	systemClass(NodeCritical, 2000001000, "Used for system critical pods that must not be moved from their current node."),
	systemClass(ClusterCritical, 2000000000, "Used for system critical pods that must run in the cluster, but can be "+
		"moved to another node if necessary."),
}

func systemClass(name string, value int32, text string) (c schedulingv1.PriorityClass) {
	c.Name, c.Value, c.Description, c.PreemptionPolicy = name, value, text, new(corev1.PreemptLowerPriority)
	return c
}

// SystemClass returns the class of the system that has the name, nil if it is none.
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

// PriorityClass returns a priority class, nil if there is none. Those of the system are what they are, whatever
// stands in the database.
func (s Snapshot) PriorityClass(name string) *schedulingv1.PriorityClass {
	if c := SystemClass(name); c != nil {
		return c
	}
	return get[*schedulingv1.PriorityClass](s, Key{Kind: PriorityClasses, Name: name})
}

// DefaultPriorityClass returns the class of pods that name none, nil if there is none: of several the one of the
// lowest value, as Kubernetes does.
func (s Snapshot) DefaultPriorityClass() (lowest *schedulingv1.PriorityClass) {
	for c := range Each[*schedulingv1.PriorityClass](s, PriorityClasses, "") {
		if c.GlobalDefault && SystemClass(c.Name) == nil && (lowest == nil || c.Value < lowest.Value) {
			lowest = c
		}
	}
	return lowest
}

// SameObjects tells whether two snapshots have the very same objects of a kind.
func (s Snapshot) SameObjects(o Snapshot, k Kind) bool {
	return s.tables[k.index()] == o.tables[k.index()]
}
