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
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// damage overwrites the middle of a database, where its tables are.
func damage(t *testing.T, file string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096; i < len(raw); i++ {
		raw[i] ^= 0x5a
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// history returns the directory of a stopped hub. Its database has revision 20, and its backup has
// revision 10.
func history(t *testing.T, withBackup bool) string {
	t.Helper()
	dir := t.TempDir()
	s := openIn(t, dir)
	mustCommit(t, s, 10, pod("old", 10))
	if withBackup {
		if err := s.backupNow(t.Context(), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)); err != nil {
			t.Fatal(err)
		}
	}
	mustCommit(t, s, 20, pod("new", 20))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

const oldPod = `pods default/old u-old 10 pi-1 Running {"kind":"Pod","metadata":{"name":"old"}}`

func TestADamagedDatabaseIsReplacedByItsBackup(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, file string)
		aside  int // number of files put aside
		backup bool
	}{
		{"flipped bytes, with a backup", damage, 1, true},
		{"flipped bytes, without a backup", damage, 1, false},
		{"text instead of a database", func(t *testing.T,
			f string) {
			must(t, os.WriteFile(f, []byte(strings.Repeat("x", 9000)), 0o600))
		}, 1, true},
		{"cut in half", func(t *testing.T, f string) { must(t, os.Truncate(f, 8192)) }, 1, true},
		{"cut to nothing", func(t *testing.T, f string) { must(t, os.Truncate(f, 0)) }, 0, true},
		{"gone", func(t *testing.T, f string) { must(t, os.Remove(f)) }, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := history(t, c.backup)
			c.spoil(t, filepath.Join(dir, database))
			s := openIn(t, dir)
			if c.backup {
				expect(t, contents(t, s), oldPod)
			} else {
				expect(t, contents(t, s))
			}
			rev, err := s.Revision(t.Context())
			if err != nil || rev < 20 {
				t.Fatalf("the revision decreased to %d (%v)", rev, err)
			}
			r, err := s.Recovered(t.Context())
			if err != nil || r == nil || r.Cause == "" || (r.From == "") == c.backup {
				t.Fatalf("recovery %+v %v", r, err)
			}
			aside, _ := filepath.Glob(filepath.Join(dir, "hub.db.corrupt-*Z"))
			if len(aside) != c.aside {
				t.Fatalf("put aside: %v", aside)
			}
			mustCommit(t, s, rev+1, pod("more", rev+1))
			must(t, s.ClearRecovery(t.Context()))
			must(t, s.Close())
			s = openIn(t, dir)
			if r, _ := s.Recovered(t.Context()); r != nil {
				t.Fatalf("the recovery is reported again: %+v", r)
			}
			if again, _ := s.Revision(t.Context()); again != rev+1 {
				t.Fatalf("revision %d after %d", again, rev+1)
			}
		})
	}
}

