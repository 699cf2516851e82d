package serve

import (
	"context"
	"crypto/md5"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// A benchHub is a hub's loop with all deciders, a store on disk, and a broker that only counts.
type benchHub struct {
	*node.Devices
	b    *testing.B
	dir  string
	cfg  config.Config
	stop func()
	mu   sync.Mutex
	sent map[string]bool
}

func (h *benchHub) Publish(node string, _ wire.Channel, _ ...[]byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent[node] = true
	return nil
}

func (h *benchHub) Request(string, string, wire.Request) error { return nil }

func (h *benchHub) Disconnect(string) {}

// startBench starts a hub. began is the time from which its deadlines count.
func startBench(b *testing.B, change func(*config.Config), objects ...state.Object) (h *benchHub, began time.Time) {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	h = &benchHub{b: b, dir: b.TempDir(), cfg: config.Default(), sent: map[string]bool{}}
	st, err := store.Open(b.Context(), store.Options{Dir: h.dir, Version: "bench", Log: log})
	if err != nil {
		b.Fatal(err)
	}
	h.cfg.ClusterCIDR, h.cfg.NodeCIDRMaskSize = netip.MustParsePrefix("10.0.0.0/8"), 26
	change(&h.cfg)
	start := state.Load(state.Empty("bench", time.Now()), objects, uint64(len(objects)))
	h.Devices = newLoop(h.cfg, start, memory{st}, nil, log)
	h.Broker = h
	began = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error)
	go func() { over <- h.Run(ctx) }()
	h.stop = func() {
		cancel()
		<-over
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	}
	if _, err := h.Do(b.Context(), fillDefaults(log)); err != nil {
		b.Fatal(err)
	}
	return h, began
}

// await waits until a condition holds in the stored fleet.
func (h *benchHub) await(what string, holds func(state.Snapshot) bool) {
	h.b.Helper()
	for end := time.Now().Add(5 * time.Minute); !holds(h.Snapshot()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.b.Fatalf("no %s", what)
		}
	}
}

func benchName(i int) string { return fmt.Sprintf("pi-%06d", i) }

func benchSite(i int) string { return fmt.Sprintf("site-%04d", i/50) }

// benchMachine returns a machine ID in systemd's form: 32 hexadecimal digits.
func benchMachine(i int) string { return fmt.Sprintf("%x", md5.Sum([]byte(benchName(i)))) }

func benchStatus(i int) wire.Status {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("3884Mi"), corev1.ResourcePods: resource.MustParse("110")}
	st := wire.Status{Boot: "b", Seq: 1, MachineID: benchMachine(i), AgentVersion: "1.0.0",
		Hardware: []byte(`{"board":{"model":"Raspberry Pi 4 Model B Rev 1.5"}}`)}
	st.Registration.Labels = map[string]string{"flotilla.dev/board": "raspberrypi4",
		corev1.LabelTopologyZone: benchSite(i)}
	st.Status = corev1.NodeStatus{Capacity: list, Allocatable: list, NodeInfo: corev1.NodeSystemInfo{
		MachineID: st.MachineID, BootID: "b", KernelVersion: "6.12.34", OSImage: "Debian GNU/Linux 12 (bookworm)",
		OperatingSystem: "linux", Architecture: "arm64", ContainerRuntimeVersion: "docker://28.0.1", KubeletVersion: "1.0.0",
	}}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure} {
		st.Status.Conditions = append(st.Status.Conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse,
			Reason: "KubeletHasSufficient", Message: "kubelet has sufficient"})
	}
	st.Status.Conditions = append(st.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady,
		Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"})
	return st
}

// benchPod returns a running, ready pod.
func benchPod(node string, i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", node, i),
		UID: types.UID(fmt.Sprintf("%s-%d", node, i)), Labels: map[string]string{"app": "probe"}}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "example/probe:1"}}
	p.Spec.NodeName = node
	admission.Default(p, AdmissionSettings(config.Default()))
	started := metav1.NewTime(time.Unix(1_700_000_000, 0))
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.1.0.1", StartTime: &started,
		QOSClass: corev1.PodQOSBestEffort}
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
		corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue,
			LastTransitionTime: started})
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "example/probe:1", Ready: true,
		ContainerID: "docker://0123", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}}}
	return p
}

