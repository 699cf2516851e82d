package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/plan"
)

// slow delays every open of some files in the device's state directory until the returned function
// is called. It holds a lease on each file, for which the kernel waits.
func (d *device) slow(names ...string) (end func()) {
	var held []*os.File
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(d.dir, name), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			d.t.Fatal(err)
		}
		held = append(held, f)
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
			d.t.Skip("leases are not supported here: ", err)
		}
	}
	return func() {
		for _, f := range held {
			_ = f.Close() // closing twice is harmless
		}
	}
}

// eventually waits until a condition is true. The kernel breaks a lease after 45 s.
func (d *device) eventually(failure string, ok func() bool) {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("%s; the device reports %+v", failure, d.agent.Pods())
		}
	}
}

func (d *device) isPhase(name string, phase corev1.PodPhase) func() bool {
	return func() bool { st, _ := d.pod(name); return st.Phase == phase }
}

// A worn card may need minutes for a write. The loop continues meanwhile, but reports no final
// status that a power cut would undo.
func TestTheLoopDoesNotWaitForTheDisk(t *testing.T) {
	for name, story := range map[string]func(d *device){
		"a pod has ended": func(d *device) {
			job := makePod("job", "wait")
			job.Spec.RestartPolicy = corev1.RestartPolicyNever
			d.desire(1, makePod("web", "wait"), job)
			d.eventually("web does not run", d.isPhase("web", corev1.PodRunning))
			d.eventually("job does not run", d.isPhase("job", corev1.PodRunning))
			end := d.slow("journal.0.state", "journal.1.state")
			defer end()
			d.stop("job")
			d.eventually("job has not ended", d.hasEnded("job"))
			d.restart("web")
			if st, _ := d.pod("job"); plan.IsFinal(st.Phase) {
				d.t.Errorf("a final status is reported before it is stored: %+v", st)
			}
			end()
			d.eventually("the final status is not reported", d.isPhase("job", corev1.PodSucceeded))
		},
		"a resize is granted": func(d *device) {
			small, large := withResources(makePod("small", "wait"), 0, "100m/100m 500Mi/500Mi"),
				withResources(makePod("large", "wait"), 0, "100m/100m 1Gi/1Gi")
			web := makePod("web", "wait")
			d.desire(1, small, large, web)
			d.eventually("large does not run", d.isPhase("large", corev1.PodRunning))
			d.eventually("web does not run", d.isPhase("web", corev1.PodRunning))
			small = withResources(small, 0, "100m/100m 1200Mi/1200Mi")
			d.desire(2, small, large, web)
			d.eventually("the resize is not deferred", func() bool {
				st, _ := d.pod("small")
				return len(st.Conditions) > 0 && st.Conditions[len(st.Conditions)-1].Type == corev1.PodResizePending
			})
			large.Spec.RestartPolicy = corev1.RestartPolicyNever
			d.desire(3, small, large, web)
			end := d.slow("desired.0.state", "desired.1.state")
			defer end()
			d.stop("large")
			d.eventually("large has not ended", d.hasEnded("large"))
			d.restart("web")
			if st, _ := d.pod("small"); len(st.ContainerStatuses) != 1 ||
				st.ContainerStatuses[0].AllocatedResources.Memory().String() != "500Mi" {
				d.t.Errorf("the resize is granted before it is stored: %+v", st)
			}
			end()
			d.eventually("small is not resized", func() bool {
				st, _ := d.pod("small")
				return len(st.ContainerStatuses) == 1 &&
					st.ContainerStatuses[0].AllocatedResources.Memory().String() == "1200Mi"
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t)
			d.start()
			defer func() { d.end() }()
			story(d)
		})
	}
}

// hasEnded returns a function that reports whether the pod's container has ended and is not
// restarted.
func (d *device) hasEnded(name string) func() bool {
	return func() bool {
		st, _ := d.pod(name)
		return len(st.ContainerStatuses) == 1 && st.ContainerStatuses[0].State.Terminated != nil
	}
}

// restart stops the container of a pod and waits for the next one.
func (d *device) restart(name string) {
	d.t.Helper()
	d.stop(name)
	d.eventually(name+" is not started again", func() bool {
		st, _ := d.pod(name)
		return len(st.ContainerStatuses) == 1 && st.ContainerStatuses[0].RestartCount == 1 &&
			st.Phase == corev1.PodRunning
	})
}

// stop stops the newest container of a pod.
func (d *device) stop(name string) {
	d.t.Helper()
	st, _ := d.pod(name)
	_, id, _ := strings.Cut(st.ContainerStatuses[0].ContainerID, "://")
	if err := d.fake.Stop(d.t.Context(), id, time.Second); err != nil {
		d.t.Fatal(err)
	}
}