// A reader during the check gets what the opened store has. Any damage is repaired first, whether
// the reader meets it or not.
func TestReadingDuringTheCheckReturnsTheOpenedDatabase(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, file string)
		reads int
	}{
		"whole": {func(*testing.T, string) {}, 1},
		"an invalid list of free pages": {func(t *testing.T, f string) {
			raw, err := os.ReadFile(f)
			must(t, err)
			copy(raw[32:40], []byte{0, 0x7f, 0xff, 0xff, 0, 0, 0, 5})
			must(t, os.WriteFile(f, raw, 0o600))
		}, 2},
		"a page of objects that is invalid": {func(t *testing.T, f string) {
			raw, err := os.ReadFile(f)
			must(t, err)
			page := bytes.LastIndex(raw, []byte(`"name":"new"`)) / 4096 * 4096
			clear(raw[page : page+8])
			must(t, os.WriteFile(f, raw, 0o600))
		}, 2},
		// Nothing can be read from these databases.
		"flipped bytes": {damage, 1},
		"cut in half":   {func(t *testing.T, f string) { must(t, os.Truncate(f, 8192)) }, 1},
		"gone":          {func(t *testing.T, f string) { must(t, os.Remove(f)) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openIn(t, dir)
			secret := Row{
				Kind: "secrets", Namespace: "default", Name: "door", UID: "u-door", Rev: 5,
				Object: []byte(`{"data":{"code":"MTIzNA=="}}`),
			}
			mustCommit(t, s, 10, pod("old", 10), secret)
			must(t, s.backupNow(t.Context(), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)))
			mustCommit(t, s, 20, pod("new", 20))
			must(t, s.Close())
			c.spoil(t, filepath.Join(dir, database))
			times := 0
			var read []string
			o := options(t, dir)
			o.Reads = func(ctx context.Context, s *Store) {
				times++
				read = nil
				_ = s.Load(ctx, func(r Row) error {
					read = append(read, fmt.Sprintf("%s %s/%s %s %d %s %s %s", r.Kind, r.Namespace, r.Name, r.UID, r.Rev, r.Node,
						r.Phase, r.Object))
					return nil
				})
			}
			s, err := Open(t.Context(), o)
			must(t, err)
			defer s.Close()
			if want := contents(t, s); times != c.reads || fmt.Sprint(read) != fmt.Sprint(want) || len(want) < 2 {
				t.Errorf("read %d times, at last %q, and the opened store has %q", times, read, want)
			}
		})
	}
}

// A panic while reading a damaged database does not prevent its replacement.
func TestAPanicDuringTheCheckOfADamagedDatabase(t *testing.T) {
	dir := history(t, true)
	raw, err := os.ReadFile(filepath.Join(dir, database))
	must(t, err)
	copy(raw[32:40], []byte{0, 0x7f, 0xff, 0xff, 0, 0, 0, 5})
	must(t, os.WriteFile(filepath.Join(dir, database), raw, 0o600))
	o, times := options(t, dir), 0
	o.Reads = func(context.Context, *Store) {
		if times++; times == 1 {
			panic("what is this?")
		}
	}
	s, err := Open(t.Context(), o)
	must(t, err)
	defer s.Close()
	expect(t, contents(t, s), oldPod)
	must(t, s.Close())
	o.Reads = func(context.Context, *Store) { panic("what is this?") }
	if s, err := Open(t.Context(), o); err == nil || errors.Is(err, errCorrupt) {
		t.Errorf("a panic with a sound database: %v", err)
		if err == nil {
			_ = s.Close()
		}
	}
	if aside, _ := filepath.Glob(filepath.Join(dir, "hub.db.corrupt-*Z")); len(aside) != 1 {
		t.Errorf("put aside: %v", aside)
	}
}

func TestADamagedBackupIsSkippedForAnOlderOne(t *testing.T) {
	dir := history(t, true)
	bad := filepath.Join(dir, "backups", "hub-20261102T000000Z.db")
	must(t, copyFile(filepath.Join(dir, "backups", "hub-20261101T000000Z.db"), bad))
	damage(t, bad)
	damage(t, filepath.Join(dir, database))
	s := openIn(t, dir)
	expect(t, contents(t, s), oldPod)
}

func TestRestoreKeepsTheReplacedDatabase(t *testing.T) {
	dir := history(t, true)
	file := filepath.Join(dir, "backups", "hub-20261101T000000Z.db")
	must(t, Restore(t.Context(), options(t, dir), file))
	s := openIn(t, dir)
	expect(t, contents(t, s), oldPod)
	if rev, _ := s.Revision(t.Context()); rev != 20+revisionJump {
		t.Fatalf("revision %d", rev)
	}
	if r, _ := s.Recovered(t.Context()); r == nil || r.From != file {
		t.Fatalf("%+v", r)
	}
	if former, _ := filepath.Glob(filepath.Join(dir, "hub.db.before-restore-*Z")); len(former) != 1 {
		t.Fatal(former)
	}
}

