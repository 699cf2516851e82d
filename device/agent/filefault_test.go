package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// faults are the kinds of damage to a file of the agent while the device is off.
var faults = map[string]func(path string) error{
	"truncated": func(path string) error { return os.Truncate(path, 150) },
	"flipped": func(path string) error {
		b, err := os.ReadFile(path)
		if err == nil {
			b[bytes.IndexByte(b, '\n')+20] ^= 4
			err = os.WriteFile(path, b, 0o600)
		}
		return err
	},
	"empty":   func(path string) error { return os.Truncate(path, 0) },
	"missing": os.Remove,
}

// Each file of the agent gets each fault before a reboot without network. Running pods run again,
// ended pods stay ended if the agent still knows that, and the node reports the fault.
func TestPodsSurviveADamagedFile(t *testing.T) {
	for _, c := range []struct {
		file     string
		runs     []string // running after the reboot; "second" was stored last, and "job" had ended
		reported bool
	}{
		{"desired.0.state", []string{"first", "second"}, true},
		{"desired.1.state", []string{"first", "second"}, true},
		{"journal.0.state", []string{"first", "second"}, true},
		{"journal.1.state", []string{"first", "second"}, true},
		{"verified.state", []string{"first", "second"}, false}, // no image of this test is signed
	} {
		for _, fault := range slices.Sorted(maps.Keys(faults)) {
			t.Run(c.file+" is "+fault, func(t *testing.T) {
				bubble(t, func(t *testing.T, d *device) { rebootWith(t, d, c.file, fault, c.runs, c.reported) })
			})
		}
	}
}

