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
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/join"
	"flotilla.dev/device/memory"
	"flotilla.dev/shared/discovery"
	"flotilla.dev/shared/wire"
)

// joinFlags are the flags of join.
type joinFlags struct {
	stateDir, word, tokenFile, node string
	labels, taints                  []string
	choice                          string
	forgetting, keeping, discover   bool
	logs                            logFlags
}

// lookFor is how long --discover waits for answers.
const lookFor = 3 * time.Second

func joinCommand() *cobra.Command {
	var f joinFlags
	cmd := &cobra.Command{
		Use:   "join [URL] --token TOKEN",
		Short: "Join a fleet: get this device's identity from its hub",
		Example: `  flotilla-device join https://gateway:8443 --token FLT1.…
  flotilla-device join https://gateway:8443 --token FLT1.… --node-name kiosk-7 --label floor=2 --taint camera=true:NoSchedule
  flotilla-device join https://hub-a:8443,https://hub-b:8443 --token FLT1.…
  flotilla-device join --discover --token FLT1.…
  flotilla-device join https://gateway:8443 --token-file /run/credentials/token
  flotilla-device join https://new-gateway:8443 --token FLT1.… --forget-workloads`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && f.discover:
				return nil
			case f.discover:
				return usagef("--discover looks for the hub: omit its address %s, or omit --discover", args[0])
			case len(args) != 1:
				return usagef("join needs the address of the hub, such as https://gateway:8443, or --discover; " +
					"flotilla-hub token create prints the whole command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.join(cmd, strings.Join(args, "")) },
	}
	f.add(cmd)
	return cmd
}

func (f *joinFlags) add(cmd *cobra.Command) {
	stateDirFlag(cmd, &f.stateDir)
	engineFlag(cmd, &f.choice)
	f.logs.add(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.forgetting, "forget-workloads", false,
		"leave the present hub: once the new one has accepted the device, stop and remove the workloads that run "+
			"here, with its volumes")
	fl.BoolVar(&f.keeping, "keep-workloads", false,
		"join this hub again, for example after a rotation of its root that this device has missed; workloads "+
			"keep running")
	fl.BoolVar(&f.discover, "discover", false,
		"look for the hub on the local network by multicast DNS, instead of URL; this device joins only the hub that made "+
			"the token")
	fl.StringVar(&f.word, "token", "",
		"join token of flotilla-hub token create, or - to read it from standard input, which hides it from the list of "+
			"processes")
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the join token, instead of --token")
	fl.StringVar(&f.node, "node-name", "",
		"name of this node, the kubelet's --hostname-override (default: the token's, or the host name)")
	fl.StringArrayVar(&f.labels, "label", nil, "key=value, for the first registration; the kubelet's --node-labels")
	fl.StringArrayVar(&f.taints, "taint", nil,
		"key=value:Effect, for the first registration; the kubelet's --register-with-taints")
	fl.SetNormalizeFunc(acceptKubeletNames)
}

func (f *joinFlags) join(cmd *cobra.Command, url string) error {
	token, err := readToken(f.word, f.tokenFile, cmd.InOrStdin())
	if err != nil {
		return err
	}
	secret, err := wire.ParseJoinToken(token)
	if err != nil {
		return usagef("--token: %w", err)
	}
	if err := checkEngine(f.choice); err != nil {
		return err
	}
	log, err := f.logs.logger(nil)
	if err != nil {
		return err
	}
	var reg wire.Registration
	if reg.Labels, err = parseLabels(f.labels); err != nil {
		return err
	}
	if reg.Taints, err = parseTaints(f.taints); err != nil {
		return err
	}
	dir, err := absolute(f.stateDir)
	if err != nil {
		return err
	}
	have, err := join.Load(dir)
	if err == nil && !f.keeping && !f.forgetting && readDismissed(dir, have) == nil {
		return checkMembership(have, secret) // checked before the lock, because an agent that runs holds it
	}
	m, err := memory.Open(dir, log)
	if err != nil {
		return usageError{err}
	}
	defer func() { _ = m.Close() }() // the process ends anyway
	from, done, err := f.membership(dir, secret)
	if done || err != nil {
		return err
	}
	var old oldWorkloads
	if f.forgetting {
		if old, err = findWorkloads(cmd.Context(), f.choice, dir); err != nil {
			return err
		}
		defer old.close()
	}
	machineID, err := hardware.MachineID("")
	if err != nil {
		log.Warn("this machine has no id that tells it from a copy", "err", err)
	}
	if err := writeRegistration(dir, reg); err != nil {
		return err
	}
	known, _ := m.Desired()
	if f.discover {
		found, err := discovery.Find(cmd.Context(), lookFor)
		if err != nil {
			return fmt.Errorf("join: %w; give the hub's address instead of --discover, such as https://gateway:8443", err)
		}
		url = strings.Join(found, ",")
		fmt.Fprintf(terminal{cmd.OutOrStdout()}, "Found %s.\n", strings.Join(found, ", "))
	}
	id, err := join.Join(cmd.Context(), join.Options{URL: url, Token: token, Node: f.node, MachineID: machineID,
		StateDir: dir, Key: from.key,
		Serial: hardware.Serial(""), Waits: waitsFor(cmd.OutOrStdout(), firstHub(url), machineID),
		AgentVersion: agent.Version,
		LastKnown:    known.Time, Log: log, Hub: from.hub})
	if errors.Is(err, join.ErrUsage) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	if f.forgetting {
		err = old.remove(cmd.Context())
		if err := errors.Join(err, forget(dir, keptByJoin...)); err != nil {
			return fmt.Errorf("this device has joined as node %s, but some earlier workload data is left: %w", id.Node,
				err)
		}
	} else if err := os.Remove(filepath.Join(dir, dismissedFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("this device has joined as node %s, but: %w", id.Node, err)
	} else if n := len(known.Pods); n > 0 && known.Hub != id.Hub {
		fmt.Printf("It keeps the %d pods of the earlier hub running until an administrator of this one confirms with "+
			"flotilla-hub resume.\n", n)
	}
	fmt.Printf("This device is node %s on site %s of the hub at %s.\nStart it with: systemctl enable --now "+
		"flotilla-device   (or: flotilla-device run --state-dir %s)\n", id.Node, id.Site, id.HubURL, dir)
	return nil
}

// A formerIdentity proves to the hub that a device that joins again is a node the hub knows.
type formerIdentity struct{ key, hub string }

// membership decides whether join keeps or replaces the device's present membership. done means
// that join has nothing to do.
func (f *joinFlags) membership(dir string, secret wire.JoinToken) (from formerIdentity, done bool, err error) {
	have, err := join.Load(dir)
	joined := err == nil
	switch {
	case f.keeping && f.forgetting:
		return from, false, usagef("--keep-workloads and --forget-workloads exclude each other: give one")
	case f.keeping && !joined:
		return from, false, usagef("--keep-workloads is for a device that belongs to this hub: %w", err)
	case !joined:
		return from, false, nil
	}
	switch ended := readDismissed(dir, have); {
	case f.keeping && ended != nil:
		return from, false, usagef("this device does not belong to a hub any more: omit --keep-workloads")
	case ended != nil: // the device has left its hub; remove the workload data that remains
		f.forgetting = f.forgetting || !ended.Done
	case f.keeping: // the hub decides whether the device is the same node
		from = formerIdentity{have.Key, have.Hub}
		if f.node == "" {
			f.node = have.Node
		}
	case !f.forgetting:
		return from, true, checkMembership(have, secret)
	default:
		if same, err := have.Of(secret); err == nil && same {
			from.key = have.Key // the hub may accept the device as the same node
		}
	}
	return from, false, nil
}

// firstHub returns the first address of a list.
func firstHub(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return first
}

// waitsFor returns a function that prints once which approval a join waits for, and how to give it.
func waitsFor(out io.Writer, hub, machineID string) func(request string) {
	return func(request string) {
		fmt.Fprintf(terminal{out}, "This device (machine id %s) waits until an administrator approves it, on a "+
			"machine whose "+
			"kubectl reaches the hub:\n  kubectl certificate approve %s\nor on the page: %s/devices/waiting\nCtrl-C stops "+
			"the wait; the same command continues it.\n",
			cmp.Or(machineID, "unknown"), request, strings.TrimSuffix(hub, "/"))
	}
}

// keptByJoin are the files in the state directory that belong to the new enrolment.
var keptByJoin = []string{join.IdentityFile, join.IdentityCopy, registrationFile}

// checkMembership returns the error of a join while the device belongs to a hub. Its workloads
// belong to that hub: they must not stop by mistake, and must not keep running for another hub.
func checkMembership(have join.Identity, token wire.JoinToken) error {
	same, err := have.Of(token)
	if err != nil {
		return err
	}
	if same {
		return usagef("this device is already node %s of this hub (%s); to join again, and stop and remove the workloads "+
			"here: --forget-workloads; to leave the fleet: flotilla-device reset --yes", have.Node, have.HubURL)
	}
	return usagef("this device is node %s of the hub at %s, and the token is for another hub, or for that hub after a "+
		"rotation of its root: then add --keep-workloads; to move the device, and stop and remove the workloads here "+
		"of the old hub: --forget-workloads", have.Node, have.HubURL)
}

// writeRegistration stores the labels and taints for the first status.
func writeRegistration(dir string, r wire.Registration) error {
	path := filepath.Join(dir, registrationFile)
	if len(r.Labels)+len(r.Taints) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the labels of an earlier join: %w", err)
		}
		return nil
	}
	body, err := json.Marshal(r)
	if err == nil {
		err = renameio.WriteFile(path, body, 0o600)
	}
	if err != nil {
		return fmt.Errorf("store the labels and taints: %w", err)
	}
	return nil
}
