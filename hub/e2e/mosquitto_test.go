package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/join"
)

// mosquittoFleet returns a hub with devices, and a real Mosquitto between them.
func mosquittoFleet(t *testing.T, names ...string) (h *hub, broker *process, dir string, devices []*testDevice) {
	t.Helper()
	address := freePort(t)
	// A busy machine needs seconds to start a broker.
	h = behindBroker(t, []string{address}, "--lease-interval", "2s", "--node-monitor-grace-period", "20s",
		"--node-startup-grace-period", "20s")
	dir = h.configure("mosquitto", []string{address})
	if os.Getuid() == 0 { // as root, Mosquitto switches to a user without access to the test's keys
		append2(t, filepath.Join(dir, "mosquitto.conf"), "user root\n")
	}
	append2(t, filepath.Join(dir, "acl"), "\nuser observer:spy\ntopic read #\ntopic read $SYS/#\n")
	broker = mosquitto(t, dir, address)
	for _, n := range names {
		devices = append(devices, h.testDevice(n).run())
	}
	h.allReady(len(names))
	return h, broker, dir, devices
}

func TestAFleetSurvivesMosquitto(t *testing.T) {
	t.Parallel()
	h, broker, dir, devices := mosquittoFleet(t, "pi-1", "pi-2", "pi-3")
	address := devices[0].id.MQTTAddress
	devices[0].runs(h, "before")
	done := h.neverUnknown(t)
	broker.stop()
	broker = mosquitto(t, dir, address)
	devices[1].runs(h, "after-a-restart")
	broker.kill()
	broker = mosquitto(t, dir, address)
	devices[2].runs(h, "after-a-kill")
	h.kill()
	h.start()
	devices[0].runs(h, "after-the-hub")
	h.stop()
	h.start()
	devices[1].runs(h, "after-an-orderly-stop")
	devices[1].stop() // the agent disconnects normally
	devices[1].run()
	devices[1].runs(h, "after-the-device")
	done()

	// Without a broker all sites look offline: nodes become Unknown, and no pod is evicted.
	broker.kill()
	await(t, "the nodes become Unknown", patience, func() error { return h.ready("pi-3", corev1.ConditionUnknown) })
	if out := h.output.String(); !strings.Contains(out, "the broker is out of reach") {
		t.Error("the hub's log must report the unreachable broker")
	}
	if m := h.metric(t, "flotilla_broker_connected"); m != "flotilla_broker_connected 0" {
		t.Errorf("without a broker the metric is %q, want 0", m)
	}
	mosquitto(t, dir, address)
	h.allReady(3)
	if m := h.metric(t, "flotilla_broker_connected"); m != "flotilla_broker_connected 1" {
		t.Errorf("after the broker's return the metric is %q, want 1", m)
	}
	devices[2].runs(h, "after-the-outage")
	for _, p := range []string{"before", "after-a-restart", "after-a-kill"} {
		var pod corev1.Pod
		if err := h.read("/api/v1/namespaces/default/pods/"+p, &pod); err != nil || pod.DeletionTimestamp != nil ||
			pod.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s is %s, deleted %v, %v; want it to run", p, pod.Status.Phase, pod.DeletionTimestamp, err)
		}
	}
}

func TestADeviceIsRestrictedAtMosquitto(t *testing.T) {
	t.Parallel()
	h, _, _, devices := mosquittoFleet(t, "pi-1", "pi-2")
	attack(t, h, devices[0], devices[1], h.testDevice("thief"), false)
}

// A device with a certificate of a new root connects as soon as the broker trusts that root.
func TestBehindMosquittoTheRootIsRotated(t *testing.T) {
	t.Parallel()
	h, broker, dir, devices := mosquittoFleet(t, "pi-1")
	d, flotilla := devices[0], program(t, "hub", here)
	output(t, flotilla, "ca", "rotate", "--root", "--data-dir", h.dir)
	d.stop()
	id, err := join.Renew(t.Context(), d.id, join.Options{StateDir: d.dir})
	if err != nil {
		t.Fatal(err)
	}
	d.id = id
	d.run()
	await(t, "a broker with only the former root refuses the device", patience, func() error {
		if online, err := d.link.Online(); online || err == nil {
			return fmt.Errorf("connected is %v with error %v, want an error", online, err)
		}
		return nil
	})
	output(t, flotilla, "broker-config", "mosquitto", "--data-dir", h.dir, "--out", dir, "--address",
		id.MQTTAddress, "--access-only")
	broker.stop()
	mosquitto(t, dir, id.MQTTAddress)
	d.runs(h, "after-the-rotation") // the hub's certificate is also from the new root
}
