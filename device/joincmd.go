package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
		stateDir, token, node string
		labels, taints        []string
		logs                  logFlags
	)
	cmd := &cobra.Command{
		Use:   "join URL --token TOKEN",
		Short: "Join a fleet: get this device's identity from its hub",
		Example: `  flotilla-device join https://gateway:8443 --token FLT1.…
  flotilla-device join https://gateway:8443 --token FLT1.… --node-name kiosk-7 --label floor=2 --taint camera=true:NoSchedule`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("join takes the address of the hub, such as https://gateway:8443; flotilla-hub token create prints the whole line")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if token == "" {
				return usagef("--token is missing; flotilla-hub token create prints the whole line")
			}
			log, err := logs.logger()
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
			m, err := memory.Open(dir, log)
			if err != nil {
				return usageError{err}
			}
			defer func() { _ = m.Close() }() // the process ends anyway
			if have, err := join.Load(dir); err == nil {
				return usagef("this device is node %s of hub %s already; to leave that fleet: flotilla-device reset --yes", have.Node, have.HubURL)
			}
			machineID, err := hardware.MachineID("")
			if err != nil {
				log.Warn("this machine cannot be told from a copy of it", "err", err)
			}
			if err := writeRegistration(dir, reg); err != nil {
				return err
			}
			known, _ := m.Desired()
			id, err := join.Join(cmd.Context(), join.Options{URL: args[0], Token: token, Node: node, MachineID: machineID, StateDir: dir,
				AgentVersion: agent.Version, LastKnown: known.Time, Log: log})
			if errors.Is(err, join.ErrUsage) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			fmt.Printf("This device is node %s on site %s of the hub at %s.\nStart it with: systemctl enable --now flotilla-device   (or: flotilla-device run --state-dir %s)\n", id.Node, id.Site, id.HubURL, dir)
			return nil
		},
	}
	stateDirFlag(cmd, &stateDir)
	logs.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&token, "token", "", "what flotilla-hub token create printed")
	fl.StringVar(&node, "node-name", "", "name of this node (default: the token's, or the host name)")
	fl.StringArrayVar(&labels, "label", nil, "key=value, for the first registration")
	fl.StringArrayVar(&taints, "taint", nil, "key=value:Effect, for the first registration")
	return cmd
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
