package doctor

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// made returns the data directory of a stopped hub. After open it is the directory of a running
// hub.
func made(t *testing.T) (p Hub, open func() *store.Store) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hub")
	open = func() *store.Store {
		st, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := open()
	if _, err := pki.OpenWith(dir, ""); err != nil {
		t.Fatal(err)
	}
	if err := st.Commit(t.Context(), store.Commit{Rev: 1,
		Rows: []store.Row{{Kind: "secrets", Namespace: "default", Name: "s", UID: "u", Rev: 1,
			Object: []byte("{}")}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.BackUpNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	p.Config, p.Now = config.Default(), time.Now()
	p.Config.DataDir, p.Config.HTTPSListen, p.Config.MQTTListen = dir, "127.0.0.1:0", "127.0.0.1:0"
	return p, open
}

// says fails unless a finding of that level contains these words and has a next step.
func says(t *testing.T, all []Finding, level Level, what, words string) {
	t.Helper()
	var lines []string
	for _, f := range all {
		if f.Level == level && f.What == what && strings.Contains(f.Seen, words) {
			if f.Do == "" && level != OK {
				t.Errorf("%s has no next step", f)
			}
			return
		}
		lines = append(lines, f.String())
	}
	t.Errorf("no finding %s of %s contains %q:\n%s", level, what, words, strings.Join(lines, "\n"))
}

func TestEveryDamageIsFound(t *testing.T) {
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name        string
		level       Level
		what, words string
		damage      func(p *Hub, in func(name string) string)
	}{
		{"nothing", OK, "database", "is intact", func(*Hub, func(string) string) {}},
		{"no directory", Fail, "directory", "not found", func(p *Hub, in func(string) string) { p.Config.DataDir = in("none") }},
		{"a directory that other users may open", Fail, "directory", "(mode 0755)", func(p *Hub, in func(string) string) { do(os.Chmod(in(""), 0o755)) }},
		{"a key that other users may open", Fail, "directory", "root.key (mode 0640)", func(p *Hub, in func(string) string) { do(os.Chmod(in("pki/root.key"), 0o640)) }},
		{"a backup that other users may open", Fail, "directory", "(mode 0644)", func(p *Hub, in func(string) string) {
			files, _ := filepath.Glob(in("backups/*"))
			do(os.Chmod(files[0], 0o644))
		}},
		{"a file of another user", Fail, "directory", "does not have the owner of", func(p *Hub, in func(string) string) {
			if os.Getuid() != 0 {
				t.Skip("only root can change owners")
			}
			do(os.Chown(in("hub.db"), 65534, 65534))
		}},
		{"no database", Fail, "database", "not found", func(p *Hub, in func(string) string) { do(os.Remove(in("hub.db"))) }},
		{"a page of zeros", Fail, "database", "is damaged", func(p *Hub, in func(string) string) {
			f, err := os.OpenFile(in("hub.db"), os.O_RDWR, 0)
			do(err)
			info, err := f.Stat()
			do(err)
			for page := int64(1); page*4096 < info.Size(); page += 2 {
				_, err = f.WriteAt(make([]byte, 4096), page*4096)
				do(err)
			}
			do(f.Close())
		}},
		{"a text file as the database", Fail, "database", "is damaged", func(p *Hub, in func(string) string) {
			do(os.WriteFile(in("hub.db"), []byte(strings.Repeat("words ", 4000)), 0o600))
		}},
		{"a database of a later version", Fail, "database", "this program needs", func(p *Hub, in func(string) string) {
			f, err := os.OpenFile(in("hub.db"), os.O_RDWR, 0)
			do(err)
			_, err = f.WriteAt([]byte{0, 0, 0, 99}, 60) // user_version, https://www.sqlite.org/fileformat.html
			do(err)
			do(f.Close())
		}},
		{"a truncated object", Fail, "database", "decode pods default/a: it is damaged", func(p *Hub, in func(string) string) {
			st, err := store.Open(t.Context(), store.Options{Dir: in("")})
			do(err)
			do(st.Commit(t.Context(), store.Commit{Rev: 2,
				Rows: []store.Row{{Kind: "nodes", Name: "a", Rev: 2, Object: []byte("{}")}, {Kind: "pods", Namespace: "default",
					Name: "a", Rev: 2, Object: []byte(`{"kind":"P`)}}}))
			do(st.Close())
		}},
		{"a revision with a letter in it", Fail, "database", "read its revision", func(p *Hub, in func(string) string) {
			st, err := store.Open(t.Context(), store.Options{Dir: in("")})
			do(err)
			do(st.SetMeta(t.Context(), "revision", "1o7"))
			do(st.Close())
		}},
		{"no file with the URL of the database", Fail, "database", "was in PostgreSQL, but the file", func(p *Hub, in func(string) string) {
			do(os.Remove(in("hub.db")))
			f, err := os.OpenFile(in("hub.rev"), os.O_APPEND|os.O_WRONLY, 0)
			do(err)
			_, err = f.WriteString("in PostgreSQL\n")
			do(errors.Join(err, f.Close()))
		}},
		{"a damaged database that the hub has replaced", Warn, "database", "damaged databases are kept", func(p *Hub, in func(string) string) { do(os.WriteFile(in("hub.db.corrupt-1"), nil, 0o600)) }},
		{"a replaced damaged database with its log", Warn, "database", "1 damaged databases are kept beside hub.db: hub.db.corrupt-1", func(p *Hub, in func(string) string) {
			for _, end := range []string{"", "-shm", "-wal"} {
				do(os.WriteFile(in("hub.db.corrupt-1"+end), nil, 0o600))
			}
		}},
		{"no backup for three days", Warn, "backups", "the newest is from", func(p *Hub, in func(string) string) { p.Now = p.Now.Add(72 * time.Hour) }},
		{"no backup for three days, except one with a time in the future", Warn, "backups", "the newest is from", func(p *Hub, in func(string) string) {
			p.Now = p.Now.Add(72 * time.Hour)
			do(os.WriteFile(in("backups/hub-20990101T000000Z.db"), nil, 0o600))
		}},
		{"only a backup with a time in the future", Warn, "backups", "none yet", func(p *Hub, in func(string) string) {
			do(os.RemoveAll(in("backups")))
			do(os.MkdirAll(in("backups"), 0o700))
			do(os.WriteFile(in("backups/hub-20990101T000000Z.db"), nil, 0o600))
		}},
		{"no backup", Warn, "backups", "none yet", func(p *Hub, in func(string) string) { do(os.RemoveAll(in("backups"))) }},
		{"backups on a removed stick", Fail, "backups", "which is missing", func(p *Hub, in func(string) string) {
			do(os.RemoveAll(in("backups")))
			do(os.Symlink(in("stick"), in("backups")))
		}},
		{"a root without its key", Fail, "certificates", "root.key: certificate authority unusable: it is missing", func(p *Hub, in func(string) string) { do(os.Remove(in("pki/root.key"))) }},
		{"an intermediate with a key of zeros", Fail, "certificates", "intermediate.key: certificate authority unusable: not a PEM key", func(p *Hub, in func(string) string) {
			do(os.WriteFile(in("pki/intermediate.key"), make([]byte, 241), 0o600))
		}},
		{"an intermediate with the key of the root", Fail, "certificates", "it is not the key of intermediate.crt", func(p *Hub, in func(string) string) {
			text, err := os.ReadFile(in("pki/root.key"))
			do(err)
			do(os.WriteFile(in("pki/intermediate.key"), text, 0o600))
		}},
		{"an empty key of boot configurations", Fail, "certificates", "firmware.key: certificate authority unusable", func(p *Hub, in func(string) string) { do(os.WriteFile(in("pki/firmware.key"), nil, 0o600)) }},
		{"a damaged key of secrets", Fail, "secrets", "it does not have 64 hex digits", func(p *Hub, in func(string) string) { do(os.WriteFile(in("secrets.key"), make([]byte, 65), 0o600)) }},
		{"secrets sealed with another key", Fail, "secrets", "1 secrets in the database are sealed with key", func(p *Hub, in func(string) string) {
			do(os.WriteFile(in("secrets.key"), []byte(strings.Repeat("7", 64)), 0o600))
		}},
		{"a missing key of secrets", Warn, "secrets", "1 secrets in the database are sealed with it", func(p *Hub, in func(string) string) { do(os.Remove(in("secrets.key"))) }},
		{"a symbolic link", Fail, "directory", "hub.rev is a link", func(p *Hub, in func(string) string) {
			do(os.Rename(in("hub.rev"), in("there")))
			do(os.Symlink(in("there"), in("hub.rev")))
		}},
		{"no root", Fail, "certificates", "pki/root.crt not found", func(p *Hub, in func(string) string) { do(os.Remove(in("pki/root.crt"))) }},
		{"an empty certificate", Fail, "certificates", "pki/root.crt has no certificate", func(p *Hub, in func(string) string) { do(os.WriteFile(in("pki/root.crt"), nil, 0o600)) }},
		{"an expired root", Fail, "certificates", "pki/root.crt expired", func(p *Hub, in func(string) string) { p.Now = p.Now.AddDate(60, 0, 0) }},
		{"a clock that shows 1970", Fail, "certificates", "is not valid before", func(p *Hub, in func(string) string) { p.Now = time.Unix(1000, 0) }},
		{"a clock that is behind the last write", Fail, "clock", "the database was last written", func(p *Hub, in func(string) string) { p.Now = p.Now.Add(-time.Hour) }},
		{"an unsynchronized clock", Warn, "clock", "is not synchronized", func(p *Hub, in func(string) string) { p.Unsynced = true }},
		{"a port in use", Fail, "ports", "address already in use", func(p *Hub, in func(string) string) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			do(err)
			t.Cleanup(func() { _ = l.Close() })
			p.Config.MQTTListen = l.Addr().String()
		}},
		{"the port of the other hubs is in use", Fail, "ports", "--peer-listen", func(p *Hub, in func(string) string) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			do(err)
			t.Cleanup(func() { _ = l.Close() })
			p.Config.PeerListen = l.Addr().String()
		}},
		{"a file with the database's URL that other users may open", Fail, "directory", "database (mode 0644)", func(p *Hub, in func(string) string) {
			do(os.WriteFile(in("database"), []byte("postgres://hub:secret@127.0.0.1:1/hub\n"), 0o600))
			do(os.Chmod(in("database"), 0o644))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := made(t)
			if all := Examine(t.Context(), p); Worst(all) != OK {
				t.Fatalf("an undamaged directory has the findings %v, want only OK", all)
			}
			dir := p.Config.DataDir
			c.damage(&p, func(name string) string { return filepath.Join(dir, name) })
			before := tree(t, dir)
			all := Examine(t.Context(), p)
			says(t, all, c.level, c.what, c.words)
			if got := Worst(all); c.level == Fail && got != Fail || c.level == OK && got != OK {
				t.Errorf("the highest level is %s, want %s", got, c.level)
			}
			if after := tree(t, dir); after != before {
				t.Errorf("the checks changed the directory from\n%sto\n%s", before, after)
			}
		})
	}
}

