package cli

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/image"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/mirror"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// runFlags are the flags of run.
type runFlags struct {
	stateDir, engine, policy string
	seccomp, appArmor        string // directories
	runtimes                 []string
	lease, status            time.Duration
	log                      logFlags
	limits                   limitFlags
	failSwapOn               bool
	swap, topology, scope    string
	cpuManager               string
	bootHelper               string // the helper's socket
	mirror                   string // listener's address
	upgrade                  upgradeFlags
	peerPort, peerCache      string
	cacheLimit               int64  // peerCache in bytes
	grace                    grace  // how long pods may take to end before a shutdown
	hub, node, site          string // for the development listener
	labels, taints           []string
	maxPods                  int64
	register                 bool
	nodeIP, external         []string // addresses
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent of a joined device",
		RunE:  func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), f) },
	}
	stateDirFlag(cmd, &f.stateDir)
	engineFlag(cmd, &f.engine)
	f.limits.add(cmd)
	f.log.add(cmd)
	f.upgrade.add(cmd)
	fl := cmd.Flags()
	fl.DurationVar(&f.lease, "lease-interval", 0,
		"time between two lease renewals until the hub sets another, the kubelet's --node-status-update-frequency "+
			"(default: the hub's last value, or 10s)")
	fl.StringVar(&f.policy, "policy", "",
		"YAML file with the device owner's policy for pods (default: nothing privileged, host paths only below "+
			policy.VolumesRoot+")")
	fl.StringVar(&f.seccomp, "seccomp-profiles", "/etc/flotilla/seccomp",
		"directory of the device owner's seccomp profiles, for pods with type: Localhost")
	fl.StringVar(&f.appArmor, "apparmor-profiles", "/etc/flotilla/apparmor",
		"directory with a file named after each loaded AppArmor profile that pods may use with type: Localhost")
	fl.StringSliceVar(&f.runtimes, "runtimes", nil,
		"names of the container engine's runtimes that pods may choose by a RuntimeClass, in addition to its default "+
			"(Docker)")
	fl.BoolVar(&f.failSwapOn, "fail-swap-on", false,
		"refuse to start while swap is on (the kubelet's default is true)")
	fl.StringVar(&f.swap, "swap-behavior", string(plan.NoSwap),
		"swap of containers: NoSwap, or LimitedSwap, which gives burstable pods a share in proportion to their memory "+
			"request; needs cgroup v2")
	fl.StringVar(&f.topology, "topology-manager-policy", string(plan.AnyTopology),
		"on devices with several NUMA nodes, whether a container's devices and whole processors come from as "+
			"few as possible: none, best-effort, restricted or single-numa-node")
	fl.StringVar(&f.cpuManager, "cpu-manager-policy", string(plan.NoCPUManager),
		"none, or static: a container of a guaranteed pod that requests whole processors has them exclusively, and all "+
			"others share the rest")
	fl.StringVar(&f.scope, "topology-manager-scope", string(plan.ContainerScope),
		"unit of --topology-manager-policy: container, or pod (all containers of a pod together)")
	fl.StringSliceVar(&f.external, "node-external-ip", nil,
		"addresses at which the device is reached from other networks, at most one IPv4 and one IPv6; they become the "+
			"Node's ExternalIP")
	fl.DurationVar(&f.grace.total, "shutdown-grace-period", 0,
		"time for pods to end in order before systemd shuts the device down, such as 30s; 0: they end with the "+
			"container engine")
	fl.DurationVar(&f.grace.critical, "shutdown-grace-period-critical-pods", 0,
		"part of --shutdown-grace-period for the critical pods, which end last")
	fl.StringVar(&f.bootHelper, "boot-helper", defaultBootHelper,
		"socket of the boot helper; empty: boot configurations are not changed")
	fl.StringVar(&f.mirror, "image-mirror", "127.0.0.1:5443",
		"loopback address at which the container engine pulls the hub's images, which pods name hub/…; empty: they "+
			"cannot be used")
	fl.StringVar(&f.peerPort, "peer-port", "5444",
		"port at which this device serves layers of the hub's images to devices of its site, while the site has "+
			"shareImages; empty: it does not")
	fl.StringVar(&f.peerCache, "peer-cache", "1Gi",
		"most space of the state directory for layers that are served to other devices, each for a day")
	fl.StringVar(&f.hub, "hub", "",
		"development listener of a hub on this machine, such as mqtt://127.0.0.1:1883; for a device that has not joined")
	fl.StringVar(&f.node, "node-name", "",
		"with --hub: name of this node, the kubelet's --hostname-override (default: the host name)")
	fl.StringVar(&f.site, "site", "", "with --hub: site of this node")
	fl.StringArrayVar(&f.labels, "label", nil,
		"with --hub: key=value, for the first registration; the kubelet's --node-labels")
	fl.StringArrayVar(&f.taints, "taint", nil,
		"with --hub: key=value:Effect, for the first registration; the kubelet's --register-with-taints")
	fl.StringSliceVar(&f.nodeIP, "node-ip", nil,
		"InternalIP of the node, or one of IPv4 and one of IPv6 with a comma between; this device has them (default: "+
			"the addresses of the interface with the default route)")
	fl.Int64Var(&f.maxPods, "max-pods", 0, "maximum number of pods (default: 110, or fewer on a small memory)")
	fl.DurationVar(&f.status, "node-status-report-frequency", 5*time.Minute,
		"longest time between two reports of the node's status; changes are reported at once")
	fl.BoolVar(&f.register, "register-node", true,
		"must be true: the hub registers each device that joins, see flotilla-hub serve --register-node")
	fl.SetNormalizeFunc(acceptKubeletNames)
	return cmd
}

