package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite"

	"flotilla.dev/hub/owner"
	"flotilla.dev/hub/panics"
)

// errCorrupt: the file is not a database, or is a damaged one.
var errCorrupt = errors.New("database is corrupt")

// SQLite's primary result codes that need their own handling.
const (
	sqliteBusy     = 5
	sqliteReadOnly = 8
	sqliteIOErr    = 10
	sqliteCorrupt  = 11
	sqliteFull     = 13
	sqliteCantOpen = 14
	sqliteNotADB   = 26
)

// SQLite's extended result codes of failed reads.
const (
	sqliteIOErrRead      = sqliteIOErr | 1<<8
	sqliteIOErrShortRead = sqliteIOErr | 2<<8
)

// explain wraps an SQLite error in the sentinel that tells the caller what to do.
func (s *Store) explain(err error) error {
	if s.pg != nil {
		return s.pg.explain(err)
	}
	var e *sqlite.Error
	// Such an error has already been explained.
	if !errors.As(err, &e) || errors.Is(err, ErrFull) || errors.Is(err, ErrUnavailable) || errors.Is(err, errCorrupt) {
		return err
	}
	switch e.Code() & 0xff {
	case sqliteBusy:
		if s.shared {
			return fmt.Errorf("another process has been writing to %s for some seconds: nothing was changed; run this again: %w",
				s.file, err)
		}
		return fmt.Errorf("%w: another process has been writing to %s for some seconds: end it, for example sqlite3 or a "+
			"command that hangs: %w", ErrUnavailable, s.file, err)
	case sqliteFull:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case sqliteIOErr: // some file systems return this code when the log's index cannot grow
		if free, ferr := freeBytes(s.dir); ferr == nil && free < 1<<20 || errors.Is(s.probeWrite(), unix.EDQUOT) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		code := e.Code()
		return s.diskError(err, code == sqliteIOErrRead || code == sqliteIOErrShortRead)
	case sqliteReadOnly, sqliteCantOpen:
		return s.diskError(err, false)
	case sqliteCorrupt, sqliteNotADB:
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return err
}

// diskError returns the error of a failing disk or a read-only file system. A failed write may be
// temporary, and the hub goes on serving reads. A failed read is permanent.
func (s *Store) diskError(err error, reading bool) error {
	err = fmt.Errorf("the disk with %s fails (see `dmesg`; a worn-out disk becomes read-only): if that does not end, "+
		"copy %s to another disk, or restore a backup there: %w", s.file, s.dir, err)
	if s.shared || reading {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func (s *Store) open(ctx context.Context, o Options) error {
	if s.pg != nil {
		err := s.openPostgres(ctx, o)
		if err == nil && s.pg.token != 0 && !s.makeServerBallast(ctx) {
			s.full.Store(true)
			s.log.Warn("the disk of the database is nearly full: new objects are refused until there is space", "where",
				s.where())
		}
		return err
	}
	err := s.openDatabase(ctx, o)
	if errors.Is(err, ErrFull) && s.giveUpBallast() { // even a read needs some space for the log
		err = s.openDatabase(ctx, o)
	}
	if errors.Is(err, errCorrupt) && o.moving {
		return fmt.Errorf("%w; start `flotilla-hub serve` once, which restores the newest backup, and look at what "+
			"that has", err)
	}
	if errors.Is(err, errCorrupt) {
		err = s.recover(ctx, o, err)
	}
	if err != nil {
		return err
	}
	if err := s.openHighWater(ctx); err != nil {
		s.log.Warn("cannot write the database's high-water mark", "err", err)
	}
	s.highWater.write(s.progress())
	if s.seal, err = s.openSealer(ctx); err != nil {
		return err
	}
	if !s.makeBallast() {
		s.full.Store(true)
		s.log.Warn("the disk of the data directory is nearly full: new objects are refused until there is space", "dir",
			s.dir)
	}
	return nil
}

// openDatabase connects to, checks and migrates the database in s.file.
func (s *Store) openDatabase(ctx context.Context, o Options) (err error) {
	defer func() {
		if err != nil {
			err = s.explain(err)
			_ = s.disconnect()
		}
	}()
	if err := s.refuseLost(); err != nil {
		return err
	}
	if err := s.notNewer(ctx, o); err != nil {
		return err
	}
	if s.written.IsZero() {
		s.written = s.lastWritten()
	}
	if err := s.connect(ctx); err != nil {
		return fmt.Errorf("open %s: %w", s.file, err)
	}
	have, err := s.schema(ctx)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.file, err)
	}
	if err := s.checkDatabase(ctx, o, have); err != nil {
		return fmt.Errorf("check %s: %w", s.file, err)
	}
	mark, current, err := s.progresses(ctx, have)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.file, err)
	}
	if have < latest() {
		if have > 0 {
			kept, err := s.copyBeforeMigration(ctx)
			if err != nil {
				return fmt.Errorf("keep the database before migrating it: %w", err)
			}
			s.log.Info("migrating the database", "from", have, "to", latest(), "kept", kept)
		}
		if err := s.migrate(ctx, have, o); err != nil {
			return err
		}
	}
	if err := s.initialize(ctx, o); err != nil {
		return err
	}
	if s.file == filepath.Join(s.dir, database) && current.before(mark) {
		return s.resumeOlder(ctx, o, current, mark)
	}
	return nil
}

