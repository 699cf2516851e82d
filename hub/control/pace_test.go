package control

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// heavy is the namespace of objects that take long to store or decide.
const heavy = "heavy"

// A slowDisk takes its duration to store each heavy object.
type slowDisk time.Duration

func (d slowDisk) Commit(_ context.Context, rows []Row, _ uint64) error {
	for _, r := range rows {
		if r.Key.Name == heavy {
			time.Sleep(time.Duration(d))
		}
	}
	return nil
}

// A slowDecider decides nothing, and takes its duration for each heavy object.
type slowDecider time.Duration

func (slowDecider) Touches(c state.Applied) []state.Subject {
	if c.Key.Name != heavy {
		return nil
	}
	return []state.Subject{{Key: c.Key}}
}
func (slowDecider) Subjects(state.Snapshot) []state.Subject { return nil }
func (d slowDecider) Decide(_ state.Snapshot, subjects []state.Subject, _ time.Time) state.Plan {
	time.Sleep(time.Duration(d) * time.Duration(len(subjects)))
	return state.Plan{}
}

// A sender waits for the time that its own news took, but not for slow rules, many requests at once
// or a slow disk.
func TestTheSenderOfSlowNewsWaits(t *testing.T) {
	for _, c := range []struct {
		name                  string
		hears, thinks, writes time.Duration
		bytes                 int
		blames, says          string
	}{
		{name: "news that is slow itself", hears: 2 * time.Second, blames: "user kari", says: "most of it for news of user kari, whose next request waits for 10s"},
		{name: "half of a pass", hears: time.Second, thinks: 900 * time.Millisecond, blames: "user kari", says: "news of user kari"},
		{name: "less than half", hears: 900 * time.Millisecond, thinks: 1100 * time.Millisecond, blames: "hub", says: "there was much to decide at once"},
		{name: "rules that take long", thinks: 2 * time.Second, blames: "hub", says: "a pass of the control loop took 2s: there was much to decide at once"},
		{name: "a slow disk", writes: 2 * time.Second, blames: "hub", says: "most of it to store 1 objects; check the disk"},
		{name: "much to write", writes: 2 * time.Second, bytes: 5 << 20, blames: "user kari", says: "news of user kari"},
		{name: "less to write than a healthy disk writes in that time", writes: 20 * time.Second, bytes: 5 << 20, blames: "hub", says: "check the disk"},
		{name: "a pass that is not slow", hears: 300 * time.Millisecond, thinks: 300 * time.Millisecond, writes: 300 * time.Millisecond, bytes: 5 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := New(Config{Store: slowDisk(c.writes), Deciders: []Decider{slowDecider(c.thinks)},
					Start: state.Empty("hub", time.Now())})
				ctx, stop := context.WithCancel(t.Context())
				over := make(chan error)
				go func() { over <- l.Run(ctx) }()
				do := func(takes time.Duration, o ...state.Object) {
					if _, err := l.Do(From(ctx, "user kari"), func(state.Snapshot, time.Time) (changes []state.Change, err error) {
						time.Sleep(takes)
						for _, o := range o {
							changes = append(changes, state.Put(o, ""))
						}
						return changes, nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				do(0, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
				do(c.hears, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: heavy,
					Labels: map[string]string{"x": strings.Repeat("x", c.bytes)}}})
				synctest.Wait()
				began := time.Now()
				do(0)
				if waited := time.Since(began); (waited > 0) != (c.blames == "user kari") {
					t.Errorf("the next news of the sender waits for %s, not as expected", waited)
				}
				slow := l.SlowPasses()
				if c.blames == "" && len(slow) > 0 || c.blames != "" && (len(slow) != 1 || slow[c.blames] != 1) {
					t.Errorf("counted %v", slow)
				}
				messages := ""
				for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
					messages += e.Message
				}
				if !strings.Contains(messages, c.says) || c.says == "" && messages != "" {
					t.Errorf("the events are %q", messages)
				}
				stop()
				<-over
			})
		})
	}
}
