package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/join"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
)

func resetCommand() *cobra.Command {
	var stateDir, choice string
	var yes bool
	var logs logFlags
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Leave the fleet: remove this device's containers, their volumes, and its identity",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := absolute(stateDir)
			if err != nil {
				return err
			}
			if !yes {
				return usagef("reset removes every container of this agent, their volumes, and the identity in %s: confirm "+
					"with --yes", dir)
			}
			if err := checkEngine(choice); err != nil {
				return err
			}
			log, err := logs.logger(nil)
			if err != nil {
				return err
			}
			if _, err := os.Stat(dir); err != nil {
				return usagef("--state-dir: %w", err)
			}
			m, err := memory.Open(dir, log)
			if err != nil {
				return usageError{err}
			}
			defer func() { _ = m.Close() }() // the process ends anyway
			old, err := findWorkloads(cmd.Context(), choice, dir)
			if err != nil {
				return err
			}
			defer old.close()
			if err := old.remove(cmd.Context()); err != nil {
				return err
			}
			if err := forget(dir); err != nil {
				return err
			}
			fmt.Println("this device has left its fleet; revoke it on the hub too: kubectl delete node")
			return nil
		},
	}
	stateDirFlag(cmd, &stateDir)
	engineFlag(cmd, &choice)
	logs.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm the removal of containers, volumes and identity")
	return cmd
}

// oldWorkloads are the containers and networks of an agent that no longer runs.
type oldWorkloads struct {
	engine engine.Engine // nil if the containers stay
	dir    string        // the state directory
	id     string        // the agent's id
	node   string        // the node's name, or "" if unknown
}

// findWorkloads opens the engine that has the containers. It fails before anything is changed.
func findWorkloads(ctx context.Context, choice, dir string) (oldWorkloads, error) {
	if choice == "none" {
		return oldWorkloads{}, nil
	}
	e, err := findEngine(ctx, choice, dir)
	if err != nil {
		return oldWorkloads{}, fmt.Errorf("%w; to keep the containers, pass --engine none", err)
	}
	identity, _ := join.Load(dir) // without an identity, remove finds the node in the containers' names
	return oldWorkloads{e, dir, agent.StateDirID(dir), identity.Node}, nil
}

func (o oldWorkloads) close() {
	if o.engine != nil {
		_ = o.engine.Close() // the process ends anyway
	}
}

// remove stops and removes all containers of the agent, also those of the node's earlier names. A
// container goes before the container whose network it uses: first ephemeral containers, last
// sandboxes.
func (o oldWorkloads) remove(ctx context.Context) error {
	if o.engine == nil {
		return nil
	}
	list, err := o.engine.Containers(ctx, plan.LabelStateDir+"="+o.id)
	if err != nil {
		return err
	}
	list = agent.OwnContainers(o.dir, list)
	turn := map[string]int{podspec.KindInit: 1, podspec.KindApp: 1, podspec.KindSandbox: 2}
	sort.SliceStable(list, func(i, j int) bool {
		return turn[list[i].Labels[plan.LabelKind]] < turn[list[j].Labels[plan.LabelKind]]
	})
	var errs []error
	for _, c := range list {
		err := o.engine.Stop(ctx, c.ID, 10*time.Second)
		if err == nil {
			err = o.engine.Remove(ctx, c.ID)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Println("removed", c.Name)
	}
	errs = append(errs, volume.RemoveImageReaders(ctx, o.engine, o.id))
	nodes := map[string]bool{o.node: true} // a network may exist without containers
	for _, c := range list {
		nodes[c.Labels[plan.LabelAgent]] = true
	}
	delete(nodes, "")
	for node := range nodes {
		errs = append(errs, o.engine.RemoveNetwork(ctx, agent.Network(node, o.id, "")))
	}
	return errors.Join(errs...)
}

// forget removes everything in the state directory except its lock, the files in keep, and
// persistent volumes. Only the hub or the device's owner removes persistent volumes.
func forget(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove the workload data: %w", err)
	}
	volatile := volatileDir(dir)
	if volatile == "" {
		volatile = filepath.Join(dir, "volatile")
	}
	if err := volume.RemoveVolumes(dir, volatile); err != nil { // the directory has mounts, so it goes first
		return fmt.Errorf("remove the workload data: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != memory.LockFile && e.Name() != volume.PersistentDir && !slices.Contains(keep, e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the workload data: %w", err)
	}
	return nil
}
