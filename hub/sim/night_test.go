package sim

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/node"
	"flotilla.dev/shared/wire"
)

// A ledger counts the bytes of a text log by the form of its lines.
type ledger struct {
	mu    sync.Mutex
	bytes int
	by    map[string]int
}

// anyName matches the parts in which lines of one form differ.
var anyName = regexp.MustCompile(`[0-9a-z-]*[0-9][0-9a-z.:µ/-]*`)

func (l *ledger) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += len(line)
	_, what, _ := strings.Cut(string(line), "level=")
	l.by[anyName.ReplaceAllString(what[:min(len(what), 60)], "#")] += len(line)
	return len(line), nil
}

func (l *ledger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// begin resets the counts.
func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes, l.by = 0, map[string]int{}
}

// most lists the forms of lines with the most bytes.
func (l *ledger) most(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(l.by), func(a, b string) int { return l.by[b] - l.by[a] })
	var b strings.Builder
	for _, k := range keys[:min(n, len(keys))] {
		fmt.Fprintf(&b, "%8d kB %s\n", l.by[k]/1000, k)
	}
	return b.String()
}

// both is a log handler that writes to the world's lines and to a ledger, in the format of the
// hub's own log.
type both struct{ lines, text slog.Handler }

func (b both) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (b both) WithAttrs(a []slog.Attr) slog.Handler {
	return both{b.lines.WithAttrs(a), b.text.WithAttrs(a)}
}
func (b both) WithGroup(name string) slog.Handler { return both{b.lines, b.text.WithGroup(name)} }
func (b both) Handle(ctx context.Context, r slog.Record) error {
	_ = b.text.Handle(ctx, r)
	return b.lines.Handle(ctx, r)
}

func (w *world) count(into slog.Handler) *ledger {
	l := &ledger{by: map[string]int{}}
	w.log = slog.New(both{into, slog.NewTextHandler(l, nil)})
	return l
}

