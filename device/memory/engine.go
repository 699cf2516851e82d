package memory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const engineFile = "engine.state"

// Engine returns the last stored description of the container engine, in the agent's format, or
// nil.
func (m *Memory) Engine() json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.engine)
}

// SetEngine stores the container engine's description durably. It does not write an unchanged one.
func (m *Memory) SetEngine(text json.RawMessage) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if bytes.Equal(m.engine, text) {
		return nil
	}
	m.change(func() { m.engine = text }) // used even if the disk fails
	if m.dir == "" {
		return nil
	}
	err := write(m.disk, filepath.Join(m.dir, engineFile), text)
	if m.setTrouble(engineFile, err); err != nil {
		return fmt.Errorf(
			"store the container engine's description: %w; after a restart it is unknown until the engine responds", err)
	}
	return nil
}
