package link

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

func TestOnConnectingStatusPodsLeaseComeInThisOrder(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		var got []string
		for _, m := range with(h, func(h *hub) []received { return slices.Clone(h.received) }) {
			got = append(got, m.what)
		}
		if want := []string{"connect", "subscribe", "status", "pods", "lease"}; !slices.Equal(got, want) {
			t.Errorf("the hub received %q, want %q", got, want)
		}
		l2 := with(h, func(h *hub) wire.Lease { return h.lease })
		if l2.Boot != "b1" || l2.Seq != 1 || l2.Status != 1 || l2.Pods != 1 {
			t.Errorf("the first lease is %+v, want number 1 of boot b1 after status 1 and pods 1", l2)
		}
		if online, err := l.Online(); !online || err != nil {
			t.Errorf("Online: %v, %v", online, err)
		}
	})
}

func TestLeasesComeEveryIntervalPlusUpToFourPercent(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		began := time.Now()
		time.Sleep(time.Hour)
		at := h.times("lease", began)
		for i := 1; i < len(at); i++ {
			if gap := at[i] - at[i-1]; gap < 10*time.Second || gap > 10400*time.Millisecond {
				t.Fatalf("two leases are %s apart, want 10s to 10.4s", gap)
			}
		}
		if len(at) < 3600/11 {
			t.Errorf("%d leases in an hour, want one every 11s at least", len(at))
		}
		if n := with(h, func(h *hub) int { return h.connects }); n != 1 {
			t.Errorf("connected %d times in a quiet hour, want once", n)
		}
	})
}

func TestTheHubSetsTheLeaseInterval(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		h.mu.Lock()
		h.desired = wire.Desired{Generation: 1, Hub: "h1", LeaseIntervalSeconds: 30}
		h.mu.Unlock()
		time.Sleep(30 * time.Second) // the next lease reports an old generation, so the hub sends the desired state
		began := time.Now()
		time.Sleep(10 * time.Minute)
		if n := len(h.times("lease", began)); n < 18 || n > 20 {
			t.Errorf("%d leases in ten minutes at an interval of 30s, want 18 to 20", n)
		}
	})
}

func TestAQuietDeviceReportsWithinFiveMinutes(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		began := time.Now()
		time.Sleep(5 * time.Hour)
		last, different := time.Duration(0), map[time.Duration]bool{}
		for _, at := range h.times("status", began) {
			if gap := at - last; at > 0 && (gap > 5*time.Minute || gap < 150*time.Second) {
				t.Errorf("two statuses are %s apart, want 150s to 5m", gap)
			}
			different[at-last], last = true, at
		}
		if len(different) < 50 {
			t.Errorf("%d different pauses, want at least 50: no jitter", len(different))
		}
	})
}

func TestChangesAreSentAtOnceAndNeverPileUp(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		a.change("second")
		agree(t, h, a, "just after a change")
		h.mu.Lock()
		h.mute = func(what string) bool { return what == "status" }
		h.mu.Unlock()
		time.Sleep(time.Second)
		began := time.Now()
		for i := range 1000 {
			a.change(fmt.Sprint("change ", i))
			synctest.Wait()
		}
		if n := len(h.times("status", began)); n != 1 {
			t.Errorf("%d statuses were sent without an acknowledgement, want 1", n)
		}
		h.mu.Lock()
		h.mute = nil
		h.mu.Unlock()
		time.Sleep(ackTimeout + time.Second)
		agree(t, h, a, "after the acknowledgement timed out")
	})
}

// An overloaded hub later accepts queued connections that devices have abandoned, and ends each
// after its CONNACK. A device that waits for an answer on such a connection misses messages
// meanwhile.
func TestAConnectionThatEndsAfterItsConnackIsReplacedAtOnce(t *testing.T) {
	for range 20 {
		h := &hub{brief: 20}
		bubble(t, h, func(t *testing.T, l *Link, a *agent) {
			time.Sleep(20*line.MaxPause + time.Minute)
			agree(t, h, a, "after the last connection")
			if text := h.log.String(); strings.Contains(text, "no answer") || strings.Contains(text, "timeout") {
				t.Errorf("the device waited on a connection that had ended:\n%s", text)
			}
		})
	}
}

