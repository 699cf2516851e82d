package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A wanted is a container of a pod that should be running or have run.
type wanted struct {
	spec *corev1.Container
	kind string
}

// everyContainer lists the containers of a pod in the order of their start, but for ephemerals.
func everyContainer(pod *corev1.Pod) []wanted {
	out := make([]wanted, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		out = append(out, wanted{&pod.Spec.InitContainers[i], KindInit})
	}
	for i := range pod.Spec.Containers {
		out = append(out, wanted{&pod.Spec.Containers[i], KindApp})
	}
	return out
}

// specOf finds a container of a pod by name; nil where it has none, or there is no pod.
func specOf(pod *corev1.Pod, name string) *corev1.Container {
	if pod == nil {
		return nil
	}
	for _, w := range slices.Concat(everyContainer(pod), ephemerals(pod)) {
		if w.spec.Name == name {
			return w.spec
		}
	}
	return nil
}

// isSidecar tells whether an init container runs on beside the others (KEP-753).
func isSidecar(w wanted) bool {
	return w.kind == KindInit && w.spec.RestartPolicy != nil && *w.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// needsSandbox tells whether a pod needs a network of its own that outlives its
// containers: where several of them share it, or its processes, or one is told its address before it starts. Another
// pod with one container owns its network through that container, and one on the host's network needs none.
func needsSandbox(pod *corev1.Pod) bool {
	return (!alone(pod) || sharesProcesses(pod) || asksAddress(pod) || named(pod)) && !pod.Spec.HostNetwork
}

// named tells whether a pod's hosts file says more than an engine's does.
func named(pod *corev1.Pod) bool { return len(pod.Spec.HostAliases) > 0 || pod.Spec.Subdomain != "" }

// alone tells whether a pod has one container.
func alone(pod *corev1.Pod) bool {
	return len(pod.Spec.InitContainers)+len(pod.Spec.Containers) == 1
}

// asksAddress tells whether a container's environment names the pod's address.
func asksAddress(pod *corev1.Pod) bool {
	return slices.ContainsFunc(everyContainer(pod), func(w wanted) bool {
		return slices.ContainsFunc(w.spec.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && isAddress(e.ValueFrom.FieldRef.FieldPath)
		})
	})
}

// isAddress tells whether a field is the pod's address, which is known once its network is there.
func isAddress(field string) bool { return field == "status.podIP" || field == "status.podIPs" }

// sharesProcesses tells whether the containers of a pod see each other's processes. The
// first of them is then the sandbox's.
func sharesProcesses(pod *corev1.Pod) bool { return isTrue(pod.Spec.ShareProcessNamespace) }

// restarts tells whether a container is wanted again that has ended: for other resources, or by the restart policy: the first of the container's rules
// that its exit code is of, the container's policy, the pod's.
func restarts(pod *corev1.Pod, w wanted, c *ContainerRecord) bool {
	policy := policyOf(pod, w)
	if isSidecar(w) || resized(c.Hash, w.spec) || slices.ContainsFunc(w.spec.RestartPolicyRules, func(rule corev1.ContainerRestartRule) bool {
		return ruled(rule, int32(c.Ended.ExitCode))
	}) {
		return true
	}
	if w.kind == KindInit && policy == corev1.RestartPolicyAlways {
		policy = corev1.RestartPolicyOnFailure
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return c.Ended.ExitCode != 0
	}
	return true
}

