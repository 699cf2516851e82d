package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// hubWithTwoPods returns a hub, its one device with two running pods, and the line between them.
// The pods are not evicted within five minutes.
func hubWithTwoPods(t *testing.T, e *engine, args ...string) (*hub, *device, *line, []container) {
	t.Helper()
	h := newHub(t, args...)
	d := h.join("oslo", e)
	n := d.over(t)
	d.run()
	await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before, err := e.containers(d.node)
	if err != nil || len(before) < 2 {
		t.Fatalf("%d containers, %v; want at least 2", len(before), err)
	}
	return h, d, n, before
}

// recovered returns nil when the node is ready, its pods are available, and its lease is newer than
// since.
func (h *hub) recovered(d *device, since time.Time) error {
	if err := errors.Join(h.ready(d.node, corev1.ConditionTrue), h.available("sign", 2)); err != nil {
		return err
	}
	if !h.lastSeen(d.node).After(since) {
		return errors.New("the node's lease is too old")
	}
	return nil
}

// A partition shows only as missing leases, and restarts no container. Afterwards the device gets
// the changes that were made during the partition.
func TestAPartition(t *testing.T) { brokenLines(t, both) }

// A device that receives nothing closes the link. Otherwise its node would look healthy.
func TestAOneWayLine(t *testing.T) { brokenLines(t, oneWay) }

type fault struct {
	name     string
	up, down flow
	cut      bool
}

var (
	both = []fault{
		{"both directions drop silently", drops, drops, false},
		{"both directions block, and buffers fill up", blocks, blocks, false},
		{"every connection is reset and refused", passes, passes, true},
	}
	oneWay = []fault{
		{"bytes of the device are dropped", drops, passes, false},
		{"bytes of the hub are dropped", passes, drops, false},
		{"bytes of the device block", blocks, passes, false},
		{"bytes of the hub block", passes, blocks, false},
	}
)

func brokenLines(t *testing.T, faults []fault) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h, d, n, before := hubWithTwoPods(t, e)
	var noticed, healed time.Duration
	for i, f := range faults {
		began := time.Now()
		n.set(f.up, f.down, f.cut)
		await(t, "with "+f.name+" the node becomes Unknown", 30*time.Second+grace+patience,
			func() error { return h.ready(d.node, corev1.ConditionUnknown) })
		after := time.Since(began)
		noticed = max(noticed, after)
		if after > 20*time.Second+2*grace {
			t.Errorf("%s: the node is Unknown after %s, want the link's 20 s and the grace of %s", f.name,
				after.Round(time.Millisecond), grace)
		}
		h.kubectl("create", "configmap", fmt.Sprint("meanwhile-", i))
		h.kubectl("patch", "configmap", "words", "-p", fmt.Sprintf(`{"data":{"round":"%d"}}`, i))
		time.Sleep(2 * grace) // the fault lasts a while
		e.same(t, d.node, before, f.name)
		n.heal()
		began = time.Now()
		await(t, "after "+f.name+" the node, its pods and its lease have recovered", patience, func() error { return h.recovered(d, began) })
		after = time.Since(began)
		healed = max(healed, after)
		// The link tries again after at most 7 s, and an attempt that hangs ends at its timeout.
		if after > 20*time.Second {
			t.Errorf("%s: recovered %s after its end, want 20 s", f.name, after.Round(time.Millisecond))
		}
		e.same(t, d.node, before, "the end of the fault: "+f.name)
	}
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "TaintManagerEviction") {
		t.Errorf("a pod was evicted:\n%s", events)
	}
	seen(t, fmt.Sprintf("%d kinds; Unknown after at most %.1f s (grace %s), recovered %.1f s after its end; no container restarted", len(faults), noticed.Seconds(), grace, healed.Seconds()))
}

// A flapping link evicts no pod and restarts no container. Most interruptions neither change Ready
// nor write log lines.
func TestAFlappingLine(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h, d, n, before := hubWithTwoPods(t, e)
	hubLog, deviceSaid := len(h.output.String()), len(d.output.String())
	const rounds = 20
	turns := map[time.Time]bool{} // times at which Ready changed
	for range rounds {
		for _, down := range []bool{true, false} {
			n.set(passes, passes, down)
			for end := time.Now().Add(grace / 3); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				is, err := h.node(d.node)
				if err != nil {
					t.Fatal(err)
				}
				turns[ready(is).LastTransitionTime.Time] = true
			}
		}
	}
	began := time.Now()
	await(t, "the node, its pods and its lease have recovered", patience, func() error { return h.recovered(d, began) })
	if len(turns)-1 > rounds/4 {
		t.Errorf("Ready changed %d times while the link changed %d times, want at most %d", len(turns)-1, 2*rounds, rounds/4)
	}
	e.same(t, d.node, before, "a flapping line")
	hubLines := strings.Count(h.output.String()[hubLog:], "\n")
	deviceLines := strings.Count(d.output.String()[deviceSaid:], "\n")
	if hubLines > 4*rounds || deviceLines > 4*rounds {
		t.Errorf("%d interruptions write %d lines to the hub's log and %d to the device's, want at most 4 each", rounds, hubLines, deviceLines)
	}
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "TaintManagerEviction") {
		t.Errorf("a pod was evicted:\n%s", events)
	}
	seen(t, fmt.Sprintf("down %s and up %s, %d times: Ready turned %d times, no container restarted; lines of log: hub %d, device %d", grace/3, grace/3, rounds, len(turns)-1, hubLines, deviceLines))
}
