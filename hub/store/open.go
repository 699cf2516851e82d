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

// errCorrupt: the file is no database any more, or a damaged one.
var errCorrupt = errors.New("database is corrupt")

// SQLite's primary result codes that the store tells apart.
const (
	sqliteBusy     = 5
	sqliteReadOnly = 8
	sqliteIOErr    = 10
	sqliteCorrupt  = 11
	sqliteFull     = 13
	sqliteCantOpen = 14
	sqliteNotADB   = 26
)

// SQLite's extended result codes of an I/O error in reading.
const (
	sqliteIOErrRead      = sqliteIOErr | 1<<8
	sqliteIOErrShortRead = sqliteIOErr | 2<<8
)

// explain gives SQLite's errors the sentinel that says what to do about them.
func (s *Store) explain(err error) error {
	if s.pg != nil {
		return s.pg.explain(err)
	}
	var e *sqlite.Error
	// explained already
	if !errors.As(err, &e) || errors.Is(err, ErrFull) || errors.Is(err, ErrUnavailable) || errors.Is(err, errCorrupt) {
		return err
	}
	switch e.Code() & 0xff {
	case sqliteBusy:
		if s.shared {
			return fmt.Errorf("somebody else has been writing to %s for some seconds: nothing was changed, run this again: %w",
				s.file, err)
		}
		return fmt.Errorf("%w: somebody else has been writing to %s for some seconds: end what has it open, as sqlite3 or "+
			"a command that hangs: %w", ErrUnavailable, s.file, err)
	case sqliteFull:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case sqliteIOErr: // some file systems refuse to grow the log's index with this one
		if free, ferr := freeBytes(s.dir); ferr == nil && free < 1<<20 || errors.Is(s.grows(), unix.EDQUOT) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		code := e.Code()
		return s.failing(err, code == sqliteIOErrRead || code == sqliteIOErrShortRead)
	case sqliteReadOnly, sqliteCantOpen:
		return s.failing(err, false)
	case sqliteCorrupt, sqliteNotADB:
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return err
}

// failing is an error of a disk, or of a file system that has become read-only. In writing it may be
// over soon, and the hub reads and shows meanwhile; what cannot be read will not be there later either.
func (s *Store) failing(err error, reading bool) error {
	err = fmt.Errorf("the disk with %s fails (see `dmesg`; one that is worn out becomes read-only): if that does not "+
		"end copy %s to another one, or restore a backup there: %w", s.file, s.dir, err)
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
			s.log.Warn("the disk of the database is nearly full: nothing new is remembered until there is space", "where",
				s.where())
		}
		return err
	}
	err := s.openDatabase(ctx, o)
	if errors.Is(err, ErrFull) && s.giveUpBallast() { // its log needs some room even to read
		err = s.openDatabase(ctx, o)
	}
	if errors.Is(err, errCorrupt) && o.moving {
		return fmt.Errorf("%w; start `flotilla-hub serve` once, which goes on with the newest backup, and look at what "+
			"that has", err)
	}
	if errors.Is(err, errCorrupt) {
		err = s.recover(ctx, o, err)
	}
	if err != nil {
		return err
	}
	if err := s.openWitness(ctx); err != nil {
		s.log.Warn("how far the database is cannot be noted beside it", "err", err)
	}
	s.witness.saw(s.progress())
	if s.seal, err = s.openSealer(ctx); err != nil {
		return err
	}
	if !s.makeBallast() {
		s.full.Store(true)
		s.log.Warn("the disk of the data directory is nearly full: nothing new is remembered until there is space", "dir",
			s.dir)
	}
	return nil
}

// openDatabase connects, checks and migrates the database in s.file.
func (s *Store) openDatabase(ctx context.Context, o Options) (err error) {
	defer func() {
		if err != nil {
			err = s.explain(err)
			_ = s.disconnect()
		}
	}()
	if err := s.notLost(); err != nil {
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
	if err := s.whole(ctx, o, have); err != nil {
		return fmt.Errorf("check %s: %w", s.file, err)
	}
	saw, is, err := s.progresses(ctx, have)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.file, err)
	}
	if have < latest() {
		if have > 0 {
			kept, err := s.keepBefore(ctx)
			if err != nil {
				return fmt.Errorf("keep the database before migrating it: %w", err)
			}
			s.log.Info("database is migrated", "from", have, "to", latest(), "kept", kept)
		}
		if err := s.migrate(ctx, have, o); err != nil {
			return err
		}
	}
	if err := s.begin(ctx, o); err != nil {
		return err
	}
	if s.file == filepath.Join(s.dir, database) && is.before(saw) {
		return s.outlived(ctx, o, is, saw)
	}
	return nil
}

