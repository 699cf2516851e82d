package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"flotilla.dev/shared/fsync"
)

// Keys of meta in a database that was moved, and in its target.
const (
	metaMoved    = "moved"     // target address
	metaCameFrom = "came-from" // the source's origin: hub, revision and end of the audit
)

// A Moved is the result of Move.
type Moved struct {
	From, To string // as shown to users
	Objects  int
	Kept     string // new name of the former file; "": there was no file
}

// Move moves a stopped hub's database from SQLite to PostgreSQL or back, completely or not at all.
// to is PostgreSQL's address, a file that contains it, or SQLite. The hub then uses the target. The
// source stays unchanged, but no hub opens it any more. Move refuses a target that is not empty.
func Move(ctx context.Context, o Options, to string) (Moved, error) {
	used, err := lockUse(ctx, o.Dir, lockExclusive)
	if err != nil {
		return Moved{}, fmt.Errorf("migrate: %w", err)
	}
	defer used.Close()
	if to != SQLite {
		o.Database = SQLite
	} else if url, err := place(o); err != nil {
		return Moved{}, err
	} else if url == "" {
		return Moved{}, fmt.Errorf("migrate to SQLite: %w: the database is hub.db in %s already", ErrExists, o.Dir)
	}
	if to != SQLite {
		if m, err := alreadyThere(ctx, o, to); m.To != "" || err != nil {
			return m, err
		}
		if _, err := os.Stat(filepath.Join(o.Dir, database)); err != nil { // connect would create a database
			return Moved{}, fmt.Errorf("migrate: %w: there is no database to move; start with `flotilla-hub serve --database "+
				"%s`", err, "postgres://…")
		}
	}
	o.moving = true
	s, err := Open(ctx, o)
	if away := (errMoved{}); to == SQLite && errors.As(err, &away) && away.file != "" {
		return finishMove(ctx, o, away)
	}
	if err != nil {
		return Moved{}, fmt.Errorf("migrate: %w", err)
	}
	defer s.Close()
	if err := s.flushAudits(nil); err != nil {
		return Moved{}, err
	}
	if to == SQLite {
		return s.moveToFile(ctx, o)
	}
	return s.moveToPostgres(ctx, o, to)
}

// alreadyThere handles a database that the directory already notes as being in PostgreSQL. If an
// interrupted move has left hub.db, alreadyThere puts it aside.
func alreadyThere(ctx context.Context, o Options, to string) (m Moved, err error) {
	o.Database = ""
	is, err := place(o)
	if err != nil || is == "" {
		return m, err
	}
	o.Database = to
	wanted, err := place(o)
	if err != nil {
		return m, err
	}
	lock, err := takeLock(o.Dir, adviceCommand)
	if err != nil {
		return m, err
	}
	defer lock.Close()
	s := newStore(o, filepath.Join(o.Dir, database))
	p := newStore(o, s.file)
	p.shared = true
	defer p.Close()
	if err := p.sharePostgres(ctx, o, is); err != nil {
		return m, err
	}
	if _, err := os.Stat(s.file); is != wanted || err != nil {
		return m, fmt.Errorf("migrate: %w: the database of %s is already %s; to move it elsewhere, run `flotilla-hub "+
			"migrate --to sqlite` first", ErrExists, o.Dir, p.pg.where)
	}
	m.From, m.To = s.file, p.pg.where
	if m.Objects, err = objects(ctx, p.conn); err != nil {
		return m, err
	}
	former := newStore(o, s.file)
	if err := former.connect(ctx); err != nil { // connecting checkpoints the log
		return m, errors.Join(err, former.disconnect())
	}
	m.Kept, err = former.putAside()
	return m, err
}

// putAside closes the former database and renames it so that no hub opens it.
func (s *Store) putAside() (kept string, err error) {
	if err := s.disconnect(); err != nil {
		return "", err
	}
	s.giveUpBallast()
	kept = s.unusedName("before-migrate", time.Now())
	if err := os.Rename(s.file, kept); err != nil {
		return "", err
	}
	return kept, fsync.Dir(s.dir)
}

// moved returns the audit record of a move.
func moved(by, from, to string) Audit {
	a := Audit{
		At: time.Now(), Who: "the hub", Verb: "migrate", Resource: "databases", Name: to, Code: 200, Message: "from " + from,
	}
	if by != "" {
		a.Who, a.Via = by, "command line"
	}
	return a
}