func TestRestoreRefusesOtherFilesAndChangesNothing(t *testing.T) {
	dir := history(t, false)
	text := filepath.Join(t.TempDir(), "letter.txt")
	must(t, os.WriteFile(text, []byte("this text is not a database, despite its name ..."), 0o600))
	pipe := filepath.Join(t.TempDir(), "pipe.db")
	must(t, unix.Mkfifo(pipe, 0o600)) // the pipe has no writer
	for _, file := range []string{text, filepath.Join(dir, "missing.db"), pipe, dir} {
		if err := Restore(t.Context(), options(t, dir), file); err == nil || !strings.Contains(err.Error(), file) {
			t.Fatal(err)
		}
	}
	s := openIn(t, dir)
	if got := contents(t, s); len(got) != 2 {
		t.Fatal(got)
	}
	if r, _ := s.Recovered(t.Context()); r != nil {
		t.Fatalf("%+v", r)
	}
}

func TestABackupDoesNotOverwrite(t *testing.T) {
	s := openIn(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "mine.db")
	must(t, os.WriteFile(file, []byte("precious"), 0o600))
	if err := s.Backup(t.Context(), file); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), filepath.Join(file, "x.db")); err == nil {
		t.Fatal("backed up into a file")
	}
}

// The backup is in the file of that name, even if SQLite gives the name another meaning.
func TestABackupIsInTheNamedFile(t *testing.T) {
	s := openIn(t, t.TempDir())
	mustCommit(t, s, 1, pod("a", 1))
	t.Chdir(t.TempDir())
	names := []string{"file:x.db", "file:x.db?mode=memory", ":memory:", "a?b=c#d%20e", "-", " "}
	for _, name := range names {
		must(t, s.Backup(t.Context(), name))
		must(t, os.Chmod(name, 0o600))
	}
	entries, err := os.ReadDir(".")
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !slices.Contains(names, e.Name()) || info.Size() == 0 {
			t.Errorf("the directory has %q, %v", e.Name(), info)
		}
	}
	must(t, Restore(t.Context(), options(t, t.TempDir()), names[0]))
}

// A hub that is killed repeatedly during backups does not fill its disk with partial backups.
func TestPartialBackupsAreRemoved(t *testing.T) {
	o := options(t, t.TempDir())
	must(t, opened(t, o).Close())
	must(t, os.MkdirAll(filepath.Join(o.Dir, "backups"), 0o700))
	halves := []string{"backups/hub-20260102T030405Z.db.part", "backups/hub-20260102T030405Z.db.part-journal",
		"backups/before-schema-7-20260102T030405Z.db.part",
		"hub.db.before-restore-20260102T030405Z.part", "hub.db.before-restore-20260102T030405Z.restore",
		"hub.db.before-restore-20260102T030405Z-2.restore-wal"}
	whole := []string{
		"backups/hub-20260102T030405Z.db", "backups/before-schema-7-20260102T030405Z.db",
		"hub.db.before-restore-20260102T030405Z", "mine.part",
	}
	for _, name := range slices.Concat(halves, whole) {
		must(t, os.WriteFile(filepath.Join(o.Dir, name), []byte("x"), 0o600))
	}
	must(t, opened(t, o).Close())
	for _, name := range halves {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was not removed: %v", name, err)
		}
	}
	for _, name := range whole {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestADailyBackupIsKeptForAWeek(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), options(t, dir))
		must(t, err)
		defer s.Close()
		mustCommit(t, s, 1, pod("a", 1))
		go func() { _ = s.RunBackups(t.Context()) }() // ends with the test's context
		count := func() int {
			list, err := backups(dir)
			must(t, err)
			return len(list)
		}
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{30 * time.Second, 0}, {time.Minute, 1}, {23 * time.Hour, 1}, {time.Hour, 2}, {4 * 24 * time.Hour, 6},
			{10 * 24 * time.Hour, 7}} {
			time.Sleep(step.wait)
			synctest.Wait()
			if got := count(); got != step.want {
				t.Fatalf("%v later: %d backups, want %d", step.wait, got, step.want)
			}
		}
		if oldest, _ := backups(dir); !strings.Contains(oldest[0], time.Now().UTC().Format("200601")) {
			t.Fatalf("the newest were removed: %v", oldest)
		}
	})
}

