package agent

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A change of the wall clock while the agent is off does not change a deadline, because deadlines
// use the time since the boot.
func TestADeadlineUsesTheMonotonicClock(t *testing.T) {
	for name, c := range map[string]struct {
		wall      time.Duration // how much the wall clock advances while the agent is off
		real      time.Duration // how much time really passes while the agent is off
		reboot    bool
		remaining time.Duration // time until the deadline; 0: it has passed
	}{
		"a correct clock":                                 {20 * time.Second, 20 * time.Second, false, 40 * time.Second},
		"a clock that jumps ahead":                        {24 * time.Hour, 20 * time.Second, false, 40 * time.Second},
		"a clock that jumps back":                         {time.Second, 55 * time.Second, false, 5 * time.Second},
		"a clock that hides that the deadline has passed": {time.Second, time.Hour, false, 0},
		"a reboot, after which the wall clock is used":    {20 * time.Second, 5 * time.Second, true, 40 * time.Second},
		"a reboot beyond the deadline":                    {time.Hour, 5 * time.Second, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(t)
				born, wrong := time.Now(), time.Duration(0)
				d.config.Uptime = func() time.Duration { return time.Since(born) + time.Hour - wrong }
				d.start()
				deadline := int64(100)
				pod := makePod("job", "wait")
				pod.Spec.ActiveDeadlineSeconds = &deadline
				d.desire(1, pod)
				time.Sleep(40 * time.Second)
				d.wantPhase("job", corev1.PodRunning, "")
				d.end()
				time.Sleep(c.wall)
				wrong = c.wall - c.real
				if c.reboot {
					d.fake.PowerCut()
					d.board.set(func(b *board) { b.boot = "boot-2" })
					born, wrong = time.Now(), time.Hour
				}
				d.start()
				if c.remaining > 0 {
					time.Sleep(c.remaining - 2*time.Second)
					d.wantPhase("job", corev1.PodRunning, "")
				}
				time.Sleep(40 * time.Second) // includes the pod's grace period
				d.wantPhase("job", corev1.PodFailed, "DeadlineExceeded")
				d.end()
			})
		})
	}
}

// A board without a real-time clock starts years in the past until a time service sets it.
func TestAPodThatStartedBeforeTheClockWasSetOutlivesAReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.start()
		deadline, set := int64(100), 26*365*24*time.Hour
		pod := makePod("job", "wait")
		pod.Spec.ActiveDeadlineSeconds = &deadline
		pod.CreationTimestamp = metav1.NewTime(time.Now().Add(set)) // by the hub's clock
		d.desire(1, pod)
		time.Sleep(40 * time.Second)
		d.end()
		d.fake.PowerCut()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		time.Sleep(set)
		d.booted = time.Now()
		d.start()
		time.Sleep(98 * time.Second)
		d.wantPhase("job", corev1.PodRunning, "")
		time.Sleep(40 * time.Second) // includes the pod's grace period
		d.wantPhase("job", corev1.PodFailed, "DeadlineExceeded")
		d.end()
	})
}
