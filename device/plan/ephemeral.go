package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/podspec"
)

// LabelShares is the label with the ids of the containers whose network or processes a container
// shares. An engine may refuse to remove those containers first.
const LabelShares = "flotilla.dev/shares"

// ephemerals starts the ephemeral containers that have never run, and stops those that the policy
// forbids. Their pod keeps running.
func (p *pass) ephemerals(pod *corev1.Pod, r *Record) {
	for i, w := range podspec.Ephemerals(pod) {
		at, c := Place{pod.UID, w.Spec.Name}, r.Peek(w.Spec.Name)
		why := p.o.Policy.forbidsEphemeral(pod, i)
		switch {
		case c.Running() && why != "":
			for _, in := range p.instances[pod.UID] {
				if in.ID == c.ID {
					p.stop(in, pod, w.Spec, podspec.Grace(pod), why)
				}
			}
			continue
		case c.Running() || c.Ended != nil || !p.free(at) || !p.due(c):
			continue
		}
		s := Step{Action: Run, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, Start: r.Start,
			MonotonicStart: r.MonotonicStart, Forbidden: why}
		if why == "" {
			var ok bool
			if s.Network, ok = networkOf(pod, r); !ok {
				continue // the next list wakes the loop
			}
			if target := pod.Spec.EphemeralContainers[i].TargetContainerName; target != "" && !pod.Spec.HostPID {
				t := r.Peek(target)
				if !t.Running() {
					continue
				}
				s.Processes = t.ID
			}
		}
		s.CPUs, _, _ = p.assignCPUs(at, pod, w.Spec)
		p.step(s)
	}
}

// networkOf returns the container that has a pod's network. The id is empty if the pod uses the
// host's network, or if its only container is down. ok is false if the network does not exist yet.
func networkOf(pod *corev1.Pod, r *Record) (id string, ok bool) {
	if pod.Spec.HostNetwork {
		return "", true
	}
	owner := r.Peek("")
	if !owner.Running() && podspec.HasOneContainer(pod) {
		owner = r.Peek(podspec.Containers(pod)[0].Spec.Name)
		if !owner.Running() && !podspec.NeedsSandbox(pod) && (owner.Ended != nil || owner.Failure != nil) {
			return "", true
		}
	}
	return owner.ID, owner.Running()
}

// IsShared reports whether a present container shares an instance's network or processes.
func IsShared(all []Instance, in Instance) bool {
	return slices.ContainsFunc(all, func(other Instance) bool {
		return other.ID != in.ID && slices.Contains(strings.Fields(other.Labels[LabelShares]), in.ID)
	})
}

// forbidsEphemeral returns why an ephemeral container may not run on this device, or "".
func (p Policy) forbidsEphemeral(pod *corev1.Pod, i int) string {
	return p.forbids(&corev1.PodSpec{EphemeralContainers: pod.Spec.EphemeralContainers},
		fmt.Sprintf("spec.ephemeralContainers[%d]", i))
}
