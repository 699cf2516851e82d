package store

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func recordOf(node, key string, rev uint64, more string) Row {
	return Row{
		Kind: "records", Name: node, UID: "u-" + node, Rev: rev,
		Object: []byte(`{"metadata":{"name":"` + node + `"},"key":"` + key + `","generation":7` + more + `}`),
	}
}

func dismissalOf(key string, rev uint64) Row {
	return Row{
		Kind: "dismissals", Name: key, UID: "u-" + key, Rev: rev,
		Object: []byte(`{"metadata":{"name":"` + key + `"},"node":"pi-2"}`),
	}
}

func hashOf(s string) []byte { return []byte(strings.Repeat(s, 32)[:32]) }

// outlived returns a closed hub with a backup. Most users, tokens and devices of the backup were
// removed later.
func outlived(t *testing.T) (dir, backup string) {
	t.Helper()
	dir = t.TempDir()
	s, ctx := openIn(t, dir), t.Context()
	for _, name := range []string{"kari", "ola"} {
		must(t, s.AddUser(ctx, User{Name: name, Role: "admin", Password: "old", Created: noon}))
		must(t, s.AddAPIToken(ctx, APIToken{
			ID: "of-" + name, Hash: hashOf(name), User: name, Created: noon, Expires: noon.AddDate(1, 0, 0),
		}))
		must(t, s.AddSession(ctx, Session{Hash: hashOf(name), User: name, Created: noon, Expires: noon.AddDate(1, 0, 0)},
			"old"))
	}
	must(t, s.AddAPIToken(ctx, APIToken{
		ID: "revoked", Hash: hashOf("r"), User: "kari", Created: noon, Expires: noon.AddDate(1, 0, 0),
	}))
	for _, id := range []string{"used", "revoked", "open"} {
		must(t, s.AddJoinToken(ctx, JoinToken{
			ID: id, Hash: hashOf(id), Site: "oslo", Uses: 1, Created: noon, Expires: noon.AddDate(1, 0, 0),
		}))
	}
	mustCommit(t, s, 10, recordOf("pi-1", "stolen", 1, `,"machineID":"m1","labels":{"a":"1"}`),
		recordOf("pi-2", "deleted", 2, ""), recordOf("pi-3", "good", 3, ""), dismissalOf("before", 4))
	must(t, s.backupNow(ctx, noon))
	must(t, s.DeleteUser(ctx, "ola", noon.Add(time.Hour)))
	must(t, s.SetPassword(ctx, "kari", "new"))
	must(t, s.SetRole(ctx, "kari", "viewer", noon.Add(time.Hour)))
	must(t, s.DeleteAPIToken(ctx, "revoked"))
	must(t, s.TakeUse(ctx, Use{Node: "pi-1", Key: "fresh", Token: "used", At: noon.Add(time.Hour)}))
	must(t, s.RevokeJoinToken(ctx, "revoked", noon.Add(time.Hour)))
	must(t, s.Commit(ctx, Commit{Rev: 20, Rows: []Row{
		recordOf("pi-1", "fresh", 18, `,"machineID":"m9"`), recordOf("pi-4", "since", 20, `,"machineID":"m4"`),
		dismissalOf("deleted", 19),
	}}))
	if _, err := s.exec(ctx, "DELETE FROM records WHERE name = 'pi-2'"); err != nil {
		t.Fatal(err)
	}
	must(t, s.Close())
	return dir, filepath.Join(dir, "backups", "hub-20261101T120000Z.db")
}

// A restore brings back objects, but no user, token or device that was removed after the backup.
func TestARestoreReturnsNoRemovedRights(t *testing.T) {
	dir, file := outlived(t)
	must(t, Restore(t.Context(), options(t, dir), file))
	s, ctx := openIn(t, dir), t.Context()
	if r, _ := s.Recovered(ctx); r == nil || !r.Rights {
		t.Errorf("%+v", r)
	}
	if u, err := s.Users(ctx); len(u) != 1 || u[0].Name != "kari" || u[0].Password != "new" || u[0].Role != "viewer" {
		t.Errorf("the users are %+v, %v", u, err)
	}
	if before, err := s.ClientsRevokedBefore(ctx, "ola"); !before.Equal(noon.Add(time.Hour)) {
		t.Errorf("certificates are revoked before %v, %v", before, err)
	}
	if all, err := s.APITokens(ctx); len(all) != 1 || all[0].ID != "of-kari" {
		t.Errorf("the API tokens are %+v, %v", all, err)
	}
	for _, name := range []string{"kari", "ola"} {
		if _, err := s.Session(ctx, hashOf(name)); !errors.Is(err, ErrNotFound) {
			t.Errorf("the session of %s: %v", name, err)
		}
	}
	for id, spoilt := range map[string]bool{"used": true, "revoked": true, "open": false} {
		if j, err := s.JoinToken(ctx, id); err != nil || spoilt != (j.Used == 1 || !j.Revoked.IsZero()) {
			t.Errorf("join token %s is %+v, %v", id, j, err)
		}
	}
	// Otherwise a repeated join would take another use of its token.
	if all, err := s.Enrolments(ctx); len(all) != 1 || all[0].Key != "fresh" {
		t.Errorf("the enrolments are %+v, %v", all, err)
	}
	expect(t, contents(t, s),
		`dismissals /before u-before 4   {"metadata":{"name":"before"},"node":"pi-2"}`,
		`dismissals /deleted u-deleted 19   {"metadata":{"name":"deleted"},"node":"pi-2"}`,
		`records /pi-1 u-pi-1 1   {"generation":7,"key":"fresh","machineID":"m9","metadata":{"name":"pi-1"}}`,
		`records /pi-2 u-pi-2 2   {"generation":7,"key":"ended","metadata":{"name":"pi-2"}}`,
		`records /pi-3 u-pi-3 3   {"metadata":{"name":"pi-3"},"key":"good","generation":7}`,
		`records /pi-4 u-pi-4 20   {"key":"since","machineID":"m4","metadata":{"name":"pi-4"}}`)
}

