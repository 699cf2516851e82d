package admin

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

func manyNodes(n int) *memory {
	var changes []state.Change
	for i := range n {
		name := fmt.Sprintf("node-%04d", i)
		changes = append(changes, state.Put(testNode(name, fmt.Sprintf("site-%d", i%20), nil), ""), state.Put(testPod("pod-"+name, name, nil), ""))
	}
	m := newMemory()
	m.s, _ = state.Apply(m.s, changes)
	return m
}

// BenchmarkNodesPage renders the list of 5,000 nodes: a page of it, and searches.
func BenchmarkNodesPage(b *testing.B) {
	m := manyNodes(5000)
	s := New(configOf(m))
	for _, query := range []map[string]string{{}, {"q": "board:raspberry 499"}, {"q": "nobody:"}, {"status": "attention"}} {
		b.Run(fmt.Sprint(query), func(b *testing.B) {
			a := &ask{
				Snapshot: m.Snapshot(), now: time.Now(), path: "/nodes", query: func(k string) string { return query[k] },
				may: func(string, string) bool { return true }, liveness: s.Liveness, jobs: s.jobs, actions: s.actions,
			}
			size := 0
			for b.Loop() {
				p, err := nodes(a)
				if err != nil {
					b.Fatal(err)
				}
				body, err := s.look.fragment(p)
				if err != nil {
					b.Fatal(err)
				}
				size = len(body)
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}

// BenchmarkOverview renders the overview of 5,000 nodes and as many pods, when all
// is well and when everything is dark.
func BenchmarkOverview(b *testing.B) {
	for _, dark := range []bool{false, true} {
		b.Run(fmt.Sprintf("dark=%v", dark), func(b *testing.B) {
			m := manyNodes(5000)
			s := New(configOf(m))
			if dark {
				var changes []state.Change
				for n := range m.s.Nodes() {
					n = n.DeepCopy()
					condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
					why := "node " + n.Name + " Ready=Unknown: no heartbeat for 40s"
					changes = append(changes, state.Put(n, ""), state.Put(testEvent("Node", n.Name, "NodeNotReady", why, 0), ""))
				}
				m.s, _ = state.Apply(m.s, changes)
			}
			a := &ask{Snapshot: m.Snapshot(), now: time.Now(), query: func(string) string { return "" }, may: func(string, string) bool { return true }, jobs: s.jobs, actions: s.actions}
			for b.Loop() {
				p, _ := overview(a)
				if _, err := s.look.fragment(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFiftyPages holds fifty pages open, on three views, over a fleet of
// 1,000 nodes of which 20 change every second, and lets every page fetch what it is
// told. It reports the share of a core that all of it takes, the fifty browsers'
// side of TLS included.
func BenchmarkFiftyPages(b *testing.B) {
	m := manyNodes(1000)
	srv := start(b, configOf(m))
	var wg sync.WaitGroup
	var fetched sync.Map
	stop := make(chan struct{})
	client := srv.Client()
	for i := range 50 {
		view := []struct{ path, watch string }{{"/", "nodes+sites+pods+workloads"}, {"/nodes", "nodes+pods"}, {"/pods", "pods+nodes"}}[i%3]
		l := srv.listen(b, "watch="+view.watch+fmt.Sprintf("&rev=%d", m.Snapshot().Revision))
		wg.Add(1)
		go func() {
			defer wg.Done()
			n := 0
			defer func() { fetched.Store(i, n) }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				var kind string
				var rev int
				if _, err := fmt.Sscanf(l.next(time.Second), "%s %d", &kind, &rev); err != nil || kind != "change" {
					continue
				}
				req, _ := http.NewRequestWithContext(b.Context(), "GET", srv.URL+view.path, nil)
				req.Header.Set(nameHeader, "viewer")
				req.Header.Set(fragmentHeader, fmt.Sprint(rev))
				resp, err := client.Do(req)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				n++
			}
		}()
	}
	before, begin, i := cpu(), time.Now(), 0
	for b.Loop() {
		name := fmt.Sprintf("node-%04d", i*37%1000)
		m.put(b, testNode(name, "site-1", func(n *corev1.Node) { n.Labels["n"] = fmt.Sprint(i) }))
		i++
		time.Sleep(50 * time.Millisecond)
	}
	took := time.Since(begin)
	used := cpu() - before
	close(stop)
	wg.Wait()
	total := 0
	fetched.Range(func(_, n any) bool { total += n.(int); return true })
	b.ReportMetric(100*used.Seconds()/took.Seconds(), "%core")
	b.ReportMetric(float64(total)/took.Seconds(), "fetches/s")
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
