package overview

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// at returns the overview's request for a moment.
func at(m *admintest.Memory, moment string) *frame.Request {
	a := pictureRequest(m)
	a.Query = func(name string) string { return map[string]string{"at": moment}[name] }
	a.Pauses = []store.Pause{{From: admintest.Now.Add(-5 * time.Hour), To: admintest.Now.Add(-4 * time.Hour)}}
	return a
}

func turn(d time.Duration, ready corev1.ConditionStatus) state.HealthChange {
	return state.HealthChange{At: metav1.NewMicroTime(admintest.Now.Add(-d)), Ready: ready}
}

// A replay shows each node in its present place with its state at that moment.
func TestAReplayShowsTheStateOfThatMoment(t *testing.T) {
	m := admintest.New(
		admintest.Node("pi-1", "oslo", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		admintest.Node("pi-2", "oslo", func(n *corev1.Node) {
			n.CreationTimestamp, n.Status.Conditions[4].LastTransitionTime = admintest.Ago(time.Hour), admintest.Ago(time.Hour)
		}),
		admintest.Node("pi-3", "oslo", nil),
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-3"}, History: []state.HealthChange{turn(20*time.Hour, "True"),
			turn(9*time.Hour, "Unknown"), turn(6*time.Hour, "False"), turn(3*time.Hour, "True")}},
		&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "a"}, State: fleet.IncidentClosed, Severity: fleet.SeverityWarning,
			Message: "pi-3 did not answer", Since: admintest.Ago(9 * time.Hour), Opened: admintest.Ago(9 * time.Hour),
			Closed: new(admintest.Ago(3 * time.Hour))})
	for _, c := range []struct {
		name, at string
		marks    []string
		tile     string
		open     int
	}{
		{"now", "", []string{"rest", "ok", "ok"}, "", 0},
		{"the slider at now", "0", []string{"rest", "ok", "ok"}, "", 0},
		{"before pi-2 joined, while pi-3 was silent", "-480", []string{"ok", "never", "dark"}, "1/2", 1},
		{"the same moment as an RFC 3339 time", momentText(admintest.Now.Add(-8 * time.Hour)), []string{"ok", "never", "dark"}, "1/2", 1},
		{"while pi-3 was not ready", "-340", []string{"ok", "never", "bad"}, "1/2", 1},
		{"while the hub did not run", "-270", []string{"never", "never", "never"}, "–", 1},
		{"after pi-3 was ready again", "-40", []string{"ok", "ok", "ok"}, "3/3", 0},
	} {
		p, err := Show(at(m, c.at))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		d := p.Data.(overviewData)
		if got := marked(t, d.Picture.Sites[0].Blocks[0]); !slices.Equal(got, c.marks) {
			t.Errorf("%s: %q, want %q", c.name, got, c.marks)
		}
		if d.Replay.Past != (c.tile != "") || d.Replay.Past && d.Tiles[0].Value != c.tile || len(d.Replay.Open) != c.open {
			t.Errorf("%s: past is %v, %s nodes are ready, %d incidents open", c.name, d.Replay.Past, d.Tiles[0].Value,
				len(d.Replay.Open))
		}
	}
	for _, wrong := range []string{"x", "-730", "10", "2020-01-01T00:00:00Z", momentText(admintest.Now.Add(time.Hour))} {
		_, err := Show(at(m, wrong))
		if err == nil || !strings.Contains(err.Error(), "Use ") || !strings.Contains(err.Error(), "last 12 h.") {
			t.Errorf("at=%s: %v", wrong, err)
		}
	}
}

// The slider goes back to when the oldest node joined, and not beyond 12 hours.
func TestTheReplayGoesBackToWhatIsKnown(t *testing.T) {
	for age, want := range map[time.Duration]string{9 * time.Minute: "", 25 * time.Minute: "20 min",
		119 * time.Minute: "110 min", 11*time.Hour + 50*time.Minute: "11 h", 100 * time.Hour: "12 h"} {
		m := admintest.New(admintest.Node("pi-1", "oslo", func(n *corev1.Node) {
			n.CreationTimestamp = admintest.Ago(age)
		}), admintest.Node("pi-2", "oslo", func(n *corev1.Node) { n.CreationTimestamp = admintest.Ago(time.Minute) }))
		r, err := replayOf(at(m, ""))
		if err != nil || r.Span != want {
			t.Errorf("of a fleet that is %s old: %q, want %q: %v", age, r.Span, want, err)
		}
		if _, err := replayOf(at(m, "-720")); (err == nil) != (age > replayed) {
			t.Errorf("of a fleet that is %s old, 12 hours ago: %v", age, err)
		}
	}
}

// The links to the moments before and after are ten minutes away, and stay within the replayed hours.
func TestAReplayStepIsTenMinutes(t *testing.T) {
	m := admintest.New(admintest.Node("pi-1", "oslo", nil))
	step := func(moment string) replay {
		r, err := replayOf(at(m, moment))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := admintest.Now.Add(-replayed).Truncate(replayStep)
	if r := step(momentText(first)); r.Earlier != "" || r.Later != momentHref(first.Add(replayStep)) {
		t.Errorf("at the first moment: %+v", r)
	}
	newest := step(fmt.Sprint(-replayStep.Minutes()))
	if before := newest.at.Add(-replayStep); newest.Earlier != momentHref(before) {
		t.Errorf("at the last moment: %+v", newest)
	}
	for n, r := 0, newest; r.Later != ""; n++ {
		if n > 2 {
			t.Fatal("the links to later moments do not end at now")
		}
		r = step(momentText(r.at.Add(replayStep)))
	}
}
