package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"flotilla.dev/hub/owner"
	"flotilla.dev/shared/fsync"
)

const (
	keptBackups = 7
	backupEvery = 24 * time.Hour
	backupGlob  = "hub-*.db"
	backupForm  = "hub-20060102T150405Z.db"
)

func fileStamp(t time.Time) string { return t.UTC().Format("20060102T150405Z") }

// unusedName returns an unused file name for a database that is put aside. Two databases may be put
// aside in one second.
func (s *Store) unusedName(why string, at time.Time) string {
	name := s.file + "." + why + "-" + fileStamp(at)
	for n, first := 2, name; ; n++ {
		if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) || n > 99 {
			return name
		}
		name = fmt.Sprintf("%s-%d", first, n)
	}
}

// Backup writes a consistent copy of the database to a new SQLite file with mode 0600, while the
// hub runs. Secrets in it stay sealed; their key is not in it.
func (s *Store) Backup(ctx context.Context, file string) error {
	if s.pg != nil {
		return s.backup(file, func(part string) error { return s.export(ctx, part) })
	}
	return s.backup(file, func(part string) error { return s.vacuumInto(ctx, part) })
}

// backup creates a file and lets write fill it, completely or not at all.
func (s *Store) backup(file string, write func(part string) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up to %s: %w", file, s.explain(err))
		}
	}()
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%w; choose another name", ErrExists)
	}
	dir := filepath.Dir(file)
	if dir == filepath.Join(s.dir, "backups") {
		if err := s.backupsDir(dir); err != nil {
			return err
		}
	}
	part := file + ".part"
	if err := removeDatabase(part); err != nil {
		return err
	}
	defer func() { _ = removeDatabase(part) }()
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) // SQLite fills an empty file and keeps its mode
	if err != nil {
		return err
	}
	defer f.Close()
	if err := s.giveToOwner(f); err != nil {
		return err
	}
	full, err := filepath.Abs(part) // SQLite takes a name that begins with "file:" for a URI
	if err == nil {
		err = write(full)
	}
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(part, file); err != nil {
		return err
	}
	return fsync.Dir(dir)
}

// backupsDir creates the directory of the daily backups.
func (s *Store) backupsDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return danglingLink(dir)
		}
		return err
	}
	return owner.GiveDirectory(dir, s.dir)
}

// danglingLink returns an error if dir is a link whose target is missing, such as an unplugged USB
// stick.
func danglingLink(dir string) error {
	to, err := os.Readlink(dir)
	if err != nil {
		return nil
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%s links to %s, which is missing: mount it, or remove the link: %w", dir, to, err)
	}
	return nil
}

// matching returns the files in dir whose names match a pattern. The pattern must not contain dir,
// whose name may have a [ in it.
func matching(dir, form string) ([]string, error) {
	list, err := fs.Glob(os.DirFS(dir), form)
	for i, name := range list {
		list[i] = filepath.Join(dir, name)
	}
	return list, err
}

// leftovers are the patterns of files that a killed backup or restore may leave.
var leftovers = []string{
	database + ".restore*", "backups/" + backupGlob + ".part*", "backups/before-schema-*.db.part*",
	database + ".before-restore-*.part*", database + ".before-restore-*.restore*",
}

// removeLeftovers removes the leftovers. The caller holds the lock of the data directory.
func (s *Store) removeLeftovers() {
	for _, form := range leftovers {
		files, err := matching(s.dir, form)
		for _, file := range files {
			err = errors.Join(err, remove(file))
		}
		if err != nil {
			s.log.Warn("cannot remove the files of an interrupted backup", "err", err)
		}
	}
}

const vacuumInto = "VACUUM INTO ?"

func (s *Store) vacuumInto(ctx context.Context, file string) error {
	if !s.fileInPlace() {
		return fmt.Errorf("%w: %s was moved or removed", ErrUnavailable, s.file)
	}
	db, err := sql.Open("sqlite", dsn(s.file))
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, vacuumInto, file)
	return err
}

// backups lists the daily backups of a data directory, newest name first.
func backups(dir string) ([]string, error) {
	dir = filepath.Join(dir, "backups")
	if err := danglingLink(dir); err != nil {
		return nil, err
	}
	list, err := matching(dir, backupGlob)
	slices.Sort(list)
	slices.Reverse(list)
	return list, err
}

