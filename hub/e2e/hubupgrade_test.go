package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// A hub with a hundred devices is upgraded from the last release with another schema, as its package
// does: it is backed up while it runs, stopped, and the new program starts. Then the older program
// takes the backup back. Meanwhile no node becomes Ready=Unknown, and no pod is evicted or restarted.
func TestAHubUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	const devices = 100
	program(t, "hub", here) // skips with -short
	commit := beforeNewestSchema(t)
	h := &hub{t: t, dir: filepath.Join(t.TempDir(), "hub"), https: freePort(t), dev: freePort(t),
		older: filepath.Join(programsOf(t, commit, "0.0.1", "hub"), "flotilla-hub")}
	h.args = []string{"serve", "--data-dir", h.dir, "--https-listen", h.https, "--mqtt-listen", freePort(t),
		"--mqtt-dev-listen", h.dev, "--lease-interval", "2s", "--log-level", "warn"}
	h.start()
	h.simulate(devices, 5)
	h.kubectlWith(strings.Replace(signYAML, "replicas: 2", fmt.Sprint("replicas: ", devices), 1), "apply", "-f", "-")
	await(t, "all replicas are available", patience, func() error { return h.available("sign", devices) })
	ready, running := h.readySince(), h.started("sign")

	var figures []string
	// replace starts the other program and returns when each device has renewed its lease there.
	replace := func(what, path string, between func()) {
		t.Helper()
		renewed := h.renewals()
		began := time.Now()
		h.stop()
		between()
		h.older = path
		h.start()
		away := time.Since(began)
		var longest time.Duration
		await(t, "each device renews its lease after "+what, patience, func() error {
			longest = 0
			for node, now := range h.renewals() {
				if !now.After(began) {
					return fmt.Errorf("the newest lease of %s is from %s", node, now)
				}
				longest = max(longest, now.Sub(renewed[node]))
			}
			return nil
		})
		if now := h.readySince(); !maps.Equal(ready, now) {
			t.Errorf("after %s nodes have become ready again: %v, before: %v", what, now, ready)
		}
		if now := h.started("sign"); !slices.Equal(running, now) {
			t.Errorf("after %s other pods run: %q, before: %q", what, now, running)
		}
		if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") ||
			strings.Contains(events, "TaintManagerEviction") {
			t.Errorf("after %s:\n%s", what, events)
		}
		figures = append(figures, fmt.Sprintf("%s: %.1f s without a hub, at most %.1f s between two leases of a device", what,
			away.Seconds(), longest.Seconds()))
	}
	backup := filepath.Join(t.TempDir(), "before.db")
	oldHub := h.older
	output(t, oldHub, "backup", "--data-dir", h.dir, backup)
	replace("the upgrade", "", func() {})
	h.kubectl("create", "configmap", "newer")
	replace("the way back", oldHub, func() { output(t, oldHub, "restore", "--data-dir", h.dir, backup) })
	if _, err := h.get("/api/v1/namespaces/default/configmaps/newer"); err == nil {
		t.Error("the restored hub must not have an object that the backup lacks")
	}
	output(t, oldHub, "resume", "--data-dir", h.dir)
	h.kubectl("scale", "deployment/sign", fmt.Sprint("--replicas=", devices+5))
	await(t, "new replicas are available", patience, func() error { return h.available("sign", devices+5) })
	seen(t, fmt.Sprintf("%d devices, a hub of %.10s; %s; no node was Unknown, no pod restarted", devices, commit,
		strings.Join(figures, "; ")))
}

// readySince returns since when each node is ready. A node that was Unknown has a newer time.
func (h *hub) readySince() map[string]string {
	h.t.Helper()
	var l corev1.NodeList
	if err := h.read("/api/v1/nodes", &l); err != nil {
		h.t.Fatal(err)
	}
	since := map[string]string{}
	for _, n := range l.Items {
		c := ready(n)
		since[n.Name] = fmt.Sprint(c.Status, " since ", c.LastTransitionTime.UTC())
	}
	return since
}

// renewals returns when the hub last received a lease of each node.
func (h *hub) renewals() map[string]time.Time {
	h.t.Helper()
	var l coordv1.LeaseList
	if err := h.read("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &l); err != nil {
		h.t.Fatal(err)
	}
	at := map[string]time.Time{}
	for _, lease := range l.Items {
		at[lease.Name] = time.Time{}
		if t := lease.Spec.RenewTime; t != nil {
			at[lease.Name] = t.Time
		}
	}
	return at
}

// started lists the containers of a deployment's pods, with their starts.
func (h *hub) started(app string) []string {
	h.t.Helper()
	pods, err := h.pods(app, "")
	if err != nil {
		h.t.Fatal(err)
	}
	var all []string
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			line := fmt.Sprint(p.UID, " ", c.ContainerID, " restarted ", c.RestartCount)
			if c.State.Running != nil {
				line += fmt.Sprint(" started ", c.State.Running.StartedAt.UTC())
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}
