package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
)

// seal is the first line of every file: a cheap flash card returns zeros or old
// blocks without an error, and only a checksum tells.
const seal = "flotilla-state v1 sha256:"

var errSeal = errors.New("the file is not as it was written (the checksum in its first line does not match)")

// write replaces a file durably: its content, and that it has this name now. Secrets
// are in it: nobody else may read it.
func write(path string, body []byte) error {
	sum := sha256.Sum256(body)
	var b bytes.Buffer
	b.Grow(len(seal) + 2*len(sum) + 1 + len(body))
	b.WriteString(seal)
	b.WriteString(hex.EncodeToString(sum[:]))
	b.WriteByte('\n')
	b.Write(body)
	if err := renameio.WriteFile(path, b.Bytes(), 0o600, renameio.IgnoreUmask()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readSealed returns the body of a file that write wrote.
func readSealed(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	head, body, found := bytes.Cut(raw, []byte("\n"))
	sum := sha256.Sum256(body)
	if !found || string(head) != seal+hex.EncodeToString(sum[:]) {
		return nil, errSeal
	}
	return body, nil
}

// takeLock keeps a second agent out of the state directory. The kernel gives the
// lock up when the process ends, however it ends.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w; choose another one with --state-dir", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(path)
		_ = f.Close()
		return nil, fmt.Errorf("take the state directory: %s is held by another flotilla-device (process %s): stop that one, or choose another directory with --state-dir",
			path, strings.TrimSpace(string(owner)))
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(pid), 0) // only for the sentence above
	}
	return f, nil
}
