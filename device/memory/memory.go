// Package memory stores the data that a device needs after a reboot without network: the desired
// state, the final statuses of ended pods, and which images were verified or pulled.
//
// It writes only changes (flash wears), in two slots or by temporary file, fsync and rename. A
// broken file never stops the agent: it logs the error and uses the other slot, or waits for the
// hub. It never interprets its content; package agent calls it. Package join stores the device's
// identity.
package memory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/wire"
)

// maxCounted is the highest generation that a hub can reach by counting. A generation above it may
// exceed the stored one by at most maxLeap. Otherwise a hub that once sent the highest possible
// number could never be replaced.
const (
	maxCounted = 1 << 53
	maxLeap    = 1 << 20
)

// ErrOlder means that a desired state is older than the stored one.
var ErrOlder = errors.New("older than the stored desired state")

// Names of the files in the state directory.
const (
	desiredFile = "desired.state" // desired state of older agents; read until slots have newer content
	desiredName = "desired"
	journalFile = "journal.state" // notes of older agents; read until slots have newer content
	journalName = "journal"
	LockFile    = "lock" // lock of the state directory; never removed
)

// A PodNote is the final status of an ended pod. A pod with a note never runs again.
type PodNote struct {
	UID    types.UID        `json:"uid"`
	Status corev1.PodStatus `json:"status"`
}

// Memory is the state directory of one agent, or a volatile substitute. Its methods may be called
// from any goroutine.
type Memory struct {
	dir  string // empty if volatile
	disk disk
	lock *os.File
	log  *slog.Logger

	// A writer holds writing while it writes to the disk, which takes minutes on a bad card. A
	// reader, such as the lease, holds only mu, which never waits for the disk. A change of the
	// fields below requires both.
	writing sync.Mutex
	mu      sync.Mutex
	desired *wire.Desired
	body    []byte    // encoded desired state without its time, to detect changes
	notes   []PodNote // sorted by UID
	noted   []byte    // encoded notes as last written

	verified []Verified // oldest first
	pulled   []Pulled   // oldest first

	engine json.RawMessage // see Engine

	slots   slots             // slots of the desired state
	journal slots             // slots of the notes
	trouble map[string]string // messages by file; see Trouble
}

// Volatile is a memory without files, for simulated devices.
func Volatile() *Memory { return &Memory{log: slog.New(slog.DiscardHandler)} }

// Open locks the state directory for this process and reads its files. It fails if the directory is
// unusable or belongs to another agent, but not because of a broken file.
func Open(dir string, log *slog.Logger) (*Memory, error) { return openOn(realDisk{}, dir, log) }

func openOn(d disk, dir string, log *slog.Logger) (*Memory, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the state directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w; %s", err, advice(err, os.Geteuid()))
	}
	if err := checkForeign(dir); err != nil {
		return nil, err
	}
	if err := checkOwner(dir); err != nil {
		return nil, err
	}
	lock, err := takeLock(filepath.Join(dir, LockFile))
	if err != nil {
		return nil, err
	}
	m := &Memory{dir: dir, disk: d, lock: lock, log: log, trouble: map[string]string{},
		slots: slots{dir: dir, name: desiredName, disk: d}, journal: slots{dir: dir, name: journalName, disk: d}}
	m.readDesired()
	m.readJournal()
	m.readVerified()
	m.readPulled()
	m.read(filepath.Join(m.dir, engineFile), &m.engine, "the container engine's features are unknown until it responds")
	return m, nil
}

// Dir is the state directory, or "" for a volatile memory.
func (m *Memory) Dir() string { return m.dir }

// Close releases the state directory.
func (m *Memory) Close() error {
	if m.lock == nil {
		return nil
	}
	// Unlock explicitly, because a starting child process may briefly have a copy of the file.
	return errors.Join(syscall.Flock(int(m.lock.Fd()), syscall.LOCK_UN), m.lock.Close())
}

// Desired returns the stored desired state. It returns false on a new device and after a read
// error; then the caller must not remove workloads. The caller must not change the state.
func (m *Memory) Desired() (wire.Desired, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.desired == nil {
		return wire.Desired{}, false
	}
	return *m.desired, true
}

// SetDesired stores a desired state durably, so that it survives a power cut. It returns ErrOlder
// if the stored state of the same hub has a higher generation. It does not write an unchanged
// state. A state that could not be stored is not used, because the device would lose it at the next
// restart.
func (m *Memory) SetDesired(d wire.Desired) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.desired != nil && m.desired.Hub == d.Hub && d.Generation < m.desired.Generation {
		return fmt.Errorf("generation %d from hub %s is %w (%d)", d.Generation, d.Hub, ErrOlder, m.desired.Generation)
	}
	if last := m.generationOf(d.Hub); d.Generation > maxCounted && d.Generation-last > maxLeap {
		return fmt.Errorf("generation %d from hub %s is too far above the stored one, %d",
			d.Generation, d.Hub, last)
	}
	body, err := bodyOf(d)
	if err != nil {
		return fmt.Errorf("encode the desired state of generation %d: %w", d.Generation, err)
	}
	if m.desired != nil && bytes.Equal(body, m.body) {
		m.change(func() { m.desired.Time = d.Time })
		return nil
	}
	if m.dir != "" {
		full, err := json.Marshal(d)
		if err == nil {
			err = m.slots.write(full)
		}
		oneCopy := errors.Is(err, errOnce)
		switch {
		case oneCopy:
			err = fmt.Errorf("store the desired state of generation %d: %w; the device uses the other copy", d.Generation, err)
		case err != nil:
			err = fmt.Errorf("store the desired state of generation %d: %w; the device goes on with the one that it has",
				d.Generation, err)
		}
		m.setTrouble(desiredFile, err)
		if err != nil && !oneCopy {
			return err
		}
		m.dropOlder(desiredFile)
	}
	m.change(func() { m.desired, m.body = &d, body })
	return nil
}

