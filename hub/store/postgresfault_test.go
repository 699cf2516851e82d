package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/e2e/postgrestest"
	"flotilla.dev/hub/state"
)

// A line is the network between a hub and its server. It can break during a COMMIT.
type line struct {
	t      *testing.T
	to     string
	listen net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool
	fault fault
	once  string // the fault affects the first COMMIT after this text; "": the next COMMIT
	down  bool   // no new connections
	hits  int
}

// A fault is what happens to one COMMIT.
type fault int

const (
	none       fault = iota
	cutBefore        // the server does not receive it
	cutAfter         // the hub does not receive the response
	swallow          // like cutAfter, but both connections stay open
	cutAndDown       // like cutAfter, and new connections are refused
	cutBeforeAndDown
)

func newLine(t *testing.T, o *Options) *line {
	u, err := url.Parse(o.Database)
	if err != nil {
		t.Fatal(err)
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{t: t, to: u.Host, listen: listen, conns: map[net.Conn]bool{}}
	u.Host = listen.Addr().String()
	o.Database = u.String()
	t.Cleanup(func() { _ = listen.Close(); l.cut() })
	go func() {
		for {
			c, err := listen.Accept()
			if err != nil {
				return
			}
			go l.serve(c)
		}
	}()
	return l
}

func (l *line) set(f fault)                   { l.setAfter("", f) }
func (l *line) setAfter(text string, f fault) { l.mu.Lock(); l.once, l.fault = text, f; l.mu.Unlock() }
func (l *line) isDown(d bool)                 { l.mu.Lock(); l.down = d; l.mu.Unlock() }
func (l *line) happened() int                 { l.mu.Lock(); defer l.mu.Unlock(); return l.hits }

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
}

func (l *line) serve(c net.Conn) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		_ = c.Close()
		return
	}
	s, err := net.Dial("tcp", l.to)
	if err != nil {
		_ = c.Close()
		return
	}
	l.mu.Lock()
	l.conns[c], l.conns[s] = true, true
	l.mu.Unlock()
	silent := make(chan struct{})
	go func() { // copies the server's responses
		b := make([]byte, 64<<10)
		for {
			n, err := s.Read(b)
			select {
			case <-silent:
				if err != nil {
					return // the hub's connection stays open
				}
				continue
			default:
			}
			if n > 0 {
				_, _ = c.Write(b[:n])
			}
			if err != nil {
				_ = c.Close()
				return
			}
		}
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := c.Read(b)
		if err != nil {
			_ = s.Close()
			return
		}
		does := none
		l.mu.Lock()
		if bytes.Contains(b[:n], []byte(l.once)) {
			l.once = ""
		}
		l.mu.Unlock()
		if bytes.Contains(b[:n], []byte("COMMIT\x00")) {
			l.mu.Lock()
			if l.once == "" {
				does = l.fault
			}
			if does != none {
				l.hits++
				l.fault = none
			}
			if does == cutAndDown || does == cutBeforeAndDown {
				l.down = true
			}
			l.mu.Unlock()
		}
		switch does {
		case cutBefore, cutBeforeAndDown:
			_, _ = c.Close(), s.Close()
			return
		case cutAfter, cutAndDown:
			close(silent)
			_, _ = s.Write(b[:n])
			time.Sleep(100 * time.Millisecond) // the server has committed by then
			_, _ = c.Close(), s.Close()
			return
		case swallow:
			close(silent)
			_, _ = s.Write(b[:n])
			_, _ = io.Copy(io.Discard, c) // drop all further data
			return
		}
		if _, err := s.Write(b[:n]); err != nil {
			_ = c.Close()
			return
		}
	}
}

// impatient are short timeouts for tests.
var impatient = timeouts{response: time.Second, reconnect: 2 * time.Second, resolve: time.Minute}

func TestAnInterruptedCommitIsAppliedOnce(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for name, does := range map[string]fault{
		"the connection ends before the server receives COMMIT": cutBefore,
		"the connection ends after COMMIT, before the response": cutAfter,
		"the network drops everything after COMMIT":             swallow,
	} {
		t.Run(name, func(t *testing.T) {
			o := onPostgres(t, server)
			o.timeouts = impatient
			l := newLine(t, &o)
			s := opened(t, o)
			mustCommit(t, s, 1, pod("a", 1))
			for i := range 3 {
				l.set(does)
				a := did("pi-1")
				a.Name = fmt.Sprint("audit-", i)
				s.NoteAudit(a)
				mustCommit(t, s, uint64(2+i), pod(fmt.Sprint("b", i), uint64(2+i)))
				if l.happened() != i+1 {
					t.Fatal("nothing was cut")
				}
				l.set(does) // a transaction without objects
				if err := s.AddUser(t.Context(), User{Name: fmt.Sprint("u", i), Role: "viewer", Created: time.Now()}); err != nil {
					t.Fatal(err) // ErrExists would mean that the transaction ran twice
				}
				l.mu.Lock()
				l.hits = i + 1
				l.mu.Unlock()
			}
			if n := len(contents(t, s)); n != 4 {
				t.Fatalf("%d objects", n)
			}
			found, err := s.FindAudits(t.Context(), AuditQuery{Words: []string{"audit-"}, Limit: 99})
			if err != nil || len(found) != 3 {
				t.Fatalf("%d records of 3, %v", len(found), err)
			}
			if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks > 0 {
				t.Fatal(r, err)
			}
			select {
			case <-s.pg.stopping:
				t.Fatal(s.pg.stopped)
			default:
			}
		})
	}
}