// The backups may be on an unplugged stick. The hub then runs without backups. If it needs one, it
// does not start with an empty database.
func TestBackupsOnAnUnpluggedStick(t *testing.T) {
	dir, stick := t.TempDir(), filepath.Join(t.TempDir(), "stick")
	link := filepath.Join(dir, "backups")
	must(t, errors.Join(os.Mkdir(stick, 0o700), os.Symlink(stick, link)))
	s := openIn(t, dir)
	mustCommit(t, s, 1, pod("a", 1))
	_, err := s.BackUpNow(t.Context())
	must(t, errors.Join(err, s.Close(), os.Rename(stick, stick+".pulled")))

	s = openIn(t, dir)
	if _, err := s.BackUpNow(t.Context()); err == nil || !strings.Contains(err.Error(), "which is missing") {
		t.Errorf("a backup while the stick is unplugged: %v", err)
	}
	if list, _, err := s.Copies(); err != nil || len(list) > 0 {
		t.Errorf("Copies returns %v, %v", list, err)
	}
	must(t, errors.Join(s.Close(), os.WriteFile(filepath.Join(dir, database), []byte(strings.Repeat("no database", 1000)),
		0o600)))
	if s, err := Open(t.Context(), options(t, dir)); err == nil ||
		!strings.Contains(err.Error(), "which is missing") {
		t.Fatalf("a damaged database while the stick is unplugged: %v, %v", s, err)
	}
	must(t, os.Remove(filepath.Join(dir, database)))
	if s, err := Open(t.Context(), options(t, dir)); err == nil ||
		!strings.Contains(err.Error(), "which is missing") {
		t.Fatalf("a missing database while the stick is unplugged: %v, %v", s, err)
	}
	must(t, os.Rename(stick+".pulled", stick))
	s = openIn(t, dir)
	if r, err := s.Recovered(t.Context()); err != nil || r == nil || filepath.Dir(r.From) != link {
		t.Errorf("after the stick is back: %+v, %v", r, err)
	}
}

func TestAHubThatRestartsOftenStillBacksUpDaily(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for range 30 { // 10 h of restarts every 20 min
			s, err := Open(t.Context(), options(t, dir))
			must(t, err)
			ctx, cancel := contextFor(t, 20*time.Minute)
			must(t, s.RunBackups(ctx))
			cancel()
			must(t, s.Close())
		}
		if list, _ := backups(dir); len(list) != 1 {
			t.Fatalf("%d backups in ten hours: %v", len(list), list)
		}
	})
}

// The clock of a machine without a battery always starts in the past. Backups have the hub's time,
// which never goes back; otherwise the newest backup would be removed first.
func TestBackupsOfAHubWhoseClockStartsInThePast(t *testing.T) {
	dir := t.TempDir()
	for life := range 10 {
		synctest.Test(t, func(t *testing.T) { // each bubble starts at the same time
			s, err := Open(t.Context(), options(t, dir))
			must(t, err)
			defer s.Close()
			ahead := time.Duration(life) * 25 * time.Hour
			s.Now = func() time.Time { return time.Now().Add(ahead) }
			ctx, cancel := contextFor(t, 2*time.Minute)
			defer cancel()
			must(t, s.RunBackups(ctx))
			list, err := backups(dir)
			must(t, err)
			if want := s.Now().UTC().Format("hub-20060102"); len(list) != min(life+1, keptBackups) ||
				!strings.HasPrefix(filepath.Base(list[0]), want) {
				t.Fatalf("in run %d the backups are %v, want the newest of %s", life, list, want)
			}
		})
	}
}

