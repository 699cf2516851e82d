package memory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Notes are the pods that have ended for good, by UID.
func (m *Memory) Notes() []PodNote {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes)
}

// journalOf is what the journal holds for notes, which it sorts.
func journalOf(notes []PodNote) ([]PodNote, []byte, error) {
	notes = slices.Clone(notes)
	sort.Slice(notes, func(i, j int) bool { return notes[i].UID < notes[j].UID })
	body, err := json.Marshal(notes)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the journal: %w", err)
	}
	return notes, body, nil
}

// Noted tells whether SetNotes has nothing to write. It waits for no disk.
func (m *Memory) Noted(notes []PodNote) bool {
	notes, body, err := journalOf(notes)
	return err == nil && m.isNoted(notes, body)
}

// SetNotes replaces the notes durably; the same notes again write nothing.
func (m *Memory) SetNotes(notes []PodNote) error {
	notes, body, err := journalOf(notes)
	if err != nil {
		return err
	}
	if m.isNoted(notes, body) {
		return nil
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	if m.dir != "" {
		err := m.journal.write(body)
		if err != nil {
			err = fmt.Errorf("write the journal: %w; a pod that has ended would run again after a restart of the agent", err)
		}
		if m.note(journalFile, err); err != nil && !errors.Is(err, errOnce) {
			return err
		}
		m.dropOlder(journalFile)
	}
	m.change(func() { m.notes, m.noted = notes, body })
	return nil
}

// isNoted tells whether these notes are in the journal.
func (m *Memory) isNoted(notes []PodNote, body []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(notes) == 0 && len(m.notes) == 0 || bytes.Equal(body, m.noted)
}
