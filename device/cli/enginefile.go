package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"flotilla.dev/device/engine"
)

// engineFile keeps, in the state directory, the socket of the engine that has the containers.
const engineFile = "engine.socket"

// findEngine finds the engine that choice names: where it names several, that which the agent has
// used.
func findEngine(ctx context.Context, choice, stateDir string) (engine.Engine, error) {
	last, _ := os.ReadFile(filepath.Join(stateDir, engineFile)) // none is used yet, or any
	return engine.Find(ctx, choice, string(last))
}

// openEngine finds the engine for the agent, and keeps which it is.
func openEngine(ctx context.Context, choice, stateDir string, log *slog.Logger) (engine.Engine, error) {
	e, err := findEngine(ctx, choice, stateDir)
	if err != nil {
		return nil, err
	}
	info, err := e.Info(ctx)
	if err != nil {
		_ = e.Close() // err is the cause
		return nil, err
	}
	file := filepath.Join(stateDir, engineFile)
	if last, _ := os.ReadFile(file); string(last) != info.Socket { // else flash wears
		if err := renameio.WriteFile(file, []byte(info.Socket), 0o600, renameio.IgnoreUmask()); err != nil {
			log.Warn("keep which container engine is used; where there are several, the next start may take another", "socket",
				info.Socket, "err", err)
		}
	}
	return e, nil
}
