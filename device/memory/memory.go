// Package memory is what a device must still know after a reboot without
// network: the desired state that it lives from, the journal of the pods that have
// ended for good, and which images were found to be signed.
//
// It writes nothing that has not changed (flash wears), keeps what must not be lost in two slots or
// writes a file whole or not at all (temporary file, fsync, rename), and never lets a broken file
// stop the agent: it says so with a loud sentence, and the device lives by the other slot, or waits
// for the hub. It never decides what to do with what it keeps: that is package agent's work. The
// device's identity is kept by package join.
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

// most is the highest generation that a hub comes to by counting, and leap how far one
// may be beyond the stored one all the same: a hub that once said the highest number
// there is must not be the last one that the device hears.
const (
	most = 1 << 53
	leap = 1 << 20
)

// ErrOlder is returned for a desired state that is older than the stored one.
var ErrOlder = errors.New("older than the stored desired state")

// Names of the files in the state directory.
const (
	desiredFile = "desired.state" // of older agents, until there is something newer; see slots
	desiredName = "desired"
	journalFile = "journal.state" // the same of the journal
	journalName = "journal"
	LockFile    = "lock" // of the state directory; never removed
)

// A PodNote is what must not be forgotten of a pod that has ended for good: that it
// has, and its last status. A pod with a note never runs again.
type PodNote struct {
	UID    types.UID        `json:"uid"`
	Status corev1.PodStatus `json:"status"`
}

// Memory is the state directory of one agent, or a volatile stand-in for it.
// Its methods may be called from any goroutine.
type Memory struct {
	dir  string // "": volatile
	disk disk
	lock *os.File
	log  *slog.Logger

	// Whoever changes something holds writing, for as long as the disk takes: on a bad card that is
	// minutes. Whoever only wants to know, such as the lease, holds mu, under which nothing waits.
	// What is below changes under both.
	writing sync.Mutex
	mu      sync.Mutex
	desired *wire.Desired
	body    []byte    // of desired without its time, to see whether anything changed
	notes   []PodNote // by UID
	noted   []byte    // of the notes, as last written

	verified []Verified // the newest last
	pulled   []Pulled   // the newest last

	engine json.RawMessage // see Engine

	slots   slots             // of the desired state
	journal slots             // of the notes
	trouble map[string]string // sentences, by file; see Trouble
}

// Volatile is a memory that forgets everything when the process ends, for
// simulated devices.
func Volatile() *Memory { return &Memory{log: slog.New(slog.DiscardHandler)} }

// Open takes the state directory for this process and reads what is there. It
// fails where the directory cannot be used or another agent uses it; a broken file
// in it is no reason to fail.
func Open(dir string, log *slog.Logger) (*Memory, error) { return openOn(kernel{}, dir, log) }

func openOn(d disk, dir string, log *slog.Logger) (*Memory, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the state directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w; %s", err, instead(err, os.Geteuid()))
	}
	if err := foreign(dir); err != nil {
		return nil, err
	}
	if err := ownDirectory(dir); err != nil {
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
	m.read(filepath.Join(m.dir, engineFile), &m.engine, "what the container engine can do is not known until it answers")
	return m, nil
}

// Dir is the state directory; empty for a volatile memory.
func (m *Memory) Dir() string { return m.dir }

