package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// agentKills is the number of kills. It is larger under make faults.
func agentKills() int {
	if alone() {
		return 60
	}
	return 8
}

const churnYAML = `apiVersion: apps/v1
kind: Deployment
metadata: {name: churn}
spec:
  replicas: 2
  selector: {matchLabels: {app: churn}}
  template:
    metadata: {labels: {app: churn}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: first, image: "flotilla.test/tool:1", imagePullPolicy: IfNotPresent, args: [print, first]}
      containers:
      - {name: one, image: "flotilla.test/tool:1", imagePullPolicy: IfNotPresent, args: [wait], env: [{name: ROUND, value: "0"}]}
      - {name: two, image: "flotilla.test/tool:1", imagePullPolicy: IfNotPresent, args: [wait]}
`

// The agent is killed at random moments while its desired state changes: a deployment scales, rolls
// over and loses pods. No container ever runs twice, unchanged containers do not restart, and at
// the end exactly the desired pods run.
func TestKillingTheAgentAtRandomMoments(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	h, d, _, before := hubWithTwoPods(t, e)
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLOTILLA_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLOTILLA_TEST_SEED=%d", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	h.kubectlWith(churnYAML, "apply", "-f", "-")

	const churn = "/apis/apps/v1/namespaces/default/deployments/churn"
	patch := func(format string, args ...any) {
		t.Helper()
		if _, err := h.ask(t.Context(), http.MethodPatch, churn, "application/merge-patch+json",
			fmt.Appendf(nil, format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	const template = `{"spec": {"template": {"metadata": {"annotations": {"round": "%d"}}}}}`
	for round := range agentKills() {
		switch dice.IntN(4) {
		case 0:
			patch(`{"spec": {"replicas": %d}}`, dice.IntN(5))
		case 1:
			patch(template, round)
		case 2:
			pods, err := h.pods("churn", d.node)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods[:min(len(pods), 2)] {
				if _, err := h.ask(t.Context(), http.MethodDelete, "/api/v1/namespaces/default/pods/"+p.Name, "",
					nil); err != nil && !strings.Contains(err.Error(), "404") {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Duration(dice.IntN(2500)) * time.Millisecond)
		d.kill()
		e.once(t, d.node)
		time.Sleep(time.Duration(dice.IntN(500)) * time.Millisecond)
		d.run()
	}
	patch(`{"spec": {"replicas": 3}}`)
	began := time.Now()
	await(t, "exactly the desired pods run", patience, func() error {
		if err := errors.Join(h.recovered(d, began), h.available("churn", 3)); err != nil {
			return err
		}
		return h.exactly(d, e)
	})
	after := time.Since(began)
	e.once(t, d.node)
	now, err := e.containers(d.node)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range before {
		if !slices.Contains(now, c) {
			t.Errorf("container %v of an unchanged pod is missing or was restarted", c)
		}
	}
	pods, err := h.pods("churn", d.node)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 1 {
				t.Errorf("container %s of %s was restarted %d times", c.Name, p.Name, c.RestartCount)
			}
		}
	}
	seen(t, fmt.Sprintf("an agent was killed %d times at random moments under changes: no container twice or left "+
		"over, no unchanged container restarted, the desired state ran %.1f s after the last", agentKills(), after.Seconds()))
}

// once fails if a container of a pod runs twice.
func (e *engine) once(t testing.TB, node string) {
	t.Helper()
	var all []container
	await(t, "the engine lists its containers", patience, func() (err error) {
		all, err = e.containers(node) // a container may be removed while they are listed
		return err
	})
	at := map[string]string{}
	for _, c := range all {
		key := c.Pod + " " + c.Kind + " " + c.Name
		if c.Running && at[key] != "" {
			t.Errorf("%s runs twice: %s and %s", key, at[key], c.ID)
		}
		if c.Running {
			at[key] = c.ID
		}
	}
}

// exactly returns nil when a device has exactly the containers of its pods.
func (h *hub) exactly(d *device, e *engine) error {
	var pods corev1.PodList
	if err := h.read("/api/v1/pods?fieldSelector=spec.nodeName%3D"+d.node, &pods); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is Terminating", p.Name)
		}
		for _, c := range p.Spec.Containers {
			wanted[string(p.UID)+" "+c.Name] = true
		}
	}
	all, err := e.containers(d.node)
	if err != nil {
		return err
	}
	for _, c := range all {
		known := slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return string(p.UID) == c.Pod })
		switch {
		case !known:
			return fmt.Errorf("container %s belongs to pod %s, which is not desired", c.ID, c.Pod)
		case c.Kind == "app" && c.Running:
			delete(wanted, c.Pod+" "+c.Name)
		}
	}
	if len(wanted) > 0 {
		return fmt.Errorf("desired containers that do not run: %v", wanted)
	}
	return context.Cause(h.t.Context())
}
