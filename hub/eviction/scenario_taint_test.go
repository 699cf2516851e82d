package eviction_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
)

const hour = time.Hour

func TestScenarioPodsComeAndChange(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(*yard)
		gone string
	}{
		{"S8.create.1 a pod without a node stays", func(y *yard) { y.put(y.pi("a"), pod("")) }, ""},
		{"S8.create.2 a pod on a node without taints stays", func(y *yard) { y.put(y.pi(), calling("p")) }, ""},
		{"S8.create.3 a pod that does not tolerate its node's taint leaves now", func(y *yard) { y.put(y.pi("a"), calling("p")) }, "p@0s"},
		{"S8.create.4 a pod that tolerates the taint for 100 s is still there at 99 s", func(y *yard) { y.put(y.pi("a"), calling("p", tolerate("a", 100))).wait(99 * time.Second) }, ""},
		{"S8.create.4 a pod that tolerates the taint for 100 s leaves at 100 s", func(y *yard) { y.put(y.pi("a"), calling("p", tolerate("a", 100))).wait(hour) }, "p@1m40s"},
		{"S8.create.5 a pod that tolerates the taint for ever never leaves", func(y *yard) { y.put(y.pi("a"), calling("p", tolerate("a"))).wait(1000 * hour) }, ""},
		{"S8.create.6 a pod that tolerates another taint leaves now", func(y *yard) { y.put(y.pi("a"), calling("p", tolerate("b"))) }, "p@0s"},

		{"S8.update.1 a pod that is bound to a tainted node leaves now", func(y *yard) { y.put(y.pi("a"), pod("")).wait(time.Second).put(pod("pi-1")) }, "kiosk@1s"},
		{"S8.update.2 a pod that is bound to a node whose taint it tolerates stays", func(y *yard) {
			y.put(y.pi("a"), pod("", tolerate("a"))).wait(time.Second).put(pod("pi-1", tolerate("a"))).wait(hour)
		}, ""},
		{"S8.update.3 a pod that loses its toleration while it waits leaves now", func(y *yard) {
			y.put(y.pi("a"), calling("p", tolerate("a", 100))).wait(30 * time.Second).put(calling("p")).wait(hour)
		}, "p@30s"},
		{"S8.update.4 ours: a toleration lengthened from 1 s to 100 s in time counts", func(y *yard) {
			y.put(y.pi("a"), calling("p", tolerate("a", 1))).wait(500 * time.Millisecond).put(calling("p",
				tolerate("a", 100))).wait(hour)
		}, "p@1m40s"},
		{"S8.update.5 ours: a toleration shortened from 100 s to 1 s counts, from the taint", func(y *yard) {
			y.put(y.pi("a"), calling("p", tolerate("a", 100))).wait(30 * time.Second).put(calling("p",
				tolerate("a", 1))).wait(hour)
		}, "p@30s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(t)
			tt.play(y)
			y.want(tt.gone)
		})
	}
}

