package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/join"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

func probeCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Print this device's hardware, without a hub",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := hardware.Probe(cmd.Context(), hardware.Options{Periph: &hardware.Periph{}})
			if err != nil {
				return err
			}
			if !asJSON {
				return r.Write(os.Stdout)
			}
			e := json.NewEncoder(os.Stdout)
			e.SetIndent("", "  ")
			return e.Encode(r)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Printf("flotilla-device %s (nodes show %s)\n", agent.Version, agent.KubeletVersion())
			return err
		},
	}
}

func statusCommand() *cobra.Command {
	var stateDir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the status of the agent on this device and of its pods",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := absolute(stateDir)
			if err != nil {
				return err
			}
			s, err := readStatus(cmd.Context(), dir)
			if err != nil {
				return notRunning(dir, err)
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			return writeStatus(os.Stdout, s)
		},
	}
	stateDirFlag(cmd, &stateDir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func notRunning(dir string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("read the agent's status: %w; run this as root", err)
	}
	id, joined := join.Load(dir)
	if joined != nil {
		return fmt.Errorf("no agent runs with the state directory %s, and the device has not joined a hub: run "+
			"flotilla-device join https://<hub>:8443 --token <token>", dir)
	}
	return fmt.Errorf("node %s of the hub at %s has joined, but its agent does not run: run systemctl start "+
		"flotilla-device",
		id.Node, id.HubURL)
}

func writeStatus(w io.Writer, s localStatus) error {
	t := tabwriter.NewWriter(terminal{w}, 0, 4, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) } // Flush returns the error
	line("node\t%s", s.Node)
	line("site\t%s", s.Site)
	hub := s.Hub + ", connected"
	if !s.Online {
		hub = s.Hub + ", not connected: " + s.Offline
	}
	line("hub\t%s", hub)
	if d := s.Dismissed; d != nil {
		line("dismissed\t%s", d)
		line("\t%s", s.Join)
		if d.Done {
			return t.Flush()
		}
	}
	line("generation\t%d", s.Generation)
	line("engine\t%s", s.Status.Status.NodeInfo.ContainerRuntimeVersion)
	for _, c := range s.Status.Status.Conditions {
		bad := c.Status == corev1.ConditionFalse && c.Type == corev1.NodeReady || c.Status != corev1.ConditionFalse &&
			strings.HasSuffix(string(c.Type), "Pressure")
		if bad || c.Type == corev1.NodeReady {
			line("%s\t%s: %s", c.Type, c.Status, c.Message)
		}
	}
	line("\nNAMESPACE\tPOD\tPHASE\tREADY\tRESTARTS\tWHY")
	for _, p := range s.Pods.Pods {
		ready, restarts, why := 0, int32(0), p.Status.Reason
		for _, c := range p.Status.ContainerStatuses {
			if c.Ready {
				ready++
			}
			restarts += c.RestartCount
			if wt := c.State.Waiting; wt != nil && why == "" {
				why = wt.Reason
			}
		}
		line("%s\t%s\t%s\t%d/%d\t%d\t%s", p.Namespace, p.Name, p.Status.Phase, ready, len(p.Status.ContainerStatuses),
			restarts, why)
	}
	return t.Flush()
}

