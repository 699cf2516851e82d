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

// Keys of meta in a database that was moved, and in the one that it was moved to.
const (
	metaMoved    = "moved"     // where to
	metaCameFrom = "came-from" // the hub, its revision and the end of its audit
)

// A Moved says what Move has done.
type Moved struct {
	From, To string // as people see them
	Objects  int
	Kept     string // where the former file is; "": there is none
}

// Move takes all that a stopped hub remembers from SQLite to PostgreSQL (to: its address,
// or a file that has it) or back (to: SQLite), where the hub goes on with it. All of it is
// moved or nothing. The database that it comes from stays as it was, and is not the hub's
// any more. A target that holds something is refused.
func Move(ctx context.Context, o Options, to string) (Moved, error) {
	used, err := use(ctx, o.Dir, alone)
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
		if _, err := os.Stat(filepath.Join(o.Dir, database)); err != nil { // a new one would be made, only to be moved
			return Moved{}, fmt.Errorf("migrate: %w: there is nothing to take along; start `flotilla-hub serve --database "+
				"%s` to begin there", err, "postgres://…")
		}
	}
	o.moving = true
	s, err := Open(ctx, o)
	if away := (errMoved{}); to == SQLite && errors.As(err, &away) && away.file != "" {
		return goOn(ctx, o, away)
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

// alreadyThere tells of a database that is in PostgreSQL as far as its directory knows. Where a
// move was cut off after that was noted, hub.db is put aside now.
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
	lock, err := takeLock(o.Dir, thisOne)
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
		return m, fmt.Errorf("migrate: %w: the database of %s is %s already; to take it elsewhere, use `flotilla-hub "+
			"migrate --to sqlite` first", ErrExists, o.Dir, p.pg.where)
	}
	m.From, m.To = s.file, p.pg.where
	if m.Objects, err = objects(ctx, p.conn); err != nil {
		return m, err
	}
	former := newStore(o, s.file)
	if err := former.connect(ctx); err != nil { // and what is in its log is put into it
		return m, errors.Join(err, former.disconnect())
	}
	m.Kept, err = former.putAside()
	return m, err
}

// putAside closes the former database and keeps it under a name that no hub begins with.
func (s *Store) putAside() (kept string, err error) {
	if err := s.disconnect(); err != nil {
		return "", err
	}
	s.giveUpBallast() // there is no use for it any more
	kept = s.beside("before-migrate", time.Now())
	if err := os.Rename(s.file, kept); err != nil {
		return "", err
	}
	return kept, fsync.Dir(s.dir)
}

// moved is the record of it in the audit.
func moved(by, from, to string) Audit {
	a := Audit{
		At: time.Now(), Who: "the hub", Verb: "migrate", Resource: "databases", Name: to, Code: 200, Message: "from " + from,
	}
	if by != "" {
		a.Who, a.Via = by, "command line"
	}
	return a
}

// beyond is a revision behind all that were given out, so that whoever watches reads anew.
func (s *Store) beyond(ctx context.Context, c *conn) error {
	rev := max(s.rev, witnessed(s.dir).rev) + revisionJump
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
	if t.pg, err = parsePostgres(url, o.waits, s.log); err != nil {
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
	if err := t.reach(ctx); err != nil {
		return m, err
	}
	have, err := t.fit(ctx, o)
	if err != nil {
		return m, err
	}
	if m.Objects, err = s.copyTo(ctx, t, have, o); err != nil {
		return m, err
	}
	m.Kept, err = s.putAside()
	return m, err
}

// copyTo copies all to PostgreSQL and notes that the hub goes on there. Where that is done already
// and was cut off before the note, it is noted.
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
			return 0, fmt.Errorf("%w there: a hub's database; name an empty one, or drop and create that one", ErrExists)
		}
		return n, keepPlace(o)
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
		return s.beyond(ctx, c)
	}); err != nil {
		return 0, err
	}
	return n, keepPlace(o) // from now on the hub goes on there
}

// stays refuses what a command of another machine would write to a database in PostgreSQL that the hub
// has left since the command opened it. It is asked where nobody else writes.
func (s *Store) stays(ctx context.Context) error {
	if !s.shared {
		return nil
	}
	to, err := valueOf(ctx, s.conn, metaMoved)
	if to != "" {
		err = fmt.Errorf("%s has not been the hub's database since a moment ago: nothing was changed, run this again",
			s.where())
	}
	return err
}

// partEnd ends the name of the file to which a database is copied from PostgreSQL. It takes the place
// of hub.db once PostgreSQL has noted that the hub goes on there: never are both the hub's.
const partEnd = ".migrate"

func (s *Store) moveToFile(ctx context.Context, o Options) (m Moved, err error) {
	m.From, m.To = s.pg.where, s.file
	part, ready := s.file+partEnd, false
	defer func() {
		if err != nil {
			err = fmt.Errorf("migrate to %s: %w", m.To, s.explain(err))
		}
		if errors.As(err, new(errDoubt)) {
			err = fmt.Errorf("%w; run this again when the server answers: nothing is lost", err)
		}
		if !ready { // else it may be the hub's already
			_ = removeDatabase(part)
		}
	}()
	host, _ := os.Hostname()
	file, err := filepath.Abs(s.file)
	if err != nil {
		return m, err
	}
	to := fmt.Sprintf("%s on %s at %s", file, host, stamp(time.Now()))
	// nobody writes meanwhile, no command either
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
			return s.beyond(ctx, c)
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

// errMoved is the refusal of a database in PostgreSQL that the hub has left.
type errMoved struct {
	where string // that database, as people see it
	file  string // what was taken from there, where it has not taken its place yet; "": it has, or is not here
	error
}

func (s *Store) isMoved(ctx context.Context, dir, to string) error {
	e := errMoved{where: s.pg.where, file: copied(ctx, dir, to)}
	does := fmt.Sprintf("name another database; to go on from what is here all the same, run `psql -c \"DELETE FROM "+
		"meta WHERE key = '%s'\"` on it", metaMoved)
	if e.file != "" {
		does = "run `flotilla-hub migrate --to sqlite` again, which was cut off"
	}
	e.error = fmt.Errorf("open %s: what it holds was taken to %s, and is older than that: %s", e.where, to, does)
	return e
}

// copied is the file of a directory that has what was taken to it, by the words of the database that it
// was taken from, as long as the directory says that the database is there; "": none has.
func copied(ctx context.Context, dir, to string) string {
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

// goOn ends a move to a file that was cut off after PostgreSQL had noted it.
func goOn(ctx context.Context, o Options, from errMoved) (m Moved, err error) {
	lock, err := takeLock(o.Dir, thisOne)
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

// takeOver makes of what was copied from PostgreSQL the database of its directory, with which the hub
// goes on. The former one is kept.
func (s *Store) takeOver(file string) (kept string, err error) {
	if file != s.file {
		if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
			kept = s.beside("before-migrate", time.Now())
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
	if err := remove(filepath.Join(s.dir, placeFile)); err != nil { // from now on the hub goes on with the file
		return kept, err
	}
	return kept, fsync.Dir(s.dir)
}
