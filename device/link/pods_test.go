package link

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// many returns n pods of size bytes whose statuses hardly compress.
func many(n, size int) (out []wire.PodStatus) {
	for i := range n {
		p := wire.PodStatus{UID: types.UID(fmt.Sprint("other", i)), Namespace: "default", Name: fmt.Sprint("other", i)}
		for c := 0; c < size; c += 100 {
			id := fmt.Sprintf("%x%x%x", [8]byte{byte(i), byte(i >> 8), byte(c), byte(c >> 8)}, i*7919+c, c*104729+i)
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses,
				corev1.ContainerStatus{Name: fmt.Sprint("c", c), ContainerID: "docker://" + id, Image: strings.Repeat(id, 2)})
		}
		out = append(out, p)
	}
	return out
}

func (a *agent) hold(others []wire.PodStatus) {
	a.mu.Lock()
	a.others = others
	a.mu.Unlock()
	a.link.PodsChanged()
}

// hasPods fails the test unless the hub has exactly the agent's pods.
func hasPods(t *testing.T, h *hub, a *agent, when string) {
	t.Helper()
	synctest.Wait()
	want := a.Pods().Pods
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := h.pods.Pods; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: the hub has %d pods that differ from the agent's %d", when, len(got), len(want))
	}
}

func TestOnlyChangedPodsAreSentAgain(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		a.hold(many(9, 1000))
		time.Sleep(time.Second)
		hasPods(t, h, a, "at first")
		list := many(9, 1000)
		list[4].Name = "renamed"
		a.hold(list)
		time.Sleep(time.Second)
		hasPods(t, h, a, "after one pod has changed")
		base := with(h, func(h *hub) uint64 { return h.pods.Base })
		seq := with(h, func(h *hub) uint64 { return h.pods.Seq })
		if base == 0 || base >= seq {
			t.Errorf("list %d has base %d, want an earlier list as its base", seq, base)
		}
		a.hold(list[1:])
		time.Sleep(time.Second)
		hasPods(t, h, a, "after one pod was removed")

		// The hub loses the list on which the device bases the next one.
		h.mu.Lock()
		h.pods = wire.Pods{Seq: 1}
		h.mu.Unlock()
		list[3].Name = "again"
		a.hold(list[1:])
		time.Sleep(12 * time.Second)
		hasPods(t, h, a, "a lease after the hub has lost the lists")
		if len(h.times("baseless", time.Time{})) == 0 {
			t.Error("the device sent no list with an unknown base")
		}
	})
}

// After a lost acknowledgement the device cannot know whether the hub has the list.
func TestAfterALostAcknowledgementAllPodsAreSent(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		a.hold(many(9, 1000))
		time.Sleep(time.Second)
		h.mu.Lock()
		h.mute = func(what string) bool { return what == "pods" }
		h.mu.Unlock()
		list := many(9, 1000)
		list[4].Name = "renamed"
		a.hold(list)
		time.Sleep(time.Second)
		h.mu.Lock()
		h.mute = nil
		h.mu.Unlock()
		time.Sleep(ackTimeout)
		hasPods(t, h, a, "after the timeout of the acknowledgement")
		if n := len(h.times("baseless", time.Time{})); n > 0 {
			t.Errorf("%d lists had a base that the hub does not have", n)
		}
		if base := with(h, func(h *hub) uint64 { return h.pods.Base }); base != 0 {
			t.Errorf("the list has base %d, which the hub may not have; want a complete list", base)
		}
	})
}

// On slow lines the list takes a minute or more. Meanwhile leases must not make the hub request
// parts that are on their way, and no part may exceed its timeout.
func TestALongListIsSentInPartsOnce(t *testing.T) {
	for _, c := range []struct {
		pods, rate int // number of pods; bytes per second
		within     time.Duration
	}{
		{350, 20 << 10, 4 * time.Minute},
		{20, 2500, 3 * time.Minute}, // 20 kbit/s
	} {
		t.Run(fmt.Sprintf("%d pods at %d bytes a second", c.pods, c.rate), func(t *testing.T) {
			h := &hub{rate: c.rate, buffer: 16 << 10}
			bubble(t, h, func(t *testing.T, l *Link, a *agent) {
				time.Sleep(5 * time.Second)
				began := time.Now()
				a.hold(many(c.pods, 10_000))
				time.Sleep(c.within)
				hasPods(t, h, a, "when all parts are sent")
				parts, leases := len(h.times("part", began)), h.times("lease", began)
				if n := with(h, func(h *hub) int { return h.pods.Parts }); n < 2 || parts != n {
					t.Errorf("%d parts were sent, want each of %d parts once", parts, n)
				}
				last := time.Duration(0)
				for _, at := range append(leases, time.Since(began)) {
					if gap := at - last; gap >= 40*time.Second {
						t.Errorf("no lease for %s, the grace is 40s", gap)
					}
					last = at
				}
			})
		})
	}
}

func TestADesiredStateIsStoredWhenAllPartsHaveArrived(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		d := wire.Desired{Hub: "h1", Generation: 3, Pods: []corev1.Pod{{}, {}}}
		part := func(n int) {
			p := d
			p.Part, p.Parts, p.Pods = n, 2, d.Pods[:1]
			h.mu.Lock()
			h.desired.Generation = 3
			h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "part", p)
			h.resent = time.Now().Add(time.Hour)
			h.mu.Unlock()
			synctest.Wait()
		}
		part(2)
		if g := a.StoredGeneration(); g != 0 {
			t.Fatalf("generation %d is stored although a part is missing", g)
		}
		part(1)
		if g := a.StoredGeneration(); g != 3 {
			t.Errorf("generation %d is stored, want 3", g)
		}
	})
}

// Desired states larger than a message are compressed, and arrive in one part or in two.
func TestOnlyTheNewestDesiredStateWaitsForTheRateLimit(t *testing.T) {
	for _, parts := range []int{1, 2} {
		h := &hub{}
		bubble(t, h, func(t *testing.T, l *Link, a *agent) {
			synctest.Wait()
			blank := strings.Repeat(" ", (4<<20-200)/parts)
			send := func(generation int64) {
				for part := 1; part <= parts; part++ {
					of := ""
					if parts > 1 {
						of = fmt.Sprintf(`,"part":%d,"parts":%d`, part, parts)
					}
					var b bytes.Buffer
					w := gzip.NewWriter(&b)
					_, err := fmt.Fprintf(w, `{"generation":%d,"hub":"h1"%s%s}`, generation, of, blank)
					if err = errors.Join(err, w.Close()); err != nil {
						t.Fatal(err)
					}
					h.mu.Lock()
					h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "desired", b.Bytes())
					h.mu.Unlock()
				}
			}
			stored := 0
			for generation := int64(1); generation <= 60; generation++ {
				was := a.StoredGeneration()
				send(generation)
				time.Sleep(10 * time.Second)
				if now := a.StoredGeneration(); now != was {
					stored++
					if now < generation-1 {
						t.Errorf("in %d parts: generation %d is stored after generation %d was sent", parts, now, generation)
					}
				}
			}
			if stored < 8 || stored > 10 {
				t.Errorf("in %d parts: %d of 60 desired states of 4 MiB were stored in 600 s, want 9", parts, stored)
			}
			h.mu.Lock()
			h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "desired",
				wire.Desired{Dismissed: &wire.Dismissed{Time: time.Now()}})
			h.mu.Unlock()
			time.Sleep(2 * time.Second)
			if text := h.log.String(); !strings.Contains(text, "has ended this device's enrolment") {
				t.Errorf("in %d parts: the dismissal notice waits behind desired states", parts)
			}
		})
	}
}
