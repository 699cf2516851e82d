package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// seal is the first line of every file: a cheap flash card may return zeros or old blocks without
// an error, which only a checksum detects.
const seal = "flotilla-state v1 sha256:"

var errSeal = errors.New("the file is damaged: the checksum in its first line does not match")

// write replaces a file durably, content and name. Only the owner can read it, because it contains
// secrets.
func write(d disk, path string, body []byte) error {
	sum := sha256.Sum256(body)
	var b bytes.Buffer
	b.Grow(len(seal) + 2*len(sum) + 1 + len(body))
	b.WriteString(seal)
	b.WriteString(hex.EncodeToString(sum[:]))
	b.WriteByte('\n')
	b.Write(body)
	if err := d.Replace(path, b.Bytes()); err != nil {
		return err
	}
	return d.SyncDir(filepath.Dir(path))
}

// readSealed returns the body of a file written by write.
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

// takeLock prevents a second agent in the state directory. The kernel releases the lock when the
// process ends.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.EROFS) { // the workloads of a read-only disk run without a lock
		f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w; %s", err, advice(err, os.Geteuid()))
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(path)
		_ = f.Close()
		return nil, fmt.Errorf("take the state directory: %s is held by another flotilla-device (process %s): stop that "+
			"one, or choose another directory with --state-dir",
			path, strings.TrimSpace(string(owner)))
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(pid), 0) // only for the message above
	}
	return f, nil
}

// Names in a state directory. A directory with one of agentFiles belongs to an agent. After a reset
// only some of earlyFiles remain.
var (
	agentFiles = []string{"identity.json", "identity.copy.json", "join.key", "registration.json", "dismissed.json",
		"engine.socket", "agent.sock", "agent-log.sock",
		desiredFile, "desired.0.state", "desired.1.state", journalFile, "journal.0.state", "journal.1.state", verifiedFile,
		pulledFile, engineFile}
	earlyFiles = []string{LockFile, "persistent", "volatile", "pods", "images", "lost+found"}
)

// checkForeign refuses a directory with other files in it, because the agent would write into it,
// and a reset would remove everything. It changes nothing.
func checkForeign(dir string) error {
	entries, _ := os.ReadDir(dir) // the next step reports an unreadable directory
	for _, e := range entries {
		if slices.Contains(agentFiles, e.Name()) {
			return nil
		}
	}
	for _, e := range entries {
		// A power cut leaves temporary files such as .identity.json12345.
		whole := strings.TrimPrefix(strings.TrimRight(e.Name(), "0123456789"), ".")
		if !slices.Contains(earlyFiles, e.Name()) && !slices.Contains(agentFiles, whole) {
			return fmt.Errorf("use the state directory %s: it has other files than an agent's (%s): nothing was changed; "+
				"give a new or empty directory with --state-dir", dir, e.Name())
		}
	}
	return nil
}

// advice says what to do about a state directory that cannot be opened.
func advice(err error, user int) string {
	if errors.Is(err, os.ErrPermission) && user != 0 {
		return "run this as root, with sudo before it, or choose a directory of your own with --state-dir"
	}
	return "choose another one with --state-dir"
}

// checkOwner refuses a directory that another user of the device can change. The agent may run as
// root, and that user could redirect its writes with a link.
func checkOwner(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("use the state directory %s: it belongs to user %d, and this is user %d: choose another one "+
			"with --state-dir, or change its owner with chown", dir, st.Uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("use the state directory %s: other users can write to it (mode %04o): chmod go-w it, or "+
			"choose another one with --state-dir", dir, mode)
	}
	return nil
}
