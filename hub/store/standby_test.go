package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/store/postgrestest"
)

// members are hubs of one database.
type members struct {
	t   *testing.T
	o   Options // of the first
	dir map[string]string
}

func newMembers(t *testing.T) *members {
	t.Helper()
	m := &members{t: t, o: onPostgres(t, postgrestest.Start(t)), dir: map[string]string{}}
	m.dir["a"] = m.o.Dir
	return m
}

func (m *members) options(name string) Options {
	m.t.Helper()
	o := m.o
	if m.dir[name] == "" {
		m.dir[name] = m.t.TempDir()
		key, err := os.ReadFile(filepath.Join(m.dir["a"], secretsKey))
		if err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.dir[name], secretsKey), key, 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	o.Dir = m.dir[name]
	return o
}

func (m *members) standby(name string) *Standby {
	m.t.Helper()
	s, err := StandBy(m.t.Context(), m.options(name))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (m *members) row(s *Standby) leader.Row {
	m.t.Helper()
	row, err := s.Row(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return row
}

// lead makes a hub the leader, whoever was before.
func (m *members) lead(s *Standby, name string) *Store {
	m.t.Helper()
	member := Member{Name: name, Address: name + ":8444"}
	var err error
	if member.Token, err = s.Take(m.t.Context(), m.row(s), member); err != nil {
		m.t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		m.t.Fatal(err)
	}
	o := m.options(name)
	o.Member = &member
	return opened(m.t, o)
}

// TestADeposedLeaderWritesNothing: no object, no person, no token, no audit, however little it
// knows of it.
func TestADeposedLeaderWritesNothing(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	mustCommit(t, a, 1, pod("a", 1))
	b := m.standby("b")
	if row := m.row(b); row.Holder != "a" || row.Address != "a:8444" || row.Left || row.Revision != 1 {
		t.Fatalf("%+v", row)
	}
	before := m.row(b)
	if err := a.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), before, Member{Name: "b"}); !errors.Is(err, ErrExists) {
		t.Fatalf("the lead of one that has just beaten was taken: %v", err)
	}
	if err := b.People().SetMeta(t.Context(), "x", "y"); !errors.Is(err, ErrStandby) {
		t.Errorf("a standby wrote: %v", err)
	}
	led := m.lead(b, "b")
	for what, do := range map[string]func() error{
		"an object":   func() error { return a.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}) },
		"a setting":   func() error { return a.SetMeta(t.Context(), "x", "y") },
		"a beat":      func() error { return a.Beat(t.Context()) },
		"a person":    func() error { return a.AddUser(t.Context(), User{Name: "kari", Role: "admin", Created: time.Now()}) },
		"an audit":    func() error { return a.AddAudit(t.Context(), Audit{At: time.Now(), Who: "kari"}) },
		"a session":   func() error { return a.AddSession(t.Context(), Session{User: "kari"}) },
		"a kept file": func() error { return a.Keep(t.Context(), "pki", []byte("x")) },
	} {
		if err := do(); err == nil {
			t.Errorf("a deposed leader wrote %s", what)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := a.Ended(ctx); !errors.Is(err, ErrLocked) {
		t.Errorf("a deposed leader was told %v", err)
	}
	mustCommit(t, led, 2, pod("c", 2))
	if err := a.Close(); err != nil && !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	if err := led.Beat(t.Context()); err != nil {
		t.Errorf("the end of the deposed leader harmed the new one: %v", err)
	}
	if got := strings.Join(contents(t, led), " "); strings.Contains(got, "default/b ") || !strings.Contains(got, "default/a ") || !strings.Contains(got, "default/c ") {
		t.Errorf("the database has %s", got)
	}
	if err := led.Close(); err != nil {
		t.Fatal(err)
	}
	c := m.standby("c")
	if row := m.row(c); !row.Left || row.Holder != "b" {
		t.Errorf("a leader that ended in order left %+v", row)
	}
}

// TestALeaderThatIsFrozenInATransactionHoldsNobodyUp: the server ends it.
func TestALeaderThatIsFrozenInATransactionHoldsNobodyUp(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	b := m.standby("b")
	row := m.row(b)
	inside, thaw, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		over <- a.tx(t.Context(), func(ctx context.Context, c *conn) error {
			select {
			case <-inside: // the second try
			default:
				close(inside)
				<-thaw
			}
			_, err := c.ExecContext(ctx, setMeta, "frozen", "yes")
			return err
		})
	}()
	<-inside
	began := time.Now()
	if _, err := b.Take(t.Context(), row, Member{Name: "b"}); !errors.Is(err, ErrExists) {
		t.Fatalf("the row was taken in the middle of a transaction: %v", err)
	}
	for {
		if _, err := b.Take(t.Context(), row, Member{Name: "b"}); err == nil {
			break
		} else if !errors.Is(err, ErrExists) || time.Since(began) > 2*time.Minute {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(began); took > 10*frozen {
		t.Errorf("the frozen leader held the row for %s", took)
	}
	close(thaw)
	if err := <-over; !errors.Is(err, ErrLocked) {
		t.Errorf("its transaction ended with %v", err)
	}
	if _, err := b.People().Meta(t.Context(), "frozen"); !errors.Is(err, ErrNotFound) {
		t.Errorf("what it wrote stands there: %v", err)
	}
}

// TestALeaderInALongTransactionLeads: it finds its token while it cannot change the row, and nobody can take
// that from it.
func TestALeaderInALongTransactionLeads(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	b := m.standby("b")
	row := m.row(b)
	inside, over := make(chan struct{}), make(chan error, 1)
	go func() {
		over <- a.tx(t.Context(), func(ctx context.Context, c *conn) error {
			close(inside)
			_, err := c.ExecContext(ctx, "SELECT pg_sleep(4)")
			return err
		})
	}()
	<-inside
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		if err := a.Holds(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Take(t.Context(), row, Member{Name: "b"}); !errors.Is(err, ErrExists) {
			t.Fatalf("the row was taken in the middle of a transaction: %v", err)
		}
	}
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	m.lead(b, "b")
	if err := a.Holds(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("a leader that was overtaken finds its token: %v", err)
	}
}

// TestAHubThatLeavesIsOvertakenAtOnce, though it is still there: it writes what is left of the audit, and no object.
func TestAHubThatLeavesIsOvertakenAtOnce(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	mustCommit(t, a, 1, pod("a", 1))
	for range 2 {
		if err := a.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b := m.standby("b")
	if row := m.row(b); !row.Left || row.Holder != "a" {
		t.Fatalf("%+v", row)
	}
	led := m.lead(b, "b")
	if err := a.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}); !errors.Is(err, ErrStandby) {
		t.Errorf("a hub that has left wrote an object: %v", err)
	}
	if err := a.AddAudit(t.Context(), Audit{At: time.Now(), Who: "kari"}); err != nil {
		t.Error(err)
	}
	if err := a.Beat(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	mustCommit(t, led, 2, pod("c", 2))
	if row := m.row(m.standby("c")); row.Left || row.Holder != "b" || row.Revision != 2 {
		t.Errorf("the end of a hub that has left made the row %+v", row)
	}
	audits, err := led.Audits(t.Context(), 10)
	if err != nil || !slices.ContainsFunc(audits, func(a Audit) bool { return a.Who == "kari" }) {
		t.Errorf("the audit has %v, %v", audits, err)
	}
}

// TestAStandbyHasWhatTheLeaderWrote follows random commits, and compares with what all of it is.
func TestAStandbyHasWhatTheLeaderWrote(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	b := m.standby("b")
	r := rand.New(rand.NewPCG(3, 3))
	have := map[string]string{}
	say := func(r Row) string { return fmt.Sprintf("%s/%s %s %d %s", r.Kind, r.Name, r.UID, r.Rev, r.Object) }
	rev, followed, anew := uint64(0), uint64(0), 0
	follow := func() {
		t.Helper()
		d, err := b.Follow(t.Context(), followed)
		if err != nil {
			t.Fatal(err)
		}
		if d.All {
			anew++
			clear(have)
		}
		for _, row := range d.Rows {
			if delete(have, row.Kind+"/"+row.Name); row.Object != nil {
				have[row.Kind+"/"+row.Name] = say(row)
			} else if row.Rev <= followed || row.Rev > d.Rev {
				t.Fatalf("%s/%s ended at %d, between %d and %d", row.Kind, row.Name, row.Rev, followed, d.Rev)
			}
		}
		followed = d.Rev
	}
	for i := range 60 {
		for range r.IntN(4) {
			var rows []Row
			for range 1 + r.IntN(5) {
				rev++
				row := Row{Kind: []string{"pods", "secrets", "nodes"}[r.IntN(3)], Namespace: "default", Name: fmt.Sprint("o", r.IntN(9)), UID: fmt.Sprint("u", rev), Rev: rev, Object: []byte(fmt.Sprintf(`{"n":%d}`, rev))}
				if row.Kind == "nodes" {
					row.Namespace = ""
				}
				if r.IntN(3) == 0 {
					row.Object = nil
				}
				rows = append(rows, row)
			}
			mustCommit(t, a, rev, rows...)
		}
		if i == 30 { // it was away for long
			if _, err := a.exec(t.Context(), setMeta, metaFrom, fmt.Sprint(rev)); err != nil {
				t.Fatal(err)
			}
			rev++
			mustCommit(t, a, rev, pod("x", rev))
		}
		follow()
		want := map[string]string{}
		if err := a.Load(t.Context(), func(r Row) error { want[r.Kind+"/"+r.Name] = say(r); return nil }); err != nil {
			t.Fatal(err)
		}
		if followed != rev || fmt.Sprint(have) != fmt.Sprint(want) {
			t.Fatalf("after revision %d the standby has %d\n%v, want\n%v", rev, followed, have, want)
		}
	}
	if anew < 1 || anew > 3 {
		t.Errorf("everything was read anew %d times", anew)
	}
}

// TestASecondHubNeedsTheKeyOfTheFirst, and is told where it is.
func TestASecondHubNeedsTheKeyOfTheFirst(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	if err := a.Keep(t.Context(), "pki", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	o := m.options("b")
	file := filepath.Join(o.Dir, secretsKey)
	for _, c := range []struct{ key, says string }{{"", "it is missing"}, {strings.Repeat("ab", keyBytes), "the database is sealed with key"}} {
		_ = os.Remove(file)
		if c.key != "" {
			if err := os.WriteFile(file, []byte(c.key), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := StandBy(t.Context(), o); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "from the data directory of the first hub") {
			t.Errorf("%q: %v", c.key, err)
		}
	}
	if c := m.standby("c"); true {
		if got, err := c.Kept(t.Context(), "pki"); err != nil || string(got) != "secret" {
			t.Errorf("%q %v", got, err)
		}
	}
}
