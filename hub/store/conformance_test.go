package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
)

// These tests check the behaviour of every store, with either database.

// onBoth runs a test with SQLite and with PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, o Options)) {
	t.Run("sqlite", func(t *testing.T) { test(t, options(t, t.TempDir())) })
	t.Run("postgres", func(t *testing.T) { test(t, onPostgres(t, postgrestest.Shared(t))) })
}

// onPostgres returns the options of a new hub with a new PostgreSQL database.
func onPostgres(t *testing.T, server *postgrestest.Server) Options {
	o := options(t, t.TempDir())
	o.Database = server.Database()
	return o
}

func opened(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func reopened(t *testing.T, s *Store, o Options) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return opened(t, o)
}

func TestObjectsAreStoredUnchanged(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s := opened(t, o)
		hub, err := s.HubID(t.Context())
		if err != nil || len(hub) < 20 {
			t.Fatalf("hub id %q %v", hub, err)
		}
		// A database that parses JSON would change these bytes: order, blanks, escapes, long
		// numbers, duplicate names.
		odd := []byte(`{ "b":1, "a":2 ,"a": 1e400, "u":"\u0000\ud83d\ude00é", "s":"it''s ? $1 {kind}"}`)
		secret := Row{
			Kind: "secrets", Namespace: "default", Name: "wifi", UID: "u-w", Rev: 2,
			Object: []byte("{\"data\":\"\x00\xffhunter2\"}"),
		}
		mustCommit(t, s, 2, pod("b", 1), pod("a", 2), secret, Row{Kind: "nodes", Name: "pi-1", UID: "n", Rev: 2, Object: odd})
		changed := pod("b", 3)
		changed.Phase = "Failed"
		mustCommit(t, s, 5, Row{Kind: "pods", Namespace: "default", Name: "a"}, pod("b", 3), changed, pod("c", 4),
			Row{Kind: "pods", Namespace: "default", Name: "c"}, pod("c", 5))
		s = reopened(t, s, o)
		expect(t, contents(t, s),
			`nodes /pi-1 n 2   `+string(odd),
			`pods default/b u-b 3 pi-1 Failed {"kind":"Pod","metadata":{"name":"b"}}`,
			`pods default/c u-c 5 pi-1 Running {"kind":"Pod","metadata":{"name":"c"}}`,
			"secrets default/wifi u-w 2   {\"data\":\"\x00\xffhunter2\"}")
		if rev, err := s.Revision(t.Context()); err != nil || rev != 5 {
			t.Fatalf("revision %d %v", rev, err)
		}
		if again, _ := s.HubID(t.Context()); again != hub {
			t.Fatalf("hub id changed from %s to %s", hub, again)
		}
	})
}

func TestObjectsAreOrderedByBytes(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s := opened(t, o)
		names := []string{"A", "Z", "_", "a", "a-b", "a.b", "a1", "ab", "z", "Ä", "é"}
		var rows []Row
		for _, n := range names {
			rows = append(rows, Row{Kind: "nodes", Name: n, UID: n, Rev: 1, Object: []byte("{}")})
			if err := s.AddUser(t.Context(), User{Name: n, Role: "viewer", Created: time.Unix(0, 0)}); err != nil {
				t.Fatal(err)
			}
		}
		mustCommit(t, s, 1, rows...)
		var got []string
		if err := s.Load(t.Context(), func(r Row) error { got = append(got, r.Name); return nil }); err != nil {
			t.Fatal(err)
		}
		expect(t, got, names...)
		users, err := s.Users(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, u := range users {
			got = append(got, u.Name)
		}
		expect(t, got, names...)
	})
}

func TestACommitIsAllOrNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s := opened(t, o)
		mustCommit(t, s, 7, pod("a", 7))
		before := contents(t, s)
		for name, c := range map[string]Commit{
			"a decreasing revision":         {Rev: 6, Rows: []Row{pod("z", 6)}},
			"an object beyond the revision": {Rev: 8, Rows: []Row{pod("b", 8), pod("z", 9)}},
			"an object without a name":      {Rev: 8, Rows: []Row{pod("b", 8), pod("", 8)}},
			"a kind that is not a valid table name": {
				Rev: 8, Rows: []Row{pod("b", 8), {Kind: `x"; DROP TABLE pods`, Name: "z", Object: []byte("{}")}},
			},
			"a kind that is one of our own tables": {
				Rev: 8, Rows: []Row{pod("b", 8), {Kind: "users", Name: "z", Object: []byte("{}")}},
			},
		} {
			t.Run(name, func(t *testing.T) {
				if err := s.Commit(t.Context(), c); err == nil {
					t.Fatal("accepted")
				}
				expect(t, contents(t, s), before...)
				if rev, _ := s.Revision(t.Context()); rev != 7 {
					t.Fatalf("revision %d", rev)
				}
			})
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Commit(ended, Commit{Rev: 9}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		mustCommit(t, s, 8, pod("b", 8), Row{Kind: "nodes", Name: "n", UID: "n", Rev: 8, Object: []byte("{}")})
		if _, err := s.conn.ExecContext(t.Context(), "CREATE UNIQUE INDEX stop ON pods (phase) WHERE name = 'a' OR name = "+
			"'b' AND phase <> 'Running'"); err != nil {
			t.Fatal(err)
		}
		before = contents(t, s)
		a, b := pod("a", 9), pod("b", 9)
		a.Phase, b.Phase = "Failed", "Failed"
		if err := s.Commit(t.Context(), Commit{Rev: 9, Rows: []Row{{Kind: "nodes", Name: "n"}, a, b}}); err == nil {
			t.Fatal("accepted")
		}
		expect(t, contents(t, s), before...)
		mustCommit(t, s, 9, pod("c", 9)) // the store goes on after the refusal
	})
}

func TestASecondHubIsRefusedOnBoth(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		first := opened(t, o)
		if _, err := Open(t.Context(), o); !errors.Is(err, ErrLocked) {
			t.Fatal(err)
		}
		elsewhere := o
		elsewhere.Dir = t.TempDir()
		if o.Database != "" { // the second hub runs on another machine
			_, err := Open(t.Context(), elsewhere)
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "another hub (connected from 127.0.0.1") ||
				!strings.Contains(err.Error(), "--database") {
				t.Fatal(err)
			}
		}
		mustCommit(t, first, 1, pod("a", 1))
		reopened(t, first, o)
	})
}

