package memory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const engineFile = "engine.state"

// Engine is how the container engine described itself when it last did, as the agent wrote it; nil:
// never.
func (m *Memory) Engine() json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.engine)
}

// SetEngine remembers durably how the container engine describes itself; the same again writes
// nothing.
func (m *Memory) SetEngine(text json.RawMessage) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if bytes.Equal(m.engine, text) {
		return nil
	}
	m.change(func() { m.engine = text }) // also where it cannot be written: it holds for as long as the agent runs
	if m.dir == "" {
		return nil
	}
	err := write(m.disk, filepath.Join(m.dir, engineFile), text)
	if m.note(engineFile, err); err != nil {
		return fmt.Errorf(
			"remember which container engine there is: %w; after a restart it is not known until the engine answers", err)
	}
	return nil
}
