package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
	"flotilla.dev/hub/leader"
)

// members are several hubs with one database.
type members struct {
	t   *testing.T
	o   Options // options of the first hub
	dir map[string]string
}

func newMembers(t *testing.T) *members {
	t.Helper()
	m := &members{t: t, o: onPostgres(t, postgrestest.Shared(t)), dir: map[string]string{}}
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

// lead makes a hub the leader.
func (m *members) lead(s *Standby, name string) *Store {
	m.t.Helper()
	member := Member{Name: name, Address: name + ":8444"}
	var err error
	member.Token, err = s.Take(m.t.Context(), m.row(s), member)
	for range 600 { // until the server has noticed the closed connection of the former leader
		if !errors.Is(err, ErrExists) {
			break
		}
		time.Sleep(100 * time.Millisecond)
		member.Token, err = s.Take(m.t.Context(), m.row(s), member)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		m.t.Fatal(err)
	}
	o := m.options(name)
	o.Member = &member
	return opened(m.t, o)
}

// A deposed leader writes no object, user, token or audit record, even if it does not know that it
// was deposed.
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
		t.Fatalf("a standby took the lead right after a heartbeat: %v", err)
	}
	if err := b.People().SetMeta(t.Context(), "x", "y"); !errors.Is(err, ErrStandby) {
		t.Errorf("a standby wrote: %v", err)
	}
	led := m.lead(b, "b")
	for what, do := range map[string]func() error{
		"an object": func() error { return a.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}) },
		"a setting": func() error { return a.SetMeta(t.Context(), "x", "y") },
		"a beat":    func() error { return a.Beat(t.Context()) },
		"a person":  func() error { return a.AddUser(t.Context(), User{Name: "kari", Role: "admin", Created: time.Now()}) },
		"an audit":  func() error { return a.AddAudit(t.Context(), Audit{At: time.Now(), Who: "kari"}) },
		"a session": func() error { return a.AddSession(t.Context(), Session{User: "kari"}, "") },
		"a Keep":    func() error { return a.Keep(t.Context(), "pki", []byte("x")) },
	} {
		if err := do(); err == nil {
			t.Errorf("a deposed leader wrote %s", what)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := a.Ended(ctx); !errors.Is(err, ErrLocked) {
		t.Errorf("a deposed leader's error is %v", err)
	}
	mustCommit(t, led, 2, pod("c", 2))
	if err := a.Close(); err != nil && !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	if err := led.Beat(t.Context()); err != nil {
		t.Errorf("the end of the deposed leader broke the new one: %v", err)
	}
	if got := strings.Join(contents(t, led), " "); strings.Contains(got, "default/b ") ||
		!strings.Contains(got, "default/a ") || !strings.Contains(got, "default/c ") {
		t.Errorf("the database has %s", got)
	}
	if err := led.Close(); err != nil {
		t.Fatal(err)
	}
	c := m.standby("c")
	if row := m.row(c); !row.Left || row.Holder != "b" {
		t.Errorf("after a clean end of the leader its row is %+v", row)
	}
}

// The server ends the transaction of a frozen leader.
func TestALeaderFrozenInATransactionDelaysNoTakeover(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	b := m.standby("b")
	row := m.row(b)
	inside, thaw, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		over <- a.tx(t.Context(), func(ctx context.Context, c *conn) error {
			select {
			case <-inside: // a second attempt of the transaction
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
		t.Fatalf("a standby took the lead during a transaction: %v", err)
	}
	for {
		if _, err := b.Take(t.Context(), row, Member{Name: "b"}); err == nil {
			break
		} else if !errors.Is(err, ErrExists) || time.Since(began) > 2*time.Minute {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(began); took > 10*leaderIdleTimeout {
		t.Errorf("the frozen leader locked the row for %s", took)
	}
	close(thaw)
	if err := <-over; !errors.Is(err, ErrLocked) {
		t.Errorf("the frozen leader's transaction ended with %v", err)
	}
	if _, err := b.People().Meta(t.Context(), "frozen"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the frozen leader's write was committed: %v", err)
	}
}

// A leader in a long transaction cannot write heartbeats. It still finds its token, and no standby
// can take the lead.
func TestALeaderInALongTransactionKeepsTheLead(t *testing.T) {
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
			t.Fatalf("a standby took the lead during a transaction: %v", err)
		}
	}
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	m.lead(b, "b")
	if err := a.Holds(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("a former leader finds its token: %v", err)
	}
}

// During an upgrade of all hubs, a standby of the new version opens the older schema. After another
// hub has migrated the database, the standby follows it.
func TestAStandbyFollowsAfterAMigrationByAnotherHub(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	mustCommit(t, a, 1, pod("a", 1))
	must(t, a.SetMeta(t.Context(), metaSchema, fmt.Sprint(latest()-1)))
	b := m.standby("b")
	if _, err := b.Follow(t.Context(), 0); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "older schema") {
		t.Errorf("following a database of an older schema: %v", err)
	}
	must(t, a.SetMeta(t.Context(), metaSchema, fmt.Sprint(latest())))
	if d, err := b.Follow(t.Context(), 0); err != nil || !d.All || len(d.Rows) != 1 {
		t.Errorf("after the migration: %+v, %v", d, err)
	}
}

// A slow disk does not end a leader's backup, because the backup does not lock the leader's row.
func TestALeadersBackupMayBeSlow(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	mustCommit(t, a, 1, pod("a", 1))
	file := filepath.Join(t.TempDir(), "copy.db")
	disk, err := sql.Open("sqlite", "file:"+file)
	must(t, err)
	busy, err := disk.Conn(t.Context())
	must(t, err)
	_, err = busy.ExecContext(t.Context(), "BEGIN EXCLUSIVE")
	must(t, err)
	over := make(chan error)
	go func() {
		time.Sleep(leaderIdleTimeout + time.Second)
		_, err := busy.ExecContext(context.Background(), "COMMIT")
		over <- errors.Join(err, busy.Close(), disk.Close())
	}()
	must(t, a.export(t.Context(), file))
	must(t, <-over)
}

// A standby takes over at once from a leader that leaves. The former leader still writes the rest
// of the audit, but no object.
func TestALeavingLeaderIsReplacedAtOnce(t *testing.T) {
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
		t.Errorf("a leader that has left wrote an object: %v", err)
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
		t.Errorf("the end of the former leader changed the row to %+v", row)
	}
	audits, err := led.Audits(t.Context(), 10)
	if err != nil || !slices.ContainsFunc(audits, func(a Audit) bool { return a.Who == "kari" }) {
		t.Errorf("the audit has %v, %v", audits, err)
	}
}

// A leader publishes its address, which may change. After it has left, it publishes nothing.
func TestALeaderPublishesItsAddress(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	b := m.standby("b")
	for _, address := range []string{"192.168.1.10:8444", "192.168.1.20:8444"} {
		if err := a.SetAddress(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		if row := m.row(b); row.Left || row.Holder != "a" || row.Address != address {
			t.Errorf("at %s the row is %+v", address, row)
		}
	}
	if err := a.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.SetAddress(t.Context(), "192.168.1.30:8444"); err != nil {
		t.Error(err)
	}
	if row := m.row(b); !row.Left || row.Address != "192.168.1.20:8444" {
		t.Errorf("the row of a leader that has left is %+v", row)
	}
}

func TestAStandbyFollowsTheLeader(t *testing.T) {
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
				row := Row{
					Kind: []string{"pods", "secrets", "nodes"}[r.IntN(3)], Namespace: "default", Name: fmt.Sprint("o", r.IntN(9)),
					UID: fmt.Sprint("u", rev), Rev: rev, Object: []byte(fmt.Sprintf(`{"n":%d}`, rev)),
				}
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
		if i == 30 { // the standby was away for long
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
		t.Errorf("the standby read everything %d times", anew)
	}
}

// followed is a standby's copy of the objects.
type followed struct {
	t   *testing.T
	s   *Standby
	rev uint64
	has map[string]string
}

func (f *followed) all() string {
	f.t.Helper()
	d, err := f.s.Follow(f.t.Context(), f.rev)
	must(f.t, err)
	if d.All || f.has == nil {
		f.has = map[string]string{}
	}
	for _, r := range d.Rows {
		name := r.Kind + "/" + r.Name
		if f.has[name] = string(r.Object); r.Object == nil {
			delete(f.has, name)
		}
	}
	f.rev = d.Rev
	var all []string
	for name, object := range f.has {
		all = append(all, name+" "+object)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// Standbys also get writes that are not in the change log: of a restore, a move or a single hub. A
// reader with an older snapshot keeps reading that snapshot.
func TestAStandbyFollowsWritesOutsideTheChangeLog(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(t *testing.T, m *members, backup string){
		"a restore": func(t *testing.T, m *members, backup string) { must(t, Restore(t.Context(), m.options("c"), backup)) },
		"a single hub": func(t *testing.T, m *members, _ string) {
			o := m.options("a")
			o.Member = nil
			s := opened(t, o)
			mustCommit(t, s, s.rev+5, pod("a", s.rev+5), pod("of-one-alone", s.rev+5))
			must(t, s.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMembers(t)
			a := m.lead(m.standby("a"), "a")
			mustCommit(t, a, 5, pod("before", 5))
			backup := filepath.Join(t.TempDir(), "backup.db")
			must(t, a.Backup(t.Context(), backup))
			mustCommit(t, a, 6, pod("after", 6), Row{Kind: "sites", Name: "oslo", UID: "o", Rev: 6, Object: []byte("{}")})
			b := followed{t: t, s: m.standby("b")}
			if got := b.all(); !strings.Contains(got, "pods/before") || !strings.Contains(got, "pods/after") {
				t.Fatal(got)
			}
			must(t, a.Close())
			reading, err := b.s.store.read.conn(t.Context())
			must(t, err)
			for _, q := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM meta"} {
				_, err := reading.ExecContext(t.Context(), q)
				must(t, err)
			}
			write(t, m, backup)
			var old int
			must(t, reading.QueryRowContext(t.Context(),
				"SELECT (SELECT count(*) FROM pods) + (SELECT count(*) FROM sites)").Scan(&old))
			if old != 3 {
				t.Errorf("a reader with an older snapshot finds %d objects of 3", old)
			}
			must(t, reading.Close())
			all := followed{t: t, s: b.s}
			if got, want := b.all(), all.all(); got != want || want == "" {
				t.Errorf("the standby has\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// The loss of a heartbeat loses nothing: a server without the newest heartbeat is not older. A
// heartbeat with queued audit records does count.
func TestALostHeartbeatLosesNothing(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	b := m.standby("b")
	before, row := must1(t)(a.found(t.Context())), m.row(b)
	for range 3 {
		must(t, a.Beat(t.Context()))
	}
	if after, is := must1(t)(a.found(t.Context())), m.row(b); after != before || is.Beat != row.Beat+3 {
		t.Errorf("three heartbeats change %+v to %+v, and %d to %d", before, after, row.Beat, is.Beat)
	}
	a.audits.put(did("pi-1"))
	must(t, a.Beat(t.Context()))
	if after := must1(t)(a.found(t.Context())); after.writes != before.writes+1 || readHighWater(m.o.Dir) != after {
		t.Errorf("a heartbeat with an audit record changes %+v to %+v, and the high-water mark is %+v", before, after,
			readHighWater(m.o.Dir))
	}
	m.row(b)
	if saw := readHighWater(m.dir["b"]); saw.writes != before.writes+1 {
		t.Errorf("the standby's high-water mark is %+v", saw)
	}
}

func must1(t *testing.T) func(progress, error) progress {
	return func(p progress, err error) progress {
		t.Helper()
		must(t, err)
		return p
	}
}

// A standby knows the database's high-water mark. If it becomes the leader of an older database, it
// reports that like the hub that wrote the newer one.
func TestALeadingStandbyDetectsAnOlderDatabase(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	for name, change := range map[string]func(t *testing.T, a *Store){
		"an object":        func(t *testing.T, a *Store) { mustCommit(t, a, 6, pod("after", 6)) },
		"a person":         func(t *testing.T, a *Store) { must(t, a.DeleteUser(t.Context(), "anna", time.Now())) },
		"nothing":          nil,
		"an object, again": func(t *testing.T, a *Store) { mustCommit(t, a, 6, pod("after", 6)) },
	} {
		again := strings.HasSuffix(name, "again")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &members{t: t, o: options(t, t.TempDir()), dir: map[string]string{}}
			m.o.Database, m.dir["a"] = server.Database(), m.o.Dir
			db := postgrestest.Name(m.o.Database)
			a := m.lead(m.standby("a"), "a")
			mustCommit(t, a, 5, pod("before", 5))
			must(t, a.AddUser(t.Context(), User{Name: "anna", Role: "admin", Created: time.Now()}))
			must(t, a.Close())
			server.Do("postgres", "CREATE DATABASE "+db+"_older TEMPLATE "+db)
			if change != nil {
				a = m.lead(m.standby("a"), "a")
				change(t, a)
				must(t, a.Close())
			}
			var said bytes.Buffer
			of := m.options("b")
			of.Log = logTo(&said)
			open := func() *Standby {
				b, err := StandBy(t.Context(), of)
				must(t, err)
				t.Cleanup(func() { _ = b.Close() })
				return b
			}
			b := open()
			m.row(b)
			if again { // all hubs restart after the power cut
				must(t, b.Close())
			}
			if change != nil {
				server.Do("postgres", "DROP DATABASE "+db+" WITH (FORCE)")
				server.Do("postgres", "ALTER DATABASE "+db+"_older RENAME TO "+db)
			}
			if again {
				b = open()
			}
			for range readers + 2 { // each reader's open connections have ended
				_, _ = b.Row(t.Context())
			}
			if n := strings.Count(said.String(), "DATABASE IS OLDER"); n != 0 && change == nil || n != 1 && change != nil {
				t.Errorf("the standby logs the older database %d times: %s", n, said.String())
			}
			led := m.lead(b, "b")
			r, err := led.Recovered(t.Context())
			must(t, err)
			if (r != nil) != (change != nil) || r != nil &&
				!strings.Contains(r.Cause, "a standby took over that lacked transactions") {
				t.Errorf("%+v", r)
			}
			must(t, led.Close())
		})
	}
}

// A second hub needs the key of the first. The error says where that key is.
func TestASecondHubNeedsTheKeyOfTheFirst(t *testing.T) {
	m := newMembers(t)
	a := m.lead(m.standby("a"), "a")
	if err := a.Keep(t.Context(), "pki", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	o := m.options("b")
	file := filepath.Join(o.Dir, secretsKey)
	for _, c := range []struct{ key, says string }{{"", "it is missing"},
		{strings.Repeat("ab", keyBytes), "the database is sealed with key"}} {
		_ = os.Remove(file)
		if c.key != "" {
			if err := os.WriteFile(file, []byte(c.key), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := StandBy(t.Context(), o); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), "from the data directory of the first hub") {
			t.Errorf("%q: %v", c.key, err)
		}
	}
	if c := m.standby("c"); true {
		if got, err := c.Kept(t.Context(), "pki"); err != nil || string(got) != "secret" {
			t.Errorf("%q %v", got, err)
		}
	}
}
