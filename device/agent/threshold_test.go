package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A hard threshold evicts at once. A soft threshold evicts after its grace period, with the pod's
// grace period, which the profile may shorten. The pod in this test takes an hour to end.
func TestHardAndSoftThresholdsEvictPods(t *testing.T) {
	const mi = 1 << 20
	for _, c := range []struct {
		rule    string
		max     int64
		stats   func(*hardware.Stats)
		runs    time.Duration // the pod still runs this long after the threshold was crossed
		over    time.Duration // the pod has ended this long after the threshold was crossed
		message string
	}{
		{"hard memory", 0, func(s *hardware.Stats) { s.Memory = hardware.Amount{Available: 50 * mi, Capacity: 2 << 30} }, 0, 20 * time.Second, "low on resource: memory"},
		{"soft memory", 0, func(s *hardware.Stats) { s.Memory = hardware.Amount{Available: 150 * mi, Capacity: 2 << 30} }, 9*time.Minute + 50*time.Second, 11*time.Minute + 30*time.Second, "low on resource: memory"},
		{"soft memory with a shorter grace", 5, func(s *hardware.Stats) { s.Memory = hardware.Amount{Available: 150 * mi, Capacity: 2 << 30} }, 58 * time.Second, 90 * time.Second, "low on resource: memory"},
		{"soft heat", 5, func(s *hardware.Stats) { s.Temperature = hardware.Amount{Available: 83_000, Capacity: 1} }, 118 * time.Second, 150 * time.Second, "too hot"},
		{"hard heat", 5, func(s *hardware.Stats) { s.Temperature = hardware.Amount{Available: 89_000, Capacity: 1} }, 0, 20 * time.Second, "too hot"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.AddImage("slow", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{MemoryBytes: 300 * mi, StopTakes: time.Hour}
				})
				p, grace := makePod("app", ""), int64(540)
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy,
					p.Spec.TerminationGracePeriodSeconds = "slow",
					corev1.PullNever, &grace
				profile := &fleet.BoardProfile{}
				profile.Spec.Resources = fleet.BoardResources{
					EvictionHard: map[string]string{fleet.SignalMemoryAvailable: "100Mi",
						fleet.SignalTemperature: "88"},
					EvictionSoft: map[string]fleet.SoftThreshold{
						fleet.SignalMemoryAvailable: {Value: "200Mi", For: metav1.Duration{Duration: time.Minute}},
						fleet.SignalTemperature:     {Value: "82", For: metav1.Duration{Duration: 2 * time.Minute}},
					},
					EvictionMaxPodGracePeriod: c.max,
				}
				if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{p},
					Profile: profile}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				d.wantPhase("app", corev1.PodRunning, "")
				d.board.set(func(b *board) { c.stats(&b.stats) })
				time.Sleep(c.runs)
				if d.running() == nil {
					t.Fatalf("the pod has ended within %s", c.runs)
				}
				time.Sleep(c.over - c.runs)
				if st := d.wantPhase("app", corev1.PodFailed, "Evicted"); !strings.Contains(st.Message, c.message) {
					t.Errorf("the pod was evicted with %q", st.Message)
				}
				if run := d.running(); run != nil {
					t.Errorf("the pods %q still run after %s", run, c.over)
				}
			})
		})
	}
}

