package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

const toleration = 3 * time.Second

// kioskYAML tolerates a lost node for three seconds. Its container ignores SIGTERM until the grace
// period ends.
const kioskYAML = `apiVersion: apps/v1
kind: Deployment
metadata: {name: kiosk}
spec:
  replicas: 2
  selector: {matchLabels: {app: kiosk}}
  template:
    metadata: {labels: {app: kiosk}}
    spec:
      terminationGracePeriodSeconds: 2
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 3}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 3}
      containers:
      - {name: main, image: "flotilla.test/tool:1", imagePullPolicy: Never, args: [stubborn]}
`

// One of two devices on two sites falls silent, its pod is replaced, and the device returns.
func TestASilentDevice(t *testing.T) {
	engines(t, func(t *testing.T, e *engine) {
		h := newHub(t, "--node-eviction-rate", "10") // fast, because a failed start may have used the site's first eviction
		oslo, bergen := h.join("oslo", e), h.join("bergen", e)
		oslo.run()
		bergen.run()
		for _, d := range []*device{oslo, bergen} {
			await(t, d.node+" is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		}
		h.registered(oslo, "oslo")

		if printed := h.kubectlWith(kioskYAML, "apply", "-f", "-"); !strings.Contains(printed,
			"deployment.apps/kiosk created") {
			t.Errorf("kubectl apply printed %q, want the created deployment", printed)
		}
		h.runsOn(oslo, 1)
		h.runsOn(bergen, 1)
		await(t, "both replicas are available", patience, func() error { return h.available("kiosk", 2) })
		old, err := h.pods("kiosk", oslo.node)
		if err != nil || len(old) != 1 {
			t.Fatalf("node %s has %d pods, %v; want 1", oslo.node, len(old), err)
		}

		oslo.kill()
		seen := h.lastSeen(oslo.node)
		h.becomesUnknown(oslo, seen)
		h.leaves(oslo, old[0])
		h.runsOn(bergen, 2)
		await(t, "the replacement is available", patience, func() error { return h.available("kiosk", 2) })
		if list, err := e.running(oslo.node); err != nil || len(list) != 1 {
			t.Errorf("the lost device must keep its containers: %d run, %v", len(list), err)
		}

		oslo.run()
		h.comesBack(oslo, old[0])
		for _, want := range []string{"NodeNotReady", "TaintManagerEviction", "NodeReady"} {
			if events := h.kubectl("get", "events", "-A"); !strings.Contains(events, want) {
				t.Errorf("event %s is missing in\n%s", want, events)
			}
		}
	})
}

// registered checks the labels, addresses and capacity of a node that has joined.
func (h *hub) registered(d *device, site string) {
	h.t.Helper()
	n, err := h.node(d.node)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, label := range []string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable} {
		if n.Labels[label] == "" {
			h.t.Errorf("the node has no label %s", label)
		}
	}
	if got := n.Labels[corev1.LabelTopologyZone]; got != site {
		h.t.Errorf("the node is on site %q, want %s as in the token", got, site)
	}
	if got := n.Labels["floor"]; got != "2" {
		h.t.Errorf("label floor=%q, join was given 2", got)
	}
	i := n.Status.NodeInfo
	for what, value := range map[string]string{
		"kernel": i.KernelVersion, "OS image": i.OSImage, "engine": i.ContainerRuntimeVersion, "agent": i.KubeletVersion,
		"machine id": i.MachineID, "boot id": i.BootID, "architecture": i.Architecture,
	} {
		if value == "" {
			h.t.Errorf("the node has no %s", what)
		}
	}
	if !strings.HasPrefix(i.ContainerRuntimeVersion, d.engine.name+"://") {
		h.t.Errorf("the engine is %q, want %s", i.ContainerRuntimeVersion, d.engine.name)
	}
	for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
			corev1.ResourcePods} {
			if q := list[name]; q.Sign() <= 0 {
				h.t.Errorf("the node reports %s of %s, want more than 0", q.String(), name)
			}
		}
	}
	if len(n.Status.Addresses) == 0 {
		h.t.Error("the node has no address")
	}
}

// runsOn waits until a device's engine runs exactly this number of containers.
func (h *hub) runsOn(d *device, count int) {
	h.t.Helper()
	await(h.t, fmt.Sprintf("%d containers on %s", count, d.node), patience, func() error {
		list, err := d.engine.running(d.node)
		if err == nil && len(list) != count {
			err = fmt.Errorf("%d run", len(list))
		}
		return err
	})
}

func (h *hub) available(deployment string, want int32) error {
	d, err := h.deployment(deployment)
	if err == nil && (d.Status.AvailableReplicas != want || d.Status.Replicas != want) {
		err = fmt.Errorf("%d replicas, %d available", d.Status.Replicas, d.Status.AvailableReplicas)
	}
	return err
}

