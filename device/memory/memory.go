// Package memory is what a device must still know after a reboot without
// network: the desired state that it lives from, and the journal of the pods that
// have ended for good.
//
// It writes nothing that has not changed (flash wears), writes a file whole or not
// at all (temporary file, fsync, rename), and never lets a broken file stop the
// agent: such a file is moved aside with a loud sentence, and the device waits for
// the hub. It never decides what to do with what it keeps: that is package agent's
// work. The device's identity is kept by package join.
package memory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// ErrOlder is returned for a desired state that is older than the stored one.
var ErrOlder = errors.New("older than the stored desired state")

// Names of the files in the state directory.
const (
	desiredFile = "desired.state"
	journalFile = "journal.state"
	LockFile    = "lock" // of the state directory; never removed
)

// A Note is what must not be forgotten of a pod that has ended for good: that it
// has, and its last status. A pod with a note never runs again.
type Note struct {
	UID    types.UID        `json:"uid"`
	Status corev1.PodStatus `json:"status"`
}

// Memory is the state directory of one agent, or a volatile stand-in for it.
// Its methods may be called from any goroutine.
type Memory struct {
	dir  string // "": volatile
	lock *os.File
	log  *slog.Logger

	mu      sync.Mutex
	desired *wire.Desired
	body    []byte // of desired without its time, to see whether anything changed
	notes   []Note // by UID
	noted   []byte // of the notes, as last written
}

// Volatile is a memory that forgets everything when the process ends, for
// simulated devices.
func Volatile() *Memory { return &Memory{log: slog.New(slog.DiscardHandler)} }

// Open takes the state directory for this process and reads what is there. It
// fails where the directory cannot be used or another agent uses it; a broken file
// in it is no reason to fail.
func Open(dir string, log *slog.Logger) (*Memory, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the state directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w; choose another one with --state-dir", err)
	}
	lock, err := takeLock(filepath.Join(dir, LockFile))
	if err != nil {
		return nil, err
	}
	m := &Memory{dir: dir, lock: lock, log: log}
	m.readDesired()
	m.readJournal()
	return m, nil
}

// Dir is the state directory; empty for a volatile memory.
func (m *Memory) Dir() string { return m.dir }

// Close gives the state directory back.
func (m *Memory) Close() error {
	if m.lock == nil {
		return nil
	}
	return m.lock.Close() // closing the file gives up its lock
}

// Desired is the stored desired state; false where the device has none, be it new
// or the file unreadable. Without one nothing may be removed. The caller must not
// change what it points to.
func (m *Memory) Desired() (wire.Desired, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.desired == nil {
		return wire.Desired{}, false
	}
	return *m.desired, true
}

// SetDesired stores a desired state durably; when it returns nil, the state
// survives a power cut. A generation lower than the stored one of the same hub is
// ErrOlder. Storing what is stored already writes nothing. A state that could not
// be written is not taken: the device must never run what it would forget.
func (m *Memory) SetDesired(d wire.Desired) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.desired != nil && m.desired.Hub == d.Hub && d.Generation < m.desired.Generation {
		return fmt.Errorf("generation %d from hub %s is %w (%d)", d.Generation, d.Hub, ErrOlder, m.desired.Generation)
	}
	body, err := bodyOf(d)
	if err != nil {
		return fmt.Errorf("encode the desired state of generation %d: %w", d.Generation, err)
	}
	if m.desired != nil && bytes.Equal(body, m.body) {
		m.desired.Time = d.Time
		return nil
	}
	if m.dir != "" {
		full, err := json.Marshal(d)
		if err == nil {
			err = write(filepath.Join(m.dir, desiredFile), full)
		}
		if err != nil {
			return fmt.Errorf("store the desired state of generation %d: %w; the device goes on with the one that it has", d.Generation, err)
		}
	}
	m.desired, m.body = &d, body
	return nil
}

// bodyOf is a desired state without the time of its sending, which changes with
// every resend and means nothing to what should run.
func bodyOf(d wire.Desired) ([]byte, error) {
	d.Time = time.Time{}
	return json.Marshal(d)
}

// Notes are the pods that have ended for good, by UID.
func (m *Memory) Notes() []Note {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes)
}

// SetNotes replaces the notes durably; the same notes again write nothing.
func (m *Memory) SetNotes(notes []Note) error {
	notes = slices.Clone(notes)
	slices.SortFunc(notes, func(a, b Note) int { return strings.Compare(string(a.UID), string(b.UID)) })
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(notes) == 0 && len(m.notes) == 0 {
		return nil
	}
	body, err := json.Marshal(notes)
	if err != nil {
		return fmt.Errorf("encode the journal: %w", err)
	}
	if bytes.Equal(body, m.noted) {
		return nil
	}
	if m.dir != "" {
		if err := write(filepath.Join(m.dir, journalFile), body); err != nil {
			return fmt.Errorf("write the journal: %w; a pod that has ended would run again after a restart of the agent", err)
		}
	}
	m.notes, m.noted = notes, body
	return nil
}

func (m *Memory) readDesired() {
	path := filepath.Join(m.dir, desiredFile)
	var d wire.Desired
	if !m.read(path, &d, "it waits for the hub, and until then leaves every container as it is") {
		return
	}
	m.desired = &d
	m.body, _ = bodyOf(d) // it was JSON a moment ago; nil only means one write too many
}

func (m *Memory) readJournal() {
	path := filepath.Join(m.dir, journalFile)
	if m.read(path, &m.notes, "a pod that had ended for good may run once more") {
		m.noted, _ = json.Marshal(m.notes)
	}
}

// read reads a file of ours. What is not as it was written is moved aside, so that
// somebody can look at it, and said loudly.
func (m *Memory) read(path string, into any, consequence string) bool {
	body, err := readSealed(path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err == nil {
		return true
	}
	aside := path + ".corrupt"
	moved := "moved to " + aside
	if e := os.Rename(path, aside); e != nil {
		moved = "it could not be moved aside: " + e.Error()
	}
	m.log.Error("a file of the agent's memory is unreadable: "+consequence, "file", path, "err", err, "moved", moved)
	return false
}
