package nodes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

func TestATimelineTellsWhatIsKnown(t *testing.T) {
	now := admintest.Now
	turn := func(ago time.Duration, ready corev1.ConditionStatus, out bool) state.HealthChange {
		return state.HealthChange{At: metav1.NewMicroTime(now.Add(-ago)), Ready: ready, Out: out}
	}
	off := func(from, to int) store.Pause {
		return store.Pause{From: now.Add(-time.Duration(from) * time.Hour), To: now.Add(-time.Duration(to) * time.Hour)}
	}
	for _, c := range []struct {
		name    string
		history []state.HealthChange
		ready   corev1.ConditionStatus
		since   time.Duration
		tainted time.Duration
		span    string
		want    string
		summary string
		pauses  []store.Pause
	}{
		{"a node that never changed", nil, "True", 50 * time.Hour, 0, "", "ok 24h",
			"Ready for 100 % of the last 24 h", nil},
		{"a node added hours ago shows the known hours", nil, "True", 6 * time.Hour, 0, "", "ok 6h",
			"Ready for 100 % of the last 6 h", nil},
		{"a node added minutes ago shows an hour", nil, "True", 6 * time.Minute, 0, "", "none 54m, ok 6m",
			"In the 6 min known: ready for 100 %", nil},
		{"the time before it was added is not known", nil, "True", 6 * time.Hour, 0, "24h",
			"none 18h, ok 6h", "In the 6 h known: ready for 100 %", nil},
		{"a node that was silent",
			[]state.HealthChange{turn(50*time.Hour, "True", false), turn(12*time.Hour, "Unknown", false),
				turn(6*time.Hour, "True", false)}, "True", 6 * time.Hour, 0, "",
			"ok 12h, unknown 6h, ok 6h", "Ready for 75 % of the last 24 h", nil},
		{"a node that is given up now",
			[]state.HealthChange{turn(30*time.Hour, "True", false), turn(4*time.Hour, "Unknown", false)}, "Unknown",
			4 * time.Hour, 3 * time.Hour, "",
			"ok 20h, unknown 60m, out 3h", "Ready for 83.3 % of the last 24 h", nil},
		{"5 seconds less than a day is not 100 %",
			[]state.HealthChange{turn(30*time.Hour, "True", false), turn(5*time.Second, "False", false)}, "False",
			5 * time.Second, 0, "", "ok 23h, bad 5s", "Ready for 99.9 % of the last 24 h", nil},
		{"the time before the history is not known", []state.HealthChange{turn(84*time.Hour, "True", false)},
			"True", 84 * time.Hour, 0, "7d", "none 3d12h, ok 3d12h", "In the 3 days known: ready for 100 %", nil},
		{"the hub did not run", nil, "True", 50 * time.Hour, 0, "", "ok 12h, off 3h, ok 9h",
			"In the 21 h known: ready for 100 %", []store.Pause{off(12, 9)}},
		{"the hub did not run while the node was silent", []state.HealthChange{turn(50*time.Hour, "True", false),
			turn(12*time.Hour, "Unknown", false), turn(6*time.Hour, "True", false)}, "True", 6 * time.Hour, 0, "",
			"off 120m, ok 8h, off 120m, unknown 60m, off 60m, unknown 60m, off 4h, ok 5h",
			"In the 15 h known: ready for 86.6 %", []store.Pause{off(90, 80), off(30, 22), off(14, 12), off(11, 10),
				off(9, 5)}},
		{"a restart of the hub that is too short to miss a lease", nil, "True", 50 * time.Hour, 0, "", "ok 24h",
			"Ready for 100 % of the last 24 h",
			[]store.Pause{{From: now.Add(-time.Hour), To: now.Add(noticed - time.Hour - 1)}}},
	} {
		n := admintest.Node("n", "oslo", nil)
		n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: c.ready, Reason: "x",
			LastTransitionTime: metav1.NewTime(now.Add(-c.since))}}
		if c.tainted > 0 {
			at := metav1.NewTime(now.Add(-c.tainted))
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: "NoExecute", TimeAdded: &at}}
		}
		s := admintest.New(n, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "n"}, History: c.history}).Snapshot()
		a := admintest.Ask(s, now, map[string]string{"span": c.span})
		a.Pauses = c.pauses
		line := timelineOf(a, n)
		var got []string
		end := 0.0
		for _, x := range line.Spans {
			got = append(got, x.Kind+" "+x.For)
			if x.x < 0 || x.x+x.width > stripWidth+0.1 || x.x < end-thinnest-0.1 {
				t.Errorf("%s: a span is drawn from %f to %f, after %f", c.name, x.x, x.x+x.width, end)
			}
			end = x.x + x.width
		}
		if g := strings.Join(got, ", "); g != c.want || line.Summary != c.summary {
			t.Errorf("%s:\n%s; %s\nwant\n%s; %s", c.name, g, line.Summary, c.want, c.summary)
		}
	}
}

func TestATimelineMarksTheEvictionsOfItsNodeWithoutAnyEvent(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, ago := range []time.Duration{25 * time.Hour, 12 * time.Hour} {
		rec.Evict(state.Evicted{At: metav1.NewMicroTime(now.Add(-ago)), Pod: "default/kiosk",
			Reason: "DeletionByTaintManager", Text: "told"})
	}
	n := admintest.Node("n", "oslo", nil)
	for span, want := range map[string]string{"24h": "[{kiosk: told 00:00:00 50}]",
		"30d": "[{kiosk: told Sun 31 May 11:00 96.52777777777777} {kiosk: told Mon 01 Jun 00:00 98.33333333333333}]"} {
		if got := fmt.Sprint(timelineOf(admintest.Ask(admintest.New(n, rec).Snapshot(), now,
			map[string]string{"span": span}), n).Marks); got != want {
			t.Errorf("%q is marked with %s, want %s", span, got, want)
		}
	}
}