// lastSeen returns when the hub last received a lease of a node, or zero if it has not since its
// start.
func (h *hub) lastSeen(node string) time.Time {
	h.t.Helper()
	var l coordv1.Lease
	if err := h.read("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+node, &l); err != nil {
		h.t.Fatal(err)
	}
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// becomesUnknown checks that Ready becomes Unknown, but not before the grace period ends. The tests
// of the simulated fleet check how soon, because they do not depend on a busy machine.
func (h *hub) becomesUnknown(d *device, seen time.Time) {
	h.t.Helper()
	await(h.t, "Ready of the silent node becomes Unknown", grace+patience,
		func() error { return h.ready(d.node, corev1.ConditionUnknown) })
	if after := time.Since(seen); after < grace {
		h.t.Errorf("Ready became Unknown %s after the last heartbeat, the grace is %s", after, grace)
	}
	n, err := h.node(d.node)
	if err != nil {
		h.t.Fatal(err)
	}
	if c := ready(n); c.Reason != "NodeStatusUnknown" || c.Message != "Kubelet stopped posting node status." {
		h.t.Errorf("Ready is Unknown with %s: %s; want Kubernetes' reason and message", c.Reason, c.Message)
	}
	if !tainted(n, corev1.TaintEffectNoSchedule) {
		h.t.Fatalf("the taints of the silent node are %v, want NoSchedule", n.Spec.Taints)
	}
	await(h.t, "the node is tainted after the check of its site", patience, func() error {
		n, err := h.node(d.node)
		if err == nil && !tainted(n, corev1.TaintEffectNoExecute) {
			err = fmt.Errorf("the node's taints are %v, want NoExecute", n.Spec.Taints)
		}
		return err
	})
	if out := h.kubectl("get", "node", d.node); !strings.Contains(out, "NotReady") {
		h.t.Errorf("kubectl get node prints %s, want NotReady", out)
	}
}

func tainted(n corev1.Node, effect corev1.TaintEffect) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeUnreachable && t.Effect == effect
	})
}

// leaves checks that the pod is Terminating after its toleration, and stays Terminating.
func (h *hub) leaves(d *device, old corev1.Pod) {
	h.t.Helper()
	n, err := h.node(d.node)
	if err != nil {
		h.t.Fatal(err)
	}
	var since time.Time
	for _, taint := range n.Spec.Taints {
		if taint.Effect == corev1.TaintEffectNoExecute && taint.TimeAdded != nil {
			since = taint.TimeAdded.Time
		}
	}
	find := func() (corev1.Pod, error) {
		var p corev1.Pod
		return p, h.read("/api/v1/namespaces/default/pods/"+old.Name, &p)
	}
	await(h.t, "the pod of the silent node is Terminating", patience, func() error {
		p, err := find()
		if err == nil && p.DeletionTimestamp == nil {
			err = errors.New("the pod is not Terminating")
		}
		return err
	})
	if after := time.Since(since); after < toleration {
		h.t.Errorf("the pod was Terminating %s after the taint, want %s", after, toleration)
	}
	if out := h.kubectl("get", "pod", old.Name); !strings.Contains(out, "Terminating") {
		h.t.Errorf("kubectl get pod prints %s, want Terminating", out)
	}
	p, err := find()
	if err != nil {
		h.t.Fatal(err)
	}
	if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByTaintManager"
	}) {
		h.t.Errorf("the conditions of the evicted pod have no reason: %v", p.Status.Conditions)
	}
}

// comesBack checks that the device stops the old container and the pod is removed only after that.
// The hub never removes a pod whose container runs.
func (h *hub) comesBack(d *device, old corev1.Pod) {
	h.t.Helper()
	await(h.t, "the old pod is removed", patience, func() error {
		_, err := h.get("/api/v1/namespaces/default/pods/" + old.Name)
		var r refusal
		if !errors.As(err, &r) || r.code != http.StatusNotFound {
			return fmt.Errorf("the pod exists: %w", err)
		}
		list, err := d.engine.running(d.node)
		if err == nil && len(list) > 0 {
			h.t.Errorf("the pod was removed while its container %.12s ran", list[0].ID)
		}
		return err
	})
	await(h.t, d.node+" is ready again", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	n, err := h.node(d.node)
	if err != nil || len(n.Spec.Taints) > 0 {
		h.t.Errorf("the returned node has the taints %v, %v; want none", n.Spec.Taints, err)
	}
	h.runsOn(d, 0)
	await(h.t, "the old pod is removed from the device", patience, func() error {
		list, err := d.engine.containers(d.node)
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("%d containers are left", len(list))
		}
		return err
	})
}
