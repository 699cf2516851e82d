package leader

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	row := Row{Token: 3, Beat: 7, Holder: "a"}
	left := row
	left.Left = true
	for _, c := range []struct {
		rule   string
		belief View
		now    time.Duration
		want   Step
	}{
		{"the row has not been read", View{}, time.Hour, Wait},
		{"there has never been a leader", View{Known: true}, 0, Take},
		{"the row has just changed", View{Known: true, Row: row}, 0, Wait},
		{"the row is unchanged for less than the lease", View{Known: true, Row: row, Read: Lease - 1}, Lease - 1, Wait},
		{"the row is unchanged for the lease", View{Known: true, Row: row, Read: Lease}, Lease, Take},
		{"the row was unchanged at the last read, which is long ago", View{Known: true, Row: row, Read: Lease}, Lease + Beat + 1, Wait},
		{"the leader has left", View{Known: true, Row: left}, 0, Take},
		{"the leader had left, but the last read is long ago", View{Known: true, Row: left}, Beat + 1, Wait},
		{"a leader that has just renewed", View{Mine: 3}, Beat - 1, Wait},
		{"a leader whose renewal is due", View{Mine: 3}, Beat, Renew},
		{"a leader without the database for the lease", View{Mine: 3}, Lease, StepDown},
		{"a leader that sees another hub's token", View{Mine: 2, Known: true, Row: row}, 0, StepDown},
		{"a leader that still sees the previous token", View{Mine: 4, Known: true, Row: row}, 0, Wait},
	} {
		if got := c.belief.Decide(c.now); got != c.want {
			t.Errorf("%s: %v, want %v", c.rule, got, c.want)
		}
	}
}

func TestAPauseBetweenReadsRestartsTheLease(t *testing.T) {
	row := Row{Token: 1, Beat: 1}
	b := View{}.Saw(row, 0).Saw(row, Beat)
	if b.Changed != 0 {
		t.Fatal("the time without change restarts although the reads were in time")
	}
	if b = b.Saw(row, 3*Beat+1); b.Changed != 3*Beat+1 || b.Decide(3*Beat+1) != Wait {
		t.Fatal("a pause between reads counts as time without change")
	}
	row.Beat++
	if b = b.Saw(row, 4*Beat); b.Changed != 4*Beat {
		t.Fatal("the time without change goes on although the row changed")
	}
}

func TestALockedRowHasALeader(t *testing.T) {
	row := Row{Token: 1, Beat: 1}
	b := View{}
	for at := time.Duration(0); at < 10*Lease; at += Look { // one transaction that locks the row for ten leases
		if b = b.Saw(row, at); b.Decide(at) == Take {
			b = b.SawChange(at)
		}
		if !b.HasLeader(at) {
			t.Fatalf("at %s HasLeader is false", at)
		}
	}
	if b.LeaderActive() {
		t.Error("one transaction counts as an active leader")
	}
	for i := range 3 {
		row.Beat++
		if b = b.Saw(row, 10*Lease+time.Duration(i)*Look); b.LeaderActive() != (i == 2) {
			t.Errorf("after %d beats: %v", i+1, b.LeaderActive())
		}
	}
	row.Token, row.Beat = 2, row.Beat+1
	if b = b.Saw(row, 10*Lease+Beat); b.LeaderActive() {
		t.Error("the beats of one leader count for the next")
	}
}

// A world is several hubs with their own clocks, and one database that runs one request at a time.
// Any time may pass between a request and the handling of its response.
type world struct {
	row     Row
	hubs    []*hub
	commits []uint64 // tokens of the commits
	r       *rand.Rand
	now     time.Duration
	busy    bool // every leader commits as often as it can
}

type hub struct {
	b      View
	start  time.Duration // start of its clock
	next   time.Duration // time of its next action
	frozen time.Duration // the process is stopped until then
	cut    time.Duration // the database cannot be reached until then
	down   time.Duration // the process does not run until then
	seen   *Row          // a response that the hub has not handled yet
}

func (w *world) commit(h *hub) bool {
	if h.b.Mine != w.row.Token || w.row.Left {
		return false
	}
	w.row.Beat++
	w.row.Revision++
	w.commits = append(w.commits, h.b.Mine)
	return true
}