// Close gives the state directory back.
func (m *Memory) Close() error {
	if m.lock == nil {
		return nil
	}
	// A program that is being started has a copy of the file for a moment, with which the lock would
	// stay.
	return errors.Join(syscall.Flock(int(m.lock.Fd()), syscall.LOCK_UN), m.lock.Close())
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
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.desired != nil && m.desired.Hub == d.Hub && d.Generation < m.desired.Generation {
		return fmt.Errorf("generation %d from hub %s is %w (%d)", d.Generation, d.Hub, ErrOlder, m.desired.Generation)
	}
	if last := m.lastOf(d.Hub); d.Generation > most && d.Generation-last > leap {
		return fmt.Errorf("generation %d from hub %s is none that a hub comes to by counting: the stored one is %d",
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
		once := errors.Is(err, errOnce)
		switch {
		case once:
			err = fmt.Errorf("store the desired state of generation %d: %w; the device lives by the other", d.Generation, err)
		case err != nil:
			err = fmt.Errorf("store the desired state of generation %d: %w; the device goes on with the one that it has",
				d.Generation, err)
		}
		m.note(desiredFile, err)
		if err != nil && !once {
			return err
		}
		m.dropOlder(desiredFile)
	}
	m.change(func() { m.desired, m.body = &d, body })
	return nil
}

// change changes what others read meanwhile. The caller holds writing.
func (m *Memory) change(what func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what()
}

// lastOf is the generation that is stored of a hub.
func (m *Memory) lastOf(hub string) int64 {
	if m.desired == nil || m.desired.Hub != hub {
		return 0
	}
	return m.desired.Generation
}

// bodyOf is a desired state without the time of its sending, which changes with
// every resend and means nothing to what should run.
func bodyOf(d wire.Desired) ([]byte, error) {
	d.Time = time.Time{}
	return json.Marshal(d)
}

// readDesired takes the newest desired state that is whole.
func (m *Memory) readDesired() {
	found, err := newest(&m.slots, func(d *wire.Desired) {
		m.desired = d
		m.body, _ = bodyOf(*d) // it was JSON a moment ago; nil only means one write too many
	})
	switch {
	case found && err != nil:
		m.damaged(desiredFile, fmt.Errorf(
			"one of the two copies of the desired state is damaged, the device lives by that of generation %d: %w",
			m.desired.Generation, err))
	case found:
	case err != nil:
		m.damaged(desiredFile, fmt.Errorf(
			"the desired state is lost; the device waits for the hub, and until then leaves every container as it is: %w", err))
	default:
		m.readOlder()
	}
}

// damaged says that a file is not as it was written.
func (m *Memory) damaged(file string, err error) {
	m.log.Error("a file of the agent's memory is unreadable", "err", err)
	m.note(file, err)
}

// newest gives the newest text in the slots that is whole to take, and says what is wrong
// with the others. It is there twice afterwards: who waited for the next text might wait for
// weeks, and a card that spoils one block spoils another.
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
			if once := len(texts) == 1 || !bytes.Equal(texts[0], texts[1]); i == 0 && once {
				if err := s.turn(body); err != nil {
					wrong = fmt.Errorf("%w: %w", errOnce, errors.Join(wrong, err))
				} else if wrong != nil {
					wrong = fmt.Errorf("%w; it has been written anew: look at the card or disk", wrong)
				}
			}
			return true, wrong
		}
		bad = append(bad, fmt.Errorf("%s: %w", filepath.Join(s.dir, s.name), err))
	}
	return false, errors.Join(bad...)
}

// dropOlder removes what an older agent has left, once there is something newer.
func (m *Memory) dropOlder(file string) {
	if err := m.disk.Remove(filepath.Join(m.dir, file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Warn("a file of an older agent is left over", "err", err)
	}
}

// readOlder reads the desired state as agents before the slots have written it.
func (m *Memory) readOlder() {
	var d wire.Desired
	if m.read(filepath.Join(m.dir, desiredFile), &d,
		"it waits for the hub, and until then leaves every container as it is") {
		m.desired = &d
		m.body = nil // so that it comes into the slots when the hub sends it again
	}
}

// note notes what is wrong with a file, nil: nothing any more. The caller holds writing,
// or is alone.
func (m *Memory) note(file string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.trouble, file)
	} else {
		m.trouble[file] = strings.Join(strings.Fields(err.Error()), " ")
	}
}

// Trouble says what is wrong with what the device must not forget, one sentence for each
// file; empty: nothing.
func (m *Memory) Trouble() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, file := range slices.Sorted(maps.Keys(m.trouble)) {
		all = append(all, m.trouble[file])
	}
	return strings.Join(all, "; ")
}

// readJournal takes the newest notes that are whole.
func (m *Memory) readJournal() {
	take := func(notes *[]PodNote) {
		m.notes = *notes
		m.noted, _ = json.Marshal(m.notes)
	}
	found, err := newest(&m.journal, take)
	switch {
	case found && err != nil:
		m.damaged(journalFile, fmt.Errorf("one of the two copies of the journal is damaged; the pod that ended last may "+
			"run once more, unless its containers tell: %w", err))
	case found:
	case err != nil:
		m.damaged(journalFile, fmt.Errorf(
			"the journal is lost; a pod that had ended for good may run once more, unless its containers tell: %w", err))
	default:
		var notes []PodNote
		if m.read(filepath.Join(m.dir, journalFile), &notes, "a pod that had ended for good may run once more") {
			take(&notes)
			m.noted = nil // so that they come into the slots
		}
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
	m.note(filepath.Base(path), fmt.Errorf("%s was unreadable, %s: %w; %s", path, consequence, err, moved))
	return false
}
