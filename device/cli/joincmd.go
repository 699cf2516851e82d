package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/join"
	"flotilla.dev/device/memory"
	"flotilla.dev/shared/wire"
)

func joinCommand() *cobra.Command {
	var (
		stateDir, word, tokenFile, node string
		labels, taints                  []string
		choice                          string
		forgetting, keeping             bool
		logs                            logFlags
	)
	cmd := &cobra.Command{
		Use:   "join URL --token TOKEN",
		Short: "Join a fleet: get this device's identity from its hub",
		Example: `  flotilla-device join https://gateway:8443 --token FLT1.…
  flotilla-device join https://gateway:8443 --token FLT1.… --node-name kiosk-7 --label floor=2 --taint camera=true:NoSchedule
  flotilla-device join https://hub-a:8443,https://hub-b:8443 --token FLT1.…
  flotilla-device join https://gateway:8443 --token-file /run/credentials/token
  flotilla-device join https://new-gateway:8443 --token FLT1.… --forget-workloads`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("join takes the address of the hub, such as https://gateway:8443; flotilla-hub token create " +
					"prints the whole line")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := readToken(word, tokenFile, cmd.InOrStdin())
			if err != nil {
				return err
			}
			secret, err := wire.ParseJoinToken(token)
			if err != nil {
				return usagef("--token: %w", err)
			}
			if err := checkEngine(choice); err != nil {
				return err
			}
			log, err := logs.logger(nil)
			if err != nil {
				return err
			}
			var reg wire.Registration
			if reg.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if reg.Taints, err = parseTaints(taints); err != nil {
				return err
			}
			dir, err := absolute(stateDir)
			if err != nil {
				return err
			}
			have, err := join.Load(dir)
			if err == nil && !keeping && !forgetting && readDismissed(dir, have) == nil {
				return belongs(have, secret) // also while its agent runs, which has the directory
			}
			m, err := memory.Open(dir, log)
			if err != nil {
				return usageError{err}
			}
			defer func() { _ = m.Close() }() // the process ends anyway
			key, hub := "", ""
			have, err = join.Load(dir)
			joined := err == nil
			switch {
			case keeping && forgetting:
				return usagef("--keep-workloads and --forget-workloads contradict each other")
			case keeping && !joined:
				return usagef("--keep-workloads is for a device that belongs to this hub: %w", err)
			}
			if joined {
				switch ended := readDismissed(dir, have); {
				case keeping && ended != nil:
					return usagef("this device belongs to no hub any more: leave --keep-workloads out")
				case ended != nil: // it belongs to nobody; what it ran and is left goes
					forgetting = forgetting || !ended.Done
				case keeping: // the same node of the same hub, by its own word
					if key, hub = have.Key, have.Hub; node == "" {
						node = have.Node
					}
				case !forgetting:
					return belongs(have, secret)
				default:
					if same, err := have.Of(secret); err == nil && same {
						key = have.Key // it may be the same node again, by its own word
					}
				}
			}
			var old oldWorkloads
			if forgetting {
				if old, err = findWorkloads(cmd.Context(), choice, dir); err != nil {
					return err
				}
				defer old.close()
			}
			machineID, err := hardware.MachineID("")
			if err != nil {
				log.Warn("this machine cannot be told from a copy of it", "err", err)
			}
			if err := writeRegistration(dir, reg); err != nil {
				return err
			}
			known, _ := m.Desired()
			id, err := join.Join(cmd.Context(), join.Options{URL: args[0], Token: token, Node: node, MachineID: machineID,
				StateDir: dir, Key: key,
				Serial: hardware.Serial(""), Waits: waitsFor(cmd.OutOrStdout(), firstHub(args[0]), machineID),
				AgentVersion: agent.Version,
				LastKnown:    known.Time, Log: log, Hub: hub})
			if errors.Is(err, join.ErrUsage) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			if forgetting {
				err = old.remove(cmd.Context())
				if err := errors.Join(err, forget(dir, keptByJoin...)); err != nil {
					return fmt.Errorf("this device has joined as node %s, but something of what it ran before is left: %w", id.Node,
						err)
				}
			} else if err := os.Remove(filepath.Join(dir, dismissedFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("this device has joined as node %s, but: %w", id.Node, err)
			} else if n := len(known.Pods); n > 0 && known.Hub != id.Hub {
				fmt.Printf("It goes on with the %d pods that another hub wanted here, until an administrator of this one says "+
					"flotilla-hub resume.\n", n)
			}
			fmt.Printf("This device is node %s on site %s of the hub at %s.\nStart it with: systemctl enable --now "+
				"flotilla-device   (or: flotilla-device run --state-dir %s)\n", id.Node, id.Site, id.HubURL, dir)
			return nil
		},
	}
	stateDirFlag(cmd, &stateDir)
	engineFlag(cmd, &choice)
	logs.add(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&forgetting, "forget-workloads", false,
		"leave the hub that this device belongs to: as soon as the new one has taken it, stop and remove what runs "+
			"here, with its volumes")
	fl.BoolVar(&keeping, "keep-workloads", false,
		"join this hub again, as after a rotation of its root that this device has missed: what runs here goes on")
	fl.StringVar(&word, "token", "",
		"what flotilla-hub token create printed, or - to read that from the standard input, which the list of processes "+
			"does not show")
	fl.StringVar(&tokenFile, "token-file", "", "file that holds the token, instead of --token")
	fl.StringVar(&node, "node-name", "",
		"name of this node, the kubelet's --hostname-override (default: the token's, or the host name)")
	fl.StringArrayVar(&labels, "label", nil, "key=value, for the first registration; the kubelet's --node-labels")
	fl.StringArrayVar(&taints, "taint", nil,
		"key=value:Effect, for the first registration; the kubelet's --register-with-taints")
	fl.SetNormalizeFunc(kubelets)
	return cmd
}

