package memory

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const (
	pulledFile = "pulled.state"
	maxPulled  = 512 // number of images; the oldest is dropped here, and stays in the engine
)

// A Pulled is an image that the agent has pulled. The engine's other images belong to the device's
// owner.
type Pulled struct {
	Name string `json:"name"`         // name at the pull
	ID   string `json:"id,omitempty"` // id at the pull; empty: unknown, noted by an earlier agent
}

// Pulled returns the images that the agent has pulled.
func (m *Memory) Pulled() []Pulled {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pulled)
}

// SetPulled stores durably that an image was pulled.
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

// DropPulled drops the matching images from the record.
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
	m.change(func() { m.pulled = next }) // used even if the disk fails
	if m.dir == "" {
		return nil
	}
	body, err := json.Marshal(next)
	if err == nil {
		err = write(m.disk, filepath.Join(m.dir, pulledFile), body)
	}
	if m.setTrouble(pulledFile, err); err != nil {
		return fmt.Errorf("store which images were pulled: %w; after a restart the images that are "+
			"not stored count as the owner's, and stay", err)
	}
	return nil
}

// readPulled reads the pulled images. Without the file, all images of pods count as pulled.
func (m *Memory) readPulled() {
	file := filepath.Join(m.dir, pulledFile)
	if m.read(file, &m.pulled, "pulled images count as the owner's, and stay") ||
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
