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

// A Recovery records that the hub did not write this database last. The database may be older than
// the state of devices, so the hub sends them nothing until an administrator resumes.
type Recovery struct {
	At    time.Time `json:"at"`
	From  string    `json:"from"`  // the backup; "": the hub began with an empty database
	Aside string    `json:"aside"` // new name of the former database; "": it did not exist
	Cause string    `json:"cause"`
	// Rights: users and their rights come from the former database, not from the backup.
	Rights bool `json:"rights,omitempty"`
	// Unverified: a hub has started with this database, and has marked each device's stored state
	// as unknown.
	Unverified bool `json:"doubted,omitempty"`
}

// Recovered returns the recovery since the last ClearRecovery; nil: no recovery.
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

// MarkUnverified records that each device's stored state is marked as unknown.
func (s *Store) MarkUnverified(ctx context.Context, r Recovery) error {
	r.Unverified = true
	text, err := json.Marshal(r)
	if err == nil {
		err = s.SetMeta(ctx, metaRecovered, string(text))
	}
	return err
}

// ClearRecovery removes the note of the recovery, after an administrator has resumed.
func (s *Store) ClearRecovery(ctx context.Context) error {
	_, err := s.exec(ctx, "DELETE FROM meta WHERE key = ?", metaRecovered)
	return err
}

// revisionJump is added to the revision when the number of lost commits is unknown.
const revisionJump = 1_000_000

// recover replaces a corrupt database by its newest good backup, or by an empty one, and logs that
// as an error. It puts the corrupt database aside.
func (s *Store) recover(ctx context.Context, o Options, cause error) error {
	used, err := lockUse(ctx, s.dir, lockExclusive)
	if err != nil {
		return fmt.Errorf("recover %s: %w: %w", s.file, cause, err)
	}
	defer used.Close()
	salvaged := salvageRevision(ctx, s.file)
	r := Recovery{At: time.Now().UTC(), Cause: cause.Error()}
	for _, end := range []string{"", "-wal"} { // the log may hold the newest commits of the moved database
		if info, err := os.Stat(s.file + end); err == nil && info.Size() > 0 {
			r.Aside = s.unusedName("corrupt", r.At)
		}
	}
	list, err := backups(s.dir)
	if err != nil {
		return fmt.Errorf("recover %s: list its backups: %w", s.file, err)
	}
	for _, b := range append(newestFirst(ctx, list), "") {
		r.From = b
		if err = s.prepare(ctx, o, salvaged, r); err == nil {
			break
		}
		s.log.Error("backup is not usable", "file", b, "err", err)
	}
	if err == nil {
		err = s.replace(r.Aside)
	}
	if err == nil {
		err = s.openDatabase(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("recover %s: %w; free space on the disk, or move the file away", s.file, err)
	}
	if r.From == "" {
		s.log.Error("DATABASE LOST: it was corrupt, and no backup is usable; this hub starts EMPTY", "kept", r.Aside,
			"err", cause)
	} else {
		s.log.Error("DATABASE RESTORED from a backup because it was corrupt: changes since then are lost", "backup", r.From,
			"kept", r.Aside, "err", cause)
	}
	return nil
}

// Restore replaces the database of a stopped hub by a backup, and puts the former database aside.
// At its next start the hub is paused; see Recovered.
func Restore(ctx context.Context, o Options, file string) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() { // a pipe may block the reader for ever
		return fmt.Errorf("restore %s: it is not a regular file: name the file of a backup", file)
	}
	used, err := lockUse(ctx, o.Dir, lockExclusive)
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
	lock, err := takeLock(o.Dir, adviceCommand)
	if err != nil {
		return err
	}
	defer lock.Close()
	s := newStore(o, filepath.Join(o.Dir, database))
	r := Recovery{At: time.Now().UTC(), From: file, Cause: "restored by an administrator"}
	if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
		r.Aside = s.unusedName("before-restore", r.At)
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

// prepare creates hub.db.restore: a checked and migrated copy of r.From, or an empty database. Its
// revision is larger than every earlier one.
func (s *Store) prepare(ctx context.Context, o Options, salvaged uint64, r Recovery) (err error) {
	t := newStore(o, s.file+".restore")
	if err := removeDatabase(t.file); err != nil {
		return err
	}
	defer func() {
		if err != nil { // the file may have filled the disk
			err = errors.Join(err, t.disconnect(), removeDatabase(t.file))
		}
	}()
	if r.From != "" {
		if err := copyFile(r.From, t.file); err != nil {
			return err
		}
		if err := checkSchema(ctx, t.file); err != nil {
			return t.explain(err)
		}
	}
	if err := t.openDatabase(ctx, o); err != nil {
		return err
	}
	rev := max(salvaged, t.rev, readHighWater(s.dir).rev) + revisionJump
	if r.From == "" && rev == revisionJump {
		// The former revision is unknown. Seconds since 1970 exceed it, because a hub makes less
		// than one change per second.
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
		s.log.Warn("users and rights are as in the backup: "+checkRights, "backup", r.From)
	}
	return errors.Join(err, t.disconnect())
}

// audit returns the record of the recovery in the restored chain, with the end of the former chain.
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
		a.Message += "; " + checkRights
	}
	if before.id > 0 {
		a.Message += fmt.Sprintf("; the previous audit ended with record %d, hash %x, in %s", before.id, before.hash,
			filepath.Base(r.Aside))
	}
	return a
}

// salvageChain reads the end of the audit from a database that may be damaged.
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

// replace renames hub.db.restore to hub.db. hub.db exists at every moment, so that an interrupted
// replacement can run again.
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

// salvageRevision reads the revision of a database that may be damaged; 0: unreadable.
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

// restorePostgres replaces the content of PostgreSQL by a backup. It keeps the former content in a
// file, and prepares the backup beside that file as for SQLite.
func restorePostgres(ctx context.Context, o Options, file string) error {
	o.restoring = true
	s, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	r := Recovery{At: time.Now().UTC(), From: file, Cause: "restored by an administrator"}
	r.Aside = s.unusedName("before-restore", r.At)
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
	if err := beside.prepare(ctx, o, max(s.rev, readHighWater(s.dir).rev), r); err != nil {
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
		if is.writes != was.writes+1 { // this transaction itself counts as one
			_ = remove(r.Aside) // the file is not needed, because the former content stays
			return errors.New("a command has written to the database meanwhile: nothing was restored; run this again")
		}
		return copyAll(ctx, from.conn, c)
	}); err != nil {
		return err
	}
	return s.rewriteHighWater(ctx)
}