// jumpRevision moves the revision past all that clients have seen, so that watches list again.
func (s *Store) jumpRevision(ctx context.Context, c *conn) error {
	rev := max(s.rev, readHighWater(s.dir).rev) + revisionJump
	_, err := c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10))
	return err
}

func (s *Store) moveToPostgres(ctx context.Context, o Options, to string) (m Moved, err error) {
	o.Database = to
	url, err := place(o)
	if err != nil {
		return m, err
	}
	t := newStore(o, s.file)
	if t.pg, err = parsePostgres(url, o.timeouts, s.log); err != nil {
		return m, err
	}
	m.From, m.To = s.file, t.pg.where
	defer func() {
		if err != nil {
			err = fmt.Errorf("migrate to %s: %w", m.To, t.explain(err))
		}
		_ = t.disconnect()
	}()
	t.lock = s.lock
	t.connectPostgres()
	if err := t.reconnect(ctx); err != nil {
		return m, err
	}
	have, err := t.checkServer(ctx, o)
	if err != nil {
		return m, err
	}
	if m.Objects, err = s.copyTo(ctx, t, have, o); err != nil {
		return m, err
	}
	m.Kept, err = s.putAside()
	return m, err
}

// copyTo copies the database to PostgreSQL, and notes in the directory that the hub uses it. If an
// interrupted move has already copied, it only writes the note.
func (s *Store) copyTo(ctx context.Context, t *Store, have int, o Options) (n int, err error) {
	from, err := origin(ctx, s.conn)
	if err != nil {
		return 0, err
	}
	if n, err = objects(ctx, s.conn); err != nil {
		return 0, err
	}
	if have > 0 {
		if was, err := valueOf(ctx, t.conn, metaCameFrom); err != nil {
			return 0, err
		} else if was != from {
			return 0, fmt.Errorf("%w there: a hub's database; name an empty one, or drop and recreate that one", ErrExists)
		}
		return n, writePlace(o)
	}
	t.pg.empty = true
	t.audits.put(moved(o.By, s.file, t.pg.where))
	if err := t.txLocked(ctx, func(ctx context.Context, c *conn) error {
		if err := makeSchema(ctx, c, 0, o); err != nil {
			return err
		}
		if err := copyAll(ctx, s.conn, c); err != nil {
			return err
		}
		if arrived, err := objects(ctx, c); err != nil || arrived != n {
			return errors.Join(err, fmt.Errorf("%d of %d objects arrived", arrived, n))
		}
		if _, err := c.ExecContext(ctx, setMeta, metaCameFrom, from); err != nil {
			return err
		}
		return s.jumpRevision(ctx, c)
	}); err != nil {
		return 0, err
	}
	return n, writePlace(o) // from here on the hub uses PostgreSQL
}

// checkNotMoved refuses a command's write on another machine if the hub has left this database
// since the command opened it. The caller has excluded other writers.
func (s *Store) checkNotMoved(ctx context.Context) error {
	if !s.shared {
		return nil
	}
	to, err := valueOf(ctx, s.conn, metaMoved)
	if to != "" {
		err = fmt.Errorf("%s is no longer the hub's database: nothing was changed; run this again",
			s.where())
	}
	return err
}

// partEnd is the suffix of the file into which a database is copied from PostgreSQL. The file is
// renamed to hub.db only after PostgreSQL has recorded the move, so that the two are never both in
// use.
const partEnd = ".migrate"

