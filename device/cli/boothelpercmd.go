package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

const (
	defaultBootHelper    = "/run/flotilla-boot-helper.sock"
	defaultBootHelperDir = "/var/lib/flotilla/boot-helper"
	helperIdle           = 30 * time.Second // the idle helper exits after this time; systemd keeps its socket
)

// bootHelperCommand runs the boot helper, the only process that changes boot files.
func bootHelperCommand() *cobra.Command {
	var stateDir, socket, root string
	var deadman, forget, restore bool
	var l logFlags
	cmd := &cobra.Command{
		Use:   "boot-helper",
		Short: "Change this board's boot configuration for the agent, if its hub has signed it; systemd starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := l.logger(nil)
			if err != nil {
				return err
			}
			s := &boothelper.Server{Disk: boothelper.Kernel{}, Board: boothelper.Machine{Root: root}, StateDir: stateDir,
				Log: log}
			if err := os.MkdirAll(stateDir, 0o700); err != nil {
				return usageError{err}
			}
			switch {
			case forget:
				return s.Forget()
			case deadman:
				return s.Deadman(cmd.Context())
			case restore:
				return s.Restore()
			}
			return serveBootHelper(cmd.Context(), s, socket)
		},
	}
	l.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&stateDir, "state-dir", defaultBootHelperDir, "directory of the helper's state")
	fl.StringVar(&socket, "socket", "", "path of the socket to listen at, if systemd does not open it")
	fl.BoolVar(&deadman, "deadman", false, "do not listen: watch a trial and reboot out of it if it is undecided "+
		"after its deadline")
	fl.BoolVar(&restore, "restore", false,
		"do not listen: complete what a power cut interrupted and restore the old files of a trial that has ended; "+
			"run it early in each boot")
	fl.BoolVar(&forget, "forget", false,
		"do not listen: forget the node and its hub's key, so that the next ones are accepted")
	fl.StringVar(&root, "root", "", "directory of a fake board, for tests; it is not rebooted")
	_ = fl.MarkHidden("root") // the error says that the flag does not exist, but it does
	return cmd
}

func serveBootHelper(ctx context.Context, s *boothelper.Server, socket string) error {
	if socket == "" {
		ln, err := boothelper.Listener()
		if err != nil {
			return err
		}
		if ln == nil {
			return usagef("boot-helper needs a socket: start it through flotilla-boot-helper.socket, or pass --socket")
		}
		return s.Serve(ctx, ln, helperIdle)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return usageError{err}
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return usageError{err}
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(err, ln.Close())
	}
	return s.Serve(ctx, ln, 0)
}

// bootRunner creates the agent's runner of boot configurations.
func bootRunner(socket string, p prepared, a *agent.Agent, m *memory.Memory, online func() bool,
	log *slog.Logger) *firmware.Runner {
	return &firmware.Runner{
		Node: p.node, Disk: boothelper.Kernel{}, Dir: p.stateDir, Log: log,
		Ask: func(ctx context.Context, r boothelper.Request) (boothelper.Reply, error) {
			return boothelper.Ask(ctx, socket, r)
		},
		Desired: func() (*wire.Firmware, []byte) {
			d, _ := m.Desired()
			return d.Firmware, d.FirmwareKey
		},
		Health: func(context.Context) firmware.Health { return health(p.stateDir, a, m, online()) },
		Report: a.SetFirmware,
	}
}

// health collects the facts that decide whether a trial succeeds.
func health(stateDir string, a *agent.Agent, m *memory.Memory, online bool) firmware.Health {
	f := firmware.Health{Hub: online, Engine: "the agent has no answer yet"}
	for _, c := range a.Status().Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			f.Engine = ""
		case c.Type == corev1.NodeReady:
			f.Engine = c.Message
		case c.Type == "PowerOK" && c.Status == corev1.ConditionFalse && c.Reason == "UnderVoltage":
			f.Undervoltage = true
		case c.Type == fleet.ConditionPeripheralsPresent && c.Status != corev1.ConditionTrue:
			f.Missing = c.Message
		}
	}
	d, _ := m.Desired()
	for i := range d.Pods {
		f.Desired = append(f.Desired, string(d.Pods[i].UID))
	}
	for _, pod := range a.Pods().Pods {
		if pod.Status.Phase == corev1.PodRunning {
			f.Running = append(f.Running, string(pod.UID))
		}
	}
	slices.Sort(f.Running)
	f.Disk = func() string {
		if err := writable(stateDir); err != nil {
			return strings.TrimSpace(err.Error())
		}
		return ""
	}
	return f
}

// writable checks that files can be created in a directory.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, "writable-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("\n")
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// isOnline returns a function that reports whether the link is connected.
func isOnline(l *link.Link) func() bool {
	return func() bool {
		if l == nil {
			return false
		}
		online, _ := l.Online()
		return online
	}
}