func logsCommand() *cobra.Command {
	var (
		stateDir, choice, container, namespace string
		follow, previous, timestamps           bool
		tail                                   int64
		since                                  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "logs [POD]",
		Short: "Print the log of the agent, or of a pod's container, on this device",
		Long: "Print the agent's own log: its newest lines since it started, each with its time in UTC; the journal of " +
			"systemd may have older ones.\n" +
			"With a pod, print the log of its container instead.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(
					"logs takes one pod name, or nothing for the agent's own log; flotilla-device status lists the pods")
			}
			for _, name := range []string{"container", "namespace", "previous", "engine"} {
				if len(args) == 0 && cmd.Flags().Changed(name) {
					return usagef("--%s needs the name of a pod; flotilla-device status lists them", name)
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := absolute(stateDir)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				r := wire.Request{Type: wire.RequestNodeLogs, Follow: follow, Timestamps: true}
				if tail >= 0 {
					r.TailLines = &tail
				}
				if since > 0 {
					seconds := int64((since + time.Second - 1) / time.Second)
					r.SinceSeconds = &seconds
				}
				return readLog(cmd.Context(), dir, r, os.Stdout)
			}
			if err := checkEngine(choice); err != nil {
				return err
			}
			e, err := findEngine(cmd.Context(), choice, dir)
			if err != nil {
				return err
			}
			defer func() { _ = e.Close() }() // the process ends anyway
			id, err := findContainer(cmd.Context(), e, wantedLog{agent.StateDirID(dir), namespace, args[0], container, previous})
			if err != nil {
				return err
			}
			o := engine.LogOptions{Follow: follow, Timestamps: timestamps, Tail: tail}
			if since > 0 {
				o.Since = time.Now().Add(-since)
			}
			err = e.Logs(cmd.Context(), id, o, os.Stdout, os.Stderr)
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
	stateDirFlag(cmd, &stateDir)
	engineFlag(cmd, &choice)
	fl := cmd.Flags()
	fl.StringVarP(&container, "container", "c", "", "container (default: the pod's only one)")
	fl.StringVarP(&namespace, "namespace", "n", "", "namespace of the pod (default: the only one that has it)")
	fl.BoolVarP(&follow, "follow", "f", false, "follow the log")
	fl.BoolVarP(&previous, "previous", "p", false, "print the log of the previous instance of the container")
	fl.BoolVar(&timestamps, "timestamps", false, "print each line with its time; the agent's own log always has it")
	fl.Int64Var(&tail, "tail", -1, "number of lines from the end of the log (default: all)")
	fl.DurationVar(&since, "since", 0, "print only lines newer than this duration, such as 10m (default: all)")
	return cmd
}

type wantedLog struct {
	stateDirID, namespace, pod, container string
	previous                              bool
}

// findContainer finds one of the agent's containers by its labels.
func findContainer(ctx context.Context, e engine.Engine, want wantedLog) (string, error) {
	list, err := e.Containers(ctx, plan.LabelStateDir+"="+want.stateDirID)
	if err != nil {
		return "", err
	}
	attempts := map[string][]engine.Container{} // by container name
	var names, namespaces []string
	for _, c := range list {
		l := c.Labels
		name := l[plan.LabelContainer]
		if l[plan.LabelPodName] != want.pod || name == "" || want.namespace != "" &&
			l[plan.LabelNamespace] != want.namespace || want.container != "" && name != want.container {
			continue
		}
		if attempts[name] == nil {
			names = append(names, name)
		}
		if ns := l[plan.LabelNamespace]; !slices.Contains(namespaces, ns) {
			namespaces = append(namespaces, ns)
		}
		attempts[name] = append(attempts[name], c)
	}
	switch {
	case len(names) == 0:
		return "", fmt.Errorf("find the log: pod %s has no container on this device; flotilla-device status lists its "+
			"pods", want.pod)
	case len(namespaces) > 1: // without this, the previous instance could be a container of another pod
		return "", usagef("pod %s exists in the namespaces %s: choose one with --namespace", want.pod,
			strings.Join(namespaces, ", "))
	case len(names) > 1:
		return "", usagef("pod %s has the containers %s: choose one with --container", want.pod, strings.Join(names, ", "))
	}
	found := attempts[names[0]]
	newest, before := "", ""
	best, second := time.Time{}, time.Time{}
	for _, c := range found {
		switch {
		case newest == "" || c.Created.After(best):
			newest, best, before, second = c.ID, c.Created, newest, best
		case before == "" || c.Created.After(second):
			before, second = c.ID, c.Created
		}
	}
	if want.previous {
		if before == "" {
			return "", fmt.Errorf("find the log: container %s of pod %s has no previous instance", names[0], want.pod)
		}
		return before, nil
	}
	return newest, nil
}
