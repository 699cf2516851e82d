package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"flotilla.dev/shared/fsync"
)

// A Recovery says that the database is not the one that the hub last wrote. What
// it holds may be older than what devices have stored: nothing may be told to
// them before an administrator has looked.
type Recovery struct {
	At    time.Time `json:"at"`
	From  string    `json:"from"`  // the backup it comes from; "" = it began empty
	Aside string    `json:"aside"` // where the former database was put; "" = there was none
	Cause string    `json:"cause"`
	// Rights: who may do what is as it was last, and not as in the backup.
	Rights bool `json:"rights,omitempty"`
	// Doubted: a hub has begun with it, and remembers of each device that it does not know
	// what that has stored.
	Doubted bool `json:"doubted,omitempty"`
}

// Recovered tells whether the database was restored or began anew since
// Resumed; nil: it was not.
func (s *Store) Recovered(ctx context.Context) (*Recovery, error) {
	v, err := s.Meta(ctx, metaRecovered)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Recovery
	return &r, json.Unmarshal([]byte(v), &r)
}

// Doubted notes that what devices have stored is asked of each.
func (s *Store) Doubted(ctx context.Context, r Recovery) error {
	r.Doubted = true
	text, err := json.Marshal(r)
	if err == nil {
		err = s.SetMeta(ctx, metaRecovered, string(text))
	}
	return err
}

// Resumed forgets the recovery: an administrator has looked.
func (s *Store) Resumed(ctx context.Context) error {
	_, err := s.exec(ctx, "DELETE FROM meta WHERE key = ?", metaRecovered)
	return err
}

// revisionJump is how far a revision moves when nobody knows how many were lost.
const revisionJump = 1_000_000

// recover replaces a corrupt database by its newest good backup, or by an empty
// one, and says so loudly. The corrupt one is kept.
func (s *Store) recover(ctx context.Context, o Options, cause error) error {
	used, err := use(ctx, s.dir, alone)
	if err != nil {
		return fmt.Errorf("recover %s: %w: %w", s.file, cause, err)
	}
	defer used.Close()
	salvaged := salvageRevision(ctx, s.file)
	r := Recovery{At: time.Now().UTC(), Cause: cause.Error()}
	for _, end := range []string{"", "-wal"} { // the log of one that was moved may have all that is new
		if info, err := os.Stat(s.file + end); err == nil && info.Size() > 0 {
			r.Aside = s.beside("corrupt", r.At)
		}
	}
	list, err := backups(s.dir)
	if err != nil {
		return fmt.Errorf("recover %s: list its backups: %w", s.file, err)
	}
	for _, b := range append(furthest(ctx, list), "") {
		r.From = b
		if err = s.prepare(ctx, o, salvaged, r); err == nil {
			break
		}
		s.log.Error("backup cannot be used", "file", b, "err", err)
	}
	if err == nil {
		err = s.replace(r.Aside)
	}
	if err == nil {
		err = s.openDatabase(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("recover %s: %w; free the disk or move the file away by hand", s.file, err)
	}
	if r.From == "" {
		s.log.Error("DATABASE LOST: it was corrupt and there is no usable backup; this hub begins EMPTY", "kept", r.Aside,
			"err", cause)
	} else {
		s.log.Error("DATABASE RESTORED from a backup because it was corrupt: changes since then are lost", "backup", r.From,
			"kept", r.Aside, "err", cause)
	}
	return nil
}

// Restore replaces the database of a stopped hub by a backup. The former one is
// kept beside it, and the hub holds still at its next start, see Recovered.
func Restore(ctx context.Context, o Options, file string) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() { // a pipe may never end
		return fmt.Errorf("restore %s: it is a directory, a pipe or a device: name the file of a backup", file)
	}
	used, err := use(ctx, o.Dir, alone)
	if err != nil {
		return fmt.Errorf("restore %s: %w", file, err)
	}
	defer used.Close()
	if url, err := place(o); err != nil {
		return err
	} else if url != "" {
		if err := restorePostgres(ctx, o, file); err != nil {
			return fmt.Errorf("restore %s: %w", file, err)
		}
		return nil
	}
	lock, err := takeLock(o.Dir, thisOne)
	if err != nil {
		return err
	}
	defer lock.Close()
	s := newStore(o, filepath.Join(o.Dir, database))
	r := Recovery{At: time.Now().UTC(), From: file, Cause: "restored by an administrator"}
	if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
		r.Aside = s.beside("before-restore", r.At)
	}
	err = s.prepare(ctx, o, salvageRevision(ctx, s.file), r)
	if err == nil {
		err = s.replace(r.Aside)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", file, err)
	}
	return nil
}