// policyOf is the restart policy of a container: its own, or the pod's.
func policyOf(pod *corev1.Pod, w wanted) corev1.RestartPolicy {
	if w.spec.RestartPolicy != nil {
		return corev1.RestartPolicy(*w.spec.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// ruled tells whether an exit code is one that a rule is for, whose only action is to restart.
func ruled(rule corev1.ContainerRestartRule, code int32) bool {
	return rule.ExitCodes != nil && slices.Contains(rule.ExitCodes.Values, code) == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
}

// initDone tells whether an init container needs to run no more: it has ended well
// under this boot of the device, or, a sidecar, has started. A container that is gone
// tells nothing: what an init container did goes with the pod's network, as with the
// kubelet's, and it runs again in a new one.
func initDone(w wanted, c *ContainerRecord, boot string) bool {
	if isSidecar(w) {
		return c.Running() && startedUp(w.spec, c)
	}
	return c.ID != "" && c.Ended != nil && c.Ended.ExitCode == 0 && sameBoot(c.Boot, boot)
}

// initialized tells whether every init container is done, which is also so when an
// app container has been started under this boot, in the network that the pod has now.
func initialized(pod *corev1.Pod, r *Record, boot string) bool {
	for _, w := range everyContainer(pod) {
		c := r.peek(w.spec.Name)
		if w.kind == KindApp && c.ID != "" && sameBoot(c.Boot, boot) && (c.Network == "" || c.Network == r.peek("").ID) {
			return true
		}
	}
	for _, w := range everyContainer(pod) {
		if w.kind == KindInit && !initDone(w, r.peek(w.spec.Name), boot) {
			return false
		}
	}
	return true
}

// wanted lists the containers of a pod that should be started, be it now or after
// their back-off.
func (p *pass) wanted(pod *corev1.Pod, r *Record) []wanted {
	var out []wanted
	ready := initialized(pod, r, p.o.Node.Boot)
	for _, w := range everyContainer(pod) {
		c := r.peek(w.spec.Name)
		if w.kind == KindInit && !isSidecar(w) {
			if ready || initDone(w, c, p.o.Node.Boot) {
				continue
			}
			if !c.Running() {
				out = append(out, w)
			}
			return out // one after the other
		}
		if !c.Running() && (c.Ended == nil || restarts(pod, w, c)) {
			out = append(out, w)
		}
		if p.holdsUp(pod, w, c) {
			return out
		}
		if !ready && isSidecar(w) && !initDone(w, c, p.o.Node.Boot) {
			return out
		}
	}
	return out
}

// leaves tells whether a pod that ran here is being deleted: nothing of it is started again.
func leaves(pod *corev1.Pod, r *Record) bool {
	return pod.DeletionTimestamp != nil && r != nil && r.Admitted
}

// phaseOf is the phase of a pod, as the kubelet finds it.
func phaseOf(pod *corev1.Pod, r *Record, boot string) corev1.PodPhase {
	if r == nil {
		return corev1.PodPending
	}
	if r.Verdict != nil {
		return corev1.PodFailed
	}
	leaving := leaves(pod, r)
	started, live, failed := true, false, false
	for _, w := range everyContainer(pod) {
		c := r.peek(w.spec.Name)
		if leaving && c.Running() {
			leaving = false // not yet
		}
		if w.kind == KindInit {
			if c.Ended != nil && !c.Running() && c.Ended.ExitCode != 0 && !restarts(pod, w, c) && !initialized(pod, r, boot) {
				return corev1.PodFailed
			}
			continue
		}
		switch {
		case c.Running() && !starting(w.spec, c) || c.Last != nil && c.Ended == nil:
			live = true
		case c.Ended == nil:
			started = false
		case pod.DeletionTimestamp == nil && restarts(pod, w, c):
			live = true
		case c.Ended.ExitCode != 0:
			failed = true
		}
	}
	switch {
	case leaving && (!started || live): // it has not done what it was to do
		return corev1.PodFailed
	case !started:
		return corev1.PodPending
	case live:
		return corev1.PodRunning
	case failed:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

// ended tells whether a phase is a last one.
func ended(ph corev1.PodPhase) bool { return ph == corev1.PodSucceeded || ph == corev1.PodFailed }

// specHash tells one definition of a container from another: by its image, and by the
// resources that it is restarted for. A hash over more would restart everything when
// the agent learns a new field.
func specHash(c *corev1.Container) string {
	b, _ := json.Marshal([]string{c.Name, c.Image}) // strings always encode
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]) + restartSize(c)
}

// deletionGrace is how long the containers of a pod may take to stop.
func deletionGrace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		seconds = *pod.DeletionGracePeriodSeconds
	}
	return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second // more is no grace any more, but less than none
}

// orphanGrace is the grace that the labels of a pod's containers remember.
func orphanGrace(all []Instance) time.Duration {
	for _, in := range all {
		if s, err := strconv.Atoi(in.Labels[LabelGrace]); err == nil && s >= 0 {
			return time.Duration(min(s, math.MaxInt32)) * time.Second
		}
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// probeGrace is the grace of a container that a probe has condemned.
func probeGrace(pod *corev1.Pod, spec *corev1.Container, c *ContainerRecord) time.Duration {
	for _, k := range []ProbeKind{Liveness, Startup} {
		if pr := probeOf(spec, k); pr != nil && c.Probe[k].Failed && pr.TerminationGracePeriodSeconds != nil {
			return time.Duration(min(max(*pr.TerminationGracePeriodSeconds, 0), math.MaxInt32)) * time.Second
		}
	}
	return deletionGrace(pod)
}

// sameBoot compares boot ids; one that could not be read tells nothing.
func sameBoot(a, b string) bool { return a == b || a == "" || b == "" }
