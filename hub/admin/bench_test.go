package admin

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"flotilla.dev/hub/incident"
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
	for _, query := range []map[string]string{{}, {"q": "board:raspberry 499"}, {"q": "label:nobody"}, {"status": "attention"}} {
		b.Run(fmt.Sprint(query), func(b *testing.B) {
			a := &request{
				Snapshot: m.Snapshot(), now: time.Now(), path: "/nodes", query: func(k string) string { return query[k] },
				may: func(string, string) bool { return true }, liveness: s.Liveness, jobs: s.jobs, actions: s.actions,
			}
			size := 0
			for b.Loop() {
				p, err := nodes(a)
				if err != nil {
					b.Fatal(err)
				}
				body, err := s.look.live.main(p)
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
			a := &request{Snapshot: m.Snapshot(), now: time.Now(), query: func(string) string { return "" }, may: func(string, string) bool { return true }, jobs: s.jobs, actions: s.actions}
			for b.Loop() {
				p, _ := overview(a)
				if _, err := s.look.live.main(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOverviewOfANight renders the overview of 5,000 nodes of which 3,000 are dark, with
// their incidents, and compresses it, as for somebody who opens it. On a machine that does
// other things too cpu-ms/op is what counts.
func BenchmarkOverviewOfANight(b *testing.B) {
	m := silent(manyNodes(5000), 3000)
	m.incidents(incident.Decider{}.Subjects(m.s))
	s := New(configOf(m))
	a := pictureRequest(m)
	var sent []byte
	cards := 0
	before := cpu()
	for b.Loop() {
		p, err := overview(a)
		if err != nil {
			b.Fatal(err)
		}
		body, err := s.look.live.main(p)
		if err != nil {
			b.Fatal(err)
		}
		sent, cards = compressed(body), bytes.Count(body, []byte(`<p class="touches">`))
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(len(sent)), "gzip-bytes")
	b.ReportMetric(float64(cards), "cards")
}
