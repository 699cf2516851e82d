package history

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func sampleOf(figures map[Kind]float64) Sample {
	s := Nothing()
	for k, v := range figures {
		s[k] = v
	}
	return s
}

func TestAFigureIsDecodedWithinItsPrecision(t *testing.T) {
	for _, c := range []struct {
		kind      Kind
		is, reads float64
	}{
		{CPU, 0, 0}, {CPU, .374, .37}, {CPU, 1, 1}, {CPU, 1.7, 1.26}, {Memory, .5, .5}, {Disk, .999, 1},
		{Temperature, -35, -20}, {Temperature, 0, 0}, {Temperature, 84.4, 84}, {Temperature, 140, 106},
		{Supply, 0, 1}, {Supply, 4.63, 4.63}, {Supply, 5.1, 5.1}, {Supply, 12, 12}, {Supply, 24, 24},
		{Silence, .2, 1}, {Silence, 10.2, 10.3}, {Silence, 40, 40}, {Silence, 3600, 1500},
		{Losses, 0, 0}, {Losses, 7, 7}, {Losses, 900, 30}, {RTT, .0001, .001}, {RTT, .034, .034}, {RTT, .6, .6},
		{Pods, 0, 0}, {Pods, 110, 110}, {Pods, 127, 127}, {Pods, 131, 135}, {Pods, 1024, 1023}, {Pods, 9999, 1143},
	} {
		got, ok := Pack(sampleOf(map[Kind]float64{c.kind: c.is})).Value(c.kind)
		if off := math.Abs(got - c.reads); !ok || off > .11*math.Abs(c.reads)+1e-9 ||
			(c.kind != RTT && c.kind != Silence && off > .01*math.Abs(c.reads)+1e-9) {
			t.Errorf("figure %d: %v is decoded as %v, %v; want %v", c.kind, c.is, got, ok, c.reads)
		}
	}
}

func TestAbsentIsNotZero(t *testing.T) {
	if w := Pack(Nothing()); w != 0 {
		t.Errorf("an empty sample is encoded as %x", w)
	}
	w := Pack(sampleOf(map[Kind]float64{CPU: 0, Pods: 0}))
	for k := range Kinds {
		v, ok := w.Value(k)
		if want := k == CPU || k == Pods; ok != want || v != 0 {
			t.Errorf("figure %d: %v, %v", k, v, ok)
		}
	}
	all := Nothing()
	for k := range all {
		all[k] = math.Inf(1)
	}
	if w := Pack(all); w != math.MaxUint64 {
		t.Errorf("the sample of all maxima is %x: bits overlap, or are not used", w)
	}
}

func TestSamplesOfOneSlotAreMerged(t *testing.T) {
	w := Pack(sampleOf(map[Kind]float64{CPU: .1, Temperature: 50, Silence: 30,
		Losses: 2})).with(Pack(sampleOf(map[Kind]float64{CPU: .4, Silence: 11, Losses: 3, RTT: .1})))
	for k, want := range map[Kind]string{CPU: "0.40", Temperature: "50.00", Losses: "5.00", Silence: "29.", RTT: "0.1"} {
		if v, _ := w.Value(k); !strings.HasPrefix(fmt.Sprintf("%.2f", v), want) {
			t.Errorf("figure %d is %.2f, want %s", k, v, want)
		}
	}
	if v, _ := w.with(Pack(sampleOf(map[Kind]float64{Losses: 29}))).Value(Losses); v != 30 {
		t.Errorf("losses beyond the scale are %v", v)
	}
}

// A world is a fleet whose nodes report the figures that the test sets.
type world struct {
	mu     sync.Mutex
	t      *testing.T
	dir    string
	s      state.Snapshot
	said   map[string]Sample
	skew   time.Duration
	log    bytes.Buffer
	life   time.Duration
	cancel func()
	over   chan error
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "history"), said: map[string]Sample{}, life: Longest,
		s: state.Empty("salt", time.Now())}
	for _, name := range nodes {
		w.put(name, "uid-of-"+name)
	}
	return w
}

func (w *world) put(name, uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.s, _ = state.Apply(w.s,
		[]state.Change{state.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}, "")})
}

func (w *world) say(node string, s Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said[node] = s
}

func (w *world) hush(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.said, node)
}

func (w *world) jump(to time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skew = to
}

// Write implements io.Writer for the log.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) open() *History {
	return Open(Config{
		Dir: w.dir, Life: w.life, Log: slog.New(slog.NewTextHandler(w, nil)),
		Fleet: func() state.Snapshot {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.s
		},
		Now: func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			return time.Now().Add(w.skew)
		},
		Measure: func(node string) (Sample, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			s, ok := w.said[node]
			return s, ok
		},
	})
}

func (w *world) start() *History {
	h := w.open()
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.over = cancel, make(chan error, 1)
	go func() { w.over <- h.Run(ctx) }()
	return h
}

func (w *world) stop() {
	w.cancel()
	if err := <-w.over; err != nil {
		w.t.Error(err)
	}
}

