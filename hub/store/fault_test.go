package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/e2e/postgrestest"
)

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// TestMain runs the child process of the kill tests, or the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FLOTILLA_STORE_CHILD"); dir != "" {
		writeForEver(dir)
	}
	if dir := os.Getenv("FLOTILLA_STORE_MIGRATE"); dir != "" {
		n, _ := strconv.Atoi(os.Getenv("FLOTILLA_STORE_POINT"))
		dieAt(dir, n)
	}
	code := m.Run()
	postgrestest.End()
	os.Exit(code)
}

// writeForEver commits pods, and prints the name of each acknowledged pod.
func writeForEver(dir string) {
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: dir, Database: os.Getenv("FLOTILLA_STORE_DATABASE")})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	rev, err := s.Revision(ctx)
	for ; err == nil; rev++ {
		r := pod(fmt.Sprintf("p-%08d", rev+1), rev+1)
		if err = s.Commit(ctx, Commit{Rev: rev + 1, Rows: []Row{r}}); err == nil {
			_, err = fmt.Println(rev + 1)
		}
	}
	fmt.Println("error", err)
	os.Exit(1)
}

func TestKill9LosesNoAcknowledgedCommit(t *testing.T) {
	onBoth(t, nothingIsLostByKill9)
}

func nothingIsLostByKill9(t *testing.T, o Options) {
	acked := 0
	for round := range 12 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "FLOTILLA_STORE_CHILD="+o.Dir, "FLOTILLA_STORE_DATABASE="+o.Database)
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			v, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatal(lines.Text())
			}
			acked = v
			if n == 5+round*13 {
				must(t, child.Process.Kill())
			}
		}
		_ = child.Wait()
		s := opened(t, o)
		got := contents(t, s)
		rev, err := s.Revision(t.Context())
		must(t, err)
		if len(got) < acked || uint64(len(got)) != rev {
			t.Fatalf("round %d: %d acknowledged, %d stored, revision %d", round, acked, len(got), rev)
		}
		if r, err := s.Recovered(t.Context()); r != nil || err != nil {
			t.Fatalf("round %d: %+v %v", round, r, err)
		}
		must(t, s.Close())
	}
	t.Logf("%d acknowledged", acked)
}

// smallDisk mounts a file system of 24 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m,mode=0700"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("a disk that fills up needs root to mount a tmpfs: %v", err)
		}
		t.Skipf("a disk that fills up needs root to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestAFullDiskRefusesOnlyNewObjects(t *testing.T) {
	dir := smallDisk(t)
	s := openIn(t, dir)
	big := func(i int, rev uint64) Row {
		r := pod(fmt.Sprintf("big-%03d", i), rev)
		r.Object = []byte(`{"pad":"` + strings.Repeat("x", 200<<10) + `"}`)
		return r
	}
	var rev uint64
	var err error
	n := 0
	for ; n < 200 && err == nil; n++ {
		if err = s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{big(n, rev+1)}}); err == nil {
			rev++
		}
	}
	if !errors.Is(err, ErrFull) || !s.Full() {
		t.Fatalf("after %d: %v", n, err)
	}
	if _, err := os.Stat(s.ballast()); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the ballast was not given up")
	}
	if got := contents(t, s); uint64(len(got)) != rev {
		t.Fatalf("%d objects, %d acknowledged", len(got), rev)
	}
	if err := s.Commit(t.Context(), Commit{Rev: rev + 1, Rows: []Row{pod("new", rev+1)}}); !errors.Is(err, ErrFull) {
		t.Fatalf("a new object on a full disk: %v", err)
	}
	if err := s.AddAudit(t.Context(), Audit{}); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	// Objects can be changed and deleted; a new event is dropped.
	small := big(0, rev+1)
	small.Object = []byte(`{}`)
	event := Row{Kind: "events", Namespace: "default", Name: "e", Rev: rev + 1, Object: []byte("{}")}
	mustCommit(t, s, rev+1, small, event)
	if n, err := s.count(t.Context(), "events"); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	// A restart works on the full disk.
	must(t, s.Close())
	s = openIn(t, dir)
	if !s.Full() {
		t.Fatal("the store is not full after the restart")
	}
	var gone []Row
	for i := range n {
		gone = append(gone, Row{Kind: "pods", Namespace: "default", Name: big(i, 0).Name})
	}
	mustCommit(t, s, rev+2, gone...)
	mustCommit(t, s, rev+3, pod("new", rev+3))
	if s.Full() {
		t.Fatal("still full")
	}
	if info, err := os.Stat(s.ballast()); err != nil || info.Size() != ballastBytes {
		t.Fatal("the ballast was not created again", err)
	}
	must(t, quickCheck(t.Context(), s.conn))
	expect(t, contents(t, s), fmt.Sprintf(`pods default/new u-new %d pi-1 Running {"kind":"Pod","metadata":{"name":"new"}}`, rev+3))
}