func rebootWith(t *testing.T, d *device, file, fault string, runs []string, reported bool) {
	first, second, job := makePod("first", "wait"), makePod("second", "wait"), makePod("job", "exit 0")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	d.desire(3, first, job)
	time.Sleep(time.Second)
	d.desire(4, first, second, job)
	time.Sleep(5 * time.Second)
	d.wantPhase("job", corev1.PodSucceeded, "")
	d.end()
	d.fake.PowerCut()
	d.board.set(func(b *board) { b.boot = "boot-2" })
	path := d.dir + "/" + file
	if err := faults[fault](path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	d.start()
	time.Sleep(time.Minute)
	synctest.Wait()
	if got := d.running(); !slices.Equal(got, runs) {
		t.Errorf("after the reboot the pods %q run, want %q", got, runs)
	}
	d.wantPhase("job", corev1.PodSucceeded, "") // the job's container or note shows that it has ended
	cond := d.stateStored()
	if reported && (cond.Status != corev1.ConditionFalse || !strings.Contains(cond.Message, file)) {
		t.Errorf("StateStored is %s: %q, want False and %s in it", cond.Status, cond.Message, file)
	}
	// The hub is reachable again.
	d.desire(5, first, second, job)
	time.Sleep(5 * time.Second)
	d.wantPhase("first", corev1.PodRunning, "")
	d.wantPhase("second", corev1.PodRunning, "")
	if cond := d.stateStored(); strings.HasPrefix(file, "desired") && cond.Status != corev1.ConditionTrue {
		t.Errorf("after the next desired state StateStored is %s: %s", cond.Status, cond.Message)
	}
}

func (d *device) stateStored() (c corev1.NodeCondition) {
	for _, c := range d.agent.Status().Status.Conditions {
		if c.Type == fleet.ConditionStateStored {
			return c
		}
	}
	d.t.Error(fmt.Sprint("no such condition: ", d.agent.Status().Status.Conditions))
	return c
}

// newSmallDevice is a device with its own disk of 8 MiB.
func newSmallDevice(t *testing.T) *device {
	t.Helper()
	d := newDevice(t)
	if err := unix.Mount("test", d.dir, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		t.Skip("cannot make a small disk: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(d.dir, unix.MNT_DETACH) })
	return d
}

// If the disk cannot be written when the agent starts, the stored workloads run and the node
// reports the fault. With reserved space the next desired state can still be stored.
func TestPodsSurviveAnUnwritableDisk(t *testing.T) {
	for _, c := range []struct {
		name           string
		damage, repair func(dir string) error
		stored         bool
		runs           []string // pods that run after a desired state with "second"
		storeError     string
	}{
		{"read-only", remount(unix.MS_RDONLY), remount(0), false, []string{"first"}, "read-only file system"},
		{"full", fillUp, func(dir string) error { return os.Remove(dir + "/filler") }, true, []string{"first", "second"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newSmallDevice(t)
				d.start()
				first, second, job := makePod("first", "wait"), makePod("second", "wait"), makePod("job", "exit 0")
				job.Spec.RestartPolicy = corev1.RestartPolicyNever
				d.desire(3, first, job)
				time.Sleep(5 * time.Second)
				d.end()
				d.fake.PowerCut()
				d.board.set(func(b *board) { b.boot = "boot-2" })
				if err := c.damage(d.dir); err != nil {
					t.Fatal(err)
				}
				d.start()
				time.Sleep(time.Minute)
				d.wantPhase("first", corev1.PodRunning, "")
				d.wantPhase("job", corev1.PodSucceeded, "")
				want := wire.Desired{Generation: 4, Hub: "hub", Pods: []corev1.Pod{first, second, job}}
				if err := d.agent.Store(want); (err == nil) != c.stored {
					t.Errorf("store the next desired state: %v", err)
				}
				time.Sleep(time.Minute)
				if got := d.running(); !slices.Equal(got, c.runs) {
					t.Errorf("the pods %q run, want %q", got, c.runs)
				}
				if cond := d.stateStored(); (cond.Status == corev1.ConditionTrue) != c.stored ||
					!strings.Contains(cond.Message, c.storeError) {
					t.Errorf("StateStored is %s: %s, want it True: %v, with %q", cond.Status, cond.Message, c.stored,
						c.storeError)
				}
				d.end()
				if err := c.repair(d.dir); err != nil {
					t.Fatal(err)
				}
				d.start()
				want.Generation = 5
				if err := d.agent.Store(want); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				if cond := d.stateStored(); cond.Status != corev1.ConditionTrue ||
					!slices.Equal(d.running(), []string{"first", "second"}) {
					t.Errorf("on the repaired disk the pods %q run, StateStored is %s: %s", d.running(), cond.Status,
						cond.Message)
				}
				d.end()
			})
		})
	}
}

// A card may stay read-only for weeks. The log has the error at intervals, and the node's condition
// has it all the time.
func TestAnUnwritableDiskIsLoggedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDevice(t)
		var said bytes.Buffer
		d.config.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
		d.start()
		job, crash := makePod("job", "exit 0"), makePod("crash", "exit 1")
		job.Spec.RestartPolicy = corev1.RestartPolicyNever
		d.desire(1, job, crash, makePod("web", "wait"))
		d.end()
		if err := remount(unix.MS_RDONLY)(d.dir); err != nil {
			t.Fatal(err)
		}
		d.start()
		time.Sleep(10 * time.Hour)
		d.end()
		if n := strings.Count(said.String(), "store the final status of pods"); n == 0 || n > 11 {
			t.Errorf("the error was logged %d times in ten hours", n)
		}
	})
}

// A device with a read-only card is often removed from its fleet. Its pods end anyway.
func TestADismissedDeviceStopsItsPodsWithAReadOnlyDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDevice(t)
		d.start()
		pod := makePod("web", "wait", "wait")
		pod.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		d.desire(1, pod, makePod("done", "exit 0"))
		time.Sleep(5 * time.Second)
		d.end()
		if err := remount(unix.MS_RDONLY)(d.dir); err != nil {
			t.Fatal(err)
		}
		d.start()
		time.Sleep(5 * time.Second)
		d.wantPhase("web", corev1.PodRunning, "")
		if err := d.agent.Leave(); err == nil {
			t.Error("Leave returns no error on an unwritable disk")
		}
		time.Sleep(time.Minute)
		d.wantContainers()
		if pods := d.agent.Pods().Pods; len(pods) > 0 {
			t.Errorf("pods are still reported: %+v", pods)
		}
		d.end()
		if err := remount(0)(d.dir); err != nil {
			t.Fatal(err)
		}
	})
}