// A killed hub leaves a log that SQLite would apply; a running hub has a lock, a log and an index.
// The checks must not change these files.
func TestFilesOfAKilledHubAreReadAndNotChanged(t *testing.T) {
	p, open := made(t)
	st := open()
	if err := st.SetMeta(t.Context(), store.MetaURL, "https://192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	e, err := store.Examine(t.Context(), store.Options{Dir: p.Config.DataDir})
	if err != nil || !e.Running || e.URL != "https://192.0.2.1" {
		t.Errorf("examined a running hub: %+v, %v", e, err)
	}
	e.Close()
	killed := t.TempDir()
	for _, end := range []string{"", "-wal"} {
		b, err := os.ReadFile(filepath.Join(p.Config.DataDir, "hub.db"+end))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(killed, "hub.db"+end), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	before := tree(t, killed)
	e, err = store.Examine(t.Context(), store.Options{Dir: killed})
	if err != nil || e.Running || e.Damage != "" || e.URL != "https://192.0.2.1" {
		t.Errorf("examined a killed hub: %+v, %v; want it stopped and undamaged", e, err)
	}
	e.Close()
	if after := tree(t, killed); after != before {
		t.Errorf("the checks changed the files from\n%sto\n%s", before, after)
	}
}

// tree returns every file with its mode and a hash.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if to, lerr := os.Readlink(file); lerr == nil {
			text, err = []byte(to), nil
		}
		info, ierr := d.Info()
		if err != nil || ierr != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %s %x\n", strings.TrimPrefix(file, dir), info.Mode(), sha256.Sum256(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAnUnencryptedDatabaseConnectionIsAWarning(t *testing.T) {
	for _, e := range []store.Examination{
		{Server: "postgres://flotilla@db:5432/fleet"},
		{Server: "postgres://flotilla@db:5432/fleet", Exposed: "the connection is not encrypted"},
	} {
		text := ""
		for _, f := range (Hub{}).server(&e, nil) {
			if f.Level == Warn {
				text += f.String()
			}
		}
		if warned := strings.Contains(text, "the connection is not encrypted") &&
			strings.Contains(text, "sslmode=verify-full"); warned != (e.Exposed != "") {
			t.Errorf("%+v: %q, want a warning exactly if the connection is exposed", e, text)
		}
	}
}

