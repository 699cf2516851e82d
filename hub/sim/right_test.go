package sim

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// wrong returns the first difference between the hub's state and the devices; "": no difference.
// Every reachable device must be Ready with the conditions that it reports, and must run exactly
// its pods, and the hub must know their statuses.
func (w *world) wrong() string {
	if w.hub == nil {
		return "the hub does not run"
	}
	s := w.snapshot()
	up := 0
	for _, d := range w.devices {
		if !w.reached(d) || d.key != d.name {
			continue
		}
		up++
		if why := w.wrongWith(s, d); why != "" {
			return d.name + ": " + why
		}
	}
	if up == 0 {
		return ""
	}
	for p := range s.Pods("") {
		if p.Spec.NodeName == "" && len(p.Spec.NodeSelector) == 0 {
			return fmt.Sprintf("pod %s has no node", p.Name)
		}
	}
	for app := range s.All(state.Deployments, "") {
		d := s.Deployment(app.GetNamespace(), app.GetName())
		if w.anyCrashing(s) {
			break
		}
		if len(d.Spec.Template.Spec.NodeSelector) == 0 &&
			(d.Status.ReadyReplicas != *d.Spec.Replicas || d.Status.Replicas != *d.Spec.Replicas) {
			return fmt.Sprintf("deployment %s has %d pods, %d of them ready, want %d", d.Name, d.Status.Replicas,
				d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
	}
	return ""
}

func (w *world) wrongWith(s state.Snapshot, d *simDevice) string {
	n, rec := s.Node(d.name), s.Record(d.name)
	if n == nil || rec == nil {
		return "the device is not registered"
	}
	st, pods := d.agent.Status(), d.agent.Pods()
	switch {
	case rec.Boot != d.link.Boot(): // not the boot of the start, because the hub may have requested another one
		return fmt.Sprintf("the hub has boot %s, the device %s", rec.Boot, d.link.Boot())
	case rec.Paused:
		return "the device is paused"
	case d.agent.StoredGeneration() != rec.Generation || pods.Generation != rec.Generation:
		return fmt.Sprintf("the device has stored generation %d and runs %d, want %d", d.agent.StoredGeneration(),
			pods.Generation, rec.Generation)
	case !apiequality.Semantic.DeepEqual(n.Status.Addresses, st.Status.Addresses):
		return "the hub has other addresses for the device"
	}
	for _, c := range st.Status.Conditions {
		if have := state.NodeCondition(n, c.Type); have == nil || have.Status != c.Status {
			return fmt.Sprintf("the device reports %s=%s, and the hub has %v", c.Type, c.Status, have)
		}
	}
	if state.ReadyOf(n) == corev1.ConditionTrue {
		for _, t := range n.Spec.Taints {
			if t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady {
				return "the node is Ready and tainted " + t.ToString()
			}
		}
	}
	reported := map[types.UID]wire.PodStatus{}
	for _, p := range pods.Pods {
		reported[p.UID] = p
	}
	running := d.running()
	for p := range s.PodsOn(d.name) {
		is, ok := reported[p.UID]
		switch {
		case p.DeletionTimestamp != nil:
			return fmt.Sprintf("pod %s is still terminating", p.Name)
		case !ok:
			return fmt.Sprintf("the device does not have pod %s", p.Name)
		case p.Status.Phase != is.Status.Phase:
			return fmt.Sprintf("pod %s is %s, and the hub has %s", p.Name, is.Status.Phase, p.Status.Phase)
		case !w.clocksLie && written(p.Status.ContainerStatuses) != written(is.Status.ContainerStatuses):
			return fmt.Sprintf("the hub has another status of the containers of pod %s", p.Name)
		case readyOf(&p.Status) != readyOf(&is.Status):
			return fmt.Sprintf("pod %s Ready=%s, and the hub has %s", p.Name, readyOf(&is.Status), readyOf(&p.Status))
		case crashing(is.Status):
			continue // the container restarts later
		case state.Terminated(p):
			continue
		case p.Status.Phase != corev1.PodRunning:
			return fmt.Sprintf("pod %s is %s", p.Name, p.Status.Phase)
		case running[p.UID] == "":
			return fmt.Sprintf("pod %s does not run on the device", p.Name)
		}
	}
	for p := range s.PodsOn(d.name) {
		delete(running, p.UID)
		delete(reported, p.UID)
	}
	for uid, name := range running {
		return fmt.Sprintf("the device runs pod %s (%s), which should not run", name, uid)
	}
	for _, p := range reported {
		return fmt.Sprintf("the device reports pod %s, which should not exist", p.Name)
	}
	return ""
}

// crashing tells whether a container waits for its back-off.
func crashing(s corev1.PodStatus) bool {
	for _, c := range s.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" {
			return true
		}
	}
	return false
}

func (w *world) anyCrashing(s state.Snapshot) bool {
	for p := range s.Pods("") {
		if crashing(p.Status) {
			return true
		}
	}
	return false
}

// written returns a value in its wire form, with times in whole seconds.
func written(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func readyOf(s *corev1.PodStatus) corev1.ConditionStatus {
	for _, c := range s.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return ""
}
