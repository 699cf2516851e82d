package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/probe"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/loopback"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// onePodman serializes the tests with Podman.
var onePodman sync.Mutex

// realEngines calls f in parallel with every real engine of this machine that has the test image. A
// test mostly waits for its engine.
func realEngines(t *testing.T, f func(t *testing.T, socket string)) {
	if testing.Short() {
		t.Skip("tests with a real engine do not run with -short")
	}
	for _, e := range []struct{ name, env, socket string }{
		{"docker", "DOCKER_SOCK", "/var/run/docker.sock"},
		{"podman", "PODMAN_SOCK", "/run/flotilla-test/podman.sock"},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			if e.name == "podman" { // Podman needs minutes if several tests run at the same time
				onePodman.Lock()
				t.Cleanup(onePodman.Unlock)
			}
			socket := e.socket
			if s := os.Getenv(e.env); s != "" {
				socket = s
			}
			_, err := openReal(socket)
			if err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip("no real engine: ", err)
			}
			f(t, socket)
		})
	}
}

// reals are the engines for the tests' own calls, by socket. Each engine is opened once.
var reals sync.Map

// openReal opens the engine at a socket. It fails if the engine lacks the test image.
func openReal(socket string) (engine.Engine, error) {
	open, _ := reals.LoadOrStore(socket, sync.OnceValues(func() (engine.Engine, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		eng, err := engine.Open(ctx, socket)
		if err != nil {
			return nil, err
		}
		_, ok, err := eng.HasImage(ctx, enginetest.ToolImage)
		if err == nil && !ok {
			err = fmt.Errorf("%s lacks %s: run .ci/services", socket, enginetest.ToolImage)
		}
		return eng, err
	}))
	return open.(func() (engine.Engine, error))()
}

// A realDevice is an agent with a real engine. Its node name is unique, so that a test can find and
// remove what it left.
type realDevice struct {
	t      *testing.T
	socket string
	dir    string
	shared string // device directory that pods may mount
	node   string
	policy policy.Document
	board  Hardware
	agent  *Agent
	eng    engine.Engine // the test's own connection to the engine
	end    func()
}

var realDevices atomic.Int64

func newRealDevice(t *testing.T, socket string) *realDevice {
	eng, err := openReal(socket)
	if err != nil {
		t.Fatal(err)
	}
	d := &realDevice{board: newBoard(), t: t, eng: eng, socket: socket, dir: t.TempDir(), shared: t.TempDir(),
		node: fmt.Sprintf("test-%d-%d-%d", os.Getpid(), time.Now().UnixNano()%1e6, realDevices.Add(1))}
	d.policy.HostPaths, d.policy.LocalVolumes = []string{d.shared}, true
	t.Cleanup(func() {
		list, err := eng.Containers(context.Background(), plan.LabelAgent+"="+d.node)
		if err != nil {
			t.Error(err)
		}
		for _, kind := range []string{podspec.KindApp, podspec.KindInit, podspec.KindSandbox} {
			for _, c := range list {
				if c.Labels[plan.LabelKind] == kind {
					if err := eng.Stop(context.Background(), c.ID, 0); err != nil {
						t.Error(err)
					}
					if err := eng.Remove(context.Background(), c.ID); err != nil {
						t.Error(err)
					}
				}
			}
		}
		if err := volume.RemoveVolumes(d.dir, filepath.Join(d.dir, "volatile")); err != nil {
			t.Error(err)
		}
		if err := eng.RemoveNetwork(context.Background(), Network(d.node, StateDirID(d.dir), "")); err != nil {
			t.Error(err)
		}
	})
	d.start()
	return d
}

func (d *realDevice) start() {
	d.t.Helper()
	m, err := memory.Open(d.dir, testLog())
	if err != nil {
		d.t.Fatal(err)
	}
	a, err := New(Config{Node: d.node, Memory: m, Hardware: d.board, Log: testLog(),
		Policy: plan.Policy{Document: d.policy}, MemoryDir: filepath.Join(d.dir, "volatile"), Flags: anyDisk(d.t),
		OpenEngine: func(ctx context.Context) (engine.Engine, error) { return engine.Open(ctx, d.socket) }})
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	d.agent = a
	d.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
		_ = m.Close()
	})
}

func (d *realDevice) list() []engine.Container {
	list, err := d.eng.Containers(d.t.Context(), plan.LabelAgent+"="+d.node)
	if err != nil {
		d.t.Fatal(err)
	}
	return list
}

func (d *realDevice) pod(name string) *corev1.PodStatus {
	for _, p := range heldPods(d.agent) {
		if p.Name == name {
			return &p.Status
		}
	}
	return nil
}