// While a threshold is crossed, a pod starts only if it tolerates the taint, even before a soft
// threshold's grace period is over: the hub may have bound the pod earlier. Running pods keep
// running, also after a reboot.
func TestWhileAThresholdIsCrossedNoNewPodStarts(t *testing.T) {
	const mi = 1 << 20
	tolerant := func(key string) corev1.Pod {
		return with(makePod("tolerant", "wait"), func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoSchedule}}
		})
	}
	critical := with(makePod("critical", "wait"),
		func(p *corev1.Pod) { n := int32(podspec.SystemCritical); p.Spec.Priority = &n })
	memory := func(b *board) { b.stats.Memory = hardware.Amount{Available: 150 * mi, Capacity: 2 << 30} }
	for _, c := range []struct {
		rule     string
		is       func(*board)
		key      string // key of the toleration; empty with Exists: any
		admits   bool   // a pod with a memory request is admitted
		message  string // message of the rejected pods
		evicting bool   // the hard threshold evicts running pods one at a time
	}{
		{"soft heat", func(b *board) { b.stats.Temperature = hardware.Amount{Available: 83_000, Capacity: 1} }, fleet.TaintTooHot, false, "[TemperatureOK=False]", false},
		{"hard heat", func(b *board) { b.stats.Temperature = hardware.Amount{Available: 89_000, Capacity: 1} }, fleet.TaintTooHot, false, "[TemperatureOK=False]", true},
		{"soft memory", memory, corev1.TaintNodeMemoryPressure, true, "[MemoryPressure]", false},
		{"soft memory and heat", func(b *board) { memory(b); b.stats.Temperature = hardware.Amount{Available: 83_000, Capacity: 1} }, "", false, "[MemoryPressure, TemperatureOK=False]", false},
	} {
		t.Run(c.rule, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				profile := &fleet.BoardProfile{}
				profile.Spec.Resources = fleet.BoardResources{
					EvictionHard: map[string]string{fleet.SignalMemoryAvailable: "100Mi",
						fleet.SignalTemperature: "88"},
					EvictionSoft: map[string]fleet.SoftThreshold{
						fleet.SignalMemoryAvailable: {Value: "200Mi", For: metav1.Duration{Duration: time.Hour}},
						fleet.SignalTemperature:     {Value: "82", For: metav1.Duration{Duration: time.Hour}},
					},
				}
				generation := int64(0)
				wanted := func(pods ...corev1.Pod) {
					generation++
					if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", Pods: pods,
						Profile: profile}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(20 * time.Second)
				}
				old := makePod("old", "wait")
				wanted(old)
				d.board.set(c.is)
				time.Sleep(15 * time.Second)
				best, requested := makePod("best-effort", "wait"), requestingPod("requested", "100m", "64Mi")
				wanted(old, best, requested, tolerant(c.key), critical)
				refused := func(name string) {
					t.Helper()
					if st := d.wantPhase(name, corev1.PodFailed, "Evicted"); !strings.Contains(st.Message,
						"The node had condition: "+c.message+". ") {
						t.Errorf("pod %s is rejected with %q", name, st.Message)
					}
				}
				refused("best-effort")
				if c.admits {
					d.wantPhase("requested", corev1.PodRunning, "")
				} else if st := d.wantPhase("requested", corev1.PodFailed, "Evicted"); !strings.Contains(st.Message,
					"TemperatureOK=False") {
					t.Errorf("the pod with a memory request is rejected with %q", st.Message)
				}
				d.wantPhase("critical", corev1.PodRunning, "")
				if c.evicting {
					return
				}
				d.wantPhase("old", corev1.PodRunning, "")
				d.wantPhase("tolerant", corev1.PodRunning, "")
				d.end()
				d.fake.PowerCut()
				d.board.set(func(b *board) { b.boot = "boot-2" })
				d.start()
				time.Sleep(time.Minute)
				d.wantPhase("old", corev1.PodRunning, "")
				refused("best-effort")
				// The shortage is over.
				d.board.set(func(b *board) {
					b.stats.Memory = hardware.Amount{Available: 1 << 30, Capacity: 2 << 30}
					b.stats.Temperature = hardware.Amount{Available: 60_000, Capacity: 1}
				})
				time.Sleep(hardware.PressureHold + time.Minute)
				next := makePod("next", "wait")
				wanted(old, next)
				d.wantPhase("next", corev1.PodRunning, "")
			})
		})
	}
}

// If no pod can be evicted for one shortage, the next one is tried.
func TestAShortageWithoutAVictimDoesNotBlockOthers(t *testing.T) {
	const mi = 1 << 20
	for _, c := range []struct {
		rule    string
		stats   func(*hardware.Stats)
		message string
	}{
		{"soft disk after memory", func(s *hardware.Stats) { s.NodeFs = hardware.Amount{Available: 1, Capacity: 1 << 30} }, "low on resource: ephemeral-storage"},
		{"hard heat after memory", func(s *hardware.Stats) { s.Temperature = hardware.Amount{Available: 89_000, Capacity: 1} }, "too hot"},
		{"soft heat after memory", func(s *hardware.Stats) { s.Temperature = hardware.Amount{Available: 83_000, Capacity: 1} }, "too hot"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.AddImage("small", 1, func(engine.Spec,
					int) enginetest.Play {
					return enginetest.Play{Written: mi}
				})
				p := makePod("app", "")
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "small", corev1.PullNever
				profile := &fleet.BoardProfile{}
				profile.Spec.Resources = fleet.BoardResources{
					EvictionHard: map[string]string{fleet.SignalTemperature: "88"},
					EvictionSoft: map[string]fleet.SoftThreshold{
						fleet.SignalTemperature:     {Value: "82", For: metav1.Duration{Duration: time.Second}},
						fleet.SignalNodeFsAvailable: {Value: "10%", For: metav1.Duration{Duration: time.Second}},
					},
				}
				if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{p},
					Profile: profile}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				d.wantPhase("app", corev1.PodRunning, "")
				d.board.set(func(b *board) {
					// programs outside of pods use the memory
					b.stats.Memory = hardware.Amount{Available: 50 * mi, Capacity: 2 << 30}
					c.stats(&b.stats)
				})
				time.Sleep(90 * time.Second)
				if st := d.wantPhase("app", corev1.PodFailed, "Evicted"); !strings.Contains(st.Message, c.message) {
					t.Errorf("the pod was evicted with %q", st.Message)
				}
			})
		})
	}
}