func runAgent(ctx context.Context, f runFlags) error {
	debug.SetGCPercent(50) // small boards are short of memory
	journal := request.NewJournal(request.JournalSize)
	log, err := f.log.logger(journal)
	if err != nil {
		return err
	}
	limits, err := f.limits.limits()
	if err != nil {
		return err
	}
	policy, err := readPolicy(f.policy)
	if err != nil {
		return err
	}
	if err := checkEngine(f.engine); err != nil {
		return err
	}
	if err := f.checkHubFlags(); err != nil {
		return err
	}
	if f.lease < 0 || f.lease > 0 && f.lease < time.Second || f.lease > 10*time.Minute {
		return usagef("--lease-interval %s must be between 1s and 10m", f.lease)
	}
	if f.status < 10*time.Second || f.status > time.Hour {
		return usagef("--node-status-report-frequency %s must be between 10s and 1h", f.status)
	}
	if !f.register {
		return usagef("--register-node=false: the hub decides whether devices are registered: start " +
			"flotilla-hub serve --register-node=false, and omit it here")
	}
	if f.maxPods < 0 || f.maxPods > wire.MaxPods {
		return usagef("--max-pods %d must be between 1 and %d", f.maxPods, wire.MaxPods)
	}
	if at, err := netip.ParseAddrPort(f.mirror); f.mirror != "" && (err != nil || !at.Addr().IsLoopback()) {
		return usagef("--image-mirror %q is not a loopback address with a port, such as 127.0.0.1:5443", f.mirror)
	}
	policy.Mirror = f.mirror
	if port, err := strconv.ParseUint(f.peerPort, 10, 16); f.peerPort != "" && (err != nil || port == 0) {
		return usagef("--peer-port %q is not a port, such as 5444", f.peerPort)
	}
	limit, err := resource.ParseQuantity(f.peerCache)
	if err != nil || limit.Sign() < 0 {
		return usagef("--peer-cache %q is not a size, such as 1Gi", f.peerCache)
	}
	f.cacheLimit = limit.Value()
	ips, err := hardware.ParseAddresses(f.nodeIP)
	if err != nil {
		return usagef("--node-ip: %w", err)
	}
	if f.grace.critical < 0 || f.grace.total < f.grace.critical {
		return usagef("--shutdown-grace-period %s must not be less than --shutdown-grace-period-critical-pods %s",
			f.grace.total, f.grace.critical)
	}
	swap, err := plan.ParseSwapBehavior(f.swap)
	if err != nil {
		return usagef("--swap-behavior: %w", err)
	}
	topology, err := plan.ParseTopologyPolicy(f.topology, len(hardware.NUMA("")))
	if err != nil {
		return usagef("--topology-manager-policy: %w", err)
	}
	scope, err := plan.ParseTopologyScope(f.scope)
	if err != nil {
		return usagef("--topology-manager-scope: %w", err)
	}
	external, err := hardware.ParseAddresses(f.external)
	if err != nil {
		return usagef("--node-external-ip: %w", err)
	}
	cpuManager, err := plan.ParseCPUManagerPolicy(f.cpuManager)
	if err != nil {
		return usagef("--cpu-manager-policy: %w", err)
	}
	if f.failSwapOn {
		if err := refuseSwap(""); err != nil {
			return err
		}
	}
	stateDir, err := absolute(f.stateDir)
	if err != nil {
		return err
	}
	for {
		err := runJoined(ctx, f, runOptions{stateDir, policy, limits, swap, topology, scope, cpuManager, journal,
			hardware.Options{StateDir: stateDir, NodeIPs: ips, ExternalIPs: external, MaxPods: f.maxPods}}, log)
		if !errors.Is(err, link.ErrDismissed) {
			return err
		}
		if again, err := waitForJoin(ctx, stateDir, journal, log); !again {
			return err
		}
	}
}

