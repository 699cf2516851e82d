package e2e

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A device with a line of 20 kbit/s receives its desired state and reports its status. Each has
// more than 40 kB that do not compress. The link stays connected, and leases still arrive.
func TestALineOfTwentyKilobits(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	const (
		pace = 20_000 / 8
		pods = 14
		each = 4000 // bytes in a pod's termination message; Kubernetes allows 4,096
	)
	h := newHub(t, "--lease-interval", "10s", "--node-monitor-grace-period", "40s", "--node-startup-grace-period", "60s")
	d := h.join("oslo", e)
	n := d.over(t)
	n.pace = pace
	d.run()
	await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before, err := e.running(d.node)
	if err != nil || len(before) != 2 {
		t.Fatalf("%d containers, %v", len(before), err)
	}

	noise := rand.NewChaCha8([32]byte{1})
	var all strings.Builder
	words := map[string]string{}
	for i := range pods {
		raw := make([]byte, each*3/4)
		_, _ = noise.Read(raw)
		name := fmt.Sprintf("words-%d", i)
		words[name] = base64.StdEncoding.EncodeToString(raw)
		fmt.Fprintf(&all, "---\n{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: words}}, spec: "+
			"{restartPolicy: Never, containers: [{name: main, image: %s, imagePullPolicy: Never, args: [write, "+
			"/dev/termination-log, %q]}]}}\n", name, toolImage, words[name])
	}
	up, down, began := n.sent.Load(), n.received.Load(), time.Now()
	h.kubectlWith(all.String(), "apply", "-f", "-")
	await(t, "the hub has every pod's termination message", 4*patience, func() error {
		if err := h.ready(d.node, corev1.ConditionTrue); err != nil {
			t.Fatal(err)
		}
		list, err := h.pods("words", d.node)
		for _, p := range list {
			for _, c := range p.Status.ContainerStatuses {
				if c.State.Terminated != nil && strings.TrimSpace(c.State.Terminated.Message) == words[p.Name] {
					delete(words, p.Name)
				}
			}
		}
		if err == nil && len(words) > 0 {
			err = fmt.Errorf("the messages of %d pods are missing", len(words))
		}
		time.Sleep(time.Second)
		return err
	})
	took := time.Since(began)
	up, down = n.sent.Load()-up, n.received.Load()-down
	if up < 40_000 || down < 40_000 {
		t.Errorf("only %d bytes went up and %d down: the test proves nothing", up, down)
	}
	await(t, "the hub still receives leases", patience, func() error {
		if age := time.Since(h.lastSeen(d.node)); age > 20*time.Second {
			return fmt.Errorf("the newest lease is %s old, want at most 20 s", age)
		}
		return nil
	})
	if links := strings.Count(d.output.String(), "connected to the hub"); links != 1 {
		t.Errorf("the device connected %d times, want once\n%s", links, d.output.String())
	}
	after, err := e.running(d.node)
	if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("containers before:\n%v\nafter:\n%v, %v", before, after, err)
	}
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") {
		t.Errorf("the node was not ready:\n%s", events)
	}
	seen(t, fmt.Sprintf("%d kB down and %d kB up over 20 kbit/s in %.0f s, on one link; the node stayed ready", down/1000,
		up/1000, took.Seconds()))
}