// firstHub is the first of the addresses that a device joins at.
func firstHub(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return first
}

// waitsFor says once what a join waits for, and what to do about it.
func waitsFor(out io.Writer, hub, machineID string) func(request string) {
	return func(request string) {
		fmt.Fprintf(terminal{out}, "This device (machine id %s) waits until an administrator approves of it, where "+
			"kubectl reaches the hub:\n  kubectl certificate approve %s\nor on the page: %s/devices/waiting\nCtrl-C stops "+
			"the waiting; the same line goes on with it.\n",
			cmp.Or(machineID, "unknown"), request, strings.TrimSuffix(hub, "/"))
	}
}

// keptByJoin is what of the state directory is the new hub's.
var keptByJoin = []string{join.IdentityFile, join.IdentityCopy, registrationFile}

// belongs refuses to join with a device that belongs to a hub already: what it runs
// is that hub's, and must neither stop by mistake nor run on for a stranger.
func belongs(have join.Identity, token wire.JoinToken) error {
	same, err := have.Of(token)
	if err != nil {
		return err
	}
	if same {
		return usagef("this device is node %s of this hub already (%s); to join it anew, and stop and remove what runs "+
			"here: --forget-workloads; to leave the fleet: flotilla-device reset --yes", have.Node, have.HubURL)
	}
	return usagef("this device is node %s of the hub at %s, and the token is another hub's, or that hub's after a "+
		"rotation of its root: then say --keep-workloads; to move the device there, and stop and remove what runs here "+
		"for the old one: --forget-workloads", have.Node, have.HubURL)
}

// writeRegistration keeps the labels and taints for the first status.
func writeRegistration(dir string, r wire.Registration) error {
	path := filepath.Join(dir, registrationFile)
	if len(r.Labels)+len(r.Taints) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("forget the labels of an earlier join: %w", err)
		}
		return nil
	}
	body, err := json.Marshal(r)
	if err == nil {
		err = renameio.WriteFile(path, body, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the labels and taints: %w", err)
	}
	return nil
}