func TestAnUnresolvedCommitWaitsForItsResult(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for name, c := range map[string]struct {
		does fault
		done bool
	}{
		"a transaction that was not committed is retried": {cutBeforeAndDown, false},
		"a transaction that was committed is not retried": {cutAndDown, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := onPostgres(t, server)
			o.timeouts = timeouts{response: 5 * time.Second, reconnect: 100 * time.Millisecond, resolve: time.Minute}
			l := newLine(t, &o)
			s := opened(t, o)
			mustCommit(t, s, 1, pod("a", 1))
			l.set(c.does)
			a := did("pi-1")
			a.Name = "audit-once"
			s.NoteAudit(a)
			over := make(chan error, 1)
			go func() { over <- s.Commit(context.Background(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}) }()
			for range 5 { // other calls do not wait for the result
				time.Sleep(200 * time.Millisecond)
				begin := time.Now()
				err := s.AddUser(t.Context(), User{Name: "anna", Role: "viewer", Created: begin})
				if !errors.Is(err, ErrUnavailable) || time.Since(begin) > 20*time.Second {
					// 20 s is much less than the timeout of the unresolved commit
					t.Fatal(time.Since(begin), err)
				}
				_ = s.Full()
			}
			select {
			case err := <-over:
				t.Fatal("Commit returned before the result was known", err)
			default:
			}
			l.isDown(false)
			select {
			case err := <-over:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(3 * time.Minute):
				t.Fatal("Commit does not return")
			}
			mustCommit(t, s, 3, pod("c", 3))
			expect(t, names(t, s), "a", "b", "c")
			if found, err := s.FindAudits(t.Context(), AuditQuery{Words: []string{"audit-once"}, Limit: 9}); err != nil ||
				len(found) != 1 {
				t.Fatal(found, err)
			}
		})
	}
	t.Run("the hub restarts if the result stays unknown", func(t *testing.T) {
		o := onPostgres(t, server)
		o.timeouts = timeouts{response: 5 * time.Second, reconnect: 100 * time.Millisecond, resolve: 300 * time.Millisecond}
		l := newLine(t, &o)
		s := opened(t, o)
		mustCommit(t, s, 1, pod("a", 1))
		l.set(cutAndDown)
		if err := s.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("done", 2)}}); err == nil ||
			!strings.Contains(err.Error(), "the hub exits") {
			t.Fatal(err)
		}
		if err := s.Ended(t.Context()); err == nil {
			t.Fatal("the hub goes on, want its end")
		}
		l.isDown(false)
		if err := s.SetMeta(t.Context(), "k", "v"); err == nil {
			t.Fatal("the ended store still writes")
		}
		s = reopened(t, s, o)
		expect(t, names(t, s), "a", "done")
		if r, err := s.Recovered(t.Context()); r != nil || err != nil {
			t.Fatal(r, err)
		}
	})
}

func TestAnUnresolvedWriteIsReportedAndHappensOnce(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for does, want := range map[fault]error{cutBeforeAndDown: nil, cutAndDown: ErrExists} {
		o := onPostgres(t, server)
		o.timeouts = timeouts{response: time.Second, reconnect: 100 * time.Millisecond}
		l := newLine(t, &o)
		s := opened(t, o)
		l.set(does)
		anna := User{Name: "anna", Role: "viewer", Created: time.Now()}
		if err := s.AddUser(t.Context(), anna); !errors.Is(err, ErrUnavailable) ||
			!strings.Contains(err.Error(), "not yet known") {
			t.Fatal(err)
		}
		l.isDown(false)
		time.Sleep(retryEvery)
		mustCommit(t, s, 1, pod("a", 1)) // the hub goes on
		if err := s.AddUser(t.Context(), anna); !errors.Is(err, want) {
			t.Fatal(err)
		}
	}
}

