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

// A witness is a small file beside the database that says how far the database was. A
// database whose log was cut, damaged or left behind opens soundly and is an older one:
// nothing in it can say so.
//
// It is written after each transaction, over itself and without a sync: it is never ahead of
// what is on the disk, costs no write of its own worth naming, and after a power cut it may
// be some seconds behind, which is nobody's loss. Two that write it at once, a hub and a
// command, may leave it one transaction behind.
type witness struct {
	f     *os.File
	where string // whose, and witnessPostgres, or "" for a database in the directory
}

// A progress is how far a database is: the revision of its objects, and, because who may do
// what is no object, how many transactions there were.
type progress struct{ rev, writes uint64 }

func (s *Store) progress() progress { return progress{s.rev, s.transactions} }

// progresses are how far a database of some schema was at least, and how far it is, before its hub
// writes to it. In this order: what a command writes meanwhile, it raises both.
func (s *Store) progresses(ctx context.Context, schema int) (saw, is progress, err error) {
	saw = witnessed(s.dir)
	if schema > 0 { // else it is empty
		is, err = s.found(ctx)
	}
	return saw, is, err
}

// found is how far the database is that is opened.
func (s *Store) found(ctx context.Context) (p progress, err error) { return progressOf(ctx, s.conn) }

func progressOf(ctx context.Context, q querier) (p progress, err error) {
	for key, into := range map[string]*uint64{metaRevision: &p.rev, metaWrites: &p.writes} {
		text, err := valueOf(ctx, q, key)
		if err == nil && text != "" { // versions before this one did not count
			*into, err = strconv.ParseUint(text, 10, 64)
		}
		if err != nil {
			return p, fmt.Errorf("read its %s: %w; restore a backup", key, err)
		}
	}
	return p, nil
}

// before: the other one was written later. A restore or a move goes on with a revision far
// beyond, and with whatever count was in the backup.
func (p progress) before(o progress) bool {
	return p.rev < o.rev || p.rev == o.rev && p.writes < o.writes
}

const (
	witnessFile = "hub.rev"
	witnessForm = "%020d %020d %08x\n"
	witnessOld  = "%020d %08x\n" // of versions that counted revisions only
	// witnessPostgres follows where the database is in PostgreSQL: were the note of where lost, the directory would
	// look as one whose hub.db was. Before it stands the hub's identity: there are others' databases.
	witnessPostgres = "in PostgreSQL\n"
)

func (p progress) text() string {
	sum := crc32.ChecksumIEEE(fmt.Appendf(nil, "%d %d", p.rev, p.writes))
	return fmt.Sprintf(witnessForm, p.rev, p.writes, sum)
}

// witnessed is how far the database of a directory was at least; zero: nobody knows.
func witnessed(dir string) (p progress) {
	text, err := os.ReadFile(filepath.Join(dir, witnessFile))
	if err != nil {
		return progress{}
	}
	var sum uint32
	if _, err := fmt.Sscanf(string(text), witnessForm, &p.rev, &p.writes, &sum); err == nil &&
		strings.HasPrefix(string(text), p.text()) {
		return p
	}
	if _, err := fmt.Sscanf(string(text), witnessOld, &p.rev, &sum); err == nil &&
		string(text) == fmt.Sprintf(witnessOld, p.rev, crc32.ChecksumIEEE(strconv.AppendUint(nil, p.rev, 10))) {
		return progress{rev: p.rev}
	}
	return progress{}
}

func (s *Store) openWitness(ctx context.Context) (err error) {
	w := &s.witness
	if s.pg != nil {
		id, err := s.HubID(ctx)
		if err != nil {
			return err
		}
		w.where = id + "\n" + witnessPostgres
	}
	w.f, err = os.OpenFile(filepath.Join(s.dir, witnessFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = owner.Give(w.f, s.dir)
	}
	if err == nil && w.where == "" { // of a database that was brought back from there
		err = w.f.Truncate(int64(len(progress{}.text())))
	}
	return err
}

// witnessAnew notes whose the database is now: a backup may be another hub's. How far it was still counts.
func (s *Store) witnessAnew(ctx context.Context) error {
	if witnessedHub(s.dir) == "" {
		return nil
	}
	saw := witnessed(s.dir)
	err := s.openWitness(ctx)
	if err == nil {
		s.witness.saw(saw)
	}
	return errors.Join(err, s.witness.close())
}

// wasInPostgres tells whether the database of a directory was in PostgreSQL when its hub ran last.
func wasInPostgres(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, witnessFile))
	return err == nil && strings.HasSuffix(string(text), witnessPostgres)
}

// witnessedHub is whose database in PostgreSQL it was when the hub of a directory ran last; "": nobody knows.
func witnessedHub(dir string) string {
	text, _ := os.ReadFile(filepath.Join(dir, witnessFile))
	id, ours := strings.CutSuffix(string(text[min(len(text), len(progress{}.text())):]), "\n"+witnessPostgres)
	if !ours || strings.Contains(id, "\n") { // a hub of before wrote over it
		return ""
	}
	return id
}

// saw notes how far the database is. Where that fails nothing is lost but the witness.
func (w *witness) saw(p progress) {
	if w.f != nil {
		_, _ = w.f.WriteAt([]byte(p.text()+w.where), 0)
	}
}

// wrote notes a transaction that is on the disk. A command has no witness open: it raises
// the count in the hub's, if there is one.
func (s *Store) wrote(writes uint64) {
	if writes == s.transactions && !s.shared { // a beat
		return
	}
	s.transactions = writes
	if !s.shared {
		s.witness.saw(s.progress())
		return
	}
	f, err := os.OpenFile(filepath.Join(s.dir, witnessFile), os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if saw := witnessed(s.dir); saw.rev > 0 && saw.writes < writes {
		_, _ = f.WriteAt([]byte(progress{saw.rev, writes}.text()), 0)
	}
}

func (w *witness) close() error {
	if w.f == nil {
		return nil
	}
	f := w.f
	w.f = nil
	return f.Close()
}

// outlived makes of a database that is older than its witness one that was restored: it
// says so loudly, its revisions go on beyond all that were given out, and no device is told
// anything before an administrator has looked.
func (s *Store) outlived(ctx context.Context, o Options, is, saw progress) error {
	how := fmt.Sprintf("the end of its log (%s-wal) is lost", filepath.Base(s.file))
	if s.pg != nil {
		how = "a standby took over that had not got everything"
	}
	r := Recovery{At: time.Now().UTC(), From: s.where(),
		Cause: fmt.Sprintf("it is of revision %d, and was of %d: %s, or an older copy was put in its place", is.rev, saw.rev,
			how)}
	if is.rev == saw.rev { // people, tokens, or the audit
		r.Cause = fmt.Sprintf("of %d transactions it has %d: %s, or an older copy was put in its place", saw.writes,
			is.writes, how)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rev := saw.rev + revisionJump
	s.audits.put(r.audit(o.By, chainEnd{}))
	if err := s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		if _, err := c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10)); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, setMeta, metaRecovered, string(text)); err != nil {
			return err
		}
		var none *rights // of the newer database nothing is there to be kept
		return none.restore(ctx, c, r.At)
	}); err != nil {
		return fmt.Errorf("note that %s is older than it was: %w", s.where(), err)
	}
	s.rev = rev
	s.log.Warn("who may do what is as in the older database: " + asInBackup)
	s.log.Error("DATABASE IS OLDER than it was: changes are lost", "file", s.where(), "err", r.Cause)
	return nil
}
