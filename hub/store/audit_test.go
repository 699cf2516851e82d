package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/bound"
)

func did(name string) Audit {
	return Audit{
		At: time.Now(), Who: "anna", Via: "certificate", Source: "10.0.0.9", Verb: "patch", Resource: "nodes", Name: name,
		Code: 200,
	}
}

func refused(name string) Audit {
	a := did(name)
	a.Code, a.Message = 403, "role viewer"
	return a
}

func export(t *testing.T, s *Store, since time.Time) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.EachAudit(t.Context(), since,
		func(a Audit) error { return json.NewEncoder(&b).Encode(a.Line()) }); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAChangedOrMissingRecordIsDetected(t *testing.T) {
	for _, tt := range []struct{ name, sql, want string }{
		{"no manipulation", "", ""},
		{"a name was changed", "UPDATE audit SET who = 'bob' WHERE id = 5", "record 5 ("},
		{"a result was changed", "UPDATE audit SET code = 201 WHERE id = 4", "record 4 ("},
		{"a time was changed", "UPDATE audit SET at = '2020-01-01T00:00:00.000Z' WHERE id = 4", "record 4 ("},
		{
			"text was moved from one field to the next", "UPDATE audit SET name = '', message = name || message WHERE id = 4",
			"record 4 (",
		},
		{"a record is missing", "DELETE FROM audit WHERE id = 6", "record 6 is missing"},
		{"several records are missing", "DELETE FROM audit WHERE id IN (4, 5, 6)", "records 4 to 6 are missing"},
		{"the first record is missing", "DELETE FROM audit WHERE id = 1", "is the first of the chain"},
		{"the newest record is missing", "DELETE FROM audit WHERE id = 11", "records at the end are missing"},
		{"all records are missing", "DELETE FROM audit", "records at the end are missing"},
		{"a record was made up",
			"INSERT INTO audit (id, at, who, via, source, verb, resource, namespace, name, code, message) " +
				"VALUES (12, '2026-01-01T00:00:00.000Z', 'x', '', '', 'delete', 'nodes', '', 'n', 200, '')", "record 12 ("},
		{"two records have changed places",
			"UPDATE audit SET id = CASE id WHEN 5 THEN -6 ELSE -5 END WHERE id IN (5, 6); UPDATE audit " +
				"SET id = -id WHERE id < 0", "record 5 ("},
		{"a hash was removed", "UPDATE audit SET hash = x'' WHERE id = 5", "record 5 ("},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openIn(t, t.TempDir())
			for i := range 10 {
				if err := s.AddAudit(t.Context(), did(fmt.Sprint("pi-", i))); err != nil {
					t.Fatal(err)
				}
			}
			if tt.sql != "" {
				if err := s.tx(t.Context(), func(ctx context.Context, c *conn) error {
					_,
						err := c.ExecContext(ctx, tt.sql)
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			r, err := s.VerifyAudit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" && (r.Breaks != 0 || r.Records != 11 || r.From.ID != 1 || r.To.ID != 11) {
				t.Fatalf("%+v", r)
			}
			if tt.want != "" && (r.Breaks == 0 || !strings.Contains(strings.Join(r.Broken, "\n"), tt.want)) {
				t.Fatalf("the text %q is missing in %q", tt.want, r.Broken)
			}
			// VerifyAuditExport reports the same, except for records that are missing at the ends
			// of the chain: only the hub knows its ends.
			if f, err := VerifyAuditExport(bytes.NewReader(export(t, s, time.Time{}))); err != nil ||
				(f.Breaks == 0) != (tt.want == "" || strings.Contains(tt.want, "at the end")) {
				t.Fatalf("the export: %v %+v", err, f)
			}
			// The audit goes on after the damage.
			if err := s.AddAudit(t.Context(), did("later")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTheChainContinuesAfterRestartsAndCommands(t *testing.T) {
	dir := fromDump(t, "testdata/v1.sql")
	s := openIn(t, dir)
	before, err := s.FindAudits(t.Context(), AuditQuery{Limit: 99})
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	other, err := OpenShared(t.Context(), options(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		g.Go(func() { _ = s.AddAudit(t.Context(), did(fmt.Sprint("hub-", i))) })
		g.Go(func() { _ = other.AddAudit(t.Context(), did(fmt.Sprint("cli-", i))) })
	}
	g.Wait()
	other.NoteAudit(did("noted")) // a command exits at once, and must not lose the record
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	s.NoteAudit(did("noted too"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openIn(t, dir)
	r, err := s.VerifyAudit(t.Context())
	if err != nil || r.Breaks != 0 || r.Records != len(before)+1+42 || r.Unchained != len(before) {
		t.Fatalf("%v %+v (%d before)", err, r, len(before))
	}
}

func TestPrunedAuditsStayVerifiable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openIn(t, t.TempDir())
		s.auditKept, s.auditRows = 24*time.Hour, 50
		for i := range 200 {
			if err := s.AddAudit(t.Context(), did(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		r, err := s.VerifyAudit(t.Context())
		if err != nil || r.Breaks != 0 || r.Records != 50 || r.To.Name != "199" {
			t.Fatalf("pruned by rows: %v %+v", err, r)
		}
		time.Sleep(25 * time.Hour)
		for i, want := range []int{50, 2} { // the first new record removes nothing, because its time might be wrong
			if err := s.AddAudit(t.Context(), did("next day")); err != nil {
				t.Fatal(err)
			}
			if r, err = s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 || r.Records != want {
				t.Fatalf("pruned by age, after %d records: %v %+v", i+1, err, r)
			}
		}
		s.auditBytes = 20_000
		long := did("long")
		long.Message = strings.Repeat("x", 5000)
		for range 100 {
			if err := s.AddAudit(t.Context(), long); err != nil {
				t.Fatal(err)
			}
		}
		if r, err = s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 || r.Records < 10 || r.Records > 20 {
			t.Fatalf("pruned by bytes: %v %+v", err, r)
		}
		if _, err := s.exec(t.Context(), "DELETE FROM audit WHERE id = (SELECT min(id) FROM audit)"); err != nil {
			t.Fatal(err)
		}
		if r, err = s.VerifyAudit(t.Context()); err != nil || r.Breaks == 0 {
			t.Fatalf("records removed by another program: %v %+v", err, r)
		}
		s.Close()
	})
}

func TestAFloodIsFolded(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(i int) Audit
		most int
	}{
		{"a viewer's refusals in a loop", func(i int) Audit { return refused(fmt.Sprint("pi-", i)) }, foldBurst + 20},
		{"malformed tokens with different names", func(i int) Audit {
			a := refused("x")
			a.Who, a.Via, a.Code = fmt.Sprint("guess-", i), "join token", 400
			return a
		}, foldBurst + 20},
		{"failed logins under many names", func(i int) Audit {
			a := refused("")
			a.Who, a.Via, a.Resource, a.Verb, a.Code = fmt.Sprint("user-", i), "password", "sessions", "create", 401
			return a
		}, foldBurst + 20},
		{
			"logins that succeed", func(i int) Audit { a := did(""); a.Resource, a.Verb = "sessions", "create"; return a },
			foldBurst + 20,
		},
		{
			"reads of secrets", func(i int) Audit { a := did("s"); a.Resource, a.Verb = "secrets", "get"; return a },
			foldBurst + 20,
		},
		{"refusals from new addresses all the time", func(i int) Audit {
			a := refused("x")
			a.Source = fmt.Sprintf("2001:db8:%x::1", i)
			return a
		}, foldAllBurst + 20*(foldSources+1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const flood = foldKnown + 900 // sends for a quarter of an hour
				s := openIn(t, t.TempDir())
				writes := s.writes(t)
				for i := range flood {
					if a := tt.make(i); i%7 == 0 {
						if err := s.AddAudit(t.Context(), a); err != nil {
							t.Fatal(err)
						}
					} else {
						s.NoteAudit(a)
					}
					time.Sleep(15 * time.Minute / flood)
				}
				if err := s.AddAudit(t.Context(), did("a change in between")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * foldLongest)
				found, err := s.FindAudits(t.Context(), AuditQuery{Limit: 1_000_000})
				if err != nil {
					t.Fatal(err)
				}
				sum, changes := 0, 0
				for _, a := range found {
					switch {
					case a.Verb == auditBegins:
					case a.Name == "a change in between":
						changes++
					default:
						sum += a.Count
					}
				}
				if sum != flood || changes != 1 || len(found) > tt.most+2 {
					t.Errorf("%d records count %d of %d events; %d changes", len(found), sum, flood, changes)
				}
				if n := s.writes(t) - writes; n > 2*tt.most {
					t.Errorf("%d writes", n)
				}
				if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 {
					t.Fatalf("%v %+v", err, r)
				}
				s.Close()
			})
		})
	}
}

// writes returns how often the audit was written.
func (s *Store) writes(t *testing.T) int {
	var n sql.NullInt64
	if err := s.read.QueryRow("SELECT count(DISTINCT at) FROM audit").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return int(n.Int64)
}

// Unauthenticated clients choose their names, and an administrator reads the names in a terminal.
func TestStoredRecordsArePrintable(t *testing.T) {
	s := openIn(t, t.TempDir())
	const hiding = "a\u202eb\u200b\x1b[31m\x00"
	if err := s.AddAudit(t.Context(), Audit{At: time.Now(), Who: hiding, Via: hiding, Source: hiding, Verb: hiding,
		Resource: hiding, Namespace: hiding, Name: strings.Repeat("\u202e", 300), Code: 401,
		Message: hiding + "\xff"}); err != nil {
		t.Fatal(err)
	}
	found, err := s.Audits(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range found[0].texts() {
		if bound.Hidden(text) || text == "" || len(text) > maxAuditMessage {
			t.Errorf("%q is stored unchanged", text)
		}
	}
	if a := found[0]; a.Who != `a\u202eb\u200b\u001b[31m\u0000` || len(a.Name) > maxAuditText ||
		!strings.HasPrefix(a.Name, `\u202e\u202e`) {
		t.Errorf("%+v", a)
	}
	if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 {
		t.Errorf("%v %+v", err, r)
	}
}

func TestChangesAreNeverFolded(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 3000 {
		s.NoteAudit(did(fmt.Sprint(i)))
	}
	mustCommit(t, s, 1, pod("a", 1)) // the commit also writes the queued record
	if found, err := s.FindAudits(t.Context(), AuditQuery{Limit: 9999}); err != nil || len(found) != 3001 {
		t.Fatal(len(found), err)
	}
}

func TestARecordIsWrittenWithTheNextTransaction(t *testing.T) {
	s := openIn(t, t.TempDir())
	mustCommit(t, s, 1, pod("a", 1))
	frames := func() (n int) {
		var busy, done int
		if err := s.read.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &n, &done); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := frames()
	s.NoteAudit(did("pi-1"))
	if n := frames(); n != before {
		t.Fatal("the record was written separately:", n, before)
	}
	mustCommit(t, s, 2, pod("b", 2))
	if found, _ := s.FindAudits(t.Context(), AuditQuery{Limit: 9}); len(found) != 2 {
		t.Fatal("the record was not written with the transaction:", found)
	}
	// A failed write loses no queued record.
	s.NoteAudit(did("pi-2"))
	if err := s.SetRole(t.Context(), "nobody", "admin", time.Now()); err == nil {
		t.Fatal("the transaction did not fail")
	}
	if err := s.SetMeta(t.Context(), "x", "y"); err != nil {
		t.Fatal(err)
	}
	if found, _ := s.FindAudits(t.Context(), AuditQuery{Limit: 9}); len(found) != 3 || found[0].Name != "pi-2" {
		t.Fatal("the record was lost with the failed transaction:", found)
	}
}

func TestARestoreIsRecordedInTheChain(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	for range 3 {
		if err := s.AddAudit(t.Context(), did("early")); err != nil {
			t.Fatal(err)
		}
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if err := s.AddAudit(t.Context(), did("lost")); err != nil {
		t.Fatal(err)
	}
	lost, _ := s.Audits(t.Context(), 1)
	s.Close()
	if err := Restore(t.Context(), options(t, dir), copied); err != nil {
		t.Fatal(err)
	}
	s = openIn(t, dir)
	found, err := s.Audits(t.Context(), 1)
	if err != nil || len(found) != 1 || found[0].Verb != "restore" ||
		!strings.Contains(found[0].Message, fmt.Sprintf("record 5, hash %x", lost[0].Hash)) {
		t.Fatalf("%v %+v", err, found)
	}
	if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 {
		t.Fatalf("%v %+v", err, r)
	}
}

func TestADamagedAuditStopsNoCommit(t *testing.T) {
	s := openIn(t, t.TempDir())
	if _, err := s.exec(t.Context(), "ALTER TABLE audit RENAME TO gone"); err != nil {
		t.Fatal(err)
	}
	s.NoteAudit(did("pi-1"))
	mustCommit(t, s, 1, pod("a", 1))
}

func TestAnExportIsVerifiedWithoutTheHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openIn(t, t.TempDir())
		for i := range 1200 { // more records than one page of an export
			s.NoteAudit(did(fmt.Sprint(i)))
		}
		time.Sleep(time.Hour)
		since := time.Now()
		if err := s.AddAudit(t.Context(), did("<late> & \u2028 \xff")); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(export(t, s, time.Time{}), []byte("\n")); n != 1202 {
			t.Error(n)
		}
		late := export(t, s, since)
		if r, err := VerifyAuditExport(bytes.NewReader(late)); err != nil || r.Records != 1 || r.Breaks != 0 ||
			r.From.ID != 1202 {
			t.Errorf("%v %+v\n%s", err, r, late)
		}
		if r, err := VerifyAuditExport(bytes.NewReader(bytes.Replace(late, []byte("late"), []byte("Late"), 1))); err != nil ||
			r.Breaks != 1 {
			t.Errorf("%v %+v", err, r)
		}
		if text := export(t, s, since.Add(time.Hour)); len(text) != 0 {
			t.Errorf("%s", text)
		}
		if _, err := VerifyAuditExport(strings.NewReader("{\"id\": 1}\nno\n")); err == nil ||
			!strings.Contains(err.Error(), "line 2") {
			t.Error(err)
		}
		s.Close()
	})
}

// A change of any column is detected, except of total, which only serves to prune records.
func TestEveryColumnIsInTheChain(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 5 {
		if err := s.AddAudit(t.Context(), did(fmt.Sprint("pi-", i))); err != nil {
			t.Fatal(err)
		}
	}
	columns, err := list(t.Context(), s, func(scan func(...any) error) (name string, err error) {
		return name, scan(&name)
	}, "SELECT name FROM pragma_table_info('audit')")
	if err != nil || len(columns) < 14 {
		t.Fatal(columns, err)
	}
	for _, column := range columns {
		if column == "id" || column == "total" {
			continue
		}
		value := "x'00'"
		switch column {
		case "count", "code":
			value = column + " + 1"
		case "at", "until":
			value = "'2020-01-01T00:00:00.000Z'"
		case "hash":
		default:
			value = column + " || 'x'"
		}
		err := s.tx(t.Context(), func(ctx context.Context, c *conn) error {
			_, err := c.ExecContext(ctx,
				"CREATE TEMP TABLE was AS SELECT * FROM audit; UPDATE audit SET "+column+" = "+value+" WHERE id = 3")
			return err
		})
		if err != nil {
			t.Fatal(column, err)
		}
		if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks == 0 {
			t.Errorf("a change of %s is not detected: %v %+v", column, err, r)
		}
		if err := s.tx(t.Context(), func(ctx context.Context, c *conn) error {
			_, err := c.ExecContext(ctx, "DELETE FROM audit; INSERT INTO audit SELECT * FROM was; DROP TABLE was")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 {
		t.Error(err, r)
	}
}

// An attacker with access to the database can compute hashes. The following record reveals a forged
// record with a correct hash, and the stored end of the chain reveals a forged last record.
func TestAForgedRecordWithItsHashIsDetected(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 10 {
		if err := s.AddAudit(t.Context(), did(fmt.Sprint("pi-", i))); err != nil {
			t.Fatal(err)
		}
	}
	forge := func(a Audit, prev []byte) Audit {
		a.Who, a.Prev = "mallory", prev
		a.Hash = a.link(prev)
		return a
	}
	all, err := s.FindAudits(t.Context(), AuditQuery{Limit: 99})
	if err != nil {
		t.Fatal(err)
	}
	newest := forge(all[0], all[1].Hash)
	if _, err := s.exec(t.Context(), "UPDATE audit SET who = ?, hash = ? WHERE id = ?", newest.Who, newest.Hash,
		newest.ID); err != nil {
		t.Fatal(err)
	}
	if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 1 ||
		!strings.Contains(r.Broken[0], "at the end are missing or were replaced") {
		t.Errorf("a forged newest record: %v %+v", err, r)
	}
	if _, err := s.exec(t.Context(), "UPDATE audit SET who = ?, hash = ? WHERE id = ?", all[0].Who, all[0].Hash,
		all[0].ID); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSpace(string(export(t, s, time.Time{})))+"\n", "\n")
	check := func(what, want string, edit func(lines []string)) {
		t.Helper()
		mine := append([]string(nil), lines...)
		edit(mine)
		if r, err := VerifyAuditExport(strings.NewReader(strings.Join(mine, ""))); err != nil || r.Breaks == 0 ||
			!strings.Contains(r.Broken[0], want) {
			t.Errorf("%s: %v %+v", what, err, r)
		}
	}
	check("a line in the middle of an export", "record 6 (", func(lines []string) {
		var l AuditLine
		if err := json.Unmarshal([]byte(lines[4]), &l); err != nil || l.ID != 5 {
			t.Fatal(l.ID, err)
		}
		a, _ := l.audit()
		text, _ := json.Marshal(forge(a, a.Prev).Line())
		lines[4] = string(text) + "\n"
	})
	check("two lines of an export that changed places", "record 4 is missing", func(lines []string) {
		lines[3], lines[4] = lines[4], lines[3]
	})
}

// The beginning of a pruned chain is stored, like its end.
func TestBothEndsOfAPrunedChainAreVerified(t *testing.T) {
	for what, tt := range map[string]struct{ sql, want string }{
		"its first record is missing": {"DELETE FROM audit WHERE id = (SELECT min(id) FROM audit)",
			"missing at the beginning"},
		"its last record is missing": {"DELETE FROM audit WHERE id = (SELECT max(id) FROM audit)", "at the end are missing"},
		"all records are missing":    {"DELETE FROM audit", "at the end are missing"},
	} {
		s := openIn(t, t.TempDir())
		s.auditRows = 5
		for i := range 12 {
			if err := s.AddAudit(t.Context(), did(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 || r.Records != 5 {
			t.Fatal(err, r)
		}
		if _, err := s.exec(t.Context(), tt.sql); err != nil {
			t.Fatal(err)
		}
		if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks == 0 ||
			!strings.Contains(strings.Join(r.Broken, "\n"), tt.want) {
			t.Errorf("%s: %v %+v", what, err, r)
		}
	}
}

// The report of many breaks is short.
func TestAReportOfManyBreaksIsShort(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 100 {
		s.NoteAudit(did(fmt.Sprint(i)))
	}
	mustCommit(t, s, 1, pod("a", 1))
	if _, err := s.exec(t.Context(), "UPDATE audit SET who = 'x'"); err != nil {
		t.Fatal(err)
	}
	if r, err := s.VerifyAudit(t.Context()); err != nil || len(r.Broken) != maxBroken || r.Breaks < 100 {
		t.Errorf("%v: %d of %d breaks are reported", err, len(r.Broken), r.Breaks)
	}
}

// The age of records is measured by the hub's time, which may differ from the machine's.
func TestRecordsOfAHubWhoseClockIsBehindAreKept(t *testing.T) {
	s := openIn(t, t.TempDir())
	hubTime := time.Now().Add(-2 * AuditKept)
	for i := range 5 {
		a := did(fmt.Sprint(i))
		a.At = hubTime.Add(time.Duration(i) * time.Second)
		if err := s.AddAudit(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if _, err := s.exec(t.Context(), "UPDATE audit SET at = ? WHERE verb = ?", stamp(hubTime), auditBegins); err != nil {
			t.Fatal(err) // the first record has the wrong time too
		}
	}
	if found, err := s.FindAudits(t.Context(), AuditQuery{Limit: 99, NotVerbs: []string{auditBegins}}); err != nil ||
		len(found) != 5 {
		t.Errorf("%d of 5 records are stored, %v", len(found), err)
	}
}

// Records that a full disk could not store are counted. The count is written when there is space.
func TestRecordsLostOnAFullDiskAreReportedLater(t *testing.T) {
	s := openIn(t, t.TempDir())
	full := func(is bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.full.Store(is)
	}
	full(true)
	for range 3 {
		if err := s.AddAudit(t.Context(), did("lost")); !errors.Is(err, ErrFull) {
			t.Error(err)
		}
	}
	full(false)
	if err := s.AddAudit(t.Context(), did("kept")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // Close writes the folded records
		t.Fatal(err)
	}
	s = openIn(t, s.dir)
	found, err := s.FindAudits(t.Context(), AuditQuery{Limit: 99, NotVerbs: []string{auditBegins}})
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, a := range found {
		if strings.Contains(a.Message, "were lost") {
			lost += a.Count
		} else if a.Name != "kept" {
			t.Errorf("%+v", a)
		}
	}
	if lost != 3 || len(found) != 2 {
		t.Errorf("%d records are reported as lost: %+v", lost, found)
	}
}

// An export ends between two records when the user's access ends.
func TestAnExportEndsWithTheUsersAccess(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 10 {
		s.NoteAudit(did(fmt.Sprint(i)))
	}
	over, asked := errors.New("over"), 0
	var b bytes.Buffer
	err := s.ExportAudit(t.Context(), &b, time.Time{}, func() error {
		if asked++; asked > 3 {
			return over
		}
		return nil
	})
	if n := bytes.Count(b.Bytes(), []byte("\n")); !errors.Is(err, over) || n != 3 {
		t.Errorf("%d records, %v", n, err)
	}
	for _, text := range []string{"-1h", "tomorrow", "2026-13-01"} {
		if _, err := ParseSince(text, time.Now()); err == nil {
			t.Errorf("since %s", text)
		}
	}
}

// Damage of the stored beginning or end of the chain loses no record.
func TestTheAuditContinuesAfterADamagedEnd(t *testing.T) {
	for _, note := range []string{metaAuditHead, metaAuditAnchor} {
		for _, damaged := range []string{"", "11 zz 5", "11", "x 00 5"} {
			t.Run(note+" "+damaged, func(t *testing.T) {
				dir := t.TempDir()
				s := openIn(t, dir)
				must(t, s.AddAudit(t.Context(), did("before")))
				must(t, s.SetMeta(t.Context(), note, damaged))
				must(t, s.AddAudit(t.Context(), did("after")))
				must(t, s.Close())
				s = openIn(t, dir)
				must(t, s.AddAudit(t.Context(), did("later")))
				r, err := s.VerifyAudit(t.Context())
				must(t, err)
				all, err := s.Audits(t.Context(), 99)
				must(t, err)
				names := ""
				for _, a := range all {
					names += a.Name + " " + a.Message + ", "
				}
				for _, name := range []string{"before", "after", "later"} {
					if !strings.Contains(names, name) {
						t.Errorf("record %s is missing in %s", name, names)
					}
				}
				if reported := strings.Contains(names,
					"stored end of the audit was unusable"); reported != (note == metaAuditHead) {
					t.Errorf("the damage is not reported in %s", names)
				}
				if note == metaAuditHead && r.Breaks != 0 {
					t.Errorf("the chain after the damage: %+v", r)
				}
				if f, err := VerifyAuditExport(bytes.NewReader(export(t, s, time.Time{}))); err != nil || f.Breaks != 0 {
					t.Errorf("the export: %v, %+v", err, f)
				}
			})
		}
	}
}

// A restore uses the machine's clock, because no hub runs. Its record prunes no records, even if
// the clock is far ahead. Only a second record with such a time prunes, which a hub with that clock
// writes.
func TestARestoreWithAWrongClockKeepsTheAudit(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	for i := range 5 {
		must(t, s.AddAudit(t.Context(), Audit{At: time.Now(), Who: "anna", Verb: "delete", Name: fmt.Sprint(i), Code: 200}))
	}
	backup := filepath.Join(t.TempDir(), "backup.db")
	must(t, s.Backup(t.Context(), backup))
	must(t, s.Close())
	o := options(t, dir)
	r := Recovery{At: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), From: backup}
	must(t, newStore(o, filepath.Join(dir, database)).prepare(t.Context(), o, 0, r))
	must(t, newStore(o, filepath.Join(dir, database)).replace(""))
	s = openIn(t, dir)
	by := func() (n int) {
		t.Helper()
		all, err := s.FindAudits(t.Context(), AuditQuery{Words: []string{"anna"}, Limit: 100})
		must(t, err)
		return len(all)
	}
	if n := by(); n != 5 {
		t.Errorf("%d of 5 records are stored after a restore in the year 2100", n)
	}
	must(t, s.AddAudit(t.Context(), Audit{At: time.Now(), Who: "kari", Code: 200}))
	if n := by(); n != 5 {
		t.Errorf("%d of 5 records are stored after the next record", n)
	}
	for range 2 {
		must(t, s.AddAudit(t.Context(), Audit{At: time.Now().Add(2 * AuditKept), Who: "kari", Code: 200}))
	}
	if n := by(); n != 0 {
		t.Errorf("%d records are stored half a year later", n)
	}
	if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 {
		t.Errorf("the chain: %+v, %v", r, err)
	}
}
