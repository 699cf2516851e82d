package agent

import (
	"context"
	"os"
	"path/filepath"

	"flotilla.dev/device/engine"
)

// Engines let a command run on whose caller was killed. So a command that the hub
// wants is noted before it begins, and an agent that starts ends those that the one
// before it has left. What somebody has begun by other means is in no note. A boot
// ends the commands, and the notes are where it ends them too.

func (d *disk) execs() string { return filepath.Join(d.memory, "execs") }

// noteExec notes a command; strike, that it has ended.
func (a *Agent) noteExec(exec string) {
	err := os.MkdirAll(a.disk.execs(), 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(a.disk.execs(), filepath.Base(exec)), nil, 0o600)
	}
	if err != nil {
		a.log.Warn("note a command; should the agent be killed, it runs on in its container", "err", err)
	}
}

func (a *Agent) strikeExec(exec string) {
	if err := os.Remove(filepath.Join(a.disk.execs(), filepath.Base(exec))); err != nil && !os.IsNotExist(err) {
		a.log.Warn("strike the note of a command that has ended", "err", err)
	}
}

// leftover lists the commands that an earlier agent has left.
func (d *disk) leftover() (execs []string) {
	entries, _ := os.ReadDir(d.execs()) // none, for most
	for _, e := range entries {
		execs = append(execs, e.Name())
	}
	return execs
}

func (a *Agent) endExecs(ctx context.Context, e engine.Engine, execs []string) {
	for _, exec := range execs {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		err := e.EndExec(ctx, exec)
		cancel()
		if err != nil {
			a.log.Warn("end a command that an agent before this one has left; the next one will try again", "err", err)
			continue
		}
		a.strikeExec(exec)
	}
}
