package boothelper

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Disk changes files, one call at a time. The Disk of tests can lose power at any call, and then
// loses unsynced data.
type Disk interface {
	Read(name string) ([]byte, error)     // reads a regular file of at most maxRead bytes, or returns fs.ErrNotExist
	Write(name string, text []byte) error // writes in place; durable after Sync
	Sync(name string) error
	SyncDir(name string) error // makes new names, renames and removals in a directory durable
	Rename(from, to string) error
	Remove(name string) error // succeeds if the file does not exist
}

const maxRead = 1 << 20

// Kernel is the real disk.
type Kernel struct{}

// Read refuses links and other files that are not regular.
func (Kernel) Read(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a link: replace it by the file itself", name)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: %v", name, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err == nil && len(text) > maxRead {
		err = fmt.Errorf("%s has more than %d bytes", name, maxRead)
	}
	return text, err
}

func (Kernel) Write(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func (Kernel) Sync(name string) error    { return fsync(name, os.O_RDWR) }
func (Kernel) SyncDir(name string) error { return fsync(name, os.O_RDONLY) }

func fsync(name string, flags int) error {
	f, err := os.OpenFile(name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (Kernel) Rename(from, to string) error { return os.Rename(from, to) }

func (Kernel) Remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace writes a whole file atomically and makes it durable. A file that already has the text is
// synced too, because the process that wrote it may have been killed before its sync.
func replace(d Disk, name string, text []byte) error {
	if old, err := d.Read(name); err == nil && bytes.Equal(old, text) {
		if err = d.Sync(name); err == nil {
			err = d.SyncDir(filepath.Dir(name))
		}
		return err
	}
	err := d.Remove(name + ".new") // it may be a planted link, and Write would follow a hard link
	if err == nil {
		err = d.Write(name+".new", text)
	}
	if err == nil {
		err = d.Sync(name + ".new")
	}
	if err == nil {
		err = d.Rename(name+".new", name)
	}
	if err == nil {
		err = d.SyncDir(filepath.Dir(name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", name, err), d.Remove(name+".new"))
	}
	return nil
}

// Slots store one text in two files that are written in turn. An interrupted write loses only the
// newer text.
type Slots struct {
	Disk Disk
	Dir  string
	Name string
	seq  uint64
	next int
	read bool // another process wrote the newest text, which may not be durable yet
}

const sealed = "flotilla-%s v1 seq:%020d sha256:%s\n"

func (s *Slots) path(i int) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s.%d.state", s.Name, i))
}

func (s *Slots) seal(seq uint64, text []byte) []byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d\n", seq) // writing to a hash never fails
	_, _ = h.Write(text)
	return fmt.Appendf(nil, sealed, s.Name, seq, hex.EncodeToString(h.Sum(nil)))
}

// Load returns the newest intact text, or nil if no text was ever written.
func (s *Slots) Load() (newest []byte, err error) {
	var bad []error
	s.seq, s.next, s.read = 0, 0, false
	for i := range 2 {
		file, err := s.Disk.Read(s.path(i))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(file) == 0 {
			continue
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		head, text, _ := bytes.Cut(file, []byte("\n"))
		_, number, _ := strings.Cut(string(head), " v1 seq:")
		number, _, _ = strings.Cut(number, " ")
		seq, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !bytes.Equal(s.seal(seq, text), append(head, '\n')) {
			bad = append(bad, fmt.Errorf("%s is damaged", s.path(i)))
			continue
		}
		if seq > s.seq {
			newest, s.seq, s.next, s.read = text, seq, 1-i, true
		}
	}
	if newest == nil && len(bad) == 2 {
		return nil, fmt.Errorf("the stored state of this board's boot is lost: %w: remove both files to begin again",
			errors.Join(bad...))
	}
	if newest == nil && len(bad) == 1 { // the very first write was interrupted
		if _, err := s.Disk.Read(s.path(0)); err == nil {
			s.next = 0
		}
	}
	return newest, nil
}

// Sync makes the text that Load returned durable: the process that wrote it may have been killed
// before its sync. Call it before any action that relies on the text.
func (s *Slots) Sync() error {
	if !s.read {
		return nil
	}
	err := s.Disk.Sync(s.path(1 - s.next))
	if err == nil {
		err = s.Disk.SyncDir(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("store the state of the boot: %w", err)
	}
	s.read = false
	return nil
}

// Save stores the text durably. Until it returns, the previous text stays.
func (s *Slots) Save(text []byte) error {
	name := s.path(s.next)
	err := s.Sync()
	if err == nil {
		err = s.Disk.Write(name, append(s.seal(s.seq+1, text), text...))
	}
	if err == nil {
		err = s.Disk.Sync(name)
	}
	if err == nil {
		err = s.Disk.SyncDir(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("store the state of the boot: %w", err)
	}
	s.seq, s.next = s.seq+1, 1-s.next
	return nil
}
