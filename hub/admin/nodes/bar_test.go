package nodes

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

var runs = regexp.MustCompile(`M(\d+) (\d+)h(\d+)`)

// shape writes a bar as a letter for each hour.
func shape(t *testing.T, b bar) string {
	t.Helper()
	hours := [barHours]string{}
	for _, p := range b.Drawn() {
		for _, m := range runs.FindAllStringSubmatch(p.D, -1) {
			var x, w int
			_, _ = fmt.Sscan(m[1], &x)
			_, _ = fmt.Sscan(m[3], &w)
			for i := x / barStep; i < (x+w)/barStep; i++ {
				if hours[i] != "" {
					t.Fatalf("hour %d is drawn twice", i)
				}
				hours[i] = map[string]string{"none": ".", "ok": "-", "off": "o", "bad": "B", "unknown": "U",
					"out": "X"}[p.Class]
			}
		}
	}
	return strings.Join(hours[:], "")
}

func TestTheLastDayOfANode(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 40, 0, 0, time.UTC)
	before := func(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(now.Add(-d)) }
	for _, c := range []struct {
		name   string
		turns  []state.HealthChange
		pauses []store.Pause
		want   string
		said   string
	}{
		{"ready all day", []state.HealthChange{{At: before(90 * time.Hour), Ready: "True"}}, nil, "------------------------",
			"Last 24 hours: ready for 100 %"},
		{"it joined three hours ago", []state.HealthChange{{At: before(3 * time.Hour), Ready: "True"}}, nil,
			"....................----", "In the 3 h known: ready for 100 %"},
		{"an hour with one bad minute is bad", []state.HealthChange{
			{At: before(90 * time.Hour), Ready: "True"}, {At: before(5 * time.Hour), Ready: "Unknown"},
			{At: before(5*time.Hour - time.Minute), Ready: "True"},
		}, nil, "------------------U-----", "Last 24 hours: ready for 99.9 %"},
		{"given up over two hours, and then not ready", []state.HealthChange{
			{At: before(90 * time.Hour), Ready: "True"}, {At: before(2*time.Hour + 30*time.Minute), Ready: "Unknown"},
			{At: before(2 * time.Hour), Ready: "Unknown", Out: true},
			{At: before(50 * time.Minute), Ready: "False"},
		}, nil, "---------------------XXB", "Last 24 hours: ready for 89.4 %"},
		{"the hub was off for two hours", []state.HealthChange{{At: before(90 * time.Hour), Ready: "True"}},
			[]store.Pause{{From: now.Add(-4 * time.Hour), To: now.Add(-2 * time.Hour)}}, "-------------------ooo--",
			"Last 24 hours: ready for 100 %"},
		{"the node has never reported", nil, nil, "........................", "Last 24 hours: not known"},
	} {
		n := admintest.Node("pi-1", "oslo", func(n *corev1.Node) {
			n.Status.Conditions = nil
			if len(c.turns) > 0 {
				last := c.turns[len(c.turns)-1]
				n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: last.Ready, Reason: "x",
					LastTransitionTime: metav1.NewTime(last.At.Time), LastHeartbeatTime: metav1.NewTime(now)}}
			}
		})
		a := chartRequest("", now, nil)
		a.Snapshot = admintest.New(n, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"},
			History: c.turns}).Snapshot()
		a.Pauses = c.pauses
		b := barOf(a, a.Node("pi-1"))
		if got := shape(t, b); got != c.want || b.Said != c.said {
			t.Errorf("%s:\n got %s, %s\nwant %s, %s", c.name, got, b.Said, c.want, c.said)
		}
		if one := siteBar(a, "oslo"); len(c.turns) == 1 && (shape(t, one) != c.want || one.Said != c.said) {
			t.Errorf("%s: its site is %s, %s", c.name, shape(t, one), one.Said)
		}
	}
}

func TestTheLastDayOfASite(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 40, 0, 0, time.UTC)
	var objects []state.Object
	for i := range 4 { // all nodes fall silent for an hour, one of them for two
		name, long := fmt.Sprintf("pi-%d", i), time.Hour
		if i == 0 {
			long = 2 * time.Hour
		}
		from := now.Add(-10*time.Hour + 20*time.Minute)
		back := metav1.NewMicroTime(from.Add(long - time.Second))
		objects = append(objects, admintest.Node(name, "oslo", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "x",
				LastTransitionTime: metav1.NewTime(back.Time), LastHeartbeatTime: metav1.NewTime(now)}}
		}), &state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, History: []state.HealthChange{
			{At: metav1.NewMicroTime(now.Add(-99 * time.Hour)), Ready: "True"},
			{At: metav1.NewMicroTime(from), Ready: "Unknown"}, {At: back, Ready: "True"},
		}})
	}
	a := chartRequest("", now, nil)
	a.Snapshot = admintest.New(objects...).Snapshot()
	b := siteBar(a, "oslo")
	if got := shape(t, b); got != "--------------UB--------" || b.Said != "Last 24 hours, 4 nodes: ready for 94.7 %" {
		t.Errorf("%s, %s", got, b.Said)
	}
}

func BenchmarkSitesPage(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			a := chartRequest("", admintest.Now, nil)
			a.Snapshot = admintest.Silent(admintest.Many(n), n*3/5).Snapshot()
			for b.Loop() {
				for i := range 20 {
					siteBar(a, fmt.Sprintf("site-%d", i))
				}
			}
		})
	}
}