func (s *Store) moveToFile(ctx context.Context, o Options) (m Moved, err error) {
	m.From, m.To = s.pg.where, s.file
	part, ready := s.file+partEnd, false
	defer func() {
		if err != nil {
			err = fmt.Errorf("migrate to %s: %w", m.To, s.explain(err))
		}
		if errors.As(err, new(errUnresolved)) {
			err = fmt.Errorf("%w; nothing is lost: run this again when the server answers", err)
		}
		if !ready { // the hub may already use a file that is ready
			_ = removeDatabase(part)
		}
	}()
	host, _ := os.Hostname()
	file, err := filepath.Abs(s.file)
	if err != nil {
		return m, err
	}
	to := fmt.Sprintf("%s on %s at %s", file, host, stamp(time.Now()))
	// Exclude all writers, also commands.
	if err := s.txLocked(ctx, func(ctx context.Context, from *conn) (err error) {
		ready = false
		if err := removeDatabase(part); err != nil {
			return err
		}
		if m.Objects, err = objects(ctx, from); err != nil {
			return err
		}
		if err := s.fill(ctx, part, from, func(ctx context.Context, t *Store, c *conn) error {
			if n, err := objects(ctx, c); err != nil || n != m.Objects {
				return errors.Join(err, fmt.Errorf("%d of %d objects arrived", n, m.Objects))
			}
			t.audits.put(moved(o.By, m.From, m.To))
			if _, err := c.ExecContext(ctx, setMeta, metaCameFrom, to); err != nil {
				return err
			}
			return s.jumpRevision(ctx, c)
		}); err != nil {
			return err
		}
		if err := errors.Join(syncFile(part), fsync.Dir(s.dir)); err != nil {
			return err
		}
		_, err = from.ExecContext(ctx, setMeta, metaMoved, to)
		ready = err == nil
		return err
	}); err != nil {
		return m, err
	}
	m.Kept, err = s.takeOver(part)
	return m, err
}

// errMoved refuses a PostgreSQL database that the hub has left.
type errMoved struct {
	where string // the database that the hub has left, as shown to users
	file  string // the copied file that is not yet renamed; "": not on this machine
	error
}

func (s *Store) isMoved(ctx context.Context, dir, to string) error {
	e := errMoved{where: s.pg.where, file: finishedCopy(ctx, dir, to)}
	next := fmt.Sprintf("name another database; to use this one all the same, run `psql -c \"DELETE FROM "+
		"meta WHERE key = '%s'\"` on it", metaMoved)
	if e.file != "" {
		next = "run `flotilla-hub migrate --to sqlite` again, since it was interrupted"
	}
	e.error = fmt.Errorf("open %s: its content was moved to %s, which is newer: %s", e.where, to, next)
	return e
}

// finishedCopy returns the finished file of an interrupted move to SQLite, if the directory still
// notes PostgreSQL; "": not found. to is the target that PostgreSQL has recorded.
func finishedCopy(ctx context.Context, dir, to string) string {
	if _, err := os.Stat(filepath.Join(dir, placeFile)); err != nil {
		return ""
	}
	for _, file := range []string{filepath.Join(dir, database+partEnd), filepath.Join(dir, database)} {
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			continue
		}
		db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
		if err != nil {
			continue
		}
		from, err := valueOf(ctx, db, metaCameFrom)
		if err = errors.Join(err, db.Close()); err == nil && from == to {
			return file
		}
	}
	return ""
}

// finishMove finishes a move to a file that was interrupted after PostgreSQL had recorded it.
func finishMove(ctx context.Context, o Options, from errMoved) (m Moved, err error) {
	lock, err := takeLock(o.Dir, adviceCommand)
	if err != nil {
		return m, err
	}
	defer lock.Close()
	s := newStore(o, filepath.Join(o.Dir, database))
	m.From, m.To = from.where, s.file
	db, err := sql.Open("sqlite", dsn(from.file, "query_only(1)"))
	if err == nil {
		m.Objects, err = objects(ctx, db)
		err = errors.Join(err, db.Close())
	}
	if err == nil {
		m.Kept, err = s.takeOver(from.file)
	}
	if err != nil {
		err = fmt.Errorf("migrate to %s: %w", m.To, err)
	}
	return m, err
}

// takeOver makes the copied file the database of its directory, and puts the former file aside.
func (s *Store) takeOver(file string) (kept string, err error) {
	if file != s.file {
		if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
			kept = s.unusedName("before-migrate", time.Now())
			if err := os.Link(s.file, kept); err != nil {
				return "", err
			}
		}
		for _, end := range []string{"-wal", "-shm"} {
			if err := remove(s.file + end); err != nil {
				return kept, err
			}
		}
		if err := os.Rename(file, s.file); err != nil {
			return kept, err
		}
	}
	if err := fsync.Dir(s.dir); err != nil {
		return kept, err
	}
	if err := remove(filepath.Join(s.dir, placeFile)); err != nil { // from here on the hub uses the file
		return kept, err
	}
	return kept, fsync.Dir(s.dir)
}