// An older hub restores its backup over the database of a newer one. It keeps the rights that it
// understands, and no join token with a restriction that it does not know.
func TestARestoreOfAnOlderHubKeepsTheRightsItUnderstands(t *testing.T) {
	dir, file := outlived(t)
	db, err := sql.Open("sqlite", dsn(filepath.Join(dir, database)))
	must(t, err)
	for _, statement := range []string{
		"ALTER TABLE users ADD COLUMN later TEXT NOT NULL DEFAULT ''", "ALTER TABLE join_tokens ADD COLUMN later TEXT",
		"ALTER TABLE join_tokens ADD COLUMN last TEXT NOT NULL DEFAULT '{}'",
		"UPDATE join_tokens SET last = 'only a node' WHERE id = 'used'", "PRAGMA user_version = 999",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		must(t, err)
	}
	must(t, db.Close())
	must(t, Restore(t.Context(), options(t, dir), file))
	s, ctx := openIn(t, dir), t.Context()
	if r, _ := s.Recovered(ctx); r == nil || !r.Rights {
		t.Errorf("%+v", r)
	}
	if u, err := s.Users(ctx); len(u) != 1 || u[0].Name != "kari" || u[0].Password != "new" {
		t.Errorf("the users are %+v, %v", u, err)
	}
	for id, has := range map[string]bool{"used": false, "revoked": true, "open": true} {
		if _, err := s.JoinToken(ctx, id); errors.Is(err, ErrNotFound) == has {
			t.Errorf("join token %s: %v", id, err)
		}
	}
}

// A backup of a hub without devices does not remove devices that were enrolled later.
func TestARestoreKeepsDevicesEnrolledLater(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	mustCommit(t, s, 1, pod("a", 1))
	must(t, s.backupNow(t.Context(), noon))
	// pi-5 was enrolled without a certificate.
	nobody := Row{
		Kind: recordsTable, Name: "pi-5", UID: "u-pi-5", Rev: 2,
		Object: []byte(`{"metadata":{"name":"pi-5"},"generation":7}`),
	}
	mustCommit(t, s, 2, recordOf("pi-4", "since", 2, ""), nobody)
	must(t, s.Close())
	must(t, Restore(t.Context(), options(t, dir), filepath.Join(dir, "backups", "hub-20261101T120000Z.db")))
	s = openIn(t, dir)
	expect(t, contents(t, s)[:1], `pods default/a u-a 1 pi-1 Running {"kind":"Pod","metadata":{"name":"a"}}`)
	expect(t, contents(t, s)[1:], `records /pi-4 u-pi-4 2   {"key":"since","metadata":{"name":"pi-4"}}`)
	mustCommit(t, s, s.rev+1, recordOf("pi-4", "since", s.rev+1, ""))
}

// A restore does not bring back an authority that was revoked after the backup. If the newer
// authority cannot be decrypted, the restore keeps the backup's.
func TestARestoreReturnsNoRevokedAuthority(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		s, ctx := opened(t, o), t.Context()
		must(t, s.Keep(ctx, "authority", []byte("the first")))
		must(t, s.Keep(ctx, "removed later", []byte("x")))
		backup := filepath.Join(t.TempDir(), "backup.db")
		must(t, s.Backup(ctx, backup))
		must(t, s.Keep(ctx, "authority", []byte("the second")))
		_, err := s.exec(ctx, "DELETE FROM meta WHERE key = 'kept-removed later'")
		must(t, err)
		must(t, s.Close())
		must(t, Restore(ctx, o, backup))
		s = opened(t, o)
		if got, err := s.Kept(ctx, "authority"); err != nil || string(got) != "the second" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := s.Kept(ctx, "removed later"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		sqlite := s.pg == nil // with PostgreSQL the restore opens the database, and would report the wrong key
		must(t, s.SetMeta(ctx, metaKeyID, "another"))
		must(t, s.Close())
		if !sqlite {
			return
		}
		must(t, Restore(ctx, o, backup))
		s = opened(t, o)
		if got, err := s.Kept(ctx, "authority"); err != nil || string(got) != "the first" {
			t.Errorf("%q, %v", got, err)
		}
		must(t, s.Close())
	})
}

