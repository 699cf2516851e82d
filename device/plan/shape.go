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

// restarts reports whether an ended container restarts: for a resize, or by the first matching rule
// of the container, the container's policy, or the pod's policy.
func restarts(pod *corev1.Pod, w podspec.Container, c *ContainerRecord) bool {
	policy := podspec.RestartPolicy(pod, w)
	if podspec.IsSidecar(w) || resized(c.Hash, w.Spec) || slices.ContainsFunc(w.Spec.RestartPolicyRules,
		func(rule corev1.ContainerRestartRule) bool {
			return ruleMatches(rule, int32(c.Ended.ExitCode))
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

// ruleMatches reports whether a rule applies to an exit code. The only action of a rule is to
// restart.
func ruleMatches(rule corev1.ContainerRestartRule, code int32) bool {
	return rule.ExitCodes != nil && slices.Contains(rule.ExitCodes.Values,
		code) == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
}

// initDone reports whether an init container need not run again: it has succeeded since the boot
// or, as a sidecar, started. If the container was removed, that is unknown; as with the kubelet, it
// runs again in a new sandbox.
func initDone(w podspec.Container, c *ContainerRecord, boot string) bool {
	if podspec.IsSidecar(w) {
		return c.Running() && startedUp(w.Spec, c)
	}
	return c.ID != "" && c.Ended != nil && c.Ended.ExitCode == 0 && sameBoot(c.Boot, boot)
}

// initialized reports whether every init container is done. An app container that started since the
// boot in the current sandbox proves that too.
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

// wanted lists the containers of a pod to start, now or after their back-off.
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
			return out // the next init container starts when this one has ended
		}
		if !c.Running() && (c.Ended == nil || restarts(pod, w, c)) {
			out = append(out, w)
		}
		if p.blocksNext(pod, w, c) {
			return out
		}
		if !ready && podspec.IsSidecar(w) && !initDone(w, c, p.o.Node.Boot) {
			return out
		}
	}
	return out
}

// isLeaving reports whether an admitted pod is being deleted. Its containers do not start again.
func isLeaving(pod *corev1.Pod, r *Record) bool {
	return pod.DeletionTimestamp != nil && r != nil && r.Admitted
}

// phaseOf is the phase of a pod, computed like the kubelet's.
func phaseOf(pod *corev1.Pod, r *Record, boot string) corev1.PodPhase {
	if r == nil {
		return corev1.PodPending
	}
	if r.Verdict != nil {
		return corev1.PodFailed
	}
	leaving := isLeaving(pod, r)
	started, live, failed := true, false, false
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		if leaving && c.Running() {
			leaving = false // the pod is not leaving yet
		}
		if w.Kind == podspec.KindInit {
			if c.Ended != nil && !c.Running() && c.Ended.ExitCode != 0 && !restarts(pod, w, c) && !initialized(pod, r, boot) {
				return corev1.PodFailed
			}
			continue
		}
		switch {
		case c.Running() && !postStartPending(w.Spec, c) || c.Last != nil && c.Ended == nil:
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
	case leaving && (!started || live): // the pod did not complete
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

// IsFinal reports whether a phase is final.
func IsFinal(ph corev1.PodPhase) bool { return ph == corev1.PodSucceeded || ph == corev1.PodFailed }

// specHash identifies a container's definition: its image and the resources that need a restart.
// With more fields, an agent that supports a new field would restart every container.
func specHash(c *corev1.Container) string {
	b, _ := json.Marshal([]string{c.Name, c.Image}) // cannot fail
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]) + restartHash(c)
}

// orphanGrace is the grace period of an unknown pod, from its containers' labels.
func orphanGrace(all []Instance) time.Duration {
	for _, in := range all {
		if s, err := strconv.Atoi(in.Labels[LabelGrace]); err == nil && s >= 0 {
			return time.Duration(min(s, math.MaxInt32)) * time.Second
		}
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// probeGrace is the grace period of a container that a probe has failed.
func probeGrace(pod *corev1.Pod, spec *corev1.Container, c *ContainerRecord) time.Duration {
	for _, k := range []podspec.ProbeKind{podspec.Liveness, podspec.Startup} {
		if pr := podspec.ProbeOf(spec, k); pr != nil && c.Probe[k].Failed && pr.TerminationGracePeriodSeconds != nil {
			return time.Duration(min(max(*pr.TerminationGracePeriodSeconds, 0), math.MaxInt32)) * time.Second
		}
	}
	return podspec.Grace(pod)
}

// sameBoot compares boot ids. An unknown id matches any id.
func sameBoot(a, b string) bool { return a == b || a == "" || b == "" }

// SourcesOf returns the sources of a pod's environment and files.
func SourcesOf(d wire.Desired, pod *corev1.Pod, node Facts, podIP string) podspec.Sources {
	return podspec.Sources{Pod: pod, ConfigMaps: d.ConfigMaps, Secrets: d.Secrets, Volumes: d.Volumes,
		NodeName: node.Name, HostIPs: node.hostIPs(), PodIP: podIP, Allocatable: node.Allocatable}
}