// begin gives a database what each has from its beginning, and reads how far it is.
func (s *Store) begin(ctx context.Context, o Options) (err error) {
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

// notLost refuses to begin with an empty database where there was a full one:
// SQLite takes a missing or empty file for a new database.
func (s *Store) notLost() error {
	if filepath.Base(s.file) != database {
		return nil
	}
	if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
		return nil
	}
	if wasInPostgres(s.dir) { // a backup, or an empty database, would be a second one
		return placeLost(s.dir)
	}
	if list, err := backups(s.dir); len(list) > 0 || err != nil {
		return fmt.Errorf("%w: %s is empty or missing although it has backups", errCorrupt, s.file)
	}
	if saw := witnessed(s.dir).rev; saw > 0 {
		return fmt.Errorf("%w: %s is empty or missing although it was of revision %d", errCorrupt, s.file, saw)
	}
	return nil
}

// placeLost refuses a directory whose database is in PostgreSQL, nobody knows where.
func placeLost(dir string) error {
	return fmt.Errorf("open %s: there is none, and the database of this hub was in PostgreSQL, but the file %s, which "+
		"says where, is missing: start the hub once with --database postgres://USER@HOST:5432/NAME; or, to give up what "+
		"is there, `flotilla-hub restore` the newest of %s",
		filepath.Join(dir, database), filepath.Join(dir, placeFile), filepath.Join(dir, "backups"))
}

// whole looks whether the database is. Of a large one each byte is read for that, and again
// by whoever reads what it holds: the two go on side by side.
func (s *Store) whole(ctx context.Context, o Options, have int) (err error) {
	if o.Reads == nil || have != latest() || s.file != filepath.Join(s.dir, database) {
		return quickCheck(ctx, s.conn)
	}
	if s.seal, err = s.openSealer(ctx); err != nil {
		return quickCheck(ctx, s.conn) // the sealer says it again of a database that is whole
	}
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() (err error) {
		defer panics.CatchThen("check", func(failed error) { err = failed })
		return quickCheck(ctx, s.conn)
	})
	var mistake error // of who reads what may be damaged: the check has the first word
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

// removeDatabase removes one of SQLite's with all that lies beside it: what fails in the middle, as on a full disk,
// leaves its log or its journal.
func removeDatabase(file string) error {
	var errs []error
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		errs = append(errs, remove(file+end))
	}
	return errors.Join(errs...)
}

// where is the database, as people see it.
func (s *Store) where() string {
	if s.pg != nil {
		return s.pg.where
	}
	return s.file
}

// OpenShared opens the store of a data directory for a command that works while
// the hub runs: it takes no lock, migrates nothing and repairs nothing. Commit
// is refused: objects have one writer, the hub.
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
	// what is missing is said below
	if s.used, err = use(ctx, o.Dir, with); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	url, err := place(o)
	if err != nil {
		return err
	}
	if url != "" {
		return s.sharePostgres(ctx, o, url)
	}
	// there is none, or a hub is about to make it
	if info, err := os.Stat(s.file); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return fmt.Errorf("open %s: %w: no hub has run here yet; start `flotilla-hub serve --data-dir %s` once, or name "+
			"its directory with --data-dir", s.file, ErrNotFound, o.Dir)
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
	case have == 0: // in this moment one begins
		return fmt.Errorf("open %s: %w: the hub here has not finished its first start; run this again", s.file, ErrNotFound)
	case have > latest(): // since a moment ago
		return fmt.Errorf("open %s: %w", s.file, ErrNewer)
	case have < latest():
		return fmt.Errorf("open %s: it has schema %d and this program works with %d: start the new `flotilla-hub serve` "+
			"once, it migrates the database", s.file, have, latest())
	}
	return nil
}