// prepare makes hub.db.restore: a checked and migrated copy of r.From, or an
// empty database, whose revision is beyond every one that was ever given out.
func (s *Store) prepare(ctx context.Context, o Options, salvaged uint64, r Recovery) (err error) {
	t := newStore(o, s.file+".restore")
	if err := removeDatabase(t.file); err != nil {
		return err
	}
	defer func() {
		if err != nil { // it may have filled the disk
			err = errors.Join(err, t.disconnect(), removeDatabase(t.file))
		}
	}()
	if r.From != "" {
		if err := copyFile(r.From, t.file); err != nil {
			return err
		}
		if err := genuine(ctx, t.file); err != nil {
			return t.explain(err)
		}
	}
	if err := t.openDatabase(ctx, o); err != nil {
		return err
	}
	rev := max(salvaged, t.rev, witnessed(s.dir).rev) + revisionJump
	if r.From == "" && rev == revisionJump {
		// Nobody knows where it was. No hub makes a change every second of its life since 1970.
		rev = max(rev, uint64(r.At.Unix()))
	}
	var kept *rights
	if r.From != "" {
		kept = t.salvageRights(ctx, s.file)
	}
	r.Rights = kept != nil
	t.audits.put(r.audit(o.By, salvageChain(ctx, s.file)))
	text, err := json.Marshal(r)
	if err == nil {
		err = t.txLocked(ctx, func(ctx context.Context, c *conn) error {
			if _, err := c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10)); err != nil {
				return err
			}
			if _, err := c.ExecContext(ctx, setMeta, metaRecovered, string(text)); err != nil {
				return err
			}
			return kept.restore(ctx, c, r.At)
		})
	}
	if err == nil && r.From != "" && !r.Rights {
		s.log.Warn("who may do what is as in the backup: "+asInBackup, "backup", r.From)
	}
	return errors.Join(err, t.disconnect())
}

// audit says in the chain of what is restored that it was, and where the chain of
// the database before it ended.
func (r Recovery) audit(by string, before chainEnd) Audit {
	a := Audit{
		At: r.At, Who: "the hub", Verb: "restore", Resource: "backups", Name: filepath.Base(r.From), Code: 200,
		Message: r.Cause,
	}
	if by != "" {
		a.Who, a.Via = by, "command line"
	}
	if r.From == "" {
		a.Name, a.Message = "", "it began empty: "+a.Message
	}
	if r.From != "" && !r.Rights {
		a.Message += "; " + asInBackup
	}
	if before.id > 0 {
		a.Message += fmt.Sprintf("; the audit before it ended with record %d, hash %x, in %s", before.id, before.hash,
			filepath.Base(r.Aside))
	}
	return a
}

// salvageChain reads where the audit of a database ended that may be damaged.
func salvageChain(ctx context.Context, file string) (e chainEnd) {
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		return e
	}
	db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
	if err != nil {
		return e
	}
	defer db.Close()
	if e, _, err = chainEndOf(ctx, db, metaAuditHead); err != nil {
		return chainEnd{}
	}
	return e
}

// replace puts hub.db.restore in the place of hub.db. At every moment of it
// there is a hub.db: whoever is killed here begins again.
func (s *Store) replace(aside string) error {
	if aside != "" {
		if err := os.Link(s.file, aside); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, end := range []string{"-wal", "-shm"} {
		var err error
		if aside != "" {
			err = os.Rename(s.file+end, aside+end)
		} else {
			err = os.Remove(s.file + end)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(s.file+".restore", s.file); err != nil {
		return err
	}
	return fsync.Dir(s.dir)
}

// salvageRevision reads the revision out of a database that may be damaged; 0: unreadable.
func salvageRevision(ctx context.Context, file string) uint64 {
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		return 0
	}
	db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
	if err != nil {
		return 0
	}
	defer db.Close()
	var v string
	if err := db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaRevision).Scan(&v); err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(v, 10, 64)
	return n
}

// restorePostgres puts a backup in the place of what is in PostgreSQL. What was there is
// kept as a file: the backup is made ready beside that, as it is where the database is one.
func restorePostgres(ctx context.Context, o Options, file string) error {
	o.restoring = true
	s, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	r := Recovery{At: time.Now().UTC(), From: file, Cause: "restored by an administrator"}
	r.Aside = s.beside("before-restore", r.At)
	was, err := s.found(ctx)
	if err != nil {
		return err
	}
	if err := s.Backup(ctx, r.Aside); err != nil {
		return err
	}
	beside := newStore(o, r.Aside)
	ready := r.Aside + ".restore"
	defer func() { _ = removeDatabase(ready) }()
	if err := beside.prepare(ctx, o, max(s.rev, witnessed(s.dir).rev), r); err != nil {
		return err
	}
	from := newStore(o, ready)
	defer from.disconnect() //nolint:errcheck // it was read only, and some of it is open where this fails
	if err := from.connect(ctx); err != nil {
		return err
	}
	if err := s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		is, err := s.found(ctx)
		if err != nil {
			return err
		}
		if is.writes != was.writes+1 { // our own
			_ = remove(r.Aside) // nobody will want it
			return errors.New("a command has written meanwhile, which would be lost: nothing was restored, run this again")
		}
		return copyAll(ctx, from.conn, c)
	}); err != nil {
		return err
	}
	return s.witnessAnew(ctx)
}