// initialize writes the initial values of a new database, and reads its progress.
func (s *Store) initialize(ctx context.Context, o Options) (err error) {
	if err := s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		const initial = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
		if _, err := c.ExecContext(ctx, initial, metaHubID, newHubID()); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, initial, metaRevision, "0"); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, setMeta, metaVersion, o.Version)
		return err
	}); err != nil {
		return err
	}
	s.rev, err = s.Revision(ctx)
	return err
}

// refuseLost refuses an empty database if the directory had one with content. SQLite takes a
// missing or empty file for a new database.
func (s *Store) refuseLost() error {
	if filepath.Base(s.file) != database {
		return nil
	}
	if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
		return nil
	}
	if lastInPostgres(s.dir) { // the database is in PostgreSQL, so a backup or an empty one would be a second database
		return errPlaceLost(s.dir)
	}
	if list, err := backups(s.dir); len(list) > 0 || err != nil {
		return fmt.Errorf("%w: %s is empty or missing although it has backups", errCorrupt, s.file)
	}
	if mark := readHighWater(s.dir).rev; mark > 0 {
		return fmt.Errorf("%w: %s is empty or missing although it was at revision %d", errCorrupt, s.file, mark)
	}
	return nil
}

// errPlaceLost refuses a directory whose database is in PostgreSQL at an unknown address.
func errPlaceLost(dir string) error {
	return fmt.Errorf("open %s: it does not exist: this hub's database was in PostgreSQL, but the file %s with its "+
		"address is missing: start the hub once with --database postgres://USER@HOST:5432/NAME; or, to give up that "+
		"database, run `flotilla-hub restore` with the newest of %s",
		filepath.Join(dir, database), filepath.Join(dir, placeFile), filepath.Join(dir, "backups"))
}

// checkDatabase checks the database. The check reads each byte of a large file, as loading the
// fleet does, so both run at the same time.
func (s *Store) checkDatabase(ctx context.Context, o Options, have int) (err error) {
	if o.Reads == nil || have != latest() || s.file != filepath.Join(s.dir, database) {
		return quickCheck(ctx, s.conn)
	}
	if s.seal, err = s.openSealer(ctx); err != nil {
		return quickCheck(ctx, s.conn) // if the database is sound, the sealer reports the error again
	}
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() (err error) {
		defer panics.CatchThen("check", func(failed error) { err = failed })
		return quickCheck(ctx, s.conn)
	})
	var mistake error // error of the reader; the result of the check takes precedence
	work.Go(func() error {
		defer panics.CatchThen("start", func(failed error) { mistake = failed })
		o.Reads(ctx, s)
		return nil
	})
	if err := work.Wait(); err != nil {
		return err
	}
	return mistake
}

func quickCheck(ctx context.Context, c *conn) error {
	var verdict string
	if err := c.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", errCorrupt, verdict)
	}
	return nil
}

func newHubID() string { return strings.ToLower(rand.Text()) }

// copyFile copies a file into a data directory.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = owner.Give(out, filepath.Dir(to))
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

func syncFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// removeDatabase removes an SQLite database with its log and journal. Both may remain after an
// interruption or on a full disk.
func removeDatabase(file string) error {
	var errs []error
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		errs = append(errs, remove(file+end))
	}
	return errors.Join(errs...)
}

// where names the database for users.
func (s *Store) where() string {
	if s.pg != nil {
		return s.pg.where
	}
	return s.file
}

// OpenShared opens the store of a data directory for a command while the hub runs. It takes no
// lock, migrates nothing and repairs nothing. Commit is refused, because only the hub writes
// objects.
func OpenShared(ctx context.Context, o Options) (*Store, error) {
	s := newStore(o, filepath.Join(o.Dir, database))
	s.shared = true
	err := s.openShared(ctx, o)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) openShared(ctx context.Context, o Options) (err error) {
	// A missing directory is reported below.
	if s.used, err = lockUse(ctx, o.Dir, lockShared); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	url, err := place(o)
	if err != nil {
		return err
	}
	if url != "" {
		return s.sharePostgres(ctx, o, url)
	}
	// The file is missing, or a hub is about to create it.
	if info, err := os.Stat(s.file); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return fmt.Errorf("open %s: %w: no hub has run here yet; start `flotilla-hub serve --data-dir %s` once, or name "+
			"the hub's directory with --data-dir", s.file, ErrNotFound, o.Dir)
	} else if err != nil {
		return fmt.Errorf("open %s: %w; run this as the user of the hub", s.file, err)
	}
	if err := s.notNewer(ctx, o); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return fmt.Errorf("open %s: %w", s.file, err)
	}
	have, err := s.schema(ctx)
	switch {
	case err != nil:
		return err
	case have == 0: // a hub is creating the database
		return fmt.Errorf("open %s: %w: the hub has not finished its first start; run this again", s.file, ErrNotFound)
	case have > latest(): // migrated since the check above
		return fmt.Errorf("open %s: %w", s.file, ErrNewer)
	case have < latest():
		return fmt.Errorf("open %s: it has schema %d and this program works with %d: start the new `flotilla-hub serve` "+
			"once, which migrates the database", s.file, have, latest())
	}
	return nil
}