// An engine is slow when memory is short, and the container that is measured last may use most of
// the memory.
func TestTheLargestPodIsEvictedWithASlowEngine(t *testing.T) {
	const mi = 1 << 20
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("app", 1, func(s engine.Spec, _ int) enginetest.Play {
			if s.Labels[plan.LabelPodName] == "pod-39" {
				return enginetest.Play{MemoryBytes: 500 * mi}
			}
			return enginetest.Play{MemoryBytes: 10 * mi}
		})
		var pods []corev1.Pod
		for i := range 40 {
			p := makePod(fmt.Sprintf("pod-%02d", i), "")
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
			pods = append(pods, p)
		}
		d.desire(1, pods...)
		time.Sleep(time.Minute)
		d.wantPhase("pod-39", corev1.PodRunning, "")
		d.fake.SetLatency(500 * time.Millisecond)
		d.board.set(func(b *board) { b.stats.Memory = hardware.Amount{Available: 50 * mi, Capacity: 2 << 30} })
		time.Sleep(25 * time.Second)
		d.board.set(func(b *board) { b.stats.Memory = hardware.Amount{Available: 1 << 30, Capacity: 2 << 30} })
		time.Sleep(20 * time.Second)
		d.wantPhase("pod-39", corev1.PodFailed, "Evicted")
		d.wantPhase("pod-00", corev1.PodRunning, "")
	})
}

// A slowSize engine is slow to measure what a container has written.
type slowSize struct {
	engine.Engine
	now, most atomic.Int32
}

func (b *slowSize) Written(ctx context.Context, id string) (int64, error) {
	if n := b.now.Add(1); n > b.most.Load() {
		b.most.Store(n)
	}
	defer b.now.Add(-1)
	<-ctx.Done()
	return 0, ctx.Err()
}

// A slow measurement is not started twice, and the agent waits for an evicted pod's end before the
// next eviction.
func TestADiskIsReclaimedOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		b := &slowSize{Engine: d.fake}
		d.engine = b
		d.start()
		defer func() { d.end() }()
		d.desire(1, makePod("a", "wait"), makePod("b", "wait"))
		time.Sleep(20 * time.Second)
		d.board.set(func(b *board) { b.stats.ImageFs = hardware.Amount{Available: 1, Capacity: 1 << 30} })
		time.Sleep(5 * time.Minute)
		if b.most.Load() != 1 {
			t.Errorf("%d containers were measured at the same time, want 1", b.most.Load())
		}
	})
}

// If inodes are short, the agent evicts the pod with the most files, not the largest pod.
func TestIfInodesAreShortThePodWithTheMostFilesIsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("app", 1, func(s engine.Spec, run int) enginetest.Play { return enginetest.Play{} })
		big, many := storagePod("", ""), storagePod("", "")
		big.Name, big.UID, many.Name, many.UID = "big", "uid-big", "many", "uid-many"
		d.desire(1, big, many)
		time.Sleep(20 * time.Second)
		if err := os.WriteFile(filepath.Join(d.dir, volume.PodsDir, "uid-big", "data", "x"), make([]byte, 4<<20),
			0o600); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			if err := os.WriteFile(filepath.Join(d.dir, volume.PodsDir, "uid-many", "data", strconv.Itoa(i)), nil,
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		d.board.set(func(b *board) { b.stats.NodeFsInodes = hardware.Amount{Available: 10, Capacity: 10_000} })
		time.Sleep(25 * time.Second)
		if st := d.wantPhase("many", corev1.PodFailed, "Evicted"); !strings.HasPrefix(st.Message,
			"The node was low on resource: inodes. The pod was using 5") {
			t.Errorf("the pod's message is %q, want low inodes", st.Message)
		}
		d.wantPhase("big", corev1.PodRunning, "")
	})
}
