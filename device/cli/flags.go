package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

const (
	defaultStateDir = "/var/lib/flotilla/device"
	labelZone       = "topology.kubernetes.io/zone"
)

// logFlags are the logging flags.
type logFlags struct{ level, format string }

func (l *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&l.format, "log-format", "text", "text or json")
}

// logger returns a logger to standard error and, if journal is not nil, to the journal.
func (l *logFlags) logger(journal *request.Journal) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, usagef("--log-level %q is not debug, info, warn or error", l.level)
	}
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch l.format {
	case "text":
		h = slog.NewTextHandler(os.Stderr, o)
	case "json":
		h = slog.NewJSONHandler(os.Stderr, o)
	default:
		return nil, usagef("--log-format %q is not text or json", l.format)
	}
	if journal != nil {
		h = slog.NewMultiHandler(h, journal.Handler(level))
	}
	return slog.New(h), nil
}

func stateDirFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "state-dir", defaultStateDir, "directory of the device's identity, desired state "+
		"and volumes")
}

func engineFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "engine", "auto",
		"container engine: auto, docker, podman, balena, none, or the path of its socket")
}

func checkEngine(choice string) error {
	switch choice {
	case "auto", "docker", "podman", "balena", "balena-engine", "none":
		return nil
	}
	if strings.HasPrefix(choice, "/") || strings.HasPrefix(choice, "unix:///") {
		return nil
	}
	return usagef("--engine %q is not auto, docker, podman, balena, none or the absolute path of a socket", choice)
}

// parseLabels parses values of --label: k=v, several separated by commas.
func parseLabels(in []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range parts(in) {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usagef("--label %q must be key=value", s)
		}
		if had, twice := out[k]; twice && had != v {
			return nil, usagef("--label %q has the values %q and %q: give it once", k, had, v)
		}
		if k == labelZone {
			return nil, usagef("--label %q: the site comes from the join token, or from --site with --hub", k)
		}
		if err := wire.CheckLabel(k, v); err != nil {
			return nil, usagef("--label %q: %w", s, err)
		}
		out[k] = v
	}
	return out, nil
}

// parseTaints parses values of --taint: k=v:Effect or k:Effect, several separated by commas.
func parseTaints(in []string) ([]corev1.Taint, error) {
	var out []corev1.Taint
	for _, s := range parts(in) {
		keyValue, effect, ok := strings.Cut(s, ":")
		key, value, _ := strings.Cut(keyValue, "=")
		if !ok || key == "" {
			return nil, usagef("--taint %q must be key=value:Effect with NoSchedule, PreferNoSchedule or NoExecute", s)
		}
		t := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		if err := wire.CheckTaint(t); err != nil {
			return nil, usagef("--taint %q: %w", s, err)
		}
		if slices.ContainsFunc(out, func(had corev1.Taint) bool { return had.MatchTaint(&t) }) {
			return nil, usagef("--taint %q is given twice: give each key and effect once", s)
		}
		out = append(out, t)
	}
	return out, nil
}

// parts splits lists at commas, which labels and taints cannot contain.
func parts(in []string) (out []string) {
	for _, s := range in {
		out = append(out, strings.Split(s, ",")...)
	}
	return out
}

// limitFlags are the flags for reserved resources and eviction.
type limitFlags struct{ reserved, agents, hard string }

func (l *limitFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.reserved, "system-reserved", "",
		"resources reserved for the system, such as cpu=200m,memory=160Mi (overrides the board profile)")
	cmd.Flags().StringVar(&l.agents, "kube-reserved", "",
		"resources reserved for the agent and the container engine, such as cpu=100m,memory=48Mi (overrides the board "+
			"profile)")
	cmd.Flags().StringVar(&l.hard, "eviction-hard", "",
		"thresholds of eviction, such as memory.available<100Mi,nodefs.available<10% (overrides the board profile)")
}

func (l *limitFlags) limits() (hardware.Limits, error) {
	var out hardware.Limits
	var errs []error
	for _, of := range []struct {
		flag, value string
		into        *corev1.ResourceList
	}{{"system-reserved", l.reserved, &out.System}, {"kube-reserved", l.agents, &out.Agent}} {
		if of.value != "" {
			r, err := hardware.ParseReserved(of.value)
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", of.flag, err))
			}
			*of.into = r
		}
	}
	if l.hard != "" {
		t, err := hardware.ParseThresholds(l.hard)
		if err != nil {
			errs = append(errs, fmt.Errorf("--eviction-hard: %w", err))
		}
		out.Hard = t
	}
	if err := errors.Join(errs...); err != nil {
		return out, usageError{err}
	}
	return out, nil
}

// refuseSwap returns an error if the machine whose root directory is root uses swap.
func refuseSwap(root string) error {
	on, err := hardware.Swaps(root)
	if err != nil {
		return usagef("--fail-swap-on: %w", err)
	}
	if len(on) > 0 {
		return usagef("--fail-swap-on: swap is on (%s): switch it off for good (on "+
			"Raspberry Pi OS: systemctl disable --now dphys-swapfile, or rpi-swap's zram), or omit the flag",
			strings.Join(on, ", "))
	}
	return nil
}

// readPolicy reads the device owner's policy file; without a file it returns the safe default.
func readPolicy(file string) (plan.Policy, error) {
	if file == "" {
		return plan.DefaultPolicy(), nil
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return plan.Policy{}, usagef("--policy: %w", err)
	}
	p, err := plan.ParsePolicy(body)
	if err != nil {
		return p, usagef("%s: %w", file, err)
	}
	return p, nil
}

// checkNode checks a node name from the command line.
func checkNode(name string) error {
	if err := wire.ValidNode(name); err != nil {
		return usagef("--node-name: %w", err)
	}
	return nil
}

func absolute(dir string) (string, error) {
	if dir == "" {
		return "", usagef("--state-dir is empty: give a directory, such as %s", defaultStateDir)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", usagef("--state-dir %s: %w", dir, err)
	}
	return abs, nil
}
