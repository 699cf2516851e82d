package agent

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the wall clock does while the agent is off changes no deadline: it counts on by
// the time since the boot.
func TestADeadlineCountsByTheMonotonicClockOverRestartsOfTheAgent(t *testing.T) {
	for name, c := range map[string]struct {
		passes time.Duration // by the wall clock, while the agent is off
		passed time.Duration // in truth
		reboot bool
		lives  time.Duration // after that; 0: it ends at once
	}{
		"a clock that tells the truth":                  {20 * time.Second, 20 * time.Second, false, 40 * time.Second},
		"a clock that jumps ahead":                      {24 * time.Hour, 20 * time.Second, false, 40 * time.Second},
		"a clock that jumps back":                       {time.Second, 55 * time.Second, false, 5 * time.Second},
		"a clock that hides that the time is over":      {time.Second, time.Hour, false, 0},
		"a reboot, after which the wall clock tells":    {20 * time.Second, 5 * time.Second, true, 40 * time.Second},
		"a reboot that took longer than there was time": {time.Hour, 5 * time.Second, true, 0},
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
				time.Sleep(c.passes)
				wrong = c.passes - c.passed
				if c.reboot {
					d.fake.PowerCut()
					d.board.set(func(b *board) { b.boot = "boot-2" })
					born, wrong = time.Now(), time.Hour
				}
				d.start()
				if c.lives > 0 {
					time.Sleep(c.lives - 2*time.Second)
					d.wantPhase("job", corev1.PodRunning, "")
				}
				time.Sleep(40 * time.Second) // its grace, too
				d.wantPhase("job", corev1.PodFailed, "DeadlineExceeded")
				d.end()
			})
		})
	}
}

// A board without a clock of its own begins in some year long ago, until a time service has set it.
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
		time.Sleep(40 * time.Second) // its grace, too
		d.wantPhase("job", corev1.PodFailed, "DeadlineExceeded")
		d.end()
	})
}
