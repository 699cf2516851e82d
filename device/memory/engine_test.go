package memory

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// The engine's description survives a restart. A damaged one is ignored.
func TestTheEnginesDescriptionSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	open := func(want string) *Memory {
		t.Helper()
		m, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.Engine()); got != want {
			t.Errorf("the engine is %q, want %q", got, want)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	m := open("")
	if err := m.SetEngine(json.RawMessage(`{"Arch":"arm64"}`)); err != nil {
		t.Fatal(err)
	}
	_ = m.Close()
	_ = open(`{"Arch":"arm64"}`).Close()
	if err := os.WriteFile(filepath.Join(dir, engineFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	open("")
	if m := Volatile(); m.SetEngine(json.RawMessage(`{}`)) != nil || string(m.Engine()) != "{}" {
		t.Error("a volatile memory does not return the stored engine")
	}
}