func remount(flags uintptr) func(string) error {
	return func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "") }
}

// fillUp fills a disk.
func fillUp(dir string) error {
	if err := os.WriteFile(dir+"/filler", make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the disk is not full: %w", err)
	}
	return nil
}

// running are the names of the pods with a running container.
func (d *device) running() (out []string) {
	for _, c := range d.containers() {
		if name, rest, _ := strings.Cut(c, "/"); strings.HasSuffix(rest, "running") && !strings.HasPrefix(rest, "POD") {
			out = append(out, name)
		}
	}
	return out
}

// Without both copies of the desired state and without a hub, the pods that ran before the reboot
// run again, and ended pods stay ended. The hub's next desired state takes over.
func TestWithoutADesiredStateEndedContainersAreStarted(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		one, pair, job, crashed := makePod("one", "wait"), makePod("pair", "wait", "wait"), makePod("job", "exit 0"),
			makePod("crashed", "exit 1")
		pair.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage,
			Args: []string{"exit", "0"}}}
		job.Spec.RestartPolicy, crashed.Spec.RestartPolicy = corev1.RestartPolicyNever, corev1.RestartPolicyNever
		d.desire(1, one, pair, job, crashed)
		time.Sleep(time.Minute)
		d.end()
		d.fake.PowerCut()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		for _, copy := range []string{"/desired.0.state", "/desired.1.state"} {
			if err := os.WriteFile(d.dir+copy, []byte("not what was written\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d.start()
		time.Sleep(time.Minute)
		d.wantContainers("crashed/c0#0 exited", "job/c0#0 exited", "one/c0#0 running", "pair/POD#0 running",
			"pair/c0#0 running", "pair/c1#0 running", "pair/init#0 exited")
		if c := d.stateStored(); c.Status != corev1.ConditionFalse ||
			!strings.Contains(c.Message, "waits for the hub") {
			t.Errorf("StateStored is %s: %s, want False and that the device waits", c.Status, c.Message)
		}
		d.fake.Record()
		time.Sleep(time.Hour)
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("after the hub's return the agent called %q, want no call", calls)
		}
		d.desire(2, one, pair)
		time.Sleep(time.Minute)
		for _, name := range []string{"one", "pair"} {
			if st := d.wantPhase(name, corev1.PodRunning, ""); !ready(&st) {
				t.Errorf("pod %s is not ready", name)
			}
		}
		if _, reported := d.pod("job"); reported {
			t.Error("a pod that the hub has dropped is still reported")
		}
	})
}

// A pod whose phase on the hub is final does not run again, even if the agent has lost its notes.
func TestAPodWithAFinalPhaseOnTheHubDoesNotRunAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		job := makePod("job", "exit 0")
		job.Spec.RestartPolicy = corev1.RestartPolicyNever
		d.desire(1, job)
		time.Sleep(5 * time.Second)
		d.end()
		d.fake.Lose("flotilla_c0_job_default_uid-job_0")
		for _, copy := range []string{"/journal.0.state", "/journal.1.state"} {
			if err := os.Truncate(d.dir+copy, 10); err != nil {
				t.Fatal(err)
			}
		}
		d.fake.SetDown(true) // otherwise the pod may run once more before the hub's message arrives
		d.start()
		job.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
		late := makePod("late", "wait")
		late.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeLost"}
		d.desire(2, job, late)
		d.fake.SetDown(false)
		time.Sleep(time.Minute)
		d.wantPhase("job", corev1.PodSucceeded, "")
		d.wantPhase("late", corev1.PodFailed, "NodeLost")
		d.wantContainers()
	})
}