// names returns the names of all objects.
func names(t *testing.T, s *Store) (all []string) {
	t.Helper()
	if err := s.Load(t.Context(), func(r Row) error { all = append(all, r.Name); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// The server is killed repeatedly during writes. Afterwards exactly the acknowledged objects exist.
func TestKill9OfTheServerLosesNoAcknowledgedCommit(t *testing.T) {
	t.Parallel()
	// This server's default would lose the newest commits at each kill.
	server := postgrestest.Start(t, "fsync=on", "full_page_writes=on", "synchronous_commit=off", "wal_writer_delay=10s")
	o := onPostgres(t, server)
	// short, so that some writes fail
	o.timeouts = timeouts{response: 2 * time.Second, reconnect: 300 * time.Millisecond, resolve: time.Minute}
	s := opened(t, o)
	ctx, stop := context.WithCancel(t.Context())
	var acked, failed []string
	var all sync.WaitGroup
	var people []string
	all.Go(func() {
		for rev := uint64(1); ctx.Err() == nil; rev++ {
			r := pod(fmt.Sprintf("p-%09d", rev), rev)
			if err := s.Commit(t.Context(), Commit{Rev: rev, Rows: []Row{r}}); err == nil {
				acked = append(acked, r.Name)
			} else if failed = append(failed, r.Name); !errors.Is(err, ErrUnavailable) {
				t.Error(err)
				return
			} else {
				time.Sleep(time.Millisecond)
			}
		}
	})
	all.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("u-%06d", i)
			err := s.AddUser(t.Context(), User{Name: name, Role: "viewer", Created: time.Now()})
			if err == nil {
				people = append(people, name)
			} else if !errors.Is(err, ErrUnavailable) {
				t.Error(err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	const rounds = 6
	for i := range rounds {
		time.Sleep(time.Duration(200+50*i) * time.Millisecond)
		server.Kill()
		if i%2 == 1 {
			time.Sleep(600 * time.Millisecond) // longer than a write waits to reconnect
		}
		server.Run()
	}
	time.Sleep(time.Second)
	stop()
	all.Wait()
	t.Logf("%d acknowledged, %d refused, %d users", len(acked), len(failed), len(people))
	if len(acked) < rounds || len(failed) == 0 {
		t.Fatal("no write was tried")
	}
	select {
	case <-s.pg.stopping:
		t.Fatal(s.pg.stopped)
	default:
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	server.Run()
	s = opened(t, o)
	if got := names(t, s); !slices.Equal(got, acked) {
		t.Fatalf("%d objects are stored, and %d were acknowledged", len(got), len(acked))
	}
	users, err := s.Users(t.Context())
	if err != nil || len(users) < len(people) || len(users) > len(people)+rounds {
		// a user whose transaction was unresolved may exist
		t.Fatalf("%d users are stored, and %d were acknowledged: %v", len(users), len(people), err)
	}
	for _, name := range people {
		if !slices.ContainsFunc(users, func(u User) bool { return u.Name == name }) {
			t.Fatal(name, "was acknowledged, but is lost")
		}
	}
}

func TestEndedConnectionsAreReopened(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := onPostgres(t, server)
	s := opened(t, o)
	ends := make(chan struct{}, 1) // at most one end per round, because a read retries only a few times
	var all sync.WaitGroup
	all.Go(func() {
		for range ends {
			_, _ = server.Try("postgres",
				"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+postgrestest.Name(o.Database)+"'")
		}
	})
	for rev := uint64(1); rev <= 300; rev++ {
		select {
		case ends <- struct{}{}:
		default:
		}
		mustCommit(t, s, rev, pod(fmt.Sprint("p", rev), rev))
		if _, err := s.User(t.Context(), "nobody"); !errors.Is(err, ErrNotFound) {
			t.Fatal("a read failed", err)
		}
		if _, err := s.ClientsRevokedBefore(t.Context(), "nobody"); err != nil {
			t.Fatal("a read failed", err)
		}
	}
	close(ends)
	all.Wait()
	if n := len(contents(t, s)); n != 300 {
		t.Fatal(n)
	}
}

func TestAnUnresolvedCommandIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := onPostgres(t, server)
	opened(t, o)
	shared := o
	l := newLine(t, &shared)
	cli, err := OpenShared(t.Context(), shared)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	for _, does := range []fault{cutAfter, cutBefore} {
		l.set(does)
		if err := cli.SetMeta(t.Context(), "k", fmt.Sprint(does)); !errors.Is(err, ErrUnavailable) ||
			!strings.Contains(err.Error(), "check whether") {
			t.Fatal(err)
		}
	}
	if v, err := cli.Meta(t.Context(), "k"); err != nil || v != fmt.Sprint(cutAfter) {
		t.Fatal(v, err)
	}
	if err := cli.SetMeta(t.Context(), "k", "now"); err != nil {
		t.Fatal(err)
	}
}

func TestASilentServerTimesOut(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	o := onPostgres(t, server)
	o.timeouts = timeouts{response: 500 * time.Millisecond, reconnect: time.Second}
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	begin := time.Now()
	if err := s.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := s.User(t.Context(), "anna"); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Fatal(took)
	}
	server.Signal(syscall.SIGCONT)
	time.Sleep(retryEvery)
	mustCommit(t, s, 2, pod("c", 2))
	expect(t, names(t, s), "a", "c")
}

func TestAHubThatLostTheLeadWritesNothing(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := onPostgres(t, server)
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	// This hub has no connection, so another hub has taken the lock and a new token.
	server.Do(postgrestest.Name(o.Database), "UPDATE leader SET token = token + 1")
	if err := s.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	if err := s.Ended(t.Context()); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "another hub has taken") {
		t.Fatal(err)
	}
	if err := s.AddUser(t.Context(), User{Name: "eve"}); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	expect(t, names(t, s), "a")
}

func TestAnOlderDatabaseIsNotWritten(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	o := onPostgres(t, server)
	name := postgrestest.Name(o.Database)
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	server.Do("postgres", "CREATE DATABASE older TEMPLATE "+name)
	server.Do("older", "UPDATE leader SET token = token + 1") // the start below updates the token too
	s = opened(t, o)
	mustCommit(t, s, 7, pod("b", 7))
	server.Do("postgres",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'; ALTER DATABASE "+name+" RENAME TO newer")
	server.Do("postgres", "ALTER DATABASE older RENAME TO "+name)
	if err := s.Commit(t.Context(), Commit{Rev: 8, Rows: []Row{pod("c", 8)}}); err == nil ||
		!strings.Contains(err.Error(), "older than it was") {
		t.Fatal(err)
	}
	if s.Ended(t.Context()) == nil {
		t.Fatal("the hub goes on, want its end")
	}
	s = reopened(t, s, o)
	expect(t, names(t, s), "a")
	r, err := s.Recovered(t.Context())
	if rev, _ := s.Revision(t.Context()); err != nil || r == nil || rev < 7+revisionJump {
		t.Fatalf("%+v %v %d", r, err, rev)
	}
}

func TestAConflictIsRetried(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for _, state := range []string{"40001", "40P01"} {
		t.Run(state, func(t *testing.T) {
			o := onPostgres(t, server)
			s := opened(t, o)
			mustCommit(t, s, 1, pod("a", 1))
			server.Do(postgrestest.Name(o.Database), `CREATE SEQUENCE tries; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('tries') <= 2 THEN RAISE EXCEPTION 'not now' USING ERRCODE = '`+state+`'; END IF; RETURN NEW; END $$;
				CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON pods FOR EACH ROW EXECUTE FUNCTION fail()`)
			mustCommit(t, s, 2, pod("b", 2))
			expect(t, names(t, s), "a", "b")
			server.Do(postgrestest.Name(o.Database), "ALTER SEQUENCE tries RESTART MINVALUE -1000 START -1000")
			if err := s.Commit(t.Context(), Commit{Rev: 3, Rows: []Row{pod("c", 3)}}); !errors.Is(err, ErrUnavailable) {
				t.Fatal("the transaction is retried forever, or its error is not temporary", err)
			}
		})
	}
}

func TestUnusableServersAreRefused(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	for name, c := range map[string]struct {
		prepare func(o *Options)
		says    []string
		is      error
	}{
		"another encoding": {func(o *Options) {
			server.Do("postgres", "CREATE DATABASE ascii ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
			o.Database = server.URL("ascii")
		}, []string{"must be UTF8", "createdb --encoding=UTF8"}, nil},
		"another program's database": {func(o *Options) {
			server.Do(postgrestest.Name(o.Database), "CREATE TABLE users (x int); CREATE TABLE orders (x int)")
		}, []string{"2 tables in schema public that are not a hub's", "search_path"}, nil},
		"without a schema": {func(o *Options) { server.Do(postgrestest.Name(o.Database), "DROP SCHEMA public") },
			[]string{"CREATE SCHEMA"}, nil},
		"a role without CREATE": {func(o *Options) {
			server.Do("postgres", "CREATE ROLE weak LOGIN")
			o.Database = strings.Replace(o.Database, "flotilla@", "weak@", 1)
		}, []string{"refuses this role", "OWNER TO"}, nil},
		"a role without a free connection": {func(o *Options) {
			server.Do("postgres", "CREATE ROLE busy LOGIN CONNECTION LIMIT 0")
			o.Database = strings.Replace(o.Database, "flotilla@", "busy@", 1)
		}, []string{"is out of connections"}, ErrUnavailable},
		"a missing database": {func(o *Options) { o.Database = server.URL("nowhere") },
			[]string{"nowhere", "does not exist", "createdb"}, ErrUnavailable},
		"no server": {func(o *Options) { o.Database = "postgres://flotilla:geheim@127.0.0.1:1/hub" },
			[]string{"cannot be reached", "postgres://flotilla@127.0.0.1:1/hub"}, ErrUnavailable},
		"no address": {func(o *Options) { o.Database = "mysql://x" }, []string{"postgres://USER@HOST"}, nil},
		"an invalid address": {func(o *Options) { o.Database = "postgres://a:geheim@h:port/x" },
			[]string{"postgres://USER@HOST"}, nil},
		"a missing address file": {func(o *Options) { o.Database = "/nowhere/url" }, []string{"/nowhere/url", "first line"},
			nil},
		"a database of a newer program": {func(o *Options) {
			_ = opened(t, *o).Close()
			server.Do(postgrestest.Name(o.Database), "UPDATE meta SET value = '99' WHERE key = 'schema'")
		}, []string{"schema 99", "install that version again"}, ErrNewer},
		"an empty database, although the hub has one in its directory": {func(o *Options) {
			_ = openIn(t, o.Dir).Close()
		}, []string{"it is empty", "hub.db", "migrate --to"}, nil},
		"an empty database, although the hub's database was elsewhere": {func(o *Options) {
			s := opened(t, *o)
			mustCommit(t, s, 3, pod("a", 3))
			_ = s.Close()
			o.Database = server.Database()
		}, []string{"it is empty", "revision 3", "--database"}, nil},
		"SQLite again, by mistake": {func(o *Options) {
			_ = opened(t, *o).Close()
			o.Database = SQLite
		}, []string{"migrate --to sqlite"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := onPostgres(t, server)
			c.prepare(&o)
			before := server.Do("postgres", "SELECT count(*) FROM pg_database")
			s, err := Open(t.Context(), o)
			if err == nil {
				_ = s.Close()
				t.Fatal("accepted")
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("the error is %v, want %v", err, c.is)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the text %q is missing in %q", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the message has several lines: %q", err)
			}
			if strings.Contains(err.Error(), "geheim") {
				t.Error("the message contains the password:", err)
			}
			if after := server.Do("postgres", "SELECT count(*) FROM pg_database"); after != before {
				t.Error("the hub created databases")
			}
		})
	}
}

func TestCommitsAreDurableDespiteTheServersDefaults(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "synchronous_commit=off", "fsync=off")
	var log bytes.Buffer
	o := onPostgres(t, server)
	o.Log = logTo(&log)
	server.Do("postgres",
		"ALTER ROLE flotilla SET synchronous_commit = off; ALTER ROLE flotilla SET statement_timeout = '500ms'; ALTER ROLE flotilla SET default_transaction_isolation = 'serializable'; ALTER ROLE flotilla SET idle_session_timeout = '300ms'; ALTER ROLE flotilla SET lock_timeout = '1ms'")
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	for set, want := range map[string]string{"synchronous_commit": "on", "statement_timeout": "0",
		"transaction_isolation": "read committed", "idle_session_timeout": "0", "lock_timeout": "0"} {
		for who, q := range map[string]querier{"writer": s.conn, "reader": s.read} {
			var is string
			if err := q.QueryRowContext(t.Context(), "SHOW "+set).Scan(&is); err != nil || is != want {
				t.Errorf("%s: %s is %s, %v", who, set, is, err)
			}
		}
	}
	if !strings.Contains(log.String(), "THE DATABASE LOSES DATA") || !strings.Contains(log.String(), "fsync=off") {
		t.Error("fsync=off is not logged:", log.String())
	}
	var is string
	if _, err := s.conn.ExecContext(t.Context(), "SET synchronous_commit = off"); err != nil {
		// as if a client had changed the connection
		t.Fatal(err)
	}
	if err := s.tx(t.Context(), func(ctx context.Context, c *conn) error {
		return c.QueryRowContext(ctx, "SHOW synchronous_commit").Scan(&is)
	}); err != nil || is != "on" {
		t.Error("a transaction relies on the settings of its connection", is, err)
	}
	server.Do("postgres", "ALTER ROLE flotilla SET synchronous_commit = remote_apply")
	s = reopened(t, s, o)
	if err := s.conn.QueryRowContext(t.Context(), "SHOW synchronous_commit").Scan(&is); err != nil ||
		is != "remote_apply" {
		t.Error("remote_apply was reduced to on", is, err)
	}
}

// The file with the database's address may be damaged. A hub that ignored the file would use a
// backup or an empty database.
func TestADamagedAddressFileIsNotIgnored(t *testing.T) {
	t.Parallel()
	o := onPostgres(t, postgrestest.Shared(t))
	address, note := o.Database, o.Dir+"/"+placeFile
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	if _, err := s.BackUpNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, s.Close())
	for _, text := range []string{"", "\n", " \t\n" + address, strings.Repeat("\x00", 60), "postgres://\x00\x01"} {
		if err := os.WriteFile(note, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, said := range []string{"", SQLite} {
			o.Database = said
			for what, open := range map[string]func(context.Context,
				Options) (*Store, error){"hub": Open, "command": OpenShared} {
				s, err := open(t.Context(), o)
				if err == nil || !strings.Contains(err.Error(), "is damaged") {
					t.Errorf("%q, --database %q: a %s ignores the file: %v", text, said, what, err)
				}
				if err == nil {
					_ = s.Close()
				}
			}
		}
		if _, err := os.Stat(o.Dir + "/" + database); err == nil {
			t.Fatalf("%q: the hub created another database", text)
		}
		o.Database = address // an explicit address replaces the file
		s := opened(t, o)
		expect(t, names(t, s), "a")
		must(t, s.Close())
		o.Database = ""
		must(t, opened(t, o).Close())
	}
}

// A hub gets the address of another hub's database by mistake. If it used that database, it would
// hide its own fleet and lock the other hub out.
func TestAHubWithAFleetRefusesAnotherHubsDatabase(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	other := onPostgres(t, server)
	s := opened(t, other)
	mustCommit(t, s, 100, pod("theirs", 100))
	must(t, s.Close())
	dir := t.TempDir()
	own := openIn(t, dir)
	mustCommit(t, own, 1, pod("ours", 1))
	must(t, own.Close())
	o := options(t, dir)
	o.Database = other.Database
	for what, open := range map[string]func() (io.Closer, error){
		"a hub":     func() (io.Closer, error) { return Open(t.Context(), o) },
		"a standby": func() (io.Closer, error) { return StandBy(t.Context(), o) },
	} {
		if c, err := open(); err == nil || !strings.Contains(err.Error(), "it belongs to another hub") {
			t.Errorf("%s: %v", what, err)
			if err == nil {
				_ = c.Close()
			}
		}
	}
	if err := Restore(t.Context(), o, filepath.Join(dir, database)); err == nil ||
		!strings.Contains(err.Error(), "it belongs to another hub") {
		t.Error("a restore:", err)
	}
	if _, err := os.Stat(filepath.Join(dir, placeFile)); err == nil {
		t.Error("the hub has stored the other hub's address")
	}
	s = opened(t, other)
	expect(t, names(t, s), "theirs")
	must(t, s.Close())
	own = openIn(t, dir)
	expect(t, names(t, own), "ours")
	must(t, own.Close())
	// the user gives up the hub's own fleet
	must(t, os.Rename(filepath.Join(dir, database), filepath.Join(t.TempDir(), "away")))
	must(t, copyFile(filepath.Join(other.Dir, secretsKey), filepath.Join(dir, secretsKey)))
	s = opened(t, o)
	expect(t, names(t, s), "theirs")
	must(t, s.Close())
}

// A hub in PostgreSQL gets the address of another hub's database by mistake. If it used that
// database, it would end the other hub, and treat its data as an older state of this hub.
func TestAHubInPostgresRefusesAnotherHubsDatabase(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for _, far := range []uint64{3, 100} {
		other, o := onPostgres(t, server), onPostgres(t, server)
		address := o.Database
		own := opened(t, o)
		mustCommit(t, own, 10, pod("ours", 10))
		must(t, own.Close())
		theirs := opened(t, other)
		mustCommit(t, theirs, far, pod("theirs", far))
		backup := filepath.Join(t.TempDir(), "backup.db")
		must(t, theirs.Backup(t.Context(), backup))
		must(t, theirs.Close()) // the other hub stops, for example for an upgrade
		o.Database = other.Database
		for what, open := range map[string]func() (io.Closer, error){
			"a hub":     func() (io.Closer, error) { return Open(t.Context(), o) },
			"a standby": func() (io.Closer, error) { return StandBy(t.Context(), o) },
			"a restore": func() (io.Closer, error) { return theirs, Restore(t.Context(), o, backup) },
		} {
			if c, err := open(); err == nil || !strings.Contains(err.Error(), "it belongs to another hub") {
				t.Errorf("%s: %v", what, err)
				if err == nil {
					_ = c.Close()
				}
			}
		}
		theirs = opened(t, other)
		if r, err := theirs.Recovered(t.Context()); r != nil || err != nil {
			t.Errorf("the other hub's backup is restored: %+v, %v", r, err)
		}
		o.Database = address
		own = opened(t, o)
		if r, err := own.Recovered(t.Context()); r != nil || err != nil {
			t.Errorf("the hub's own backup is restored: %+v, %v", r, err)
		}
		expect(t, names(t, own), "ours")
		must(t, own.Close())
		// Restoring the other hub's backup takes that fleet over on purpose.
		must(t, copyFile(filepath.Join(other.Dir, secretsKey), filepath.Join(o.Dir, secretsKey)))
		must(t, Restore(t.Context(), o, backup))
		own = opened(t, o)
		expect(t, names(t, own), "theirs")
		own = reopened(t, own, o)
		must(t, own.Close())
		must(t, theirs.Close())
	}
}

// An older version writes the high-water mark without a hub ID.
func TestAHighWaterMarkWithoutAHubIDRefusesNoDatabase(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := onPostgres(t, server)
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	must(t, s.Close())
	file := filepath.Join(o.Dir, highWaterFile)
	before := progress{1, 1}.text() + "in PostgreSQL\n"
	for what, write := range map[string]func() error{
		"a file of an older version": func() error { return os.WriteFile(file, []byte(before), 0o600) },
		"a file that such a version overwrote": func() error {
			f, err := os.OpenFile(file, os.O_WRONLY, 0o600)
			if err == nil {
				_, err = f.WriteAt([]byte(before), 0)
				err = errors.Join(err, f.Close())
			}
			return err
		},
	} {
		must(t, write())
		if !lastInPostgres(o.Dir) || readHighWater(o.Dir) != (progress{1, 1}) {
			t.Errorf("%s is not read", what)
		}
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		must(t, s.Close())
		if !lastInPostgres(o.Dir) {
			t.Errorf("%s still counts as a mark for PostgreSQL", what)
		}
	}
}

// The file with the address may be missing, for example after a partial copy of the directory. A
// hub that took that for a lost hub.db would use an old backup or an empty database.
func TestAMissingAddressFileIsNotIgnored(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for _, backup := range []bool{false, true} {
		o := onPostgres(t, server)
		address := o.Database
		s := opened(t, o)
		mustCommit(t, s, 1, pod("a", 1))
		if backup {
			if _, err := s.BackUpNow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		must(t, s.Close())
		c, err := OpenShared(t.Context(), o) // a command also increases the count
		must(t, err)
		must(t, c.AddUser(t.Context(), User{Name: "anna", Role: "admin"}))
		must(t, c.Close())
		must(t, os.Remove(o.Dir+"/"+placeFile))
		for _, said := range []string{"", SQLite} {
			o.Database = said
			s, err := Open(t.Context(), o)
			if err == nil || errors.Is(err, errCorrupt) || !strings.Contains(err.Error(), "was in PostgreSQL") {
				t.Errorf("backup %v, --database %q: %v", backup, said, err)
			}
			if err == nil {
				_ = s.Close()
			}
			if _, err := os.Stat(o.Dir + "/" + database); err == nil {
				t.Fatalf("backup %v, --database %q: the hub created another database", backup, said)
			}
		}
		if files, _ := backups(o.Dir); backup { // if the user gives up the database, the hub pauses
			given := options(t, t.TempDir())
			must(t, copyFile(o.Dir+"/"+highWaterFile, given.Dir+"/"+highWaterFile))
			must(t, copyFile(o.Dir+"/"+secretsKey, given.Dir+"/"+secretsKey))
			must(t, Restore(t.Context(), given, files[0]))
			s := opened(t, given)
			if r, err := s.Recovered(t.Context()); r == nil || err != nil {
				t.Errorf("a backup in place of the database: %+v, %v", r, err)
			}
			must(t, s.Close())
		}
		o.Database = address // an explicit address creates the file again
		s = opened(t, o)
		expect(t, names(t, s), "a")
		must(t, s.Close())
		o.Database = ""
		must(t, opened(t, o).Close())
		// After a move back to SQLite, a missing hub.db is a lost database.
		if _, err := Move(t.Context(), o, SQLite); err != nil {
			t.Fatal(err)
		}
		s = opened(t, o)
		expect(t, names(t, s), "a")
		rev, err := s.Revision(t.Context())
		must(t, err)
		must(t, s.Close())
		if saw := readHighWater(o.Dir); saw.rev != rev || lastInPostgres(o.Dir) {
			t.Errorf("backup %v: the high-water mark of the file is %+v, PostgreSQL: %v", backup, saw, lastInPostgres(o.Dir))
		}
		must(t, os.Remove(o.Dir+"/"+database))
		s = opened(t, o)
		if r, err := s.Recovered(t.Context()); r == nil || err != nil {
			t.Errorf("backup %v: a lost hub.db: %+v, %v", backup, r, err)
		}
		must(t, s.Close())
	}
}

func TestAPasswordIsReadFromAFile(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := onPostgres(t, server)
	file := t.TempDir() + "/url"
	if err := os.WriteFile(file, []byte(o.Database+"\n# how it was made\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Database = file
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	if kept, err := firstLine(o.Dir + "/" + placeFile); err != nil || kept != file {
		t.Fatal("the data directory has a copy of the password", kept, err)
	}
	o.Database = ""
	s = reopened(t, s, o)
	expect(t, names(t, s), "a")
}

func TestAReadOnlyServerIsRetried(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	o := onPostgres(t, server)
	o.timeouts = timeouts{response: time.Second, reconnect: 100 * time.Millisecond}
	name := postgrestest.Name(o.Database)
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	readOnly := func(is string) {
		server.Do("postgres", "ALTER DATABASE "+name+" SET default_transaction_read_only = "+is)
		server.Do("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'")
	}
	readOnly("on")
	for range 2 {
		if err := s.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("b", 2)}}); !errors.Is(err, ErrUnavailable) ||
			!strings.Contains(err.Error(), "refuses writes") {
			t.Fatal(err)
		}
	}
	readOnly("off")
	time.Sleep(retryEvery)
	mustCommit(t, s, 2, pod("c", 2))
	expect(t, names(t, s), "a", "c")
}

func TestAFullDiskOfTheServerRefusesOnlyNewObjects(t *testing.T) {
	t.Parallel()
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=120m,mode=0755"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("a disk that fills up needs root to mount a tmpfs: %v", err)
		}
		t.Skipf("a disk that fills up needs root to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	if err := os.Chmod(filepath.Dir(mount), 0o755); err != nil { // the server's user must be able to enter the directory
		t.Fatal(err)
	}
	server := postgrestest.Make(t, mount)
	server.Run()
	o := onPostgres(t, server)
	o.timeouts = timeouts{response: 5 * time.Second, reconnect: 5 * time.Second, resolve: time.Minute}
	s := opened(t, o)
	noise := rand.NewChaCha8([32]byte{1})
	big := func(i int, rev uint64) Row { // incompressible
		raw := make([]byte, 100<<10)
		_, _ = noise.Read(raw)
		r := pod(fmt.Sprintf("big-%04d", i), rev)
		r.Object = fmt.Appendf(nil, `{"pad":"%x"}`, raw)
		return r
	}
	event := func(i int, rev uint64) Row {
		r := big(i, rev)
		r.Kind = string(state.Events)
		return r
	}
	mustCommit(t, s, 1, pod("old", 1), event(9999, 1))
	rev, n := uint64(1), 0
	var err error
	for ; n < 2000 && err == nil; n++ {
		if err = s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{big(n, rev+1)}}); err == nil {
			rev++
		}
	}
	t.Logf("after %d of 200 kB: %v", n, err)
	if !errors.Is(err, ErrFull) || !s.Full() {
		t.Fatal(server.Log())
	}
	if got := names(t, s); uint64(len(got)) != rev+1 {
		t.Fatalf("%d objects, %d acknowledged", len(got), rev)
	}
	old := pod("old", rev+1)
	old.Phase = "Failed"
	first := event(1, rev+1)
	first.Kind = string(state.Incidents) // a kind without a table yet
	if err := s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{old, event(1, rev+1), first}}); err != nil {
		t.Fatal("an object cannot be changed, or an event prevents it:", err)
	}
	rev++
	for i := range 20 { // changes need the space of the ballast
		if err := s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{big(i, rev+1)}}); err != nil {
			t.Fatal("only ", i, " of 20 objects can be changed: ", err)
		}
		rev++
	}
	var gone []Row
	for i := range n / 2 {
		gone = append(gone, Row{Kind: "pods", Namespace: "default", Name: fmt.Sprintf("big-%04d", i)})
	}
	if err := s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: gone}); err != nil {
		t.Fatal("nothing can be deleted:", err)
	}
	rev++
	if err := s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{big(9000, rev+1), big(9001, rev+1)}}); !errors.Is(err,
		ErrFull) {
		t.Fatal("PostgreSQL has given the space back by itself: the manual says that it does not", err)
	}
	if s.Room(t.Context()) || !s.Full() {
		t.Fatal("Room reports space on a full disk")
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT, "size=200m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	if !s.Room(t.Context()) || s.Full() {
		t.Fatal("the store is still full")
	}
	for i := range n / 4 {
		if err := s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{big(i, rev+1)}}); err != nil {
			t.Fatal(i, err)
		}
		rev++
	}
	if err := s.AddAudit(t.Context(), did("pi-1")); err != nil {
		t.Fatal(err)
	}
	wholeAudit(t, s)
}