func TestAnySingleLossHealsWithinTwoLeaseIntervals(t *testing.T) {
	for _, what := range []string{"lease", "status", "pods", "desired", "request", "puback", "pingresp"} {
		for n := 1; n <= 3; n++ {
			t.Run(fmt.Sprintf("%s %d is lost", what, n), func(t *testing.T) {
				h := &hub{}
				bubble(t, h, func(t *testing.T, l *Link, a *agent) {
					synctest.Wait()
					seen, lost := 0, false
					h.mu.Lock()
					h.lose = func(m string) bool {
						if m == what {
							seen++
						}
						if seen == n && !lost {
							lost = true
							return true
						}
						return false
					}
					h.mu.Unlock()
					for i := range 3 {
						a.change(fmt.Sprint("change ", i))
						h.want(int64(i + 1))
						if what == "request" {
							h.request("r9", wire.Request{Type: wire.RequestRefresh})
						}
						time.Sleep(time.Second)
					}
					time.Sleep(20800 * time.Millisecond)
					if !with(h, func(*hub) bool { return lost }) && what != "pingresp" {
						t.Fatalf("the case lost no %s", what)
					}
					agree(t, h, a, "two lease intervals after the loss")
				})
			})
		}
	}
}

func TestLossesWhileConnectingHealByTryingAgain(t *testing.T) {
	for _, what := range []string{"dial", "connack", "suback", "status", "pods", "lease"} {
		t.Run(what, func(t *testing.T) {
			lost := false
			h := &hub{}
			h.lose = func(m string) bool {
				if m == what && !lost {
					lost = true
					return true
				}
				return false
			}
			bubble(t, h, func(t *testing.T, l *Link, a *agent) {
				time.Sleep(32 * time.Second)
				agree(t, h, a, "half a minute after the start")
				if !with(h, func(*hub) bool { return lost }) {
					t.Error("the case lost no message")
				}
			})
		})
	}
}

func TestAHalfOpenLinkIsNoticedWithinTwentySeconds(t *testing.T) {
	for name, breakIt := range map[string]func(h *hub){
		"packets vanish":                      func(h *hub) { h.frozen.Store(true) },
		"writes to the hub block":             func(h *hub) { h.deaf.Store(true) },
		"pings are not answered":              func(h *hub) {},
		"packets are lost in both directions": func(h *hub) { h.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 20 { // the fault begins at different times within the lease interval
				h := &hub{}
				bubble(t, h, func(t *testing.T, l *Link, a *agent) {
					time.Sleep(40*time.Second + time.Duration(i)*500*time.Millisecond)
					h.mu.Lock()
					h.lose = func(what string) bool { return what == "dial" || what == "pingresp" }
					breakIt(h)
					h.mu.Unlock()
					began := time.Now()
					for online, _ := l.Online(); online && time.Since(began) < time.Minute; online, _ = l.Online() {
						time.Sleep(100 * time.Millisecond)
					}
					h.deaf.Store(false)
					if took := time.Since(began); took > 20*time.Second {
						t.Errorf("the fault was noticed after %s, want at most 20s", took)
					}
				})
			}
		})
	}
}

// A desired state of 4 MiB takes two minutes on a slow line, which is not silence.
func TestASlowDownloadIsNotSilence(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		h.mu.Lock()
		c := h.conn
		h.mu.Unlock()
		payload := append([]byte(`{"generation":7,"hub":"h1"`), strings.Repeat(" ", 2<<20)...)
		payload = append(payload, '}')
		topic := wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired)
		packet := append([]byte{0x30}, 0, 0, 0, 0)
		for i, n := 0, 2+len(topic)+len(payload); i < 4; i++ {
			packet[1+i] = byte(n>>(7*i)) & 0x7f
			if i < 3 {
				packet[1+i] |= 0x80
			}
		}
		packet = append(append(append(packet, 0, byte(len(topic))), topic...), payload...)
		h.mu.Lock() // no PINGRESP while the line is busy
		h.lose = func(what string) bool { return what == "pingresp" }
		h.mu.Unlock()
		for len(packet) > 0 {
			n := min(len(packet), 16<<10)
			if _, err := c.Write(packet[:n]); err != nil {
				t.Fatal(err)
			}
			packet = packet[n:]
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if a.StoredGeneration() != 7 || with(h, func(h *hub) int { return h.connects }) != 1 {
			t.Errorf("stored generation %d, want 7, over one connection", a.StoredGeneration())
		}
	})
}

