// Package upgrade replaces the agent by another version, and goes back if that does not work.
//
// The Runner, in the agent, downloads and checks the version that the hub wants, and restarts the
// agent to try it. Launch is the first step of every start: the installed program counts the start,
// leaves a watcher of itself behind, and becomes the candidate. The candidate is installed once the
// hub has acknowledged its messages. If it ends twice or the deadline passes before that, the
// installed program runs again, so no step needs the candidate to work. The package stops no
// container, and trusts only signatures by the release key. Package cli calls it.
package upgrade

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/fsync"
)

// Phases of a journal.
const (
	idle      = ""
	trying    = "trying"    // the next start is the candidate's
	confirmed = "confirmed" // the candidate works and is being installed
	back      = "back"      // the installed program runs again
)

// Files in the directory of a Store.
const (
	candidateFile = "candidate"
	previousFile  = "previous" // the program that was installed before
)

// maxStarts of a candidate that is not confirmed.
const maxStarts = 2

// A journal is what the device stores about its upgrade, before each step.
type journal struct {
	Phase     string           `json:"phase,omitempty"`
	Program   string           `json:"program,omitempty"`  // path of the installed program
	Installed fleet.AgentBuild `json:"installed,omitzero"` // the one before the candidate
	Candidate fleet.AgentBuild `json:"candidate,omitzero"` //
	Undo      bool             `json:"undo,omitempty"`     // the candidate is an earlier version
	Retry     int64            `json:"retry,omitempty"`    // the hub's counter for the candidate
	Starts    int              `json:"starts,omitempty"`   // of the candidate
	Why       string           `json:"why,omitempty"`      // it went back
	Unheard   bool             `json:"unheard,omitempty"`  // because the hub did not answer it
	Previous  fleet.AgentBuild `json:"previous,omitzero"`  // the program in previousFile
	Bad       []badVersion     `json:"bad,omitempty"`      // the newest last
}

// A badVersion has failed on this device.
type badVersion struct {
	Version string `json:"version"`
	Undo    bool   `json:"undo,omitempty"` // as the earlier version of an undo
	Retry   int64  `json:"retry,omitempty"`
	Why     string `json:"why"`
}

// A Store is the directory of upgrades, below the agent's state directory.
type Store struct {
	Dir string
	// step is called before each change of the disk; tests end the process in it.
	step func(what string)
}

// candidate returns the path of the candidate.
func (s Store) candidate() string { return filepath.Join(s.Dir, candidateFile) }

func (s Store) before(what string) {
	if s.step != nil {
		s.step(what)
	}
}

// read returns the journal.
func (s Store) read() (j journal, err error) {
	err = s.update(func(now *journal) bool { j = *now; return false })
	return j, err
}

// update changes the journal durably if change returns true. A watcher and the agent may do so at
// the same time. A lost journal is a new one: then the installed program runs.
func (s Store) update(change func(*journal) bool) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.Dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	slots := &boothelper.Slots{Disk: boothelper.Kernel{}, Dir: s.Dir, Name: "upgrade"}
	var j journal
	text, err := slots.Load()
	if err == nil && text != nil {
		err = json.Unmarshal(text, &j)
	}
	if err != nil {
		j = journal{}
		for i := range 2 { // Slots saves nothing over two damaged files
			_ = os.Remove(filepath.Join(s.Dir, fmt.Sprintf("upgrade.%d.state", i)))
		}
		slots = &boothelper.Slots{Disk: boothelper.Kernel{}, Dir: s.Dir, Name: "upgrade"}
	}
	if !change(&j) {
		return nil
	}
	if text, err = json.Marshal(j); err != nil {
		return err
	}
	s.before("save " + j.Phase)
	return slots.Save(text)
}

// goBack returns from the candidate in the journal to the installed program.
func (s Store) goBack(why string, unheard bool) error {
	return s.update(func(j *journal) bool {
		if j.Phase != trying && j.Phase != confirmed {
			return false
		}
		j.Phase, j.Why, j.Unheard = back, why, unheard
		return true
	})
}

// copyFile copies a program durably: a cut leaves the old file at to, or the new one.
func (s Store) copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	part := to + ".new"
	s.before("write " + filepath.Base(part))
	if err := os.Remove(part); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(mode), out.Sync(), out.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return s.rename(part, to)
}

// rename replaces a file durably.
func (s Store) rename(from, to string) error {
	s.before("rename " + filepath.Base(to))
	if err := os.Rename(from, to); err != nil {
		return err
	}
	s.before("sync " + filepath.Base(to))
	return fsync.Dir(filepath.Dir(to))
}

// remove removes a file if it exists.
func (s Store) remove(path string) error {
	s.before("remove " + filepath.Base(path))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// hashOf returns the SHA-256 of a file in hex, "" if it does not exist.
func hashOf(path string) (string, int64, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}
