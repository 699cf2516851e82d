package control_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/workload"
	"flotilla.dev/shared/wire"
)

// TestHistoriesOutliveTheirEvents lets 3,000 nodes with a pod each fall silent. Most of their
// events are removed, but the history of each node is stored.
func TestHistoriesOutliveTheirEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dark = 1000
		now := time.Now()
		var objects []state.Object
		for i := range dark + 1 { // one node on a site that stays up
			n := bigNode(i, now, corev1.ConditionTrue)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p-" + n.Name, UID: n.UID,
				CreationTimestamp: metav1.NewTime(now)}}
			p.Spec = template("p", map[string]string{"tolerate": "20s"}).template.Spec
			p.Spec.NodeName, p.Status.Phase, p.UID = n.Name, corev1.PodRunning, "pod-uid-"+n.UID
			objects = append(objects, n, p, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Boot: "b"})
		}
		start := state.Load(state.Empty("night", now), objects, uint64(len(objects)))
		book := nodetest.NewNotebook()
		all := bigDeciders()
		for i, d := range all {
			if d, ok := d.(workload.Decider); ok {
				d.EventLimit = 500
				all[i] = d
			}
		}
		l := node.New(node.Config{Broker: book, LeaseInterval: 10 * time.Second, Grace: 40 * time.Second},
			control.Config{Store: book, Start: start, Deciders: all})
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		last := fmt.Sprintf("pi-%06d", dark)
		for seq := range uint64(90) { // 90 leases are 15 min
			l.Lease(node.Caller{Node: last}, wire.Lease{Boot: "b", Seq: seq + 1, Desired: 1})
			time.Sleep(10 * time.Second)
		}
		stop()
		<-over
		if have := l.Snapshot().Len(state.Events); have > 600 {
			t.Fatalf("%d events are stored, so no event was removed", have)
		}
		missing, rows := 0, book.Rows()
		for i := range dark {
			name := fmt.Sprintf("pi-%06d", i)
			var rec state.Record
			if err := json.Unmarshal(rows[state.Key{Kind: state.Records, Name: name}], &rec); err != nil {
				t.Fatal(err)
			}
			h := rec.History
			if len(h) != 3 || h[0].Ready != corev1.ConditionTrue || h[1].Ready != corev1.ConditionUnknown || h[1].Out ||
				!h[2].Out ||
				len(rec.Evicted) != 1 || rec.Evicted[0].Pod != "default/p-"+name ||
				rec.Evicted[0].Reason != "DeletionByTaintManager" {
				if missing++; missing < 4 {
					t.Errorf("%s has the history %v and %v", name, h, rec.Evicted)
				}
			}
		}
		if missing > 0 {
			t.Errorf("%d of %d nodes lack their history", missing, dark)
		}
	})
}
