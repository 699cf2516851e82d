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

// seal is the first line of every file: a cheap flash card returns zeros or old
// blocks without an error, and only a checksum tells.
const seal = "flotilla-state v1 sha256:"

var errSeal = errors.New("the file is not as it was written (the checksum in its first line does not match)")

// write replaces a file durably: its content, and that it has this name now. Secrets
// are in it: nobody else may read it.
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
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.EROFS) { // what is stored there is run all the same
		f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w; %s", err, instead(err, os.Geteuid()))
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
		_, _ = f.WriteAt([]byte(pid), 0) // only for the sentence above
	}
	return f, nil
}

// Names in a state directory. An agent has used it where one of agentFiles is there; of a directory
// that was reset, only some of earlyFiles are left.
var (
	agentFiles = []string{"identity.json", "identity.copy.json", "join.key", "registration.json", "dismissed.json",
		"engine.socket", "agent.sock", "agent-log.sock",
		desiredFile, "desired.0.state", "desired.1.state", journalFile, "journal.0.state", "journal.1.state", verifiedFile,
		pulledFile, engineFile}
	earlyFiles = []string{LockFile, "persistent", "volatile", "pods", "images", "lost+found"}
)

// foreign refuses a directory that something else uses: the agent would write into it, and a reset
// would remove all that is there. It changes nothing.
func foreign(dir string) error {
	entries, _ := os.ReadDir(dir) // where it cannot be read, what follows says so
	for _, e := range entries {
		if slices.Contains(agentFiles, e.Name()) {
			return nil
		}
	}
	for _, e := range entries {
		// A power cut leaves a file that was being written, as .identity.json12345.
		whole := strings.TrimPrefix(strings.TrimRight(e.Name(), "0123456789"), ".")
		if !slices.Contains(earlyFiles, e.Name()) && !slices.Contains(agentFiles, whole) {
			return fmt.Errorf("use the state directory %s: it is not an agent's, and not empty (%s): nothing was changed; "+
				"name a new or an empty one with --state-dir", dir, e.Name())
		}
	}
	return nil
}

// instead is what a user does about a state directory that cannot be opened.
func instead(err error, user int) string {
	if errors.Is(err, os.ErrPermission) && user != 0 {
		return "run this as root, with sudo before it, or choose a directory of your own with --state-dir"
	}
	return "choose another one with --state-dir"
}

// ownDirectory refuses a directory that another user of the device can change: what the
// agent reads there it does as root, and what it writes there could be a link to a file
// of somebody else's.
func ownDirectory(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("use the state directory %s: it belongs to user %d, and this is user %d: choose another one "+
			"with --state-dir, or give it over with chown", dir, st.Uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("use the state directory %s: other users can write to it (mode %04o): chmod go-w it, or "+
			"choose another one with --state-dir", dir, mode)
	}
	return nil
}