// A restored database and its backups may come from a clock that was ahead. These backups do not
// displace new ones, and a damaged database is not replaced by one of them.
func TestBackupsFromTheFutureAreNotTheNewest(t *testing.T) {
	dir := history(t, true)
	synctest.Test(t, func(t *testing.T) {
		old, err := os.ReadFile(filepath.Join(dir, database))
		must(t, err)
		files, err := filepath.Glob(filepath.Join(dir, "backups", "*"))
		must(t, err)
		for _, file := range files {
			must(t, os.Remove(file))
		}
		for day := range 8 {
			must(t, os.WriteFile(filepath.Join(dir, "backups", time.Now().AddDate(36, 0, day).Format(backupForm)), old, 0o600))
		}
		s, err := Open(t.Context(), options(t, dir))
		must(t, err)
		mustCommit(t, s, s.rev+1, pod("newest", s.rev+1))
		ctx, cancel := contextFor(t, 3*time.Hour)
		defer cancel()
		must(t, s.RunBackups(ctx))
		list, err := filepath.Glob(filepath.Join(dir, "backups", "*"))
		must(t, err)
		if now := time.Now().UTC().Format("hub-20060102"); len(list) != keptBackups ||
			!strings.HasPrefix(filepath.Base(list[0]), now) || strings.HasPrefix(filepath.Base(list[1]), now) {
			t.Fatalf("in three hours the hub has made %v, want one backup", list)
		}
		must(t, s.Close())
		damage(t, filepath.Join(dir, database))
		s, err = Open(t.Context(), options(t, dir))
		must(t, err)
		defer s.Close()
		if r, err := s.Recovered(t.Context()); err != nil || r == nil || r.From != list[0] || len(contents(t, s)) != 3 {
			t.Errorf("the hub continues with %+v, want the backup of %s: %v", r, list[0], err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneTokenUsePerDevice(t *testing.T) {
	s := openIn(t, t.TempDir())
	now := time.Now()
	token := JoinToken{ID: "tok", Hash: []byte{1}, Site: "oslo", Uses: 5, Created: now, Expires: now.Add(time.Hour)}
	must(t, s.AddJoinToken(t.Context(), token))
	results := make(chan error)
	for i := range 20 {
		go func() {
			results <- s.TakeUse(t.Context(), Use{Node: fmt.Sprintf("pi-%d", i), Key: fmt.Sprint(i), Token: "tok", At: now})
		}()
	}
	in, out := 0, 0
	for range 20 {
		switch err := <-results; {
		case err == nil:
			in++
		case errors.Is(err, ErrUsedUp):
			out++
		default:
			t.Error(err)
		}
	}
	if in != 5 || out != 15 {
		t.Fatalf("%d joined, %d were refused", in, out)
	}
	all, err := s.Enrolments(t.Context())
	if err != nil || len(all) != 5 {
		t.Fatal(all, err)
	}
	// The same key again is the same join, because its response may have been lost.
	must(t, s.TakeUse(t.Context(), all[0]))
	stolen := all[0]
	stolen.Key = "another"
	if err := s.TakeUse(t.Context(), stolen); !errors.Is(err, ErrUsedUp) {
		t.Fatal(err)
	}
	must(t, s.RevokeJoinToken(t.Context(), "tok", now))
	if err := s.TakeUse(t.Context(), Use{Node: "late", Key: "k", Token: "tok", At: now}); !errors.Is(err, ErrUsedUp) {
		t.Fatal(err)
	}
}

// A file that was put aside is never overwritten.
func TestFilesPutAsideHaveUniqueNames(t *testing.T) {
	s := newStore(options(t, t.TempDir()), filepath.Join(t.TempDir(), database))
	seen := map[string]bool{}
	for range 3 {
		name := s.unusedName("before-restore", noon)
		if seen[name] {
			t.Fatal(name)
		}
		seen[name] = true
		must(t, os.WriteFile(name, nil, 0o600))
	}
}