// temperatures returns the last n slots: a number, or a dot for a gap.
func temperatures(h *History, node string, n int) string {
	var b strings.Builder
	for _, word := range h.Window(types.UID("uid-of-"+node), h.Now().Add(-time.Duration(n-1)*Slot), n) {
		if v, ok := word.Value(Temperature); ok {
			fmt.Fprintf(&b, "%v ", v)
		} else {
			b.WriteString(". ")
		}
	}
	return strings.TrimSpace(b.String())
}

func TestSamplesOfANodesWeekAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "pi-1", "pi-2")
		h := w.start()
		time.Sleep(30 * time.Second) // so that changes come between two samples
		at := func(celsius float64, slots int) {
			w.say("pi-1", sampleOf(map[Kind]float64{Temperature: celsius}))
			time.Sleep(time.Duration(slots) * Slot)
		}
		at(50, 1)
		at(60, 2)
		w.hush("pi-1")
		time.Sleep(2 * Slot)
		at(70, 1)
		synctest.Wait()
		if got := temperatures(h, "pi-1", 8); got != ". 50 60 60 60 . 70 70" {
			t.Errorf("the node has %s", got)
		}
		if got := temperatures(h, "pi-2", 3); got != ". . ." {
			t.Errorf("a node without reports has %s", got)
		}

		before := temperatures(h, "pi-1", 7)
		w.stop()
		time.Sleep(3 * Slot)
		h = w.start()
		if got := temperatures(h, "pi-1", 10); !strings.HasPrefix(got, strings.TrimSuffix(before, " .")) ||
			!strings.HasSuffix(got, ". . .") {
			t.Errorf("after a restart of three slots: %s, before: %s", got, before)
		}
		time.Sleep(8 * 24 * time.Hour)
		synctest.Wait()
		if files, _ := os.ReadDir(w.dir); len(files) != 8 {
			t.Errorf("after 8 days there are %d files", len(files))
		}
		h.mu.RLock()
		oldest := h.nodes["uid-of-pi-1"].at(slotOf(h.Now().Add(-9 * 24 * time.Hour)))
		h.mu.RUnlock()
		if week := h.Window("uid-of-pi-1", h.Now().Add(-9*24*time.Hour), 3000); oldest != 0 || week[0] != 0 ||
			week[2500] == 0 {
			t.Error("old samples are stored too long, or new ones are lost")
		}
		w.stop()
	})
}

func TestANewNodeDoesNotInheritSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "pi-1")
		w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 50}))
		w.start()
		time.Sleep(3 * Slot)
		w.stop()
		w.put("pi-1", "uid-of-another")
		w.hush("pi-1")
		h := w.start()
		if len(h.nodes) != 0 {
			t.Errorf("%d missing nodes have samples", len(h.nodes))
		}
		w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 60}))
		time.Sleep(2 * Slot)
		w.mu.Lock()
		w.s, _ = state.Apply(w.s, []state.Change{state.Remove(w.s.Node("pi-1"), "")})
		w.mu.Unlock()
		w.hush("pi-1")
		time.Sleep(Slot)
		synctest.Wait()
		if h.mu.RLock(); len(h.nodes) != 0 {
			t.Error("a deleted node has samples")
		}
		h.mu.RUnlock()
		w.stop()
	})
}

// A killed hub loses the samples that were not stored, at most of an hour.
func TestAKilledHubLosesAtMostAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "pi-1")
		w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 50}))
		w.start()
		time.Sleep(3*time.Hour + 59*time.Minute + 30*time.Second)
		saved := map[string][]byte{}
		files, _ := filepath.Glob(filepath.Join(w.dir, "*"))
		for _, f := range files {
			saved[f], _ = os.ReadFile(f)
		}
		w.stop()
		for f, body := range saved { // the files as they were before the stop
			if err := os.WriteFile(f, body, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		h := w.open()
		got := temperatures(h, "pi-1", 48)
		if missing := strings.Count(strings.TrimPrefix(got, ". "), "."); missing == 0 || missing > 12 {
			t.Errorf("%d slots are missing: %s", missing, got)
		}
	})
}

func TestAClockThatJumpsAheadLeavesAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "pi-1")
		w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 50}))
		h := w.start()
		time.Sleep(2*Slot - time.Second)
		w.jump(3 * Slot)
		time.Sleep(2 * Slot)
		synctest.Wait()
		if got := temperatures(h, "pi-1", 7); strings.Count(got, ".") < 2 || !strings.HasSuffix(got, "50") {
			t.Errorf("a jump leaves no gap: %s", got)
		}
		w.jump(40 * 24 * time.Hour)
		time.Sleep(Slot)
		synctest.Wait()
		if got := temperatures(h, "pi-1", 4); !strings.HasPrefix(got, ". . ") || !strings.HasSuffix(got, "50") {
			t.Errorf("after 40 days: %s", got)
		}
		w.stop()
		w.jump(0) // a clock that is set back while the hub is stopped
		if h := w.open(); strings.Contains(temperatures(h, "pi-1", 2000), "50 50 50 50 50 50 50") {
			t.Error("samples of the future are accepted")
		}
	})
}