// The log of a hub's bad night has at most 10 MB. In eight hours of a thousand nodes, whole sites
// go dark and return, some nodes flap all night, containers crash on a hundred, and strangers try
// certificates and names all the time.
func TestFleetTheLogOfABadNightIsShort(t *testing.T) {
	if !long {
		t.Skip("a thousand nodes: make test-long")
	}
	t.Parallel()
	const hours, each, most = time.Hour, 50, 10 << 20 // an eighth of the night
	simulate(t, func(t *testing.T, w *world) {
		w.seeded(7)
		log := w.count(&w.lines)
		// A longer lease interval, so that the night passes in seconds.
		w.cfg.LeaseInterval, w.cfg.NodeMonitorGracePeriod = time.Minute, 4*time.Minute
		w.look.every = 10 * time.Minute
		var all []*light
		sites := map[string][]*light{}
		for s := range 19 {
			site := fmt.Sprintf("site-%02d", s)
			for n := range each {
				l := w.newLight(fmt.Sprintf("%s-%02d", site, n), site)
				all, sites[site] = append(all, l), append(sites[site], l)
			}
		}
		w.startHub()
		w.light(all...)
		w.deploy("kiosk", int32(3*len(all)))
		w.daemonSet("meter")
		names, end := w.thinFleet(each) // the nodes of the last site have real links
		defer end()
		time.Sleep(3 * time.Minute)
		t.Logf("until all devices are up: %d kB", log.size()/1000)
		log.begin()
		ctx, over := context.WithCancel(context.Background())
		var busy sync.WaitGroup
		each1 := func(every time.Duration, do func(i int)) {
			busy.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					do(i)
					select { // a longer sleep would not end with the others
					case <-time.After(every):
					case <-ctx.Done():
					}
				}
			})
		}
		each1(10*time.Second, func(i int) { // all links of one site flap
			w.relinkAll(names, []linkState{linkCut, linkUp}[i%2])
		})
		each1(45*time.Minute, func(i int) { // two sites go dark for half an hour
			for _, l := range slices.Concat(sites[fmt.Sprintf("site-%02d", i*2%19)],
				sites[fmt.Sprintf("site-%02d", (i*2+1)%19)]) {
				l.link(false)
				time.AfterFunc(30*time.Minute, func() { l.link(true) })
			}
		})
		each1(5*time.Minute, func(i int) { // lights lose power in turn
			one := all[i*7%len(all)]
			one.power(false)
			time.AfterFunc(6*time.Minute, func() { one.power(true) })
		})
		each1(30*time.Second, func(i int) { // containers crash and engines fail on a tenth of the nodes
			for n := 0; n < len(all); n += 10 {
				l := all[n]
				l.post(func() { // only the light knows its boot
					w.hub.Loop.Event(ctx, node.Caller{Node: l.name},
						wire.Event{Boot: l.boot(), Time: time.Now(), Type: corev1.EventTypeWarning, Reason: "BackOff",
							Message: fmt.Sprint("back-off restarting failed container: try ", i), PodUID: types.UID(fmt.Sprint("u-", n)),
							Namespace: metav1.NamespaceDefault, Pod: fmt.Sprint("crash-", n)})
				})
			}
		})
		var tried atomic.Int64
		for s := range 20 { // strangers come without a certificate, without MQTT, or with other nodes' names
			each1(5*time.Second, func(i int) {
				w.mu.Lock()
				net := w.net
				w.mu.Unlock()
				c, err := net.Dial(ctx, fmt.Sprintf("stranger-%d-%d", s, i%50))
				if err != nil {
					return
				}
				defer c.Close()
				tried.Add(1)
				_ = c.SetDeadline(time.Now().Add(3 * time.Second))
				switch i % 3 {
				case 0:
					_ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
				case 1:
					_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
				default:
					_, _ = c.Write([]byte("\x10\x1a\x00\x04MQTT\x04\x02\x00\x0a\x00\x0epi-0001:other12"))
				}
				_, _ = c.Read(make([]byte, 100))
			})
		}
		time.Sleep(hours)
		over()
		busy.Wait()
		t.Logf("%d nodes, %s: %d kB; strangers tried %d times\n%s", len(all)+len(names), hours, log.size()/1000, tried.Load(),
			log.most(25))
		if most := int(most * hours.Hours() / 8); log.size() > most {
			t.Errorf("the log has %d bytes, want at most %d", log.size(), most)
		}
		if tried.Load() < 1000 || log.size() < 10_000 {
			t.Error("the night had too few disturbances")
		}
	})
}

// An agent without a hub for eight hours (see long) logs a few lines, whether its link refuses,
// loses everything, or flaps.
func TestFleetTheLogOfAnAgentWithoutAHubIsShort(t *testing.T) {
	t.Parallel()
	hours := 8
	if !long {
		hours = 1
	}
	for name, lose := range map[string]func(w *world, d *simDevice){
		"the hub is gone":                       func(w *world, _ *simDevice) { w.crashHub() },
		"the link accepts and loses everything": func(w *world, d *simDevice) { w.freeze(d) },
		"the link flaps": func(w *world, d *simDevice) {
			for range hours * 60 * 2 {
				w.cut(d)
				time.Sleep(15 * time.Second)
				w.heal(d)
				time.Sleep(15 * time.Second)
			}
			w.cut(d)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				w.startHub()
				w.fleet(1, "bergen") // a device whose log is the world's
				d := w.newDevice("oslo-1", "oslo")
				world := w.log
				log := w.count(&w.lines)
				d.start()
				w.log = world
				w.deploy("kiosk", 3)
				w.settleWithin(15*time.Second, "the deployment")
				log.begin()
				lose(w, d)
				time.Sleep(time.Until(w.born.Add(time.Duration(hours)*time.Hour + time.Minute)))
				t.Logf("%d bytes in %d h\n%s", log.size(), hours, log.most(10))
				if most := hours * 8 << 10; log.size() > most {
					t.Errorf("the agent's log has %d bytes, want at most %d", log.size(), most)
				}
				if log.size() == 0 {
					t.Error("the agent does not log the missing hub")
				}
			})
		})
	}
}