// Sealed values need their key. While there are sealed values, no hub creates another key, and the
// proposed command deletes them.
func TestAMissingKeyNamesTheSealedValues(t *testing.T) {
	onBoth(t, func(t *testing.T, o Options) {
		for _, c := range []struct {
			rows []Row
			kept bool
			says string
		}{
			{nil, true, "the keys of the hubs' shared authority in the database are sealed"},
			{
				[]Row{{Kind: "secrets", Name: "wifi", UID: "s", Rev: 1, Object: []byte("{}")}}, false,
				"1 secrets in the database are sealed",
			},
			{[]Row{{Kind: "secrets", Name: "wifi", UID: "s", Rev: 1, Object: []byte("{}")}}, true, "1 secrets and the keys of"},
		} {
			s, ctx := opened(t, o), t.Context()
			mustCommit(t, s, s.rev+1, c.rows...)
			if c.kept {
				must(t, s.Keep(ctx, "authority", []byte("x")))
			}
			must(t, s.Close())
			must(t, os.Remove(filepath.Join(o.Dir, secretsKey)))
			s, err := Open(ctx, o)
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.says) {
				t.Fatal(s, err)
			}
			if _, err := os.Stat(filepath.Join(o.Dir, secretsKey)); err == nil {
				t.Error("the hub made another key")
			}
			_, giveUp, _ := strings.Cut(err.Error(), "delete them with `")
			_, queries, _ := strings.Cut(giveUp, `"`)
			command, err := OpenShared(ctx, o)
			must(t, err)
			for query := range strings.SplitSeq(strings.TrimSuffix(queries, "\"`"), "; ") {
				_, err := command.exec(ctx, query)
				must(t, err)
			}
			must(t, command.Close())
			must(t, opened(t, o).Close())
		}
	})
}

// If the former database is unreadable, users and devices come from the backup. Sessions and join
// tokens end, and the log reports that.
func TestARestoreWithoutFormerRightsIsReported(t *testing.T) {
	cases := map[string]func(t *testing.T, dir string){
		"it is lost":    func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, database))) },
		"it is damaged": func(t *testing.T, dir string) { damage(t, filepath.Join(dir, database)) },
		"it belongs to a new hub": func(t *testing.T, dir string) {
			for _, file := range []string{database, database + "-wal", database + "-shm"} {
				_ = os.Remove(filepath.Join(dir, file))
			}
			must(t, copyFile(filepath.Join(newHub(t), database), filepath.Join(dir, database)))
		},
	}
	for _, table := range append([]string{dismissalsTable, recordsTable}, rightsTables...) {
		cases["only its table "+table+" is damaged, and could be read"] = func(t *testing.T, dir string) {
			scratch(t, filepath.Join(dir, database), table)
		}
	}
	for name, former := range cases {
		t.Run(name, func(t *testing.T) {
			dir, file := outlived(t)
			former(t, dir)
			must(t, Restore(t.Context(), options(t, dir), file))
			s, ctx := openIn(t, dir), t.Context()
			if r, _ := s.Recovered(ctx); r == nil || r.Rights {
				t.Errorf("%+v", r)
			}
			if u, err := s.Users(ctx); len(u) != 2 {
				t.Errorf("the users are %+v, %v", u, err)
			}
			if all, err := s.APITokens(ctx); len(all) != 3 {
				t.Errorf("the API tokens are %+v, %v", all, err)
			}
			for _, name := range []string{"kari", "ola"} {
				if _, err := s.Session(ctx, hashOf(name)); !errors.Is(err, ErrNotFound) {
					t.Errorf("the session of %s: %v", name, err)
				}
			}
			if all, err := s.JoinTokens(ctx); len(all) != 3 || all[0].Revoked.IsZero() || all[1].Revoked.IsZero() ||
				all[2].Revoked.IsZero() {
				t.Errorf("the join tokens are %+v, %v", all, err)
			}
			messages := ""
			if err := s.EachAudit(ctx, time.Time{}, func(a Audit) error {
				messages += a.Message + "\n"
				return nil
			}); err != nil ||
				!strings.Contains(messages, checkRights) {
				t.Errorf("the audit says %q, %v", messages, err)
			}
		})
	}
}

// scratch changes the number of free bytes in a table's first page. The rows stay readable, but the
// check finds the change.
func scratch(t *testing.T, file, table string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(file))
	must(t, err)
	var root, size int64
	must(t, db.QueryRow("SELECT rootpage FROM sqlite_master WHERE name = ?", table).Scan(&root))
	must(t, db.QueryRow("PRAGMA page_size").Scan(&size))
	must(t, db.Close())
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte{0x37}, (root-1)*size+7)
	must(t, err)
	must(t, f.Close())
}

// newHub returns the directory of another hub.
func newHub(t *testing.T) string {
	dir := t.TempDir()
	must(t, openIn(t, dir).Close())
	return dir
}
