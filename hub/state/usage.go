package state

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"flotilla.dev/shared/fleet"
)

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
			if !fleet.SameResources(want.Requests, st.AllocatedResources) || !fleet.SameResources(want.Requests, st.Resources.Requests) || !fleet.SameResources(want.Limits, st.Resources.Limits) {
				return true
			}
		}
		return false
	}
	return differs(p.Spec.Containers, p.Status.ContainerStatuses) || differs(p.Spec.InitContainers, p.Status.InitContainerStatuses)
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

// sameAsk tells whether a pod takes the same of its node as before.
func sameAsk(a, b *corev1.Pod) bool {
	one := func(x, y corev1.Container) bool {
		return fleet.SameResources(x.Resources.Requests, y.Resources.Requests) && slices.Equal(x.Ports, y.Ports) && (x.RestartPolicy == nil) == (y.RestartPolicy == nil)
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
	return slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, one) && slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, one) &&
		fleet.SameResources(a.Spec.Overhead, b.Spec.Overhead) && fleet.SameResources(whole(a), whole(b))
}