// join lets n devices report for the first time, all at once. It waits until each has its desired
// state.
func (h *benchHub) join(n int) {
	h.b.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := h.Status(context.Background(), node.Caller{Node: benchName(i)}, benchStatus(i)); err != nil {
				h.b.Error(err)
			}
			h.Lease(node.Caller{Node: benchName(i)}, wire.Lease{Boot: "b", Seq: 1, Status: 1})
		})
	}
	all.Wait()
	renewed, seq := time.Now(), uint64(1)
	h.await("desired state for everybody", func(state.Snapshot) bool {
		var untold []string
		h.mu.Lock()
		for i := 0; len(h.sent) < n && i < n; i++ {
			if name := benchName(i); !h.sent[name] {
				untold = append(untold, name)
			}
		}
		h.mu.Unlock()
		if len(untold) > 0 && time.Since(renewed) > h.cfg.LeaseInterval { // a busy hub receives the status again with the next lease
			renewed, seq = time.Now(), seq+1
			for _, name := range untold {
				h.Lease(node.Caller{Node: name}, wire.Lease{Boot: "b", Seq: seq, Status: 1})
			}
		}
		return len(untold) == 0
	})
}

// BenchmarkJoin connects a fleet to a new hub at once, as after a power cut. It measures until
// every device is stored and has its desired state.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		for name, with := range map[string]bool{"none": false, "blocks": true} {
			b.Run(fmt.Sprintf("nodes=%d/addresses=%s", n, name), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					h, _ := startBench(b, func(c *config.Config) { c.AllocateNodeCIDRs = with })
					b.StartTimer()
					h.join(n)
					b.StopTimer()
					h.stop()
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/node")
			})
		}
	}
}

// BenchmarkReturn reconnects a fleet to its hub at once. The devices report what the hub has stored
// already.
func BenchmarkReturn(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			h, _ := startBench(b, func(*config.Config) {})
			h.join(n)
			seq := uint64(1)
			began, commits, passes := cpuTime(b), h.Commits(), h.Passes()
			for b.Loop() {
				seq++
				var all sync.WaitGroup
				for i := range n {
					all.Go(func() {
						st := benchStatus(i)
						st.Seq = seq
						if err := h.Status(context.Background(), node.Caller{Node: benchName(i)}, st); err != nil {
							b.Error(err)
						}
						h.Lease(node.Caller{Node: benchName(i)}, wire.Lease{Boot: "b", Seq: seq, Status: seq})
					})
				}
				all.Wait()
			}
			b.ReportMetric(float64((cpuTime(b)-began).Microseconds())/float64(b.N*n), "cpu-µs/node")
			b.ReportMetric(float64(h.Commits()-commits)/float64(b.N), "commits")
			b.ReportMetric(float64(h.Passes()-passes)/float64(b.N), "passes")
			h.stop()
		})
	}
}

// BenchmarkDaemonSet creates a DaemonSet on a fleet at rest. It measures until every node has the
// pod in its desired state; wait is the longest wait of an API call.
func BenchmarkDaemonSet(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			longest := time.Duration(0)
			for b.Loop() {
				b.StopTimer()
				h, _ := startBench(b, func(*config.Config) {})
				h.join(n)
				probe := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe", Generation: 1}}
				probe.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "probe"}}
				probe.Spec.Template.Labels = map[string]string{"app": "probe"}
				probe.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "example/probe:1"}}
				admission.Default(probe, AdmissionSettings(h.cfg))
				b.StartTimer()
				if _, err := h.Do(b.Context(), func(state.Snapshot, time.Time) ([]state.Change, error) {
					return []state.Change{state.Put(probe, "")}, nil
				}); err != nil {
					b.Fatal(err)
				}
				for placed := 0; placed < n; {
					asked := time.Now()
					done, err := h.Do(b.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) { return nil, nil })
					if err != nil || len(done) > 0 {
						b.Fatal(err, done)
					}
					longest = max(longest, time.Since(asked))
					s := h.Snapshot()
					placed = s.Len(state.Pods)
					for range s.PodsOn("") {
						placed--
					}
				}
				b.StopTimer()
				h.stop()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/node")
			b.ReportMetric(float64(longest.Milliseconds()), "ms-wait")
		})
	}
}