// After any damage to a file the hub starts, keeps the samples before the damage, and later reads
// new samples.
func TestATornFileKeepsEarlierSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "pi-1")
		time.Sleep(3 * time.Hour) // 2000-01-01 03:00
		w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 50}))
		w.start()
		time.Sleep(2*time.Hour + Slot)
		w.stop()
		files, _ := filepath.Glob(filepath.Join(w.dir, "*"))
		if len(files) != 1 {
			t.Fatalf("the files are %v", files)
		}
		whole, _ := os.ReadFile(files[0])
		all := strings.Count(temperatures(w.open(), "pi-1", 30), "50")
		damages := [][]byte{{}, whole[:1], whole[:header], whole[:len(whole)-1],
			append(bytes.Clone(whole), "FLh1\xff\xff\xff\xff"...), append(bytes.Clone(whole), make([]byte, 5000)...)}
		for range 50 {
			damaged := bytes.Clone(whole)
			damaged[rand.IntN(len(damaged))] ^= 1 << rand.IntN(8)
			damages = append(damages, damaged[:rand.IntN(len(damaged))+1], damaged)
		}
		for i, body := range damages {
			if err := os.WriteFile(files[0], body, 0o600); err != nil {
				t.Fatal(err)
			}
			w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 70}))
			h := w.start()
			stored := strings.Count(temperatures(h, "pi-1", 300), "50")
			if stored > all || len(body) > len(whole) && stored != all {
				t.Errorf("damage %d: %d of %d samples are read", i, stored, all)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			w.stop()
			if got := temperatures(w.open(), "pi-1", 300); !strings.HasSuffix(got, "70") || strings.Count(got, "50") != stored {
				t.Errorf("damage %d: the samples afterwards are %s", i, got)
			}
			if i == 0 && strings.Contains(w.logged(), "damaged") || i == 1 && !strings.Contains(w.logged(), "damaged") {
				t.Errorf("damage %d: the log is %s", i, w.logged())
			}
		}
	})
}

func TestAnUnwritableFileStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "pi-1")
		w.say("pi-1", sampleOf(map[Kind]float64{Temperature: 50}))
		h := w.start()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Minute)
		synctest.Wait()
		if got := temperatures(h, "pi-1", 3); got != "50 50 50" || !strings.Contains(w.logged(), "cannot be stored") {
			t.Errorf("the samples are %s; the log is %s", got, w.logged())
		}
		if err := os.Mkdir(w.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		w.stop()
		if got := strings.Count(temperatures(w.open(), "pi-1", 13), "50"); got < 12 {
			t.Errorf("after the file is writable again %d slots are stored", got)
		}
	})
}

func TestANodeHas20KBAtMost(t *testing.T) {
	r := &ring{}
	for slot := slotOf(noon); slot < slotOf(noon.Add(20*24*time.Hour)); slot++ {
		r.note(slot, 1)
	}
	size := int(unsafe.Sizeof(*r))
	for _, d := range r.days {
		if d.samples != nil {
			size += int(unsafe.Sizeof(*d.samples))
		}
	}
	if size > 20_000 || size < 8*7*perDay {
		t.Errorf("a node's week has %d bytes", size)
	}
	t.Logf("%d bytes a node", size)
}

func TestNoHistoryIsEmpty(t *testing.T) {
	var h *History
	for _, w := range h.Window("x", noon, 3) {
		if w != 0 {
			t.Error(w)
		}
	}
}

func crowd(n int) (*History, string) {
	dir, _ := os.MkdirTemp("", "history")
	var changes []state.Change
	for i := range n {
		changes = append(changes, state.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%05d", i),
			UID: types.UID(fmt.Sprintf("5d1f2b1e-8a44-4c0e-9d43-%012d", i))}}, ""))
	}
	s, _ := state.Apply(state.Empty("salt", noon), changes)
	now := noon
	of := sampleOf(map[Kind]float64{CPU: .1, Memory: .5, Temperature: 50, Silence: 10})
	return Open(Config{Dir: dir, Life: Longest, Log: slog.New(slog.DiscardHandler),
		Fleet:   func() state.Snapshot { return s },
		Now:     func() time.Time { now = now.Add(time.Minute); return now },
		Measure: func(string) (Sample, bool) { return of, true }}), dir
}

// BenchmarkLook measures the work of one minute.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			h, dir := crowd(n)
			defer func() { _ = os.RemoveAll(dir) }()
			b.ReportAllocs()
			for b.Loop() {
				h.sample()
			}
		})
	}
}

// BenchmarkSave measures the work of one hour.
func BenchmarkSave(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			h, dir := crowd(n)
			defer func() { _ = os.RemoveAll(dir) }()
			for range 60 {
				h.sample()
			}
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				size = len(h.block(slotOf(noon), slotOf(noon.Add(time.Hour))))
				if err := appendTo(h.file(0), h.block(slotOf(noon), slotOf(noon.Add(time.Hour)))); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size), "bytes/hour")
		})
	}
}