// change calls a function that changes fields for readers. The caller holds writing.
func (m *Memory) change(set func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set()
}

// generationOf is the stored generation of a hub, or 0.
func (m *Memory) generationOf(hub string) int64 {
	if m.desired == nil || m.desired.Hub != hub {
		return 0
	}
	return m.desired.Generation
}

// bodyOf encodes a desired state without its send time, which differs each time the hub sends the
// state.
func bodyOf(d wire.Desired) ([]byte, error) {
	d.Time = time.Time{}
	return json.Marshal(d)
}

// readDesired reads the newest intact desired state.
func (m *Memory) readDesired() {
	found, err := newest(&m.slots, func(d *wire.Desired) {
		m.desired = d
		m.body, _ = bodyOf(*d) // cannot fail; nil would only cause one more write
	})
	switch {
	case found && err != nil:
		m.logDamage(desiredFile, fmt.Errorf(
			"one of the two copies of the desired state is damaged; the device uses the other, of generation %d: %w",
			m.desired.Generation, err))
	case found:
	case err != nil:
		m.logDamage(desiredFile, fmt.Errorf(
			"the desired state is lost; the device waits for the hub, and until then changes no container: %w", err))
	default:
		m.readOlder()
	}
}

// logDamage logs that a file is damaged.
func (m *Memory) logDamage(file string, err error) {
	m.log.Error("a file of the agent's memory is unreadable", "err", err)
	m.setTrouble(file, err)
}

// newest passes the newest intact text of the slots to take, and returns the errors of the other
// slots. If only one slot has that text, it writes the text to the other slot: the next change may
// be weeks away, and the card may lose another block.
func newest[T any](s *slots, take func(*T)) (found bool, wrong error) {
	texts, bad := s.read()
	for i, body := range texts {
		v := new(T)
		err := bound.JSON(body, v)
		if err == nil {
			err = json.Unmarshal(body, v)
		}
		if err == nil {
			take(v)
			wrong = errors.Join(bad...)
			if oneCopy := len(texts) == 1 || !bytes.Equal(texts[0], texts[1]); i == 0 && oneCopy {
				if err := s.writeNext(body); err != nil {
					wrong = fmt.Errorf("%w: %w", errOnce, errors.Join(wrong, err))
				} else if wrong != nil {
					wrong = fmt.Errorf("%w; it was written again: check the card or disk", wrong)
				}
			}
			return true, wrong
		}
		bad = append(bad, fmt.Errorf("%s: %w", filepath.Join(s.dir, s.name), err))
	}
	return false, errors.Join(bad...)
}

// dropOlder removes the file of an older agent once newer content is stored.
func (m *Memory) dropOlder(file string) {
	if err := m.disk.Remove(filepath.Join(m.dir, file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Warn("remove a file of an older agent", "err", err)
	}
}

// readOlder reads the desired state of an agent without slots.
func (m *Memory) readOlder() {
	var d wire.Desired
	if m.read(filepath.Join(m.dir, desiredFile), &d,
		"the device waits for the hub, and until then changes no container") {
		m.desired = &d
		m.body = nil // so that the hub's next desired state is written to the slots
	}
}

// setTrouble records the error of a file; nil clears it. The caller holds writing, or no other
// goroutine uses m.
func (m *Memory) setTrouble(file string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.trouble, file)
	} else {
		m.trouble[file] = strings.Join(strings.Fields(err.Error()), " ")
	}
}

// Trouble returns the errors of the desired state and the notes, one sentence per file, or "".
func (m *Memory) Trouble() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, file := range slices.Sorted(maps.Keys(m.trouble)) {
		all = append(all, m.trouble[file])
	}
	return strings.Join(all, "; ")
}

// readJournal reads the newest intact notes.
func (m *Memory) readJournal() {
	take := func(notes *[]PodNote) {
		m.notes = *notes
		m.noted, _ = json.Marshal(m.notes)
	}
	found, err := newest(&m.journal, take)
	switch {
	case found && err != nil:
		m.logDamage(journalFile, fmt.Errorf("one of the two copies of the journal is damaged; the pod that ended last may "+
			"run once more, unless its containers still exist: %w", err))
	case found:
	case err != nil:
		m.logDamage(journalFile, fmt.Errorf(
			"the journal is lost; a pod that had ended for good may run once more, unless its containers still exist: %w", err))
	default:
		var notes []PodNote
		if m.read(filepath.Join(m.dir, journalFile), &notes, "a pod that had ended for good may run once more") {
			take(&notes)
			m.noted = nil // so that the notes are written to the slots
		}
	}
}

// read reads a file written by write. It moves a damaged file aside for inspection, and logs an
// error.
func (m *Memory) read(path string, into any, consequence string) bool {
	body, err := readSealed(path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err == nil {
		err = bound.JSON(body, into)
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
	m.setTrouble(filepath.Base(path), fmt.Errorf("%s was unreadable, %s: %w; %s", path, consequence, err, moved))
	return false
}