// BenchmarkSilent makes some nodes of a fleet silent at once. It measures from the deadline until
// all of them are Ready=Unknown, tainted, and stored.
func BenchmarkSilent(b *testing.B) {
	const grace = 3 * time.Second
	for _, c := range []struct{ nodes, silent, pods int }{{1_000, 1, 0}, {10_000, 1, 0}, {10_000, 5_000, 0},
		{10_000, 5_000, 3}} {
		b.Run(fmt.Sprintf("nodes=%d/silent=%d/pods=%d", c.nodes, c.silent, c.pods), func(b *testing.B) {
			late := time.Duration(0)
			for b.Loop() {
				var objects []state.Object
				for i := range c.nodes {
					st := benchStatus(i)
					n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: benchName(i),
						Labels: map[string]string{corev1.LabelTopologyZone: benchSite(i)}}, Status: st.Status}
					n.Spec.PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 26).String()
					n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
					objects = append(objects, n, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Boot: "b"})
					for p := range c.pods {
						objects = append(objects, benchPod(n.Name, p))
					}
				}
				h, began := startBench(b, func(c *config.Config) { c.NodeMonitorGracePeriod, c.LeaseInterval = grace, grace/4 },
					objects...)
				h.await("rest", func(s state.Snapshot) bool { return s.Record(benchName(0)).Generation > 0 })
				time.Sleep(time.Until(began.Add(grace / 2)))
				step := c.nodes / c.silent
				for i := range c.nodes {
					if i%step != 0 {
						h.Lease(node.Caller{Node: benchName(i)}, wire.Lease{Boot: "b", Seq: 1})
					}
				}
				h.await("silence", func(s state.Snapshot) bool {
					silent := 0
					for _, c := range s.Counts() {
						silent += c.NotReady
					}
					return silent == c.silent
				})
				late += time.Since(began.Add(grace))
				h.stop()
			}
			b.ReportMetric(float64(late.Microseconds())/1000/float64(b.N), "ms-late")
		})
	}
}

// BenchmarkStart starts a hub with a fleet in its database, until the hub serves requests. MB-heap
// is the heap at that moment, MB-peak the most memory of the process, including the creation of the
// fleet. CPU is the sum of all goroutines.
func BenchmarkStart(b *testing.B) {
	for _, c := range []struct{ nodes, pods int }{{1_000, 0}, {10_000, 0}, {10_000, 3}, {100_000, 0}} {
		n := c.nodes
		b.Run(fmt.Sprintf("nodes=%d/pods=%d", n, c.pods), func(b *testing.B) {
			h, _ := startBench(b, func(c *config.Config) { c.AllocateNodeCIDRs = true })
			h.join(n)
			for i := range n {
				if _, err := h.Do(b.Context(), func(state.Snapshot, time.Time) (changes []state.Change, err error) {
					for p := range c.pods {
						changes = append(changes, state.Put(benchPod(benchName(i), p), ""))
					}
					return changes, nil
				}); err != nil {
					b.Fatal(err)
				}
			}
			h.stop()
			cfg, log := h.cfg, slog.New(slog.DiscardHandler)
			cfg.DataDir = h.dir
			h = nil
			start := func() (hub *Hub, stop func()) {
				mqtt, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				if hub, err = New(b.Context(), Options{Config: cfg, Version: "bench", Log: log,
					Listeners: Listeners{Dev: mqtt}}); err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(b.Context())
				over := make(chan error)
				go func() { over <- hub.Run(ctx) }()
				<-hub.Up()
				return hub, func() {
					cancel()
					if err := <-over; err != nil {
						b.Fatal(err)
					}
				}
			}
			_, stop := start() // the first start signs a desired state for every device
			stop()
			began := cpuTime(b)
			heap := uint64(0)
			for b.Loop() {
				hub, stop := start()
				b.StopTimer()
				if got := hub.Loop.Snapshot().Len(state.Nodes); got != n {
					b.Fatalf("there are %d nodes", got)
				}
				if got := hub.Loop.Snapshot().Len(state.Pods); got != n*c.pods {
					b.Fatalf("there are %d pods", got)
				}
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				heap = m.HeapAlloc
				stop()
				b.StartTimer()
			}
			b.ReportMetric(float64((cpuTime(b)-began).Milliseconds())/float64(b.N), "ms-cpu/op")
			b.ReportMetric(float64(heap)/1e6, "MB-heap")
			b.ReportMetric(float64(usage(b).Maxrss)/1e3, "MB-peak")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	u := usage(b)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func usage(b *testing.B) (u syscall.Rusage) {
	b.Helper()
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u
}