func TestNoLeasesQueueWhileTheHubIsAway(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(25 * time.Second)
		before := with(h, func(h *hub) uint64 { return h.lease.Seq })
		h.mu.Lock()
		h.lose = func(what string) bool { return what == "dial" }
		h.conn.Close()
		h.mu.Unlock()
		time.Sleep(10 * time.Minute)
		h.mu.Lock()
		h.lose = nil
		h.mu.Unlock()
		back := time.Now()
		time.Sleep(line.MaxPause)
		at := h.times("lease", back)
		if len(at) == 0 || len(at) > 7 {
			t.Fatalf("%d leases in the first minute after an outage of ten minutes, want 1 to 7", len(at))
		}
		after := with(h, func(h *hub) uint64 { return h.lease.Seq })
		if after != before+uint64(len(at)) {
			t.Errorf("lease %d follows %d, but only %d were sent", after, before, len(at))
		}
		agree(t, h, a, "after the outage")
	})
}

func TestReconnectsBackOffWithFullJitter(t *testing.T) {
	h := &hub{}
	var at []time.Time
	h.lose = func(what string) bool {
		if what == "dial" {
			at = append(at, time.Now())
			return true
		}
		return false
	}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(6 * time.Hour)
		h.mu.Lock()
		defer h.mu.Unlock()
		var sum time.Duration
		for i := 1; i < len(at); i++ {
			gap, most := at[i].Sub(at[i-1]), line.MaxPause
			if i <= 6 {
				most = min(line.MinPause<<(i-1), line.MaxPause)
			}
			if gap > most {
				t.Errorf("pause %d is %s, at most %s", i, gap, most)
			}
			sum += gap
		}
		if mean := sum / time.Duration(len(at)-1); mean < 3500*time.Millisecond || mean > 4*time.Second {
			t.Errorf("mean pause %s, want about three quarters of %s", mean, line.MaxPause)
		}
	})
}

// A day's outage must not fill the disk with log lines, although each error names another port.
func TestALongOutageLogsFewLines(t *testing.T) {
	tries := 0
	h := &hub{fail: func() error {
		tries++
		return fmt.Errorf("read tcp 10.0.0.7:%d->10.0.0.1:8883: connection reset by peer", 1024+tries)
	}}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(2 * time.Hour)
		synctest.Wait() // let a running try end
		h.mu.Lock()
		defer h.mu.Unlock()
		logged := h.log.String()
		if n := strings.Count(logged, "cannot reach the hub"); n < 1 || n > 121 || tries < 1000 {
			t.Errorf("%d log lines about %d tries in two hours, want at most one a minute", n, tries)
		}
	})
}

func TestARefusedDeviceReportsTheReason(t *testing.T) {
	h := &hub{refuse: 5}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		if _, err := l.Online(); err == nil || !strings.Contains(err.Error(), "another machine uses this node name") {
			t.Errorf("Online returns %v, want the reason of the refusal", err)
		}
	})
}

func TestAHubThatAcknowledgesNothingIsLeft(t *testing.T) {
	h := &hub{mute: func(string) bool { return true }}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(90 * time.Second)
		if n := with(h, func(h *hub) int { return h.connects }); n < 2 || n > 10 {
			t.Errorf("%d connections in 90 s without a PUBACK, want 2 to 10", n)
		}
	})
}

func TestAnOrderlyStopIsReported(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		a.mu.Lock()
		a.stopping = true
		a.mu.Unlock()
	})
	if r := h.status.Status.Conditions[0].Reason; r != "NodeShutdown" {
		t.Errorf("the last status has reason %s, want NodeShutdown", r)
	}
	if len(h.presence) != 1 || h.presence[0].State != wire.PresenceShutdown || h.presence[0].Boot != "b1" {
		t.Errorf("the presence is %+v, want one shutdown of boot b1", h.presence)
	}
	if h.received[len(h.received)-1].what != "disconnect" || len(h.wills) != 0 {
		t.Errorf("received %v, wills %v; want a DISCONNECT and no will", h.received, h.wills)
	}
}

