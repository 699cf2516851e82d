package control_test

import (
	"fmt"
	"maps"
	"math/rand"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// undivided is a decider that is not Sharded.
type undivided struct{ control.Decider }

// FuzzParts checks that sharded decisions equal undivided ones, change by change.
func FuzzParts(f *testing.F) {
	f.Add(int64(1), uint16(1201))
	f.Add(int64(2), uint16(501))
	f.Add(int64(3), uint16(2000))
	f.Add(int64(5), uint16(2500))
	f.Add(int64(8), uint16(1400))
	f.Add(int64(13), uint16(2999))
	f.Fuzz(func(t *testing.T, seed int64, size uint16) {
		r := rand.New(rand.NewSource(seed))
		began := time.Unix(1_700_000_000, 0)
		now := began.Add(lifecycle.Defaults.Grace + lifecycle.Defaults.StartupGrace)
		profile := &fleet.BoardProfile{}
		profile.Name, profile.Spec.Labels = "board", map[string]string{"fast": "yes"}
		profile.Spec.Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectNoSchedule}}
		objects := []state.Object{profile}
		site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: state.SiteOf(bigNode(0, began, ""))}}
		site.Spec.NodeMonitorGracePeriod = &metav1.Duration{Duration: lifecycle.Defaults.Grace - time.Second}
		seen := map[string]time.Time{}
		blocks := r.Intn(3) // no address blocks, a few, or one for each node
		for i := range int(size) % 3000 {
			n := bigNode(i, began, []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse,
				corev1.ConditionUnknown}[r.Intn(3)])
			rec := &state.Record{Boot: "b", StoredUnknown: r.Intn(5) == 0}
			rec.Name = n.Name
			switch r.Intn(4) {
			case 0:
				n.Labels[fleet.LabelProfile] = profile.Name
			case 1:
				rec.Granted = &state.ProfileGrants{Labels: map[string]string{"old": "yes"}}
				n.Labels["old"] = "yes"
			}
			if blocks == 2 || blocks == 1 && i%600 > 0 {
				n.Spec.PodCIDR = fmt.Sprintf("%d.%d.%d.0/%d", []int{10, 10, 10, 172}[r.Intn(4)], i>>8, i&255, 26-r.Intn(9)/8*4)
				n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
			}
			if r.Intn(3) > 0 {
				seen[n.Name] = now.Add(-time.Duration(r.Intn(100)) * time.Second)
			}
			if objects = append(objects, n); r.Intn(10) > 0 {
				objects = append(objects, rec)
			}
		}
		start := state.Load(state.Empty("parts", began), objects, uint64(len(objects))).WithAllSeen(maps.All(seen))
		settle := func(wrap func(control.Decider) control.Decider) (sentences []string, made []state.Applied,
			wake time.Time) {
			var all []control.Decider
			for _, d := range append(bigDeciders(), node.ApplyProfile{}, node.Deliver{}) {
				all = append(all, wrap(d))
			}
			settler := control.NewSettler(node.Ended, all...)
			s, made, settled := settler.Settle(start, nil, now)
			if _, again, _ := settler.Settle(s, nil, now); !settled || len(again) > 0 {
				t.Errorf("not at rest: %v, %d more", settled, len(again))
			}
			now, done := now.Add(2*lifecycle.Defaults.Grace), []state.Applied(nil)
			if size%2 == 0 { // one of the due nodes has also changed
				s, done = state.Apply(s, []state.Change{state.Put(site, "")})
			}
			_, late, settled := settler.Settle(s, done, now)
			if !settled {
				t.Error("not at rest after a storm")
			}
			made = append(made, late...)
			for _, a := range made {
				sentences = append(sentences, fmt.Sprint(a.Rev, " ", a.Key, ": ", a.Change))
			}
			return sentences, made, settler.Wake()
		}
		want, wanted, due := settle(func(d control.Decider) control.Decider { return undivided{d} })
		got, made, wake := settle(func(d control.Decider) control.Decider { return d })
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(made, wanted) || !wake.Equal(due) {
			t.Errorf("%d changes and a wake at %v in parts, want %d and %v", len(got), wake, len(want), due)
		}
	})
}

// A panickingShard is a sharded decider that panics for one node.
type panickingShard struct{ lifecycle.Health }

func (d panickingShard) Sharded(state.Snapshot, []state.Subject) state.Decide { return d.Decide }

func (d panickingShard) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan {
	for _, q := range subjects {
		if q.Name == "pi-000700" {
			panic("a mistake")
		}
	}
	return d.Health.Decide(s, subjects, now)
}

// A panic in a sharded decider does not end the hub. The nodes are decided again later.
func TestAShardThatPanics(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	settler := control.NewSettler(node.Ended, panickingShard{lifecycle.Health{Settings: lifecycle.Defaults}})
	if _, _, settled := settler.Settle(bigFleet(1200, now), nil, now); settled {
		t.Error("the node counts as decided")
	}
	if wake := settler.Wake(); wake.IsZero() {
		t.Error("the decider is not asked again")
	}
}