// runOptions are the parsed flags.
type runOptions struct {
	stateDir string
	policy   plan.Policy
	limits   hardware.Limits
	swap     plan.SwapBehavior
	topology plan.TopologyPolicy
	scope    plan.TopologyScope
	cpus     plan.CPUManagerPolicy
	journal  *request.Journal
	where    hardware.Options
}

// runJoined runs the agent until ctx ends or the device has left its fleet. In the second case it
// returns link.ErrDismissed.
func runJoined(ctx context.Context, f runFlags, o runOptions, log *slog.Logger) error {
	stateDir, journal := o.stateDir, o.journal
	m, err := memory.Open(stateDir, log)
	if err != nil {
		return usageError{err}
	}
	defer func() {
		if err := m.Close(); err != nil {
			log.Error("close the state directory", "err", err)
		}
	}()
	p, err := prepare(f, stateDir, m, log)
	if err != nil {
		return err
	}
	if p.ended != nil && p.ended.Done {
		return link.ErrDismissed
	}
	p.journal, p.helper, p.status, p.grace = journal, f.bootHelper, f.status, f.grace
	p.mirror, p.upgrade = f.mirror, f.upgrade
	var hub image.Hub
	if p.identity != nil && p.mirror != "" {
		p.images = mirror.New(p.hubOf(m), log)
		hub = p.images
		if f.peerPort != "" && f.cacheLimit > 0 {
			if err := p.images.Share(filepath.Join(stateDir, "shared-images"), f.cacheLimit, f.peerPort); err != nil {
				log.Warn("images are not shared with other devices", "err", err)
			}
		}
	}
	board := &machine{where: o.where, periph: &hardware.Periph{}}
	a, err := agent.New(agent.Config{
		Node: p.node, Memory: m, Hardware: board, Connected: board.connected,
		OpenEngine:   func(ctx context.Context) (engine.Engine, error) { return openEngine(ctx, f.engine, stateDir, log) },
		Watch:        hardware.Watch,
		Policy:       o.policy,
		Images:       hub,
		Seccomp:      f.seccomp,
		AppArmor:     f.appArmor,
		Runtimes:     f.runtimes,
		Flags:        o.limits,
		Swap:         o.swap,
		Topology:     o.topology,
		Scope:        o.scope,
		CPUManager:   o.cpus,
		Registration: p.reg,
		MemoryDir:    volatileDir(stateDir),
		Log:          log.With("node", p.node), // the link adds the key "node" itself
		Journal:      journal,
	})
	if err != nil {
		return err
	}
	err = serve(ctx, a, m, p, log)
	if errors.Is(err, link.ErrDismissed) {
		return errors.Join(err, p.finishLeaving(ctx, f.engine, log))
	}
	return err
}

// checkHubFlags refuses flags that require --hub if --hub is missing.
func (f runFlags) checkHubFlags() error {
	if f.hub == "" && (f.node != "" || f.site != "" || len(f.labels)+len(f.taints) > 0) {
		return usagef("--node-name, --site, --label, --taint and their kubelet names need --hub; a " +
			"joined device has the values given to flotilla-device join")
	}
	return nil
}

const registrationFile = "registration.json"