func TestACutLinkFiresTheWillWithItsBoot(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		h.mu.Lock()
		h.conn.Close()
		h.mu.Unlock()
		time.Sleep(5 * time.Second)
		if w := with(h, func(h *hub) []wire.Presence { return h.wills }); len(w) != 1 || w[0] != (wire.Presence{
			Boot: "b1", State: wire.PresenceLost, Connection: 1}) {
			t.Errorf("the wills are %v, want one of boot b1", w)
		}
	})
}

func TestEventsWaitForTheHubInOrderAndOverflowIsReported(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		h.mu.Lock()
		h.lose = func(what string) bool { return what == "dial" }
		h.conn.Close()
		h.mu.Unlock()
		synctest.Wait()
		for i := range maxEvents + 10 {
			l.Event(wire.Event{Type: "Normal", Reason: "Pulled", Message: fmt.Sprint(i)})
		}
		h.mu.Lock()
		acks := 0
		h.lose = func(what string) bool { // an event and an acknowledgement are lost
			if what == "puback" {
				acks++
			}
			return what == "puback" && acks == 7
		}
		h.mu.Unlock()
		time.Sleep(time.Minute)
		got := with(h, func(h *hub) (m []string) {
			for _, e := range h.events {
				m = append(m, e.Reason+" "+e.Message)
			}
			return slices.Compact(m)
		})
		want := []string{"EventsDropped 10 events were dropped: more than 256 waited for the hub"}
		for i := range maxEvents {
			want = append(want, fmt.Sprint("Pulled ", i+10))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d events arrived: %.300q, want %d: %.300q", len(got), got, len(want), want)
		}
	})
}

func TestARefreshDoesNotWaitForMessagesInFlight(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		h.mu.Lock()
		lost := 0
		h.lose = func(what string) bool {
			if what == "status" || what == "pods" {
				lost++
			}
			return lost <= 2 && (what == "status" || what == "pods")
		}
		h.mu.Unlock()
		a.change("second")
		synctest.Wait()
		h.request("r1", wire.Request{Type: wire.RequestRefresh})
		synctest.Wait()
		h.mu.Lock()
		h.lose = nil
		h.mu.Unlock()
		time.Sleep(time.Millisecond)
		agree(t, h, a, "just after the refresh")
	})
}

func TestRequestsReachTheAgentAndTheLinkAnswersRefresh(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		began := time.Now()
		h.request("r1", wire.Request{Type: wire.RequestRefresh})
		time.Sleep(time.Millisecond)
		h.request("r2", wire.Request{Type: wire.RequestLogs})
		time.Sleep(time.Millisecond)
		h.request("r3", wire.Request{Type: "dance"})
		synctest.Wait()
		if !slices.Equal(a.requests, []string{"r2 logs", "r3 dance"}) {
			t.Errorf("the agent received %q, want r2 and r3 only", a.requests)
		}
		if s, p := h.times("status", began.Add(time.Nanosecond)), h.times(
			"pods", began.Add(time.Nanosecond)); len(s)+len(p) > 2 {
			t.Errorf("refresh was answered by %d statuses and %d lists of pods, want one each", len(s), len(p))
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.status.Seq != 2 || h.pods.Seq != 2 {
			t.Errorf("status %d and pods %d after a refresh, want 2 and 2", h.status.Seq, h.pods.Seq)
		}
	})
}

// Each desired state is written to flash. Above the rate limit only the newest one waits, and
// requests do not wait behind it.
func TestDesiredStatesAreRateLimited(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		blank := strings.Repeat(" ", 4<<20-200)
		stored, generation := 0, int64(0)
		for range 200 {
			generation++
			was := a.StoredGeneration()
			l.mu.Lock()
			l.desired = [][]byte{fmt.Appendf(nil, `{"generation":%d,"hub":"h1"%s}`, generation, blank)}
			l.mu.Unlock()
			signal(l.deliver)
			time.Sleep(time.Second)
			synctest.Wait()
			if a.StoredGeneration() != was {
				stored++
			}
		}
		if stored < 7 || stored > 10 {
			t.Errorf("%d of 200 desired states of 4 MiB were stored in 200 s, want 8", stored)
		}
		l.arrivedRequest("r1", []byte(`{"type":"usage"}`))
		synctest.Wait()
		if a.mu.Lock(); len(a.requests) != 1 {
			t.Errorf("a request waits for a desired state: %v", a.requests)
		}
		a.mu.Unlock()
		time.Sleep(10 * time.Minute)
		if g := a.StoredGeneration(); g != generation {
			t.Errorf("generation %d is stored, want the newest, %d", g, generation)
		}
	})
}