// pair returns a server, its standby, and options with both servers in the address.
func pair(t *testing.T) (first, second *postgrestest.Server, o Options) {
	first = postgrestest.Start(t)
	o = onPostgres(t, first)
	second = first.Standby()
	o.Database = strings.Replace(o.Database, fmt.Sprintf("127.0.0.1:%d", first.Port),
		fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", second.Port, first.Port), 1)
	o.timeouts = timeouts{response: 2 * time.Second, reconnect: 300 * time.Millisecond, resolve: time.Minute}
	return first, second, o
}

func TestTheHubUsesAStandbyServerThatTookOver(t *testing.T) {
	t.Parallel()
	first, second, o := pair(t)
	s := opened(t, o) // the first server in the address is read-only, so the hub writes to the second
	for rev := uint64(1); rev <= 20; rev++ {
		mustCommit(t, s, rev, pod(fmt.Sprintf("p-%02d", rev), rev))
	}
	await(t, "the standby has everything", func() bool {
		out, err := second.Try(postgrestest.Name(o.Database), "SELECT count(*) FROM pods")
		return err == nil && out == "20"
	})
	first.Kill()
	for range 2 { // the standby alone is not writable
		if err := s.Commit(t.Context(), Commit{Rev: 21, Rows: []Row{pod("lost", 21)}}); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(retryEvery)
	}
	second.Do("postgres", "SELECT pg_promote()")
	await(t, "the hub goes on there", func() bool {
		return s.Commit(t.Context(), Commit{Rev: 21, Rows: []Row{pod("p-21", 21)}}) == nil
	})
	all := names(t, s)
	if len(all) != 21 || all[20] != "p-21" {
		t.Fatal(all)
	}
	select {
	case <-s.pg.stopping:
		t.Fatal(s.pg.stopped)
	default:
	}
}

func TestAStandbyServerThatLacksCommitsIsDetected(t *testing.T) {
	t.Parallel()
	first, second, o := pair(t)
	s := opened(t, o)
	mustCommit(t, s, 1, pod("a", 1))
	await(t, "the standby has it", func() bool {
		out, err := second.Try(postgrestest.Name(o.Database), "SELECT count(*) FROM pods")
		return err == nil && out == "1"
	})
	second.Do("postgres", "ALTER SYSTEM SET primary_conninfo = ''")
	second.Do("postgres", "SELECT pg_reload_conf()")
	await(t, "the standby does not follow any more", func() bool {
		return first.Do("postgres", "SELECT count(*) FROM pg_stat_replication") == "0"
	})
	mustCommit(t, s, 2, pod("b", 2)) // acknowledged by a server that is then lost
	first.Kill()
	second.Do("postgres", "SELECT pg_promote()")
	await(t, "the hub detects the lost commit", func() bool {
		err := s.Commit(t.Context(), Commit{Rev: 3, Rows: []Row{pod("c", 3)}})
		return err != nil && strings.Contains(err.Error(), "older than it was")
	})
	if err := s.Ended(t.Context()); err == nil {
		t.Fatal("the hub goes on, want its end")
	}
	s = reopened(t, s, o)
	expect(t, names(t, s), "a")
	r, err := s.Recovered(t.Context())
	if rev, _ := s.Revision(t.Context()); err != nil || r == nil || rev < 2+revisionJump ||
		!strings.Contains(r.Cause, "standby") || strings.Contains(r.Cause, "wal") {
		t.Fatalf("devices would receive an older state than they have: %+v %v %d", r, err, rev)
	}
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(3 * time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("condition not met: ", what)
		}
	}
}