// The checks ask the standby itself, although the address in the database is the leader's. Only the
// leader makes backups.
func TestAHubOnStandbyIsHealthy(t *testing.T) {
	code := http.StatusOK
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	defer server.Close()
	p, open := made(t)
	st := open() // the hub runs now
	defer st.Close()
	if err := os.RemoveAll(filepath.Join(p.Config.DataDir, "backups")); err != nil {
		t.Fatal(err)
	}
	p.Standing = &leader.Status{URL: server.URL, Leader: "hub-a", At: "hub-a:8444",
		Behind: 300 * time.Millisecond, Revision: 7}
	all := Examine(t.Context(), p)
	says(t, all, OK, "hub", "the leader is hub-a (hub-a:8444); it is 0.3 s behind, at revision 7")
	says(t, all, OK, "backups", "the leader makes them")
	if Worst(all) == Fail {
		t.Errorf("a hub on standby must be healthy: %v", all)
	}
	p.Standing.Behind = time.Minute
	says(t, Examine(t.Context(), p), Warn, "hub", "60.0 s behind")
	code = http.StatusServiceUnavailable
	says(t, Examine(t.Context(), p), Fail, "hub", "it is not ready")
	p.Standing.Leader = ""
	says(t, Examine(t.Context(), p), Fail, "hub", "without a leader")
}

// The address of a running hub is in its database, which may be unreachable or have a wrong
// address.
func TestAHubWithAnUnknownAddress(t *testing.T) {
	for url, words := range map[string]string{
		"":                      "its database has no address",
		"\x00://":               "the address in its database",
		"https://127.0.0.1:1":   "does not answer",
		"none://127.0.0.1:8443": "does not answer",
	} {
		f := answers(t.Context(), url)
		says(t, []Finding{f}, Fail, "hub", words)
		if url == "" && strings.Contains(f.Seen, "readyz") {
			t.Errorf("%s", f)
		}
	}
}
