package sim

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// tlsRecord is the overhead of TLS 1.3 per packet: a header of 5 bytes, a type byte, a tag of 16
// bytes.
const tlsRecord = 22

// A meter counts the bytes on the links in both directions.
type meter struct {
	mu    sync.Mutex
	bytes map[string]int
}

// tap counts a packet and passes it on.
func (m *meter) tap(p *packet) []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes[p.kind] += len(p.raw) + tlsRecord
	return untouched
}

// take returns the bytes since the last call, the total and by kind.
func (m *meter) take() (total int, kinds string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.bytes {
		total += n
	}
	kinds = fmt.Sprint(m.bytes)
	clear(m.bytes)
	return total, kinds
}

// metered runs a world of one device with ten pods of one container each.
func metered(t *testing.T, interval time.Duration, play func(w *world, m *meter)) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		m := &meter{bytes: map[string]int{}}
		w.tap = m.tap
		w.startHub()
		w.newDevice("pi-1", "oslo").start()
		w.settleWithin(15*time.Second, "the start")
		w.site("oslo", func(s *fleet.SiteSpec) { s.LeaseInterval = &metav1.Duration{Duration: interval} })
		w.deploy("kiosk", 9)
		w.deploy("tenth", 1)
		w.settleWithin(30*time.Second, "the deployments")
		time.Sleep(10 * time.Minute)
		m.take()
		play(w, m)
	})
}

func TestFleetAnIdleDeviceCostsFewBytes(t *testing.T) {
	if !long {
		t.Skip("two hours of counting: make test-long")
	}
	for _, c := range []struct {
		interval time.Duration
		most     int // most bytes an hour
	}{{10 * time.Second, 150_000}, {time.Minute, 60_000}} {
		t.Run(c.interval.String(), func(t *testing.T) {
			metered(t, c.interval, func(w *world, m *meter) {
				time.Sleep(time.Hour)
				total, kinds := m.take()
				w.t.Logf("%d bytes in an hour: %s", total, kinds)
				if total > c.most {
					w.t.Errorf("%d bytes in an hour, want at most %d: %s", total, c.most, kinds)
				}
			})
		})
	}
}

func TestFleetAPodThatCrashesAmongTenCostsFewBytes(t *testing.T) {
	metered(t, 10*time.Second, func(w *world, m *meter) {
		w.deploy("tenth", 1, func(s *corev1.PodSpec) { s.Containers[0].Image = "example.org/crashing:1" })
		w.until(time.Minute, "the first crash", func() bool {
			p := w.pods("tenth")
			return len(p) == 1 && len(p[0].Status.ContainerStatuses) == 1 && p[0].Status.ContainerStatuses[0].RestartCount > 0
		})
		m.take()
		var worst int
		for range 10 {
			time.Sleep(time.Minute)
			total, kinds := m.take()
			w.t.Logf("%d bytes in a minute: %s", total, kinds)
			worst = max(worst, total)
		}
		if worst > 10_000 {
			w.t.Errorf("%d bytes in a minute, want at most 10000", worst)
		}
	})
}

// endsAtOnce tells whether an image's program ends at once and is restarted.
func endsAtOnce(image string) bool { return strings.Contains(image, "crashing") }
