package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"flotilla.dev/shared/fsync"
)

// slots store one text in two files, which are written in place one after another. An interrupted
// write or a full disk loses at most the newer text. A block that fails later loses nothing,
// because both files have the same text.
type slots struct {
	dir, name string
	seq       uint64 // number of the newest text; 0 if there is none
	next      int    // slot of the next write
	disk      disk
}

// A disk changes files. Tests use a disk that stops at a given call.
type disk interface {
	Open(path string) (*os.File, error)
	Room(f *os.File, bytes int64) error
	WriteAt(f *os.File, text []byte) error
	Sync(f *os.File) error
	SyncDir(path string) error
	Replace(path string, text []byte) error
	Remove(path string) error
}

// realDisk is the real disk.
type realDisk struct{}

func (realDisk) Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}
func (realDisk) Room(f *os.File, bytes int64) error { return unix.Fallocate(int(f.Fd()), 0, 0, bytes) }
func (realDisk) WriteAt(f *os.File, text []byte) error {
	_, err := f.WriteAt(text, 0)
	return err
}
func (realDisk) Sync(f *os.File) error     { return f.Sync() }
func (realDisk) SyncDir(path string) error { return fsync.Dir(path) }
func (realDisk) Remove(path string) error  { return os.Remove(path) }
func (realDisk) Replace(path string, text []byte) error {
	return renameio.WriteFile(path, text, 0o600, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(path)))
}

const (
	slotSeal = "flotilla-slot v1 seq:%020d length:%010d sha256:%s\n"
	minSlot  = 64 << 10 // bytes that are reserved for a text; doubled until the text fits
	maxSlot  = 64 << 20
)

var errBlank = errors.New("it is missing or empty")

func (s *slots) path(i int) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s.%d.state", s.name, i))
}

// sealOf is the first line of a slot. Its checksum also covers the numbers in the line.
func sealOf(seq uint64, body []byte) []byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d %d\n", seq, len(body)) // cannot fail
	_, _ = h.Write(body)
	return fmt.Appendf(nil, slotSeal, seq, len(body), hex.EncodeToString(h.Sum(nil)))
}

// read returns the intact texts, newest first, and the errors of the other slots.
func (s *slots) read() (texts [][]byte, bad []error) {
	var seqs [2]uint64
	var bodies [2][]byte
	var errs [2]error
	for i := range bodies {
		seqs[i], bodies[i], errs[i] = readSlot(s.path(i))
	}
	newest := 0
	if seqs[1] > seqs[0] {
		newest = 1
	}
	s.seq, s.next = seqs[newest], 1-newest
	for _, i := range []int{newest, 1 - newest} {
		switch {
		case errs[i] == nil:
			texts = append(texts, bodies[i])
		case errors.Is(errs[i], errBlank) && s.seq == 0: // no slot was ever written
		default:
			bad = append(bad, fmt.Errorf("%s: %w", s.path(i), errs[i]))
		}
	}
	if s.seq == 0 {
		s.next = 0
	}
	return texts, bad
}

func readSlot(path string) (seq uint64, body []byte, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, errBlank
	}
	if err == nil && info.Size() > maxSlot {
		err = errSeal
	}
	var raw []byte
	if err == nil {
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return 0, nil, err
	}
	if len(bytes.Trim(raw, "\x00")) == 0 {
		return 0, nil, errBlank
	}
	head, rest, _ := bytes.Cut(raw, []byte("\n"))
	var length int
	var sum string
	if _, err := fmt.Sscanf(string(head)+"\n", slotSeal, &seq, &length, &sum); err != nil || seq == 0 || length < 0 ||
		length > len(rest) {
		return 0, nil, errSeal
	}
	body = rest[:length]
	if !bytes.Equal(sealOf(seq, body), append(head, '\n')) {
		return 0, nil, errSeal
	}
	return seq, body, nil
}

// errOnce means that only one file has the text.
var errOnce = errors.New("only one of the two copies could be written")

// write stores a text durably in both slots. If the first write fails, the previous text remains,
// and the next write does not overwrite it. If the second write fails, the new text is stored and
// the error is errOnce. Both slots get the new text, because the previous one would stop newer
// workloads.
func (s *slots) write(body []byte) error {
	if err := s.writeNext(body); err != nil {
		return err
	}
	if err := s.writeNext(body); err != nil {
		return fmt.Errorf("%w: %w", errOnce, err)
	}
	return nil
}

// writeNext writes a text to the next slot.
func (s *slots) writeNext(body []byte) error {
	text := append(sealOf(s.seq+1, body), body...)
	room := int64(minSlot)
	for room < int64(len(text)) {
		room *= 2
	}
	if err := s.put(s.next, text, room); err != nil {
		return err
	}
	s.seq, s.next = s.seq+1, 1-s.next
	_ = s.put(s.next, nil, room) // the next write reports the error again
	return nil
}

// put reserves space in a slot and writes a text to it; with a nil text it only reserves.
func (s *slots) put(i int, text []byte, room int64) (err error) {
	_, missing := os.Lstat(s.path(i))
	f, err := s.disk.Open(s.path(i))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < room {
		err := s.disk.Room(f, room)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && info.Size() < int64(len(text)) {
			return &fs.PathError{Op: "make room in", Path: s.path(i), Err: err}
		}
	}
	if text != nil {
		if err := s.disk.WriteAt(f, text); err != nil {
			return err
		}
	}
	if text == nil && missing == nil {
		return nil
	}
	if err := s.disk.Sync(f); err != nil || missing == nil {
		return err
	}
	return s.disk.SyncDir(s.dir)
}