// newestFirst sorts backups by the progress of their databases, newest first and unreadable ones
// last. Their names do not count, because they may come from a wrong clock.
func newestFirst(ctx context.Context, list []string) []string {
	is := map[string]progress{}
	for _, file := range list {
		if db, err := sql.Open("sqlite", dsnReadOnly(file)); err == nil {
			is[file], _ = progressOf(ctx, db)
			_ = db.Close()
		}
	}
	slices.SortStableFunc(list, func(a, b string) int {
		switch {
		case is[b].before(is[a]):
			return -1
		case is[a].before(is[b]):
			return 1
		}
		return 0
	})
	return list
}

// A Copy is one of the daily backups.
type Copy struct {
	File  string
	At    time.Time
	Bytes int64
}

// Copies lists the backups in the data directory, newest name first, and returns when the next one
// is due.
func (s *Store) Copies() (copies []Copy, next time.Time, err error) {
	files, err := backups(s.dir)
	if errors.Is(err, fs.ErrNotExist) { // the disk of the backups is not mounted
		err = nil
	}
	for _, file := range files {
		at, perr := time.Parse(backupForm, filepath.Base(file))
		info, serr := os.Stat(file)
		if perr == nil && serr == nil { // skip other files, and backups that were removed meanwhile
			copies = append(copies, Copy{file, at, info.Size()})
		}
	}
	return copies, s.nextBackup(), err
}

func (s *Store) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// BackUpNow makes a backup like the daily ones, and returns its file. It keeps the newest seven
// backups.
func (s *Store) BackUpNow(ctx context.Context) (string, error) {
	now := s.now()
	return filepath.Join(s.dir, "backups", now.UTC().Format(backupForm)), s.backupNow(ctx, now)
}

// RunBackups backs up the database every 24 hours, also across restarts, and keeps the newest seven
// backups. It returns when ctx ends.
func (s *Store) RunBackups(ctx context.Context) error {
	wait := s.nextBackup().Sub(s.now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(wait, time.Minute)): // so that a backup does not slow down a start
		}
		err := s.backupNow(ctx, s.now())
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Error("daily backup failed; the next attempt is in an hour", "err", err)
			wait = time.Hour
		default:
			wait = s.nextBackup().Sub(s.now())
		}
	}
}

// LastBackup returns when the newest backup was made; zero: never.
func (s *Store) LastBackup() (time.Time, error) { return NewestBackup(s.dir, s.now()) }

func (s *Store) nextBackup() time.Time {
	last, _ := s.LastBackup()
	if last.IsZero() {
		return last
	}
	return last.Add(backupEvery)
}

func (s *Store) backupNow(ctx context.Context, now time.Time) error {
	s.makeRoom(ctx)
	if s.Full() {
		return ErrFull
	}
	if err := s.Backup(ctx, filepath.Join(s.dir, "backups", now.UTC().Format(backupForm))); err != nil {
		return err
	}
	list, err := backups(s.dir)
	errs := []error{err}
	for _, old := range newestFirst(ctx, list)[min(len(list), keptBackups):] {
		errs = append(errs, remove(old))
	}
	return errors.Join(errs...)
}

// makeRoom removes the oldest backups if the next one would not fit, because a grown database would
// otherwise never get a new backup. The newest backup always stays. If the removal would not free
// enough, all backups stay, and the next backup fails with the cause.
func (s *Store) makeRoom(ctx context.Context) {
	const besides = 1 << 20 // space for what the hub writes meanwhile
	need, err := s.backupBytes(ctx)
	if err != nil {
		return
	}
	need += besides
	if s.Full() {
		need += 2 * ballastBytes
	}
	free, err := freeBytes(filepath.Join(s.dir, "backups"))
	if err != nil || free >= need {
		return
	}
	list, err := backups(s.dir)
	if err != nil {
		return
	}
	list = newestFirst(ctx, list)
	keep := len(list)
	for ; keep > 1 && free < need; keep-- {
		if info, err := os.Stat(list[keep-1]); err == nil {
			free += info.Size()
		}
	}
	if free < need {
		return
	}
	for _, old := range list[keep:] {
		s.log.Warn("removing an old backup: the disk has no space for another one; give the hub a larger disk",
			"file", old, "err", remove(old))
	}
}

// backupBytes estimates the size of a backup.
func (s *Store) backupBytes(ctx context.Context) (n int64, err error) {
	query := "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), pragma_freelist_count(), " +
		"pragma_page_size()"
	if s.pg != nil {
		query = "SELECT pg_database_size(current_database())"
	}
	err = s.row(ctx, []any{&n}, query)
	return n, err
}
