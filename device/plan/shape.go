package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// restarts tells whether a container is wanted again that has ended: for other resources, or by the
// restart policy: the first of the container's rules that its exit code is of, the container's
// policy, the pod's.
func restarts(pod *corev1.Pod, w podspec.Container, c *ContainerRecord) bool {
	policy := podspec.RestartPolicy(pod, w)
	if podspec.IsSidecar(w) || resized(c.Hash, w.Spec) || slices.ContainsFunc(w.Spec.RestartPolicyRules,
		func(rule corev1.ContainerRestartRule) bool {
			return ruled(rule, int32(c.Ended.ExitCode))
		}) {
		return true
	}
	if w.Kind == podspec.KindInit && policy == corev1.RestartPolicyAlways {
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

// ruled tells whether an exit code is one that a rule is for, whose only action is to restart.
func ruled(rule corev1.ContainerRestartRule, code int32) bool {
	return rule.ExitCodes != nil && slices.Contains(rule.ExitCodes.Values,
		code) == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
}

// initDone tells whether an init container needs to run no more: it has ended well
// under this boot of the device, or, a sidecar, has started. A container that is gone
// tells nothing: what an init container did goes with the pod's network, as with the
// kubelet's, and it runs again in a new one.
func initDone(w podspec.Container, c *ContainerRecord, boot string) bool {
	if podspec.IsSidecar(w) {
		return c.Running() && startedUp(w.Spec, c)
	}
	return c.ID != "" && c.Ended != nil && c.Ended.ExitCode == 0 && sameBoot(c.Boot, boot)
}

// initialized tells whether every init container is done, which is also so when an
// app container has been started under this boot, in the network that the pod has now.
func initialized(pod *corev1.Pod, r *Record, boot string) bool {
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		if w.Kind == podspec.KindApp && c.ID != "" && sameBoot(c.Boot, boot) &&
			(c.Network == "" || c.Network == r.Peek("").ID) {
			return true
		}
	}
	for _, w := range podspec.Containers(pod) {
		if w.Kind == podspec.KindInit && !initDone(w, r.Peek(w.Spec.Name), boot) {
			return false
		}
	}
	return true
}

// wanted lists the containers of a pod that should be started, be it now or after
// their back-off.
func (p *pass) wanted(pod *corev1.Pod, r *Record) []podspec.Container {
	var out []podspec.Container
	ready := initialized(pod, r, p.o.Node.Boot)
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		if w.Kind == podspec.KindInit && !podspec.IsSidecar(w) {
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
		if !ready && podspec.IsSidecar(w) && !initDone(w, c, p.o.Node.Boot) {
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
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		if leaving && c.Running() {
			leaving = false // not yet
		}
		if w.Kind == podspec.KindInit {
			if c.Ended != nil && !c.Running() && c.Ended.ExitCode != 0 && !restarts(pod, w, c) && !initialized(pod, r, boot) {
				return corev1.PodFailed
			}
			continue
		}
		switch {
		case c.Running() && !starting(w.Spec, c) || c.Last != nil && c.Ended == nil:
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

// IsFinal tells whether a phase is a last one.
func IsFinal(ph corev1.PodPhase) bool { return ph == corev1.PodSucceeded || ph == corev1.PodFailed }

// specHash tells one definition of a container from another: by its image, and by the
// resources that it is restarted for. A hash over more would restart everything when
// the agent learns a new field.
func specHash(c *corev1.Container) string {
	b, _ := json.Marshal([]string{c.Name, c.Image}) // strings always encode
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]) + restartSize(c)
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
	for _, k := range []podspec.ProbeKind{podspec.Liveness, podspec.Startup} {
		if pr := podspec.ProbeOf(spec, k); pr != nil && c.Probe[k].Failed && pr.TerminationGracePeriodSeconds != nil {
			return time.Duration(min(max(*pr.TerminationGracePeriodSeconds, 0), math.MaxInt32)) * time.Second
		}
	}
	return podspec.Grace(pod)
}

// sameBoot compares boot ids; one that could not be read tells nothing.
func sameBoot(a, b string) bool { return a == b || a == "" || b == "" }

// SourcesOf is what the environment and files of a pod are made of.
func SourcesOf(d wire.Desired, pod *corev1.Pod, node Facts, podIP string) podspec.Sources {
	return podspec.Sources{Pod: pod, ConfigMaps: d.ConfigMaps, Secrets: d.Secrets, Volumes: d.Volumes,
		NodeName: node.Name, HostIPs: node.hostIPs(), PodIP: podIP, Allocatable: node.Allocatable}
}