func TestScenarioTaintsComeAndGo(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(*yard)
		gone string
	}{
		{"S8.node.1 an added taint evicts a pod that does not tolerate it", func(y *yard) {
			y.put(y.pi(), calling("p")).wait(time.Second).put(y.pi("a")).wait(hour)
		}, "p@1s"},
		{"S8.node.2 a pod that tolerates it stays", func(y *yard) { y.put(y.pi(), calling("p", tolerate("a"))).put(y.pi("a")).wait(hour) }, ""},
		{"S8.node.3 a pod that tolerates one of two taints leaves", func(y *yard) {
			y.put(y.pi(), calling("p", tolerate("a", 100))).put(y.pi("a", "b")).wait(hour)
		}, "p@0s"},
		{"S8.node.4 a taint that is removed within 1 s evicts no pod", func(y *yard) {
			y.put(y.pi("a"), calling("p", tolerate("a", 1))).wait(time.Second - 1).put(y.pi()).wait(hour)
		}, ""},
		{"S8.node.5 of 1 s and 100 s for two taints the smaller counts", func(y *yard) {
			y.put(y.pi("a", "b"), calling("p", tolerate("a", 1), tolerate("b", 100))).wait(hour)
		}, "p@1s"},
		{"S8.pods.1 each pod leaves at its own time: now, after 1 s, never", func(y *yard) {
			y.put(y.pi(), calling("now"), calling("one", tolerate("a", 1)),
				calling("stays", tolerate("a"))).put(y.pi("a")).wait(hour)
		}, "now@0s one@1s"},
		{"S8.pods.2 with a second taint that no pod tolerates all leave now", func(y *yard) {
			y.put(y.pi(), calling("now"), calling("one", tolerate("a", 1)),
				calling("stays", tolerate("a"))).put(y.pi("a", "b")).wait(hour)
		}, "now@0s one@0s stays@0s"},
		{"S8.late.1 pods that arrive after their node's taint leave too", func(y *yard) {
			y.put(calling("early")).put(y.pi("a")).wait(time.Second).put(calling("late")).wait(hour)
		}, "early@0s late@1s"},
		{"S8.timer.1 a pod is evicted once, at its time, after any number of passes", func(y *yard) {
			y.put(y.pi("a"), calling("p", tolerate("a", 10)))
			for range 8 {
				y.wait(time.Second).put(calling("p", tolerate("a", 10)))
			}
			y.wait(hour)
		}, "p@10s"},
		{"S8.timer.2 of five waiting pods two lose their reason and three leave", func(y *yard) {
			y.put(y.pi("a"))
			for _, name := range []string{"p1", "p2", "p3", "p4", "p5"} {
				y.put(calling(name, tolerate("a", 10)))
			}
			y.wait(time.Second).put(calling("p2", tolerate("a")), calling("p4", tolerate("a"))).wait(hour)
		}, "p1@10s p3@10s p5@10s"},
		{"S8.timer.3 a taint that is removed and added again counts anew", func(y *yard) {
			y.put(y.pi("a"), calling("p", tolerate("a",
				10))).wait(5 * time.Second).put(y.pi()).wait(time.Second).put(y.pi("a")).wait(hour)
		}, "p@16s"},

		{"S8.e2e.2 a pod that tolerates a user's taint stays", func(y *yard) { y.put(y.pi(), calling("p", tolerate("mine"))).put(y.pi("mine")).wait(hour) }, ""},
		{"S8.life.1 a user's NoExecute taint evicts from a ready node", func(y *yard) { y.put(y.pi(), calling("p")).put(y.pi("mine")) }, "p@0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(t)
			tt.play(y)
			y.want(tt.gone)
		})
	}
	t.Run("S8.taints.1 only a bounded toleration sets an alarm: none, for ever, for ever and 60 s, for ever",
		func(t *testing.T) {
			y := newYard(t)
			p := calling("p", tolerate("a"), tolerate("b", 60))
			y.put(y.pi(), p)
			for i, step := range []struct {
				taints []string
				alarm  bool
			}{{nil, false}, {[]string{"a"}, false}, {[]string{"a", "b"}, true}, {[]string{"a"}, false}} {
				y.put(y.pi(step.taints...))
				at, ok := y.alarms[state.About(state.KeyOf(p))]
				if ok != step.alarm || ok && !at.Equal(noon.Add(time.Minute)) {
					t.Errorf("state %d: alarm %v at %s", i, ok, at)
				}
			}
			y.wait(hour).want("")
		})
}

func TestScenarioSmallestToleration(t *testing.T) {
	never := time.Duration(-1)
	a, b := taint("a", corev1.TaintEffectNoExecute, 0), taint("b", corev1.TaintEffectNoExecute, 0)
	for _, tt := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        time.Duration
	}{
		{"S8.min.1 no toleration at all: now", []corev1.Taint{a}, nil, 0},
		{"S8.min.2 a toleration without seconds: never", []corev1.Taint{a}, []corev1.Toleration{tolerate("a")}, never},
		{"S8.min.3 1 s and 2 s: 1 s", []corev1.Taint{a, b}, []corev1.Toleration{tolerate("a", 1), tolerate("b", 2)}, time.Second},
		{"S8.min.4 1 s and one without seconds: 1 s", []corev1.Taint{a, b}, []corev1.Toleration{tolerate("a", 1), tolerate("b")}, time.Second},
		{"S8.min.5 one without seconds and 1 s: 1 s", []corev1.Taint{a, b}, []corev1.Toleration{tolerate("a"), tolerate("b", 1)}, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := eviction.LeaveBy(&corev1.Node{Spec: corev1.NodeSpec{Taints: tt.taints}}, pod("pi-1", tt.tolerations...))
			if got.Must != (tt.want != never) || got.Must && max(got.At.Sub(noon), 0) != tt.want {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}

func TestScenarioWhatAnEvictionSays(t *testing.T) {
	t.Run("S8.e2e.6 an evicted pod carries DisruptionTarget, with the reason DeletionByTaintManager", func(t *testing.T) {
		y := newYard(t).put(newYard(t).pi("a"), calling("p"))
		c := state.PodCondition(y.s.Pod("default", "p"), corev1.DisruptionTarget)
		if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "DeletionByTaintManager" ||
			y.s.Pod("default", "p").DeletionTimestamp == nil {
			t.Errorf("pod %+v", y.s.Pod("default", "p"))
		}
	})
	t.Run("S8.event.1 ours: the event TaintManagerEviction says which taint, in the sentence of the log and the page",
		func(t *testing.T) {
			y := newYard(t)
			y.put(y.pi("a"), calling("p", tolerate("a", 60))).wait(hour)
			if len(y.changes) != 1 || y.changes[0].Reason != "TaintManagerEviction" ||
				y.changes[0].Why != "evict p from pi-1: tolerated a until 12:01:00" || y.changes[0].Message != "" {
				t.Errorf("said %+v", y.changes)
			}
		})
	t.Run("S8.event.2 ours: a cancelled deadline makes no event", func(t *testing.T) {
		y := newYard(t)
		y.put(y.pi("a"), calling("p", tolerate("a", 60))).wait(time.Second).put(y.pi()).wait(hour)
		if len(y.changes) != 0 || len(y.alarms) != 0 {
			t.Errorf("events %+v, alarms %v", y.changes, y.alarms)
		}
	})
}