// A backup, a copy from PostgreSQL and a restore that do not fit leave no files, because the files
// would fill the disk.
func TestAnInterruptedCopyLeavesNoFiles(t *testing.T) {
	dir := smallDisk(t)
	s := openIn(t, dir)
	big := pod("big", 1)
	big.Object = []byte(`{"pad":"` + strings.Repeat("x", 4<<20) + `"}`)
	mustCommit(t, s, 1, big)
	elsewhere := filepath.Join(t.TempDir(), "backup.db")
	must(t, s.Backup(t.Context(), elsewhere))
	free, err := freeBytes(dir)
	must(t, err)
	fill := filepath.Join(dir, "other")
	must(t, os.WriteFile(fill, make([]byte, free-2<<20), 0o600))
	there := func() string {
		t.Helper()
		var names []string
		must(t, filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasSuffix(file, "-wal") && !strings.HasSuffix(file, "-shm") ||
				strings.Contains(file, ".part") || strings.Contains(file, ".restore") {
				names = append(names, strings.TrimPrefix(file, dir))
			}
			return err
		}))
		return strings.Join(names, " ")
	}
	before := there()
	for what, do := range map[string]func() error{
		"a backup":      func() error { return s.backupNow(t.Context(), time.Now()) },
		"another place": func() error { return s.Backup(t.Context(), filepath.Join(dir, "mine.db")) },
		"from PostgreSQL": func() error {
			return s.backup(filepath.Join(dir, "copied.db"),
				func(part string) error { return s.fill(t.Context(), part, s.conn, nil) })
		},
	} {
		if err := do(); !errors.Is(err, ErrFull) {
			t.Errorf("%s: %v", what, err)
		}
		if got := there(); got != before {
			t.Errorf("%s left files besides %s: %s", what, before, got)
		}
	}
	must(t, s.Close())
	free, err = freeBytes(dir)
	must(t, err)
	must(t, os.WriteFile(fill+"wise", make([]byte, free-2<<20), 0o600))
	before = there()
	if err := Restore(t.Context(), options(t, dir), elsewhere); !errors.Is(err, unix.ENOSPC) {
		t.Error("a restore:", err)
	}
	if got := there(); got != before {
		t.Errorf("a restore left files besides %s: %s", before, got)
	}
	must(t, os.Remove(fill))
	before = there()
	// left by an interrupted restore
	must(t, os.WriteFile(filepath.Join(dir, "hub.db.restore"), make([]byte, 1<<10), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "hub.db.restore-wal"), nil, 0o600))
	must(t, openIn(t, dir).Close())
	if got := there(); got != before {
		t.Errorf("a start left files besides %s: %s", before, got)
	}
}

// A new backup replaces old ones if it fits then. Otherwise a grown database or a small disk would
// never get a new backup. If other files fill the disk, the old backups stay.
func TestANewBackupReplacesOldOnes(t *testing.T) {
	dir := smallDisk(t)
	s := openIn(t, dir)
	big := pod("big", 1)
	big.Object = []byte(`{"pad":"` + strings.Repeat("x", 2<<20) + `"}`)
	mustCommit(t, s, 1, big)
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	there := func() (days []int) {
		t.Helper()
		copies, _, err := s.Copies()
		must(t, err)
		for _, c := range copies {
			days = append(days, c.At.Day())
		}
		return days
	}
	for n := 1; n <= 12; n++ {
		rev := uint64(n + 1)
		mustCommit(t, s, rev, pod(fmt.Sprintf("p-%d", n), rev))
		if err := s.backupNow(t.Context(), day(n)); err != nil {
			t.Fatalf("day %d, with the backups %v: %v", n, there(), err)
		}
		if have := there(); have[0] != n || n > 1 && len(have) < 2 || s.Full() {
			t.Fatalf("day %d: the backups are %v, full: %v", n, have, s.Full())
		}
	}
	files, err := backups(dir)
	must(t, err)
	for _, file := range files[2:] {
		must(t, os.Remove(file))
	}
	more := pod("more", 20)
	more.Object = []byte(`{"pad":"` + strings.Repeat("x", 2<<20) + `"}`)
	mustCommit(t, s, 20, more)
	free, err := freeBytes(dir)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, free-256<<10), 0o600))
	before := there()
	if err := s.backupNow(t.Context(), day(13)); !errors.Is(err, ErrFull) {
		t.Error("a backup that does not fit:", err)
	}
	if got := there(); !slices.Equal(got, before) {
		t.Errorf("the backups are %v, want %v: one was removed in vain", got, before)
	}
}

