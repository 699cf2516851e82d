package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/owner"
)

// A highWater is the high-water mark of the database: a small file beside the database with its
// progress. A database whose log was cut, damaged or left behind opens without an error, but is
// older than the mark.
//
// The file is overwritten after each transaction, without a sync. So it is never ahead of the disk.
// After a power cut it may be some seconds behind, which does no harm. Two concurrent writers, a
// hub and a command, may leave it one transaction behind.
type highWater struct {
	f     *os.File
	where string // hub ID and highWaterPostgres; "": the database is in the directory
}

// A progress tells how new a database is: the revision of its objects, and the number of
// transactions, which also counts changes of users and tokens.
type progress struct{ rev, writes uint64 }

func (s *Store) progress() progress { return progress{s.rev, s.transactions} }

// progresses returns the high-water mark and the database's progress before the hub writes. It
// reads the mark first, because a command increases both.
func (s *Store) progresses(ctx context.Context, schema int) (mark, current progress, err error) {
	mark = readHighWater(s.dir)
	if schema > 0 { // a database without a schema is empty
		current, err = s.found(ctx)
	}
	return mark, current, err
}

// found returns the progress of the open database.
func (s *Store) found(ctx context.Context) (p progress, err error) { return progressOf(ctx, s.conn) }

func progressOf(ctx context.Context, q querier) (p progress, err error) {
	for key, into := range map[string]*uint64{metaRevision: &p.rev, metaWrites: &p.writes} {
		text, err := valueOf(ctx, q, key)
		if err == nil && text != "" { // databases of older versions have no count
			*into, err = strconv.ParseUint(text, 10, 64)
		}
		if err != nil {
			return p, fmt.Errorf("read its %s: %w; restore a backup", key, err)
		}
	}
	return p, nil
}

// before reports whether p is older than o. The revision is compared first: a restore or a move
// increases it by much, but takes the number of transactions from the backup.
func (p progress) before(o progress) bool {
	return p.rev < o.rev || p.rev == o.rev && p.writes < o.writes
}

const (
	highWaterFile    = "hub.rev"
	highWaterForm    = "%020d %020d %08x\n"
	highWaterOldForm = "%020d %08x\n" // form of versions that counted only revisions
	// highWaterPostgres ends a mark for PostgreSQL, after the hub's ID. If placeFile is lost, the
	// mark shows that hub.db is not missing.
	highWaterPostgres = "in PostgreSQL\n"
)

func (p progress) text() string {
	sum := crc32.ChecksumIEEE(fmt.Appendf(nil, "%d %d", p.rev, p.writes))
	return fmt.Sprintf(highWaterForm, p.rev, p.writes, sum)
}

// readHighWater returns the high-water mark of a directory; zero: unknown.
func readHighWater(dir string) (p progress) {
	text, err := os.ReadFile(filepath.Join(dir, highWaterFile))
	if err != nil {
		return progress{}
	}
	var sum uint32
	if _, err := fmt.Sscanf(string(text), highWaterForm, &p.rev, &p.writes, &sum); err == nil &&
		strings.HasPrefix(string(text), p.text()) {
		return p
	}
	if _, err := fmt.Sscanf(string(text), highWaterOldForm, &p.rev, &sum); err == nil &&
		string(text) == fmt.Sprintf(highWaterOldForm, p.rev, crc32.ChecksumIEEE(strconv.AppendUint(nil, p.rev, 10))) {
		return progress{rev: p.rev}
	}
	return progress{}
}

func (s *Store) openHighWater(ctx context.Context) (err error) {
	w := &s.highWater
	if s.pg != nil {
		id, err := s.HubID(ctx)
		if err != nil {
			return err
		}
		w.where = id + "\n" + highWaterPostgres
	}
	w.f, err = os.OpenFile(filepath.Join(s.dir, highWaterFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = owner.Give(w.f, s.dir)
	}
	if err == nil && w.where == "" { // the database was moved back from PostgreSQL
		err = w.f.Truncate(int64(len(progress{}.text())))
	}
	return err
}

// rewriteHighWater writes the hub ID of a restored database, which may differ from the former one.
// The progress stays.
func (s *Store) rewriteHighWater(ctx context.Context) error {
	if highWaterHub(s.dir) == "" {
		return nil
	}
	mark := readHighWater(s.dir)
	err := s.openHighWater(ctx)
	if err == nil {
		s.highWater.write(mark)
	}
	return errors.Join(err, s.highWater.close())
}

// lastInPostgres reports whether the directory's hub last used PostgreSQL.
func lastInPostgres(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, highWaterFile))
	return err == nil && strings.HasSuffix(string(text), highWaterPostgres)
}

// highWaterHub returns the ID of the hub that last used PostgreSQL here; "": unknown.
func highWaterHub(dir string) string {
	text, _ := os.ReadFile(filepath.Join(dir, highWaterFile))
	id, ours := strings.CutSuffix(string(text[min(len(text), len(progress{}.text())):]), "\n"+highWaterPostgres)
	if !ours || strings.Contains(id, "\n") { // an older version has overwritten the file
		return ""
	}
	return id
}

// write writes the progress. If it fails, only the mark is lost.
func (w *highWater) write(p progress) {
	if w.f != nil {
		_, _ = w.f.WriteAt([]byte(p.text()+w.where), 0)
	}
}

// committed records a committed transaction. A command has not opened the mark, so it increases the
// count in the hub's file.
func (s *Store) committed(writes uint64) {
	if writes == s.transactions && !s.shared { // a heartbeat changes nothing
		return
	}
	s.transactions = writes
	if !s.shared {
		s.highWater.write(s.progress())
		return
	}
	f, err := os.OpenFile(filepath.Join(s.dir, highWaterFile), os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if mark := readHighWater(s.dir); mark.rev > 0 && mark.writes < writes {
		_, _ = f.WriteAt([]byte(progress{mark.rev, writes}.text()), 0)
	}
}

func (w *highWater) close() error {
	if w.f == nil {
		return nil
	}
	f := w.f
	w.f = nil
	return f.Close()
}

// resumeOlder handles a database that is older than its high-water mark as a restored one. It logs
// an error, continues with a larger revision than all earlier ones, and pauses the hub until an
// administrator resumes.
func (s *Store) resumeOlder(ctx context.Context, o Options, current, mark progress) error {
	how := fmt.Sprintf("the end of its log (%s-wal) is lost", filepath.Base(s.file))
	if s.pg != nil {
		how = "a standby took over that lacked transactions"
	}
	r := Recovery{At: time.Now().UTC(), From: s.where(),
		Cause: fmt.Sprintf("it has revision %d, but had %d: %s, or an older copy was put in its place", current.rev, mark.rev,
			how)}
	if current.rev == mark.rev { // only users, tokens or the audit are older
		r.Cause = fmt.Sprintf("it had %d transactions, and has %d: %s, or an older copy was put in its place", mark.writes,
			current.writes, how)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rev := mark.rev + revisionJump
	s.audits.put(r.audit(o.By, chainEnd{}))
	if err := s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		if _, err := c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10)); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, setMeta, metaRecovered, string(text)); err != nil {
			return err
		}
		var none *rights // the newer database is lost with its rights
		return none.restore(ctx, c, r.At)
	}); err != nil {
		return fmt.Errorf("record that %s is older than it was: %w", s.where(), err)
	}
	s.rev = rev
	s.log.Warn("users and rights are as in the older database: " + checkRights)
	s.log.Error("DATABASE IS OLDER than it was: changes are lost", "file", s.where(), "err", r.Cause)
	return nil
}
