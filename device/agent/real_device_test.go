package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A rootedBoard has the devices below a root directory, with real device nodes.
type rootedBoard struct {
	*board
	root string
}

func (b rootedBoard) Probe(ctx context.Context, _ string) (hardware.Report, error) {
	r, err := b.board.Probe(ctx, "")
	if err != nil {
		return r, err
	}
	found, err := hardware.Probe(ctx, hardware.Options{Root: b.root})
	r.Devices = found.Devices
	return r, err
}

func (b rootedBoard) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) {
	return d.Look()
}

// fakeChip adds a GPIO chip to a root directory. Its node is a memory device, and only this group
// may open it.
func fakeChip(t *testing.T, root, name, label string, minor uint32, group int) {
	t.Helper()
	node := filepath.Join(root, "dev", name)
	for _, dir := range []string{filepath.Join(root, "sys/bus/gpio/devices", name), filepath.Dir(node)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := os.Getenv(testNodes)
	if dir == "" {
		t.Skip("device nodes can be made only by root")
	}
	class := filepath.Join(root, "sys/class/gpio", strings.TrimPrefix(name, "gpio"))
	if err := os.MkdirAll(class, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(class, "label"), []byte(label), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, fmt.Sprint(minor)), node); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(node, 0, group); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(node, 0o660); err != nil {
		t.Fatal(err)
	}
}

// exec runs the tool in the newest container of a pod.
func (d *realDevice) exec(pod string, command ...string) (output string, code int) {
	d.t.Helper()
	for _, c := range d.list() {
		if c.Labels[plan.LabelPodName] == pod && c.State == engine.Running {
			var out bytes.Buffer
			code, err := d.eng.Exec(d.t.Context(), c.ID, append([]string{"/tool"}, command...),
				engine.Streams{Stdout: &out, Stderr: &out})
			if err != nil {
				d.t.Fatal(err)
			}
			return strings.TrimSpace(out.String()), code
		}
	}
	d.t.Fatalf("pod %s does not run", pod)
	return "", 0
}

// A container without root can open the device that it requested, and no other device. A pod
// without a free device is rejected, also by a restarted agent.
func TestRealEngineGivesDevices(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		d.end()
		const group = 4242
		root := t.TempDir()
		fakeChip(t, root, "gpiochip0", "pinctrl-bcm2711", 3, group) // major and minor number of /dev/null
		fakeChip(t, root, "gpiochip1", "pinctrl-rp1", 5, group)     // of /dev/zero
		d.board = rootedBoard{newBoard(), root}
		d.start()

		user := int64(1000)
		pods := []corev1.Pod{requesting("one", "gpiochip", "1", "write /dev/gpiochip0 x then wait"),
			requesting("two", "gpiochip", "1", "write /dev/gpiochip1 x then wait"), makePod("without-device", "wait")}
		for i := range pods {
			pods[i].UID = types.UID("uid-" + pods[i].Name + d.node)
			pods[i].Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
			pods[i].Spec.TerminationGracePeriodSeconds = new(int64)
		}
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: pods}))
		d.await("all pods run and can write to their devices", func() bool {
			return ready(d.pod("one")) && ready(d.pod("two")) && ready(d.pod("without-device"))
		})
		for _, c := range []struct {
			pod, command, want string
			code               int
		}{
			{"one", "env FLOTILLA_GPIOCHIP", "/dev/gpiochip0", 0}, {"two", "env FLOTILLA_GPIOCHIP", "/dev/gpiochip1", 0},
			{"one", "id", fmt.Sprint(group), 0}, {"one", "exists /dev/gpiochip1", "", 1}, {"two", "exists /dev/gpiochip0", "", 1},
			{"without-device", "exists /dev/gpiochip0", "", 1},
		} {
			if got, code := d.exec(c.pod, strings.Fields(c.command)...); code != c.code ||
				!strings.Contains(got, c.want) {
				t.Errorf("%s: %s: %q, exit code %d; want %q, %d", c.pod, c.command, got, code, c.want, c.code)
			}
		}

		d.end()
		d.start()
		late := requesting("late", "gpiochip", "1", "wait")
		late.UID = types.UID("uid-late" + d.node)
		must(t, d.agent.Store(wire.Desired{Generation: 2, Hub: "h", Pods: append(pods, late)}))
		d.await("the last pod is rejected", func() bool {
			st := d.pod("late")
			return st != nil && st.Reason == "OutOfflotilla.dev/gpiochip"
		})
		if got, _ := d.exec("one", "env", "FLOTILLA_GPIOCHIP"); got != "/dev/gpiochip0" {
			t.Errorf("after a restart of the agent the pod has %s, want /dev/gpiochip0", got)
		}

		must(t, d.agent.Store(wire.Desired{Generation: 3, Hub: "h", Pods: []corev1.Pod{pods[1], late}}))
		heir := requesting("heir", "gpiochip", "1", "write /dev/gpiochip0 x then wait")
		heir.UID = types.UID("uid-heir" + d.node)
		heir.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
		must(t, d.agent.Store(wire.Desired{Generation: 4, Hub: "h", Pods: []corev1.Pod{pods[1], late, heir}}))
		d.await("the next pod gets the released device", func() bool { return ready(d.pod("heir")) })

		// The kernel gives the node of a running container's chip to another chip. No other
		// container gets that node meanwhile.
		if err := os.WriteFile(filepath.Join(root, "sys/class/gpio/chip0/label"), []byte("pinctrl-bcm2835"),
			0o644); err != nil {
			t.Fatal(err)
		}
		d.end()
		d.start()
		d.await("the pod's chip is gone", func() bool {
			st := d.pod("heir")
			return st != nil && condition(*st, fleet.ConditionDevicesPresent).Status == corev1.ConditionFalse
		})
		next := requesting("next", "gpiochip", "1", "write /dev/gpiochip1 x then wait")
		next.UID = types.UID("uid-next" + d.node)
		next.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
		must(t, d.agent.Store(wire.Desired{Generation: 5, Hub: "h", Pods: []corev1.Pod{late, heir}}))
		must(t, d.agent.Store(wire.Desired{Generation: 6, Hub: "h", Pods: []corev1.Pod{late, heir, next}}))
		d.await("the next pod gets the other chip", func() bool { return ready(d.pod("next")) })
	})
}
