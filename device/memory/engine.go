package memory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const engineFile = "engine.state"

// Engine is the last stored description of the container engine, in the agent's format; nil: there
// is none.
func (m *Memory) Engine() json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.engine)
}

// SetEngine stores the container engine's description durably. An unchanged one is not written.
func (m *Memory) SetEngine(text json.RawMessage) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if bytes.Equal(m.engine, text) {
		return nil
	}
	m.change(func() { m.engine = text }) // valid in memory even if the disk fails
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