func TestUsersTokensAndSessionsOnBoth(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s, ctx, now := opened(t, o), t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(s.SetMeta(ctx, "setup", "secret"))
		must(s.AddFirstUser(ctx, User{Name: "anna", Role: "admin", Password: "p", Created: now}, "setup", "secret"))
		if err := s.AddFirstUser(ctx, User{Name: "eve"}, "setup", "secret"); !errors.Is(err, ErrExists) {
			t.Fatal(err)
		}
		if err := s.AddUser(ctx, User{Name: "anna"}); !errors.Is(err, ErrExists) {
			t.Fatal(err)
		}
		if u, err := s.User(ctx, "anna"); err != nil || u.Role != "admin" || !u.Created.Equal(now) {
			t.Fatal(u, err)
		}
		for _, strange := range []string{"nobody", "anna\x00", "\xff", "'; DROP TABLE users; --", "?", ""} {
			if _, err := s.User(ctx, strange); !errors.Is(err, ErrNotFound) {
				t.Errorf("%q: %v", strange, err)
			}
			if _, err := s.APIToken(ctx, strange); !errors.Is(err, ErrNotFound) {
				t.Errorf("%q: %v", strange, err)
			}
			if found, err := s.FindAudits(ctx, AuditQuery{Words: []string{strange + "nothing"}, Via: []string{strange},
				Limit: 5}); err != nil || len(found) > 0 {
				t.Errorf("%q: %v", strange, err)
			}
		}
		must(s.AddSession(ctx, Session{Hash: []byte{0, 1, 255}, User: "anna", CSRF: "c", Source: "::1", Created: now,
			Expires: now.Add(time.Hour)}, "p"))
		for who, before := range map[string]string{"anna": "another", "nobody": "p"} {
			if err := s.AddSession(ctx, Session{Hash: []byte(who), User: who, Created: now, Expires: now.Add(time.Hour)},
				before); !errors.Is(err, ErrNotFound) {
				t.Errorf("a session of %s with another password: %v", who, err)
			}
			if err := s.ReplacePassword(ctx, who, before, "q"); !errors.Is(err, ErrNotFound) {
				t.Errorf("the password of %s was replaced despite a wrong former one: %v", who, err)
			}
		}
		if v, err := s.Session(ctx, []byte{0, 1, 255}); err != nil || v.Role != "admin" || v.CSRF != "c" ||
			!v.Expires.Equal(now.Add(time.Hour)) {
			t.Fatal(v, err)
		}
		must(s.AddAPIToken(ctx, APIToken{
			ID: "t1", Hash: []byte("h"), User: "anna", Note: "a ? note", Created: now, Expires: now.Add(time.Hour),
		}))
		if err := s.AddAPIToken(ctx, APIToken{ID: "t2", Hash: []byte("h"), User: "eve", Created: now}); !errors.Is(err,
			ErrNotFound) {
			t.Fatal(err)
		}
		if v, err := s.APIToken(ctx, "t1"); err != nil || v.User != "anna" || v.Role != "admin" || string(v.Hash) != "h" ||
			v.Note != "a ? note" {
			t.Fatal(v, err)
		}
		must(s.ChangeViews(ctx, "anna", func(v []View) ([]View, error) { return append(v, View{"mine", "/x?y=1"}), nil }))
		if v, err := s.Views(ctx, "anna"); err != nil || len(v) != 1 || v[0].Href != "/x?y=1" {
			t.Fatal(v, err)
		}
		before, err := s.RightsTaken(ctx)
		must(err)
		must(s.SetRole(ctx, "anna", "viewer", now))
		if after, err := s.RightsTaken(ctx); err != nil || after == before {
			t.Errorf("revoked rights: %s before, %s after: %v", before, after, err)
		}
		if at, err := s.ClientsRevokedBefore(ctx, "anna"); err != nil || !at.Equal(now) {
			t.Fatal(at, err)
		}
		for _, approval := range []bool{true, false} {
			id := fmt.Sprint("j", approval)
			must(s.AddJoinToken(ctx, JoinToken{
				ID: id, Hash: []byte{1}, Site: "oslo", Labels: map[string]string{"rack": "a"}, Uses: 1, Created: now,
				Expires: now.Add(time.Hour), Approval: approval,
			}))
			if v, err := s.JoinToken(ctx, id); err != nil || v.Approval != approval || v.Labels["rack"] != "a" ||
				!v.Revoked.IsZero() {
				t.Fatal(v, err)
			}
		}
		use := Use{Node: "pi-1", Key: "k", Site: "oslo", Token: "jtrue", At: now, Expires: now.Add(time.Hour)}
		must(s.TakeUse(ctx, use))
		must(s.TakeUse(ctx, use)) // the same use again does not count
		use.Key = "other"
		if err := s.TakeUse(ctx, use); !errors.Is(err, ErrUsedUp) {
			t.Fatal(err)
		}
		must(s.RevokeJoinToken(ctx, "jfalse", now))
		if e, err := s.Enrolments(ctx); err != nil || len(e) != 1 || e[0].Key != "k" {
			t.Fatal(e, err)
		}
		must(s.DeleteUser(ctx, "anna", now))
		if _, err := s.Session(ctx, []byte{0, 1, 255}); !errors.Is(err, ErrNotFound) {
			t.Fatal("a session of a deleted user exists", err)
		}
		if v, err := s.APITokens(ctx); err != nil || len(v) > 0 {
			t.Fatal("a token of a deleted user exists", v, err)
		}
		if v, err := s.Views(ctx, "anna"); err != nil || len(v) > 0 {
			t.Fatal(v, err)
		}
		must(s.SetMeta(ctx, "k", "1"))
		must(s.SetMeta(ctx, "k", "2"))
		if v, err := s.TakeMeta(ctx, "k"); err != nil || v != "2" {
			t.Fatal(v, err)
		}
		if _, err := s.TakeMeta(ctx, "k"); !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
	})
}

