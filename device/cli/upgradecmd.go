package cli

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

	"github.com/spf13/cobra"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/mirror"
	"flotilla.dev/device/upgrade"
	"flotilla.dev/shared/wire"
)

// ReleaseKey is the public Ed25519 key, in base64, of the agents to which this one upgrades itself;
// the build sets it.
var ReleaseKey string

// upgradeFlags are the flags of the device's owner.
type upgradeFlags struct {
	keys     string // file
	unsigned bool
}

func (u *upgradeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&u.keys, "upgrade-keys", "/etc/flotilla/upgrade-keys",
		"file of the device's owner with the Ed25519 keys, one a line in base64, of agents to which this one may be "+
			"upgraded; without the file: the key of the release")
	cmd.Flags().BoolVar(&u.unsigned, "upgrade-unsigned", false,
		"let the hub upgrade this agent to programs that nobody has signed: then the hub is root on this device")
}

// upgradeDir is the directory of upgrades in a state directory.
func upgradeDir(stateDir string) string { return filepath.Join(stateDir, "upgrade") }

// supervised reports whether something starts the agent again when it ends, and can be notified.
func supervised() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// launch becomes the agent that is being tried, if there is one. It reads no flags but --state-dir:
// this program may not know those of the other version.
func launch(args []string) {
	if len(args) == 0 || args[0] != "run" || !supervised() {
		return
	}
	dir := os.Getenv(environmentName("state-dir"))
	for i, arg := range args {
		if v, ok := strings.CutPrefix(arg, "--state-dir="); ok {
			dir = v
		} else if arg == "--state-dir" && i+1 < len(args) {
			dir = args[i+1]
		}
	}
	if dir == "" {
		dir = defaultStateDir
	}
	starter, err := upgrade.Process()
	if dir, e := filepath.Abs(dir); err == nil {
		if err = e; err == nil {
			err = upgrade.Store{Dir: upgradeDir(dir)}.Launch(starter)
		}
	}
	if err != nil {
		fmt.Fprintln(terminal{os.Stderr}, "flotilla-device: cannot go on with the upgrade of the agent:", err)
	}
}

// upgradeWatchCommand is the watcher that an agent leaves behind when it becomes another version.
func upgradeWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use: upgrade.WatchCommand, Hidden: true, Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "fork" {
				self, err := os.Executable()
				if err != nil {
					return err
				}
				c := exec.Command(self, upgrade.WatchCommand, "watch", args[1], args[2])
				c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				return c.Start()
			}
			pid, err := strconv.Atoi(args[2])
			if err != nil {
				return err
			}
			return upgrade.Store{Dir: args[1]}.Watch(cmd.Context(), pid, upgrade.Deadline, slog.Default())
		},
	}
}

// upgrader makes the part of the agent that replaces it by another version.
func upgrader(u upgradeFlags, p prepared, a *agent.Agent, m *memory.Memory, l *link.Link,
	log *slog.Logger) (*upgrade.Runner, error) {
	keys, err := upgrade.ReadKeys(u.keys, ReleaseKey)
	if err != nil {
		return nil, usagef("--upgrade-keys: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &upgrade.Runner{
		Store: upgrade.Store{Dir: upgradeDir(p.stateDir)}, Self: self, Version: agent.Version, Keys: keys,
		Unsigned: u.unsigned, Log: log, Report: a.SetUpgrade,
		Want: func() *wire.Upgrade {
			d, _ := m.Desired()
			return d.Upgrade
		},
		Heard: func() bool { return l != nil && l.Heard() },
	}
	switch {
	case p.identity == nil:
		r.Refused = "this device has not joined: it has no HTTPS connection to the hub"
	case !supervised():
		r.Refused = "the agent was not started by systemd, which would start it again: use the unit flotilla-device"
	}
	r.Fetch = mirror.New(p.hubOf(m), log).Download
	r.Announce()
	return r, nil
}

// runUpgrader ends the agent when it must restart.
func runUpgrader(ctx context.Context, r *upgrade.Runner, restart context.CancelCauseFunc) error {
	err := r.Run(ctx)
	if err != nil {
		restart(err)
	}
	return err
}