// The copy before a migration replaces old backups too, because an upgraded hub could not start
// otherwise.
func TestAnUpgradeReplacesOldBackups(t *testing.T) {
	dumps, err := filepath.Glob("testdata/v*.sql")
	must(t, err)
	dir := smallDisk(t)
	must(t, copyFile(filepath.Join(fromDump(t, dumps[0]), database), filepath.Join(dir, database)))
	must(t, os.Mkdir(filepath.Join(dir, "backups"), 0o700))
	for n := range 7 {
		must(t, os.WriteFile(filepath.Join(dir, "backups", time.Date(2026, 11, 1+n, 0, 0, 0, 0, time.UTC).Format(backupForm)),
			make([]byte, 3<<20), 0o600))
	}
	free, err := freeBytes(dir)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, free-64<<10), 0o600))
	s := openIn(t, dir)
	if kept, _ := filepath.Glob(filepath.Join(dir, "backups", "before-schema-*.db")); len(kept) != 1 {
		t.Errorf("copies before the migration: %v", kept)
	}
	if list, err := backups(dir); len(list) != 6 || err != nil {
		t.Errorf("the backups are %v, %v", list, err)
	}
	must(t, quickCheck(t.Context(), s.conn))
}

// Another file in the place of the ballast does not mean that the disk is full. A sparse copy (`cp
// --sparse`, `tar -S`) does not reserve space.
func TestTheBallastReservesSpace(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(file string) error
		made bool
	}{
		{"a directory in place of the ballast counts as a full disk", func(file string) error {
			return os.MkdirAll(filepath.Join(file, "x"),
				0o700)
		}, false},
		{"a sparse copy is not filled", func(file string) error {
			return errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, ballastBytes))
		}, true},
		{"a file of another size is not replaced", func(file string) error {
			return os.WriteFile(file, make([]byte, ballastBytes+1),
				0o600)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, tt.do(filepath.Join(dir, "ballast")))
			s := openIn(t, dir)
			if s.Full() {
				t.Error("the disk counts as full")
			}
			var st unix.Stat_t
			if err := unix.Stat(s.ballast(), &st); err != nil ||
				tt.made && (st.Size != ballastBytes || st.Blocks*512 < ballastBytes) {
				t.Errorf("the ballast has %d bytes and takes %d on the disk: %v", st.Size, st.Blocks*512, err)
			}
			s.full.Store(true) // as on a full disk
			mustCommit(t, s, 1, pod("new", 1))
			if s.Full() {
				t.Error("the disk still counts as full")
			}
		})
	}
}

// engines runs a benchmark with each database and the durability of a hub.
func engines(b *testing.B, run func(b *testing.B, o Options)) {
	b.Run("sqlite", func(b *testing.B) { run(b, Options{Dir: b.TempDir(), Log: slog.New(slog.DiscardHandler)}) })
	b.Run("postgres", func(b *testing.B) {
		server := postgrestest.Start(b, "fsync=on", "full_page_writes=on", "shared_buffers=128MB", "max_wal_size=1GB")
		run(b, Options{Dir: b.TempDir(), Database: server.Database(), Log: slog.New(slog.DiscardHandler)})
	})
}

// BenchmarkCommit measures one durable commit of 2 kB objects into a database of 10,000 objects.
func BenchmarkCommit(b *testing.B) {
	engines(b, func(b *testing.B, o Options) {
		s, err := Open(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		rows := tenThousand("pods")
		if err := s.Commit(b.Context(), Commit{Rows: rows}); err != nil {
			b.Fatal(err)
		}
		for _, batch := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("rows=%d", batch), func(b *testing.B) {
				at := 0
				for b.Loop() {
					if at+batch > len(rows) {
						at = 0
					}
					if err := s.Commit(b.Context(), Commit{Rev: s.rev + 1, Rows: rows[at : at+batch]}); err != nil {
						b.Fatal(err)
					}
					at += batch
				}
				b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	})
}

// tenThousand returns 10,000 objects of 2 kB.
func tenThousand(kind string) []Row {
	rows := make([]Row, 10_000)
	for i := range rows {
		rows[i] = pod(fmt.Sprintf("p-%06d", i), 0)
		rows[i].Kind, rows[i].Object = kind, []byte(`{"pad":"`+strings.Repeat("x", 2000)+`"}`)
	}
	return rows
}

// BenchmarkOpen measures a start with 10,000 nodes of 2 kB: check, migration, load.
func BenchmarkOpen(b *testing.B) {
	engines(b, func(b *testing.B, o Options) {
		s, err := Open(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		rows := tenThousand("nodes")
		if err := errors.Join(s.Commit(b.Context(), Commit{Rows: rows}), s.Close()); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			s, err := Open(b.Context(), o)
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			if err := errors.Join(s.Load(b.Context(), func(Row) error { n++; return nil }), s.Close()); err != nil ||
				n != len(rows) {
				b.Fatal(n, err)
			}
		}
	})
}
