package upgrade

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/shared/fleet"
)

// Deadline is how long a candidate has for being confirmed.
const Deadline = 5 * time.Minute

// WatchCommand is the hidden command of the watcher.
const WatchCommand = "upgrade-watch"

// A Starter starts programs. Tests replace it.
type Starter struct {
	Self  string                          // path of the running program
	Exec  func(program string) error      // becomes the program; returns only an error
	Watch func(dir string, pid int) error // leaves a watcher behind
}

// Process is the real Starter.
func Process() (Starter, error) {
	self, err := os.Executable()
	return Starter{
		Self: self,
		Exec: func(program string) error { return syscall.Exec(program, os.Args, os.Environ()) },
		// A child starts the watcher and ends, so that the watcher is not a child of the agent.
		Watch: func(dir string, pid int) error {
			out, err := exec.Command(self, WatchCommand, "fork", dir, strconv.Itoa(pid)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
	}, err
}

// Launch is called before the agent starts. It returns if this process is the agent: whatever is
// wrong with an upgrade, the installed program runs.
func (s Store) Launch(st Starter) error {
	if _, err := os.Stat(s.Dir); err != nil || st.Self == s.candidate() {
		return nil
	}
	j, err := s.read()
	if err != nil || j.Phase != trying && j.Phase != confirmed {
		return err
	}
	sum, _, err := hashOf(st.Self)
	if err != nil {
		return err
	}
	// The candidate has just been installed, or somebody has installed a package.
	if sum == j.Candidate.SHA256 || sum != j.Installed.SHA256 {
		return s.finish()
	}
	if j.Phase == trying {
		have, _, err := hashOf(s.candidate())
		switch {
		case err != nil:
			return s.goBack(fmt.Sprintf("the program cannot be read: %v", err), false)
		case have != j.Candidate.SHA256:
			return s.goBack("the program is damaged: check the card or disk", false)
		case j.Starts >= maxStarts:
			return s.goBack(fmt.Sprintf("it ended %d times before the hub had acknowledged it", maxStarts), false)
		}
		err = s.update(func(j *journal) bool { j.Starts++; return true })
		if err == nil {
			err = st.Watch(s.Dir, os.Getpid())
		}
		if err != nil {
			return s.goBack(fmt.Sprintf("it cannot be watched: %v", err), false)
		}
	}
	return s.goBack(fmt.Sprintf("it cannot be started: %v", st.Exec(s.candidate())), false)
}

// finish ends an upgrade after which another program is installed.
func (s Store) finish() error {
	previous, _, err := hashOf(filepath.Join(s.Dir, previousFile))
	if err != nil {
		return err
	}
	err = s.update(func(j *journal) bool {
		done := journal{Program: j.Program, Bad: j.Bad}
		for _, b := range []fleet.AgentBuild{j.Installed, j.Previous} {
			if b.SHA256 == previous {
				done.Previous = b
				break
			}
		}
		*j = done
		return true
	})
	if err != nil {
		return err
	}
	return s.remove(s.candidate())
}

// Watch ends a candidate that is not confirmed at its deadline: then the installed program runs
// again. It runs in a process of the installed program.
func (s Store) Watch(ctx context.Context, pid int, within time.Duration, log *slog.Logger) error {
	born := startOf(pid)
	began, first := time.Now(), 0
	for born != "" && startOf(pid) == born {
		j, err := s.read()
		if first == 0 {
			first = j.Starts
		}
		switch {
		case err != nil:
			log.Error("cannot read the state of the upgrade", "err", err)
		case j.Phase != trying || j.Starts != first:
			return nil
		case time.Since(began) >= within:
			log.Warn("the new agent is not confirmed in time; the one before runs again", "version", j.Candidate.Version)
			if err := s.goBack(fmt.Sprintf("the hub has not acknowledged it within %s", within), true); err != nil {
				return err
			}
			return end(ctx, pid, born)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	return nil
}

// end ends a process.
func end(ctx context.Context, pid int, born string) error {
	for _, signal := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		if startOf(pid) != born {
			return nil
		}
		if err := unix.Kill(pid, signal); err != nil {
			return err
		}
		for range 10 {
			if startOf(pid) != born {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}

// startOf returns when a process started, "" if it does not run: a later process may have its id.
func startOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const state, start = 0, 19
	if len(fields) <= start || fields[state] == "Z" {
		return ""
	}
	return fields[start]
}