func TestTheAuditIsAChainOnBoth(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s := opened(t, o)
		s.auditRows = 40
		odd := did("pi-1")
		odd.Message = "a\x00b\xffc ? 'd' \\"
		for i := range 60 {
			a := odd
			a.Name = fmt.Sprint("n", i)
			if err := s.AddAudit(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		s = reopened(t, s, o)
		r, err := s.VerifyAudit(t.Context())
		if err != nil || r.Breaks != 0 || r.Records != 41 && r.Records != 40 {
			t.Fatalf("%v %+v", err, r)
		}
		found, err := s.FindAudits(t.Context(), AuditQuery{Words: []string{"N59"}, Limit: 10})
		if err != nil || len(found) != 1 || found[0].Name != "n59" {
			t.Fatal(found, err)
		}
		var b bytes.Buffer
		if err := s.ExportAudit(t.Context(), &b, time.Time{}, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if r, err := VerifyAuditExport(&b); err != nil || r.Breaks != 0 {
			t.Fatal(r, err)
		}
		if _, err := s.conn.ExecContext(t.Context(), "UPDATE audit SET who = 'nobody' WHERE name = 'n50'"); err != nil {
			t.Fatal(err)
		}
		if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 1 {
			t.Fatal(r, err)
		}
	})
}

func TestACommandWorksBesideAHubOnBoth(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		if _, err := OpenShared(t.Context(), o); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "serve") {
			t.Fatal(err)
		}
		hub := opened(t, o)
		o.Database = "" // the command reads the address from the data directory
		cli, err := OpenShared(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer cli.Close()
		if err := cli.Commit(t.Context(), Commit{Rev: 1, Rows: []Row{pod("a", 1)}}); err == nil {
			t.Fatal("a second writer of objects")
		}
		var all sync.WaitGroup
		for i, s := range []*Store{hub, cli, hub, cli} { // hub and command write at the same time, into one chain
			all.Go(func() {
				for n := range 25 {
					a := did("pi-1")
					a.Name = fmt.Sprintf("%d-%d", i, n)
					if err := s.AddAudit(t.Context(), a); err != nil {
						t.Error(err)
					}
					if s == hub {
						if err := s.Commit(t.Context(), Commit{Rev: 1, Rows: []Row{pod(a.Name, 1)}}); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		all.Wait()
		if r, err := hub.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 || r.Records != 101 {
			t.Fatalf("%v %+v", err, r)
		}
		if n := len(contents(t, hub)); n != 50 {
			t.Fatal(n)
		}
	})
}

func TestPausesOnBoth(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s := opened(t, o)
		begin := time.Now()
		if p, err := s.Begin(t.Context(), begin); err != nil || len(p) > 0 {
			t.Fatal(p, err)
		}
		mustCommit(t, s, 1, pod("a", 1))
		_ = s.disconnect() // as if the hub was killed
		_ = s.lock.Close()
		s = opened(t, o)
		p, err := s.Begin(t.Context(), time.Now().Add(time.Minute))
		if err != nil || len(p) != 1 || p[0].From.Before(begin.Add(-time.Second)) || p[0].From.After(time.Now()) {
			t.Fatal(p, err)
		}
	})
}

// Commits store the hub's time at most once an hour. The time never causes a commit.
func TestTheHubsTimeIsRememberedOnBoth(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		begin := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
		now := begin
		s := opened(t, o)
		s.Now = func() time.Time { return now }
		last := func() time.Time {
			t.Helper()
			at, err := s.LastTime(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		if at := last(); !at.IsZero() {
			t.Fatalf("the last time in a new database is %s", at)
		}
		for i, c := range []struct{ after, want time.Duration }{{0, 0}, {59 * time.Minute, 0}, {time.Hour, time.Hour},
			{90 * time.Minute, time.Hour}, {-time.Hour, time.Hour}, {3 * time.Hour, 3 * time.Hour}} {
			now = begin.Add(c.after)
			mustCommit(t, s, uint64(i+1), pod("a", uint64(i+1)))
			if at := last(); !at.Equal(begin.Add(c.want)) {
				t.Errorf("after a commit at %s the last time is %s", now, at)
			}
		}
		_ = s.disconnect() // as if the hub was killed
		_ = s.lock.Close()
		s = opened(t, o)
		mustCommit(t, s, 7, pod("a", 7)) // a command has no time of its own
		if at := last(); !at.Equal(begin.Add(3 * time.Hour)) {
			t.Errorf("after a kill the last time is %s", at)
		}
		if err := s.End(t.Context(), begin.Add(4*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if at := last(); !at.Equal(begin.Add(4 * time.Hour)) {
			t.Errorf("after a clean end the last time is %s", at)
		}
	})
}

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// A command reads everything except secrets, since only the hub has the key.
func TestACommandReadsEverythingExceptSecrets(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		hub := opened(t, o)
		mustCommit(t, hub, 1, Row{Kind: "nodes", Name: "pi-1", UID: "n", Rev: 1, Object: []byte("{}")},
			Row{Kind: "sites", Name: "oslo", UID: "o", Rev: 1, Object: []byte("{}")},
			Row{Kind: "secrets", Namespace: "default", Name: "wifi", UID: "w", Rev: 1, Object: []byte(`{"data":"hunter2"}`)})
		cli, err := OpenShared(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer cli.Close()
		expect(t, contents(t, cli), "nodes /pi-1 n 1   {}", "sites /oslo o 1   {}")
		if n := len(contents(t, hub)); n != 3 {
			t.Fatal(n)
		}
	})
}
