package store

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A witness is a small file beside the database that says how far the database was. A
// database whose log was cut, damaged or left behind opens soundly and is an older one:
// nothing in it can say so.
//
// It is written after each commit, over itself and without a sync: it is never ahead of
// what is on the disk, costs no write of its own worth naming, and after a power cut it may
// be some seconds behind, which is nobody's loss.
type witness struct{ f *os.File }

const (
	witnessFile = "hub.rev"
	witnessForm = "%020d %08x\n"
)

func witnessText(rev uint64) string {
	return fmt.Sprintf(witnessForm, rev, crc32.ChecksumIEEE(strconv.AppendUint(nil, rev, 10)))
}

// witnessed is how far the database of a directory was at least; 0: nobody knows.
func witnessed(dir string) uint64 {
	text, err := os.ReadFile(filepath.Join(dir, witnessFile))
	if err != nil {
		return 0
	}
	var rev uint64
	var sum uint32
	if _, err := fmt.Sscanf(string(text), witnessForm, &rev, &sum); err != nil || string(text) != witnessText(rev) {
		return 0
	}
	return rev
}

func (w *witness) open(dir string) (err error) {
	w.f, err = os.OpenFile(filepath.Join(dir, witnessFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	return err
}

// saw notes a revision. Where that fails nothing is lost but the witness.
func (w *witness) saw(rev uint64) {
	if w.f != nil {
		_, _ = w.f.WriteAt([]byte(witnessText(rev)), 0)
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
func (s *Store) outlived(ctx context.Context, o Options, saw uint64) error {
	r := Recovery{At: time.Now().UTC(), From: s.file,
		Cause: fmt.Sprintf("it is of revision %d, and was of %d: the end of its log (%s-wal) is lost, or an older copy was put in its place", s.rev, saw, filepath.Base(s.file))}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rev := saw + revisionJump
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
		return fmt.Errorf("note that %s is older than it was: %w", s.file, err)
	}
	s.rev = rev
	s.log.Warn("who may do what is as in the older database: " + asInBackup)
	s.log.Error("DATABASE IS OLDER than it was: changes are lost", "file", s.file, "err", r.Cause)
	return nil
}