// await waits until a condition is true.
func (d *realDevice) await(condition string, ok func() bool) {
	d.t.Helper()
	end := time.Now().Add(3 * time.Minute)
	for !ok() {
		if time.Now().After(end) {
			var pods []string
			for _, p := range d.agent.Pods().Pods {
				pods = append(pods, fmt.Sprintf("%s %s %s: %v %v", p.Name, p.Status.Phase, p.Status.Reason,
					p.Status.InitContainerStatuses, p.Status.ContainerStatuses))
			}
			d.t.Fatalf("not true within 3 min: %s; pods: %s", condition, strings.Join(pods, "\n"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func ready(st *corev1.PodStatus) bool {
	if st == nil {
		return false
	}
	for _, c := range st.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func freePort(t *testing.T) int32 {
	t.Helper()
	addr, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return int32(netip.MustParseAddrPort(addr).Port())
}

// The pod has most features: two containers on one network, an init container, config map and
// secret as files and environment, an emptyDir, probes, a host port.
func TestRealEngineRunsAWholePod(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("whole", "serve :8080", "sleep 1s then get http://127.0.0.1:8080/ then wait")
		p.UID = types.UID("uid-whole-" + d.node)
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		*p.Spec.TerminationGracePeriodSeconds = 5
		p.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
		}
		mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "conf", MountPath: "/conf"}}
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage,
			Args: []string{"write", "/data/x", "hello"}, VolumeMounts: mounts}}
		c := &p.Spec.Containers[0]
		c.VolumeMounts = mounts
		c.Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: freePort(t), HostIP: "127.0.0.1"}}
		c.Env = []corev1.EnvVar{{Name: "COLOUR",
			ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}, Key: "colour"}}}}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"),
			corev1.ResourceCPU: resource.MustParse("500m")}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}}
		// On a busy machine Podman needs more than the default second for a command.
		c.LivenessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 30,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "exists",
				"/data/x", "then",
				"exists", "/conf/colour"}}}}
		conf := func(colour string) []corev1.ConfigMap {
			return []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"},
				Data: map[string]string{"colour": colour}}}
		}
		want := wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}, ConfigMaps: conf("blue")}
		if err := d.agent.Store(want); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is ready", func() bool { return ready(d.pod("whole")) })
		st := d.pod("whole")
		if st.PodIP == "" {
			t.Error("the pod has no address")
		}
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", c.Ports[0].HostPort), 5*time.Second)
		if err != nil {
			t.Errorf("connect to the host port: %v", err)
		} else {
			_ = conn.Close()
		}

		// a changed config map reaches the running container without a restart
		want.Generation, want.ConfigMaps = 2, conf("green")
		if err := d.agent.Store(want); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(d.dir, "volatile", "pods", string(p.UID), "conf", "colour")
		d.await("the file has the new value green",
			func() bool { b, _ := os.ReadFile(file); return string(b) == "green" })
		var web string
		for _, x := range d.list() {
			if x.Labels[plan.LabelContainer] == "c0" {
				web = x.ID
			}
		}
		var out probe.Limited
		out.Max = 100
		if code, err := d.eng.Exec(t.Context(), web, []string{"/tool", "cat", "/conf/colour"},
			engine.Streams{Stdout: &out, Stderr: &out}); err != nil || code != 0 ||
			!strings.Contains(string(out.Bytes), "green") {
			t.Errorf("in the container the colour is %q (%d, %v), want green", out.Bytes, code, err)
		}

		// a restart of the agent restarts nothing
		before := map[string]bool{}
		for _, x := range d.list() {
			before[x.ID] = true
		}
		d.end()
		d.start()
		d.await("the pod is ready again", func() bool { return ready(d.pod("whole")) })
		for _, x := range d.list() {
			if !before[x.ID] {
				t.Errorf("a restart of the agent replaced container %s", x.Name)
			}
		}

		// a container that ends is restarted
		if err := d.eng.Stop(t.Context(), web, 0); err != nil {
			t.Fatal(err)
		}
		d.await("the container has been restarted", func() bool {
			st := d.pod("whole")
			return ready(st) && st.ContainerStatuses[0].RestartCount == 1
		})

		// after its deletion nothing is left
		want.Generation, want.Pods = 3, []corev1.Pod{deletedPod(p, 5)}
		if err := d.agent.Store(want); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is gone", func() bool { return d.pod("whole") == nil })
		if list := d.list(); len(list) > 0 {
			t.Errorf("%d containers are left", len(list))
		}
		if entries, err := os.ReadDir(filepath.Join(d.dir, "pods")); err != nil || len(entries) > 0 {
			t.Errorf("volumes are left: %v %v", entries, err)
		}
	})
}