// step runs the next action of one hub.
func (w *world) step(h *hub) {
	clock := w.now - h.start
	if w.now < h.down {
		h.b, h.seen = View{}, nil // a new process has no view
		h.next = h.down
		return
	}
	h.next = w.now + Look
	if w.now < h.cut {
		if h.b.Decide(clock) == StepDown {
			h.b, h.seen = View{}, nil
		}
		return
	}
	if h.seen == nil && h.b.Mine == 0 {
		row := w.row
		h.seen = &row
		h.next = w.now + time.Duration(w.r.IntN(100))*time.Millisecond // the response arrives later
		return
	}
	if h.seen != nil {
		h.b = h.b.Saw(*h.seen, clock)
		h.seen = nil
	}
	switch h.b.Decide(clock) {
	case Take:
		if w.row.Token == h.b.Row.Token && w.row.Beat == h.b.Row.Beat && w.row.Left == h.b.Row.Left {
			w.row = Row{Token: w.row.Token + 1, Beat: w.row.Beat + 1, Revision: w.row.Revision}
			h.b = h.b.Took(w.row.Token, clock)
		}
	case Renew:
		if w.row.Token == h.b.Mine {
			w.row.Beat++
			h.b = h.b.Took(h.b.Mine, clock)
		} else {
			h.b = View{}
		}
	case StepDown:
		h.b = View{}
	}
	if h.b.Mine != 0 && (w.busy || w.r.IntN(4) == 0) && !w.commit(h) {
		h.b = View{}
	}
	if h.b.Mine != 0 && w.r.IntN(400) == 0 { // an orderly stop
		if w.row.Token == h.b.Mine {
			w.row.Left = true
		}
		h.down, h.b = w.now+time.Duration(w.r.IntN(5000))*time.Millisecond, View{}
	}
}

// trouble disturbs hubs until a certain time.
func (w *world) trouble() {
	h := w.hubs[w.r.IntN(len(w.hubs))]
	until := w.now + time.Duration(w.r.IntN(70_000))*time.Millisecond
	switch w.r.IntN(3) {
	case 0:
		h.frozen, h.next = until, max(h.next, until)
	case 1:
		h.cut = until
	case 2:
		h.down = until
	}
}

func (w *world) run(until time.Duration, troubled bool) {
	for w.now < until {
		first := w.hubs[0]
		for _, h := range w.hubs {
			if h.next < first.next {
				first = h
			}
		}
		w.now = max(w.now, first.next)
		w.step(first)
		if troubled && w.r.IntN(60) == 0 {
			w.trouble()
		}
	}
}

// TestAnyInterleavingHasOneLeaderAtATime lets two to four hubs stop, freeze, lose their database
// and come back. The tokens of commits never decrease. After the trouble one hub leads within ten
// seconds.
func TestAnyInterleavingHasOneLeaderAtATime(t *testing.T) {
	changes := 0
	for seed := range uint64(400) {
		w := &world{r: rand.New(rand.NewPCG(seed, 1))}
		for range 2 + w.r.IntN(3) {
			w.hubs = append(w.hubs, &hub{start: -time.Duration(w.r.IntN(1e9)) * time.Millisecond})
		}
		for range 5 {
			w.run(w.now+5*time.Minute, true)
			survivor := w.hubs[w.r.IntN(len(w.hubs))]
			for _, h := range w.hubs { // one hub is healthy; the others may stay disturbed
				if h == survivor {
					h.cut, h.frozen, h.down, h.next = w.now, w.now, min(h.down, w.now), w.now
				}
			}
			before := len(w.commits)
			quiet := *survivor
			w.busy = true
			w.run(w.now+10*time.Second, false)
			w.busy = false
			if len(w.commits) == before {
				t.Fatalf("seed %d: no commit for 10 s at %s; the healthy hub: %+v, row %+v", seed, w.now, quiet.b, w.row)
			}
		}
		for i := 1; i < len(w.commits); i++ {
			if w.commits[i] < w.commits[i-1] {
				t.Fatalf("seed %d: a commit of token %d came after one of token %d", seed, w.commits[i], w.commits[i-1])
			}
			if w.commits[i] != w.commits[i-1] {
				changes++
			}
		}
	}
	if changes < 1000 {
		t.Errorf("the leader changed only %d times: the test is too weak", changes)
	}
}

// No hub takes the row of a leader that renews it.
func TestAWorkingLeaderStays(t *testing.T) {
	w := &world{r: rand.New(rand.NewPCG(1, 1)), hubs: []*hub{{}, {start: -time.Hour}, {start: time.Hour}}}
	clock := time.Duration(0)
	w.row = Row{Token: 9}
	leads := w.hubs[0]
	leads.b = leads.b.Took(9, 0)
	for ; clock < time.Hour; clock += Look {
		if leads.b.Decide(clock) == Renew {
			w.row.Beat++
			leads.b = leads.b.Took(9, clock)
		}
		for _, h := range w.hubs[1:] {
			if h.b = h.b.Saw(w.row, clock-h.start); h.b.Decide(clock-h.start) != Wait {
				t.Fatalf("at %s a standby decides %v", clock, h.b.Decide(clock-h.start))
			}
		}
	}
}
