package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"flotilla.dev/device/engine"
)

// engineFile stores the socket of the engine that has the containers, in the state directory.
const engineFile = "engine.socket"

// findEngine finds the engine of choice, preferring the one that the agent has used.
func findEngine(ctx context.Context, choice, stateDir string) (engine.Engine, error) {
	last, _ := os.ReadFile(filepath.Join(stateDir, engineFile)) // empty: no engine was used yet
	return engine.Find(ctx, choice, string(last))
}

// openEngine finds the agent's engine and stores its socket.
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
	if last, _ := os.ReadFile(file); string(last) != info.Socket { // write only changes, to spare the flash
		if err := renameio.WriteFile(file, []byte(info.Socket), 0o600, renameio.IgnoreUmask()); err != nil {
			log.Warn("cannot store which container engine is used; if there are several, the next start may choose "+
				"another", "socket",
				info.Socket, "err", err)
		}
	}
	return e, nil
}
