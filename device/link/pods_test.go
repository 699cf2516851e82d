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

// many returns pods of that size whose statuses hardly compress.
func many(n, size int) (out []wire.PodStatus) {
	for i := range n {
		p := wire.PodStatus{UID: types.UID(fmt.Sprint("other", i)), Namespace: "default", Name: fmt.Sprint("other", i)}
		for c := 0; c < size; c += 100 {
			id := fmt.Sprintf("%x%x%x", [8]byte{byte(i), byte(i >> 8), byte(c), byte(c >> 8)}, i*7919+c, c*104729+i)
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint("c", c), ContainerID: "docker://" + id, Image: strings.Repeat(id, 2)})
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

// knows fails the test unless the hub has every pod as it is.
func knows(t *testing.T, h *hub, a *agent, when string) {
	t.Helper()
	synctest.Wait()
	want := a.Pods().Pods
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := h.pods.Pods; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: the hub knows %d pods, and not as they are; there are %d", when, len(got), len(want))
	}
}

func TestOnlyPodsThatHaveChangedAreSaidAgain(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		a.hold(many(9, 1000))
		time.Sleep(time.Second)
		knows(t, h, a, "at first")
		list := many(9, 1000)
		list[4].Name = "renamed"
		a.hold(list)
		time.Sleep(time.Second)
		knows(t, h, a, "when one has changed")
		if base, seq := with(h, func(h *hub) uint64 { return h.pods.Base }), with(h, func(h *hub) uint64 { return h.pods.Seq }); base == 0 || base >= seq {
			t.Errorf("list %d says all again: base %d", seq, base)
		}
		a.hold(list[1:])
		time.Sleep(time.Second)
		knows(t, h, a, "when one is gone")

		// The hub loses the list to which the next list refers.
		h.mu.Lock()
		h.pods = wire.Pods{Seq: 1}
		h.mu.Unlock()
		list[3].Name = "again"
		a.hold(list[1:])
		time.Sleep(12 * time.Second)
		knows(t, h, a, "a lease after the hub has forgotten the lists")
		if len(h.times("baseless", time.Time{})) == 0 {
			t.Error("the case was not met")
		}
	})
}

// After a lost acknowledgement it is unknown whether the hub has the list.
func TestAfterALostAcknowledgementAllPodsAreSaid(t *testing.T) {
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
		knows(t, h, a, "after the time for an acknowledgement")
		if n := len(h.times("baseless", time.Time{})); n > 0 {
			t.Errorf("%d lists were of no use to the hub", n)
		}
		if base := with(h, func(h *hub) uint64 { return h.pods.Base }); base != 0 {
			t.Errorf("the list leaves something to list %d, of which the device does not know whether the hub has it", base)
		}
	})
}

// On lines that need a minute or more for the list, no lease makes the hub request parts that are
// on their way, and no part takes longer than its timeout.
func TestALongListComesInPartsAndIsNotBegunAgain(t *testing.T) {
	for _, c := range []struct {
		pods, rate int // bytes per second
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
				knows(t, h, a, "in the end")
				parts, leases := len(h.times("part", began)), h.times("lease", began)
				if n := with(h, func(h *hub) int { return h.pods.Parts }); n < 2 || parts != n {
					t.Errorf("%d parts were sent of a list of %d", parts, n)
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

func TestADesiredStateInPartsIsTakenWhenAllAreThere(t *testing.T) {
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
			t.Fatalf("generation %d is taken with half of it missing", g)
		}
		part(1)
		if g := a.StoredGeneration(); g != 3 {
			t.Errorf("generation %d is stored, want 3", g)
		}
	})
}

// A hub compresses each desired state that is longer than a message.
func TestOfDesiredStatesThatAreHeldBackTheNewestIsTaken(t *testing.T) {
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
			taken := 0
			for generation := int64(1); generation <= 60; generation++ {
				was := a.StoredGeneration()
				send(generation)
				time.Sleep(10 * time.Second)
				if now := a.StoredGeneration(); now != was {
					taken++
					if now < generation-1 {
						t.Errorf("in %d parts: generation %d is taken when %d is wanted", parts, now, generation)
					}
				}
			}
			if taken < 8 || taken > 10 {
				t.Errorf("in %d parts: of 60 desired states of 4 MiB in 600 s %d were taken, want 9", parts, taken)
			}
			h.mu.Lock()
			h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "desired", wire.Desired{Dismissed: &wire.Dismissed{Time: time.Now()}})
			h.mu.Unlock()
			time.Sleep(2 * time.Second)
			if text := h.log.String(); !strings.Contains(text, "has ended this device's enrolment") {
				t.Errorf("in %d parts: the end of the enrolment waits behind them", parts)
			}
		})
	}
}
