package sim

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// interval sets the lease interval of a site; 0: the hub's default.
func (w *world) interval(site string, d time.Duration) {
	w.t.Helper()
	w.site(site, func(s *fleet.SiteSpec) {
		if s.LeaseInterval = nil; d > 0 {
			s.LeaseInterval = &metav1.Duration{Duration: d}
		}
	})
}

// The grace period follows the interval that a device uses, not the wanted interval. A device that
// has not received the change does not become silent.
func TestFleetALeaseIntervalOfASite(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo", "bergen")
		first, second := w.at("oslo")[0], w.at("oslo")[1]
		stored := func(d *simDevice) time.Duration {
			m, _ := d.mem.Desired()
			return time.Duration(m.LeaseIntervalSeconds) * time.Second
		}
		lives := func(when string) {
			t.Helper()
			if lost := w.look.sentences("Ready=Unknown"); len(lost) > 0 {
				t.Fatalf("%s: %v", when, lost)
			}
		}

		w.interval("oslo", time.Minute)
		w.until(10*time.Second, "both devices use a minute",
			func() bool { return stored(first) == time.Minute && stored(second) == time.Minute })
		time.Sleep(10 * time.Minute)
		lives("with an interval of a minute")

		// The agent restarts and keeps its interval of a minute.
		first.kill()
		first.start()
		time.Sleep(5 * time.Minute)
		lives("after a restart of an agent")
		w.restartHub(5 * time.Second)
		time.Sleep(5 * time.Minute)
		lives("after a restart of the hub")

		// The second device first does not receive the change to ten seconds, and then receives it.
		w.cut(second)
		w.interval("oslo", 0)
		time.Sleep(2 * time.Minute)
		lives("while a device has not received a shorter interval")
		w.heal(second)
		w.until(20*time.Second, "both devices use ten seconds",
			func() bool { return stored(first) == 10*time.Second && stored(second) == 10*time.Second })
		time.Sleep(2 * time.Minute)
		lives("with an interval of ten seconds again")

		// With an interval of ten seconds, silence is detected after forty seconds.
		w.cut(second)
		after := w.until(time.Minute, "the node is Unknown",
			func() bool { return w.ready(second.name) == corev1.ConditionUnknown })
		if after < 29*time.Second || after > 41*time.Second {
			t.Errorf("silence is detected after %s, want 30 to 40 s", after)
		}
		w.heal(second)
		w.settleWithin(twoLeases, "the heal")

		// With an interval of a minute, silence is detected after four minutes.
		w.interval("oslo", time.Minute)
		w.until(10*time.Second, "both devices use a minute",
			func() bool { return stored(first) == time.Minute && stored(second) == time.Minute })
		time.Sleep(time.Minute)
		w.cut(second)
		after = w.until(5*time.Minute, "the node is Unknown",
			func() bool { return w.ready(second.name) == corev1.ConditionUnknown })
		if after < 2*time.Minute+55*time.Second || after > 4*time.Minute+time.Second {
			t.Errorf("silence is detected after %s, want 3 to 4 min", after)
		}
	})
}
