package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
)

// everything returns the content of a store as text. It omits the keys that a move adds.
func everything(t *testing.T, s *Store) string {
	t.Helper()
	var b strings.Builder
	ctx := t.Context()
	kinds, err := listKinds(ctx, s.conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range append(slices.Clone(ownTables), kinds...) {
		rows, err := s.conn.QueryContext(ctx, forKind("SELECT * FROM {kind} ORDER BY 1, 2", table))
		if err != nil {
			t.Fatal(err)
		}
		columns, _ := rows.Columns()
		for rows.Next() {
			row, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range row {
				into[i] = &row[i]
			}
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			line := table
			for i, v := range row {
				line += fmt.Sprintf(" %s=%q", columns[i], fmt.Sprint(v))
			}
			skip := table == "meta" && slices.ContainsFunc([]string{metaRevision, metaWrites, metaSchema, metaCameFrom,
				metaMoved, metaAuditHead, "x"}, func(k string) bool { return strings.Contains(line, `key="`+k+`"`) }) ||
				table == "audit" && strings.Contains(line, `verb="migrate"`)
			if !skip {
				b.WriteString(line + "\n")
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// filled fills a store with an object or a row of each kind.
func filled(t *testing.T, s *Store) {
	t.Helper()
	ctx, now := t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	rows := []Row{
		{
			Kind: "secrets", Namespace: "default", Name: "wifi", UID: "s", Rev: 9,
			Object: []byte("{\"data\":\"\x00\xffgeheim\"}"),
		},
		{Kind: "nodes", Name: "pi-1", UID: "n", Rev: 9, Object: []byte(`{ "b":1, "a":1e400, "u":"\u0000é" }`)},
	}
	for i := range 1200 {
		rows = append(rows, pod(fmt.Sprintf("p-%04d", i), 9))
	}
	mustCommit(t, s, 9, rows...)
	for _, err := range []error{
		s.AddUser(ctx, User{Name: "anna", Role: "admin", Password: "$argon2id$x", Created: now}),
		s.AddSession(ctx, Session{Hash: []byte{0, 255}, User: "anna", CSRF: "c", Created: now,
			Expires: now.AddDate(99, 0, 0)}, "$argon2id$x"),
		s.AddAPIToken(ctx, APIToken{
			ID: "t", Hash: []byte{1, 0}, User: "anna", Note: "n", Created: now, Expires: now.AddDate(99, 0, 0),
		}),
		s.RevokeClients(ctx, "eve", now),
		s.AddJoinToken(ctx, JoinToken{
			ID: "j", Hash: []byte{2}, Site: "oslo", Labels: map[string]string{"a": "b"}, Uses: 3, Created: now,
			Expires: now.AddDate(99, 0, 0), Approval: true,
		}),
		s.TakeUse(ctx, Use{Node: "pi-1", Key: "k", Token: "j", At: now, Expires: now.AddDate(99, 0, 0)}),
		s.ChangeViews(ctx, "anna", func([]View) ([]View, error) { return []View{{"v", "/x"}}, nil }),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 30 {
		a := did("pi-1")
		a.Name = fmt.Sprint("n", i)
		if err := s.AddAudit(ctx, a); err != nil {
			t.Fatal(err)
		}
	}
}

func wholeAudit(t *testing.T, s *Store) {
	t.Helper()
	if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks > 0 {
		t.Fatal(err, r.Broken)
	}
}

func TestADatabaseIsMovedToPostgresAndBack(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := options(t, t.TempDir())
	o.By = "anna"
	s := opened(t, o)
	filled(t, s)
	before := everything(t, s)
	url := server.Database()
	if _, err := Move(t.Context(), o, url); !errors.Is(err, ErrLocked) {
		t.Fatal("a move while the hub runs:", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := Move(t.Context(), o, url)
	if err != nil || m.Objects != 1202 {
		t.Fatal(m, err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, database)); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("a hub could open the former database", err)
	}
	s = opened(t, o) // the data directory has the new address
	if s.pg == nil {
		t.Fatal("the hub still uses SQLite")
	}
	if after := everything(t, s); after != before {
		t.Fatal(differs(before, after))
	}
	wholeAudit(t, s)
	if rev, _ := s.Revision(t.Context()); rev != 9+revisionJump {
		t.Fatal(rev)
	}
	if r, err := s.Recovered(t.Context()); err != nil || r != nil {
		t.Fatal("a move must not count as a recovery", r, err)
	}
	found, err := s.FindAudits(t.Context(), AuditQuery{Verbs: []string{"migrate"}, Limit: 9})
	if err != nil || len(found) != 1 || found[0].Who != "anna" {
		t.Fatal(found, err)
	}
	mustCommit(t, s, 10+revisionJump, pod("new", 10+revisionJump))
	before = everything(t, s)
	if _, err := Move(t.Context(), o, SQLite); !errors.Is(err, ErrLocked) {
		t.Fatal("a move while the hub runs:", err)
	}
	elsewhere := o
	elsewhere.Dir, elsewhere.Database = t.TempDir(), url
	if _, err := Move(t.Context(), elsewhere, SQLite); !errors.Is(err, ErrLocked) {
		t.Fatal("a move while the hub runs on another machine:", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err = Move(t.Context(), o, SQLite); err != nil || m.Objects != 1203 {
		t.Fatal(m, err)
	}
	s = opened(t, o)
	if s.pg != nil {
		t.Fatal("the hub still uses PostgreSQL")
	}
	if after := everything(t, s); after != before {
		t.Fatal(differs(before, after))
	}
	wholeAudit(t, s)
	if rev, _ := s.Revision(t.Context()); rev != 10+2*revisionJump {
		t.Fatal(rev)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The former PostgreSQL database no longer belongs to the hub, and is not overwritten.
	if _, err := Move(t.Context(), o, url); err == nil || !strings.Contains(err.Error(), "was moved to") {
		t.Fatal(err)
	}
	elsewhere.Dir = t.TempDir()
	if _, err := Open(t.Context(), elsewhere); err == nil || !strings.Contains(err.Error(), "was moved to") {
		t.Fatal("another hub opens it", err)
	}
	s = opened(t, o)
	if rev, _ := s.Revision(t.Context()); rev != 10+2*revisionJump {
		t.Fatal("a refused move has changed the database", rev)
	}
}

func differs(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d of %d and %d:\n%.500s\n%.500s", i, len(a), len(b), a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines before, %d after", len(a), len(b))
}

func TestAnInterruptedMoveIsUndoneOrFinished(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := options(t, t.TempDir())
	s := opened(t, o)
	filled(t, s)
	before := everything(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("before the server has everything", func(t *testing.T) {
		p := o
		p.Database = server.Database()
		l := newLine(t, &p)
		l.set(cutBeforeAndDown)
		if _, err := Move(t.Context(), o, p.Database); err == nil {
			t.Fatal("moved")
		}
		s := opened(t, o)
		if s.pg != nil || everything(t, s) != before {
			t.Fatal("the content differs")
		}
		_ = s.Close()
		l.isDown(false)
		if n := server.Do(postgrestest.Name(p.Database),
			"SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"); n != "0" {
			t.Fatal("half of the tables stayed:", n)
		}
	})
	p := o
	p.Database = server.Database()
	l := newLine(t, &p)
	t.Run("after the commit, before the hub gets the result", func(t *testing.T) {
		l.set(cutAndDown)
		if _, err := Move(t.Context(), o, p.Database); err == nil || !strings.Contains(err.Error(), "check whether") {
			t.Fatal(err)
		}
		l.isDown(false)
		if _, err := Move(t.Context(), o, p.Database); err != nil {
			t.Fatal(err)
		}
		s := opened(t, o)
		if s.pg == nil || everything(t, s) != before {
			t.Fatal("the content differs")
		}
		wholeAudit(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("after the note, before the former database is put aside", func(t *testing.T) {
		o := options(t, t.TempDir())
		s := opened(t, o)
		filled(t, s)
		before := everything(t, s)
		must(t, s.Close())
		at := server.Database()
		must(t, copyFile(filepath.Join(o.Dir, database), filepath.Join(o.Dir, "former")))
		if _, err := Move(t.Context(), o, at); err != nil {
			t.Fatal(err)
		}
		must(t, os.Rename(filepath.Join(o.Dir, "former"), filepath.Join(o.Dir, database)))
		m, err := Move(t.Context(), o, at)
		if err != nil || m.Objects != 1202 || m.Kept == "" || m.To == "" {
			t.Fatal(m, err)
		}
		if _, err := os.Stat(filepath.Join(o.Dir, database)); !errors.Is(err, os.ErrNotExist) {
			t.Fatal("a hub could open the former database", err)
		}
		for _, again := range []string{at, server.Database()} {
			if _, err := Move(t.Context(), o, again); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "already") {
				t.Fatal(err)
			}
		}
		s = opened(t, o)
		if s.pg == nil || everything(t, s) != before {
			t.Fatal("the content differs")
		}
		if _, err := Move(t.Context(), o, at); !errors.Is(err, ErrLocked) {
			t.Fatal("a move while the hub runs:", err)
		}
		mustCommit(t, s, s.rev+1, pod("newer", s.rev+1))
		rev := s.rev
		must(t, s.Close())
		// A user who renames the former file to hub.db loses later writes. The hub reports that.
		must(t, os.Remove(filepath.Join(o.Dir, placeFile)))
		must(t, os.Rename(m.Kept, filepath.Join(o.Dir, database)))
		s = opened(t, o)
		if r, err := s.Recovered(t.Context()); err != nil || r == nil || s.pg != nil || s.rev <= rev {
			t.Fatal("the former file was opened without an error:", r, err)
		}
		must(t, s.Close())
	})
	t.Run("into a database that is not empty", func(t *testing.T) {
		other := options(t, t.TempDir())
		_ = opened(t, other).Close()
		if _, err := Move(t.Context(), other, p.Database); !errors.Is(err, ErrExists) {
			t.Fatal(err)
		}
		used := server.Database()
		server.Do(postgrestest.Name(used), "CREATE TABLE orders (x int)")
		if _, err := Move(t.Context(), other, used); err == nil || !strings.Contains(err.Error(), "not a hub's") {
			t.Fatal(err)
		}
		if _, err := Move(t.Context(), other, SQLite); !errors.Is(err, ErrExists) {
			t.Fatal(err)
		}
		opened(t, other)
	})
}

// If a move to a file is interrupted during its last COMMIT, it is unknown whether PostgreSQL has
// recorded the move. The hub then uses one of the two databases, never both.
func TestAnInterruptedMoveToAFileIsUndoneOrFinished(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for name, does := range map[string]fault{
		"before the server has recorded the move":                       cutBeforeAndDown,
		"after the commit, before the hub gets the result":              cutAndDown,
		"between the renaming to hub.db and the removal of the address": none,
	} {
		t.Run(name, func(t *testing.T) {
			o := onPostgres(t, server)
			o.timeouts = impatient
			l := newLine(t, &o)
			s := opened(t, o)
			filled(t, s)
			before := everything(t, s)
			must(t, s.Close())
			file, address := filepath.Join(o.Dir, database), o.Database
			o.Database = ""
			l.setAfter(file+" on ", does)
			m, err := Move(t.Context(), o, SQLite)
			if does == none {
				must(t, err)
				must(t, os.WriteFile(filepath.Join(o.Dir, placeFile), []byte(address), 0o600))
			} else if err == nil || !strings.Contains(err.Error(), "run this again when the server answers") ||
				l.happened() != 1 {
				t.Fatal(m, err)
			}
			l.isDown(false)
			s, err = Open(t.Context(), o)
			if does == cutBeforeAndDown {
				must(t, err)
				if s.pg == nil || everything(t, s) != before {
					t.Error("a hub that starts meanwhile uses another database")
				}
				must(t, s.Close())
			} else if err == nil || !strings.Contains(err.Error(), "was moved to") ||
				!strings.Contains(err.Error(), "run `flotilla-hub migrate --to sqlite` again") {
				t.Errorf("a hub that starts meanwhile: %v", err)
			}
			m, err = Move(t.Context(), o, SQLite)
			if err != nil || m.Objects != 1202 || m.To != file || m.From == "" || m.Kept != "" {
				t.Fatal(m, err)
			}
			s = opened(t, o)
			if s.pg != nil || everything(t, s) != before || s.rev <= revisionJump {
				t.Error("the content differs")
			}
			wholeAudit(t, s)
			must(t, s.Close())
			if left, _ := filepath.Glob(file + partEnd + "*"); len(left) > 0 {
				t.Errorf("the move left %v", left)
			}
			elsewhere := o
			elsewhere.Dir, elsewhere.Database = t.TempDir(), address
			if s, err := Open(t.Context(), elsewhere); err == nil || !strings.Contains(err.Error(), "was moved to") ||
				!strings.Contains(err.Error(), "name another database") {
				t.Errorf("another hub opens the former database: %v, %v", s, err)
			}
			o.Database = address
			if s, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "name another database") {
				t.Errorf("the hub opens the former database: %v, %v", s, err)
			}
		})
	}
}

func TestABackupIsAFileWithEitherDatabase(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := onPostgres(t, server)
	s := opened(t, o)
	filled(t, s)
	before := everything(t, s)
	file := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Backup(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(file); err != nil || bytes.Contains(raw, []byte("geheim")) {
		t.Fatal("the secret is in clear", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	if err := checkSchema(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BackUpNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), o, file); !errors.Is(err, ErrLocked) {
		t.Fatal("a move while the hub runs:", err)
	}
	mustCommit(t, s, 20, pod("later", 20), Row{Kind: "nodes", Name: "pi-1"},
		Row{Kind: "sites", Name: "bergen", UID: "b", Rev: 20, Object: []byte("{}")})
	if err := s.DeleteUser(t.Context(), "anna", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check := func(o Options, rights bool) {
		t.Helper()
		s := opened(t, o)
		defer s.Close()
		r, err := s.Recovered(t.Context())
		if err != nil || r == nil || r.Rights != rights {
			t.Fatalf("%+v %v", r, err)
		}
		if rev, _ := s.Revision(t.Context()); rev < 20+revisionJump {
			t.Fatal(rev)
		}
		for _, table := range []string{"pods", "nodes", "secrets"} {
			only := func(all string) (some string) {
				for line := range strings.Lines(all) {
					if strings.HasPrefix(line, table+" ") {
						some += line
					}
				}
				return some
			}
			if a := only(everything(t, s)); a != only(before) || a == "" {
				t.Fatal(table, "differs from the backup:", differs(only(before), a))
			}
		}
		if _, err := s.User(t.Context(), "anna"); rights != errors.Is(err, ErrNotFound) {
			t.Fatal("a removed user has access again, or no user has:", err)
		}
		wholeAudit(t, s)
		mustCommit(t, s, s.rev+1, pod("z", 1))
	}
	if err := Restore(t.Context(), o, file); err != nil {
		t.Fatal(err)
	}
	check(o, true)
	if kept, _ := filepath.Glob(filepath.Join(o.Dir, "*before-restore*")); len(kept) != 1 {
		t.Fatal(kept)
	}
	// A new server replaces the lost one.
	o.Database = server.Database()
	if err := Restore(t.Context(), o, file); err != nil {
		t.Fatal(err)
	}
	check(o, false)
	// The backup is an SQLite database that can be opened directly.
	plain := options(t, t.TempDir())
	key, _ := os.ReadFile(filepath.Join(o.Dir, secretsKey))
	for name, text := range map[string][]byte{secretsKey: key, database: mustRead(t, file)} {
		if err := os.WriteFile(filepath.Join(plain.Dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = opened(t, plain)
	if after := everything(t, s); after != before {
		t.Fatal(differs(before, after))
	}
	// A backup of either database can be restored into the other database.
	ofFile := filepath.Join(t.TempDir(), "of-file.db")
	must(t, s.Backup(t.Context(), ofFile))
	mustCommit(t, s, s.rev+1, pod("later", s.rev+1))
	must(t, s.Close())
	o.Database = server.Database()
	must(t, Restore(t.Context(), o, ofFile))
	check(o, false)
	must(t, Restore(t.Context(), plain, file))
	s = opened(t, plain)
	if r, err := s.Recovered(t.Context()); err != nil || r == nil || !r.Rights || len(names(t, s)) != 1202 {
		t.Fatalf("%+v %v", r, err)
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// whileWriting calls do while a command writes, and returns the command's error.
func whileWriting(write func() error, do func()) error {
	enough, done, over := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		for n := 1; ; n++ {
			last := false
			select {
			case <-done:
				last = true
			case <-time.After(20 * time.Millisecond): // let other processes write between
			}
			if err := write(); err != nil || last {
				over <- err
				return
			}
			if n == 3 {
				close(enough)
			}
		}
	}()
	<-enough
	do()
	close(done)
	return <-over
}

// commands writes repeatedly while do runs, and once afterwards. It returns the number of
// acknowledged writes.
func commands(t *testing.T, o Options, write func(s *Store, n int) error, do func()) (acknowledged int) {
	t.Helper()
	if err := whileWriting(func() error {
		s, err := OpenShared(t.Context(), o)
		if err != nil {
			return err
		}
		err = write(s, acknowledged)
		if err == nil {
			acknowledged++
		}
		return errors.Join(err, s.Close())
	}, do); err != nil {
		t.Errorf("after %d commands one failed: %v", acknowledged, err)
	}
	return acknowledged
}

// Commands write until and after a move. The database that the hub then uses has every acknowledged
// write.
func TestAMoveLosesNoWriteOfACommand(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	o := options(t, t.TempDir())
	s := opened(t, o)
	filled(t, s)
	must(t, s.Close())
	now := time.Now()
	for _, to := range []string{server.Database(), SQLite} {
		id := func(n int) string { return fmt.Sprint(to == SQLite, n) }
		acknowledged := commands(t, o, func(s *Store, n int) error {
			return s.AddJoinToken(t.Context(), JoinToken{
				ID: id(n), Hash: []byte(id(n)), Site: "oslo", Uses: 1, Created: now, Expires: now.AddDate(1, 0, 0),
			})
		}, func() {
			_, err := Move(t.Context(), o, to)
			must(t, err)
		})
		s := opened(t, o)
		for n := range acknowledged {
			if _, err := s.JoinToken(t.Context(), id(n)); err != nil {
				t.Errorf("of %d acknowledged tokens, %s is lost by the move to %s: %v", acknowledged, id(n), s.where(), err)
			}
		}
		if r, err := s.Recovered(t.Context()); err != nil || r != nil {
			t.Errorf("after a move: %+v, %v", r, err)
		}
		must(t, s.Close())
	}
}

// A command on another machine may have a PostgreSQL database open while the hub moves it. The
// command's next write is refused.
func TestARemoteCommandCannotWriteToAFormerDatabase(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	o.Database = postgrestest.Shared(t).Database()
	must(t, opened(t, o).Close())
	elsewhere := o
	elsewhere.Dir = t.TempDir()
	command, err := OpenShared(t.Context(), elsewhere)
	must(t, err)
	acknowledged := 0
	write := func() error {
		err := command.AddUser(t.Context(), User{Name: fmt.Sprint("anna-", acknowledged), Role: "admin", Created: time.Now()})
		if err == nil {
			acknowledged++
		}
		return err
	}
	during := whileWriting(write, func() {
		o := o
		o.Database = ""
		_, err := Move(t.Context(), o, SQLite)
		must(t, err)
	})
	for refused, want := range map[error]string{during: "nothing was changed; run this again",
		write(): "is no longer the hub's database"} {
		if refused == nil || !strings.Contains(refused.Error(), want) {
			// the first write may have failed after waiting too long
			t.Errorf("a command that writes to the former database: %v", refused)
		}
	}
	must(t, command.Close())
	o.Database = ""
	s := opened(t, o)
	if users, err := s.Users(t.Context()); err != nil || len(users) != acknowledged {
		t.Errorf("%d users were acknowledged, and %d are stored, %v", acknowledged, len(users), err)
	}
	must(t, s.Close())
}

// Acknowledged writes of commands before a restore are among the rights that stay. Later ones go to
// the restored database. The same holds when a hub replaces a damaged database.
func TestARestoreLosesNoWriteOfACommand(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, o Options){
		"restored": func(t *testing.T, o Options) {
			must(t, Restore(t.Context(), o, filepath.Join(o.Dir, "backups", "hub-20261101T000000Z.db")))
		},
		"damaged": func(t *testing.T, o Options) {
			s := newStore(o, filepath.Join(o.Dir, database))
			must(t, s.recover(t.Context(), o, errCorrupt)) // as if the database was damaged
			must(t, s.disconnect())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t, history(t, true))
			all := 0
			for range 40 { // some rounds write between reading and replacing
				before := all
				all += commands(t, o, func(s *Store, n int) error {
					return s.AddUser(t.Context(), User{Name: fmt.Sprint("anna-", before+n), Role: "admin", Created: time.Now()})
				}, func() { replace(t, o) })
			}
			s := opened(t, o)
			if users, err := s.Users(t.Context()); err != nil || len(users) != all {
				t.Errorf("%d users were acknowledged, and %d are stored, %v", all, len(users), err)
			}
			must(t, s.Close())
		})
	}
}

// Move refuses a damaged database and the backup that replaced it, because an administrator has to
// look at them first.
func TestADamagedDatabaseIsNotMoved(t *testing.T) {
	t.Parallel()
	o := options(t, history(t, true))
	file := filepath.Join(o.Dir, database)
	damage(t, file)
	before := mustRead(t, file)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := Move(ctx, o, postgrestest.Shared(t).Database()); !errors.Is(err, errCorrupt) ||
		!strings.Contains(err.Error(), "start `flotilla-hub serve` once") {
		t.Error(err)
	}
	if !bytes.Equal(mustRead(t, file), before) {
		t.Error("the database was changed")
	}
	s := opened(t, o)
	expect(t, contents(t, s), oldPod)
	must(t, s.Close())
}

// A database that a command has open is not replaced. While a database is replaced, no command
// opens it.
func TestAnOpenDatabaseIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := history(t, true)
	o, file := options(t, dir), filepath.Join(dir, "backups", "hub-20261101T000000Z.db")
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	command, err := OpenShared(t.Context(), o)
	must(t, err)
	_, moved := Move(soon(), o, "postgres://nobody@127.0.0.1:1/none")
	for what, err := range map[string]error{"a restore": Restore(soon(), o, file), "a move": moved} {
		if err == nil || !strings.Contains(err.Error(),
			"another command has the database of "+dir+" open: nothing was changed; "+
				"end it or wait for it, then run this again") {
			t.Errorf("%s of an open database: %v", what, err)
		}
	}
	was, err := os.ReadFile(filepath.Join(dir, database))
	must(t, err)
	damage(t, filepath.Join(dir, database))
	if s, err := Open(soon(), o); err == nil || !strings.Contains(err.Error(),
		"another command has the database of "+dir+" open") {
		t.Errorf("a hub that replaces its damaged database: %v, %v", s, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, database), was, 0o600))
	must(t, command.Close())
	used, err := lockUse(t.Context(), dir, lockExclusive)
	must(t, err)
	if s, err := OpenShared(soon(), o); err == nil ||
		!strings.Contains(err.Error(), "a restore or a move is replacing") {
		t.Errorf("a command while the database is being replaced: %v, %v", s, err)
	}
	must(t, used.Close())
	must(t, Restore(t.Context(), o, file))
	s := opened(t, o)
	expect(t, contents(t, s), oldPod)
	must(t, s.Close())
}

// With PostgreSQL a command of another machine does not wait for a restore. A restore that would
// lose the command's write is refused.
func TestARestoreInPostgresIsRefusedWhileACommandWrites(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	o.Database = postgrestest.Shared(t).Database()
	s := opened(t, o)
	filled(t, s)
	file := filepath.Join(t.TempDir(), "backup.db")
	must(t, s.Backup(t.Context(), file))
	mustCommit(t, s, 20, pod("new", 20))
	must(t, s.Close())
	elsewhere := o
	elsewhere.Dir = t.TempDir()
	command, err := OpenShared(t.Context(), elsewhere)
	must(t, err)
	acknowledged := 1 // filled has written one user
	err = whileWriting(func() error {
		acknowledged++
		return command.AddUser(t.Context(), User{Name: fmt.Sprint("anna-", acknowledged), Role: "admin", Created: time.Now()})
	}, func() {
		if err := Restore(t.Context(), o, file); err == nil ||
			!strings.Contains(err.Error(), "a command has written to the database meanwhile: nothing was restored") {
			t.Errorf("a restore while a command writes: %v", err)
		}
	})
	must(t, err)
	must(t, command.Close())
	if left, _ := filepath.Glob(filepath.Join(o.Dir, "*before-restore*")); len(left) > 0 {
		t.Errorf("a refused restore left %v", left)
	}
	s = opened(t, o)
	users, err := s.Users(t.Context())
	if err != nil || len(users) != acknowledged || !strings.Contains(everything(t, s), `name="new"`) {
		t.Errorf("%d users were acknowledged, and %d are stored, %v", acknowledged, len(users), err)
	}
	must(t, s.Close())
	must(t, Restore(t.Context(), o, file))
	s = opened(t, o)
	users, err = s.Users(t.Context())
	if err != nil || len(users) != acknowledged || strings.Contains(everything(t, s), `name="new"`) {
		t.Errorf("after the restore %d users of %d are stored, %v", len(users), acknowledged, err)
	}
	must(t, s.Close())
}
