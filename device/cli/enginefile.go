package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"flotilla.dev/device/engine"
)

// engineFile stores, in the state directory, the socket of the engine that runs the containers.
const engineFile = "engine.socket"

// findEngine opens the engine named by choice. "auto" prefers the engine that the agent used last.
func findEngine(ctx context.Context, choice, stateDir string) (engine.Engine, error) {
	last, _ := os.ReadFile(filepath.Join(stateDir, engineFile)) // empty if the agent has not used an engine
	return engine.Find(ctx, choice, string(last))
}

// openEngine opens the agent's engine and stores its socket.
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
