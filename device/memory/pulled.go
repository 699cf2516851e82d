package memory

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const (
	pulledFile = "pulled.state"
	maxPulled  = 512 // images; the oldest is forgotten, and stays with the engine
)

// A Pulled is an image that the agent has brought to the engine, which the device's
// owner may share: all others are the owner's.
type Pulled struct {
	Name string `json:"name"`         // as it was pulled
	ID   string `json:"id,omitempty"` // what that was; "": an earlier agent pulled it, which took no note
}

// Pulled are the images that the agent has pulled.
func (m *Memory) Pulled() []Pulled {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pulled)
}

// SetPulled remembers durably that an image was pulled.
func (m *Memory) SetPulled(p Pulled) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if slices.Contains(m.pulled, p) {
		return nil
	}
	next := slices.DeleteFunc(slices.Clone(m.pulled), func(old Pulled) bool { return old.Name == p.Name && old.ID == "" })
	next = append(next, p)
	return m.setPulled(next[max(0, len(next)-maxPulled):])
}

// DropPulled forgets an image that is gone.
func (m *Memory) DropPulled(gone func(Pulled) bool) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	next := slices.DeleteFunc(slices.Clone(m.pulled), gone)
	if len(next) == len(m.pulled) {
		return nil
	}
	return m.setPulled(next)
}

func (m *Memory) setPulled(next []Pulled) error {
	m.change(func() { m.pulled = next }) // also where it cannot be written: it holds for as long as the agent runs
	if m.dir == "" {
		return nil
	}
	body, err := json.Marshal(next)
	if err == nil {
		err = write(m.disk, filepath.Join(m.dir, pulledFile), body)
	}
	if m.note(pulledFile, err); err != nil {
		return fmt.Errorf("remember which images were pulled: %w; after a restart those that are not remembered are "+
			"taken for the owner's, and stay", err)
	}
	return nil
}

// readPulled reads the note. A device whose agent took none yet has pulled what its pods
// run, as far as anybody knows.
func (m *Memory) readPulled() {
	file := filepath.Join(m.dir, pulledFile)
	if m.read(file, &m.pulled, "images that were pulled are taken for the owner's, and stay") ||
		m.trouble[pulledFile] != "" || m.desired == nil {
		return
	}
	for i := range m.desired.Pods {
		spec := &m.desired.Pods[i].Spec
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			m.pulled = append(m.pulled, Pulled{Name: c.Image})
		}
	}
	m.pulled = m.pulled[max(0, len(m.pulled)-maxPulled):]
}
