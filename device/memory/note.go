package memory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Notes returns the final statuses of ended pods, sorted by UID.
func (m *Memory) Notes() []PodNote {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes)
}

// journalOf sorts and encodes notes.
func journalOf(notes []PodNote) ([]PodNote, []byte, error) {
	notes = slices.Clone(notes)
	sort.Slice(notes, func(i, j int) bool { return notes[i].UID < notes[j].UID })
	body, err := json.Marshal(notes)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the journal: %w", err)
	}
	return notes, body, nil
}

// Noted reports whether SetNotes would write nothing. It does not wait for the disk.
func (m *Memory) Noted(notes []PodNote) bool {
	notes, body, err := journalOf(notes)
	return err == nil && m.isNoted(notes, body)
}

// SetNotes replaces the notes durably. It does not write unchanged notes.
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
		if m.setTrouble(journalFile, err); err != nil && !errors.Is(err, errOnce) {
			return err
		}
		m.dropOlder(journalFile)
	}
	m.change(func() { m.notes, m.noted = notes, body })
	return nil
}

// isNoted reports whether these notes are stored.
func (m *Memory) isNoted(notes []PodNote, body []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(notes) == 0 && len(m.notes) == 0 || bytes.Equal(body, m.noted)
}