// 100 pods of 8 containers need more than one message. The hub receives all of them, but not every
// intermediate change.
func TestALongListOfPodsReachesTheHub(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		var others []wire.PodStatus
		for i := range 100 {
			p := wire.PodStatus{UID: types.UID(fmt.Sprint("other", i)), Namespace: "default", Name: fmt.Sprint("other", i)}
			for c := range 8 {
				p.Status.ContainerStatuses = append(
					p.Status.ContainerStatuses,
					corev1.ContainerStatus{Name: fmt.Sprint("c", c), ContainerID: fmt.Sprintf("docker://%064x", rand.Uint64()),
						State: corev1.ContainerState{
							Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: strings.Repeat("back-off ", 50)},
						}},
				)
			}
			others = append(others, p)
		}
		a.mu.Lock()
		a.others = others
		a.mu.Unlock()
		began := time.Now()
		for i := range 100 { // a change every 100 ms
			a.mu.Lock()
			others = slices.Clone(others)
			for n := range others {
				others[n].Name = fmt.Sprint("other", n, "-", i)
			}
			a.others = others
			a.mu.Unlock()
			a.change(fmt.Sprint("change ", i))
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(h.times("pods", began)); n < 8 || n > 12 {
			t.Errorf("100 changes of a long list in ten seconds were sent in %d messages, want about 10", n)
		}
		time.Sleep(time.Second)
		agree(t, h, a, "a second after the last change")
		if n := with(h, func(h *hub) int { return len(h.pods.Pods) }); n != 101 {
			t.Errorf("the hub has %d pods, want 101", n)
		}
		a.mu.Lock()
		a.others = nil
		a.mu.Unlock()
		a.change("short again")
		time.Sleep(time.Second)
		agree(t, h, a, "when the list is short again")
	})
}

// A browser may open many requests and cancel them. The agent refuses excess requests itself, so
// the link must not drop them before.
func TestManySmallRequestsAllReachTheAgent(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		const requests = 400 // the sum of the agent's limits of each kind
		a.mu.Lock()          // the agent is busy: requests wait
		for i := range requests {
			l.arrivedRequest(fmt.Sprint("r", i), []byte(`{"type":"port-forward","port":80}`))
			l.arrivedRequest(fmt.Sprint("c", i), fmt.Appendf(nil, `{"type":"cancel","of":"r%d"}`, i))
		}
		a.mu.Unlock()
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if n := len(a.requests); n != 2*requests {
			t.Errorf("%d of %d requests reached the agent", n, 2*requests)
		}
	})
}

func TestAFloodOfRequestsIsBoundedInBytes(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		const size = 400 << 10
		a.mu.Lock() // the agent is busy: requests wait
		held := 0
		for i := range 64 {
			l.arrivedRequest(
				fmt.Sprint("large", i),
				fmt.Appendf(nil, `{"type":"exec","command":["%s"]}`, strings.Repeat("a", size)),
			)
			l.mu.Lock()
			held = max(held, len(l.requests)*size)
			l.mu.Unlock()
		}
		a.mu.Unlock()
		synctest.Wait()
		a.mu.Lock()
		if n := len(a.requests); held > maxWaiting || n == 0 || n > 2*maxWaiting/size {
			t.Errorf("%d bytes waited, want at most %d; the agent received %d requests", held, maxWaiting, n)
		}
		a.mu.Unlock()
		l.arrivedRequest("after", []byte(`{"type":"usage"}`))
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if !slices.Contains(a.requests, "after usage") {
			t.Errorf("a request after the flood was lost: %v", a.requests)
		}
	})
}
