package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flotilla.dev/shared/commands"
)

// acceptKubeletNames makes each flag also accept the kubelet's name for it.
func acceptKubeletNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "hostname-override":
		name = "node-name"
	case "node-labels":
		name = "label"
	case "register-with-taints":
		name = "taint"
	case "node-status-update-frequency":
		name = "lease-interval"
	}
	return pflag.NormalizedName(name)
}

// unsupportedFlags are kubelet flags that the agent lacks, each with the advice to use instead.
var unsupportedFlags = []struct{ instead, names string }{
	{"configure the agent by its flags and by FLOTILLA_… in the environment", "config config-dir feature-gates"},
	{"join the hub with `flotilla-device join`: the agent keeps and renews its own certificates",
		"kubeconfig bootstrap-kubeconfig cert-dir rotate-certificates rotate-server-certificates client-ca-file " +
			"tls-cert-file tls-private-key-file tls-cipher-suites tls-min-version provider-id cloud-provider cloud-config " +
			"azure-container-registry-config"},
	{"the agent has no open port and connects to its hub only: use kubectl and the hub's /metrics",
		"address port read-only-port healthz-port healthz-bind-address anonymous-auth authentication-token-webhook " +
			"authentication-token-webhook-cache-ttl authorization-mode authorization-webhook-cache-authorized-ttl " +
			"authorization-webhook-cache-unauthorized-ttl enable-server enable-debugging-handlers " +
			"streaming-connection-idle-timeout event-qps event-burst event-storage-age-limit event-storage-event-limit " +
			"kube-api-qps kube-api-burst kube-api-content-type node-status-max-images contention-profiling"},
	{"choose the engine with --engine",
		"container-runtime container-runtime-endpoint image-service-endpoint containerd containerd-namespace " +
			"docker-endpoint runtime-request-timeout runtime-cgroups"},
	{"use --state-dir", "root-dir"},
	{"use --log-level: debug, info, warn or error", "v vmodule"},
	{"use --log-format: text or json", "logging-format"},
	{"set lease-interval on the hub for all devices, or --lease-interval for this one", "node-lease-duration-seconds"},
	{"use --swap-behavior", "memory-swap memory-swap-behavior"},
	{"set resources.evictionSoft of a board profile",
		"eviction-soft eviction-soft-grace-period eviction-max-pod-grace-period"},
	{"set podPidsLimit in the file of --policy", "pod-max-pids"},
	{"name --max-pods", "pods-per-core"},
	{"use --system-reserved and --kube-reserved: pods get the rest",
		"enforce-node-allocatable system-reserved-cgroup kube-reserved-cgroup reserved-cpus reserved-memory " +
			"qos-reserved experimental-allocatable-ignore-eviction"},
	{"pods come from the hub only: use kubectl apply there",
		"pod-manifest-path manifest-url manifest-url-header file-check-frequency http-check-frequency runonce"},
	{"pods use the device's resolvers and the agent's pod network",
		"cluster-dns cluster-domain resolv-conf pod-cidr network-plugin cni-bin-dir cni-conf-dir hairpin-mode " +
			"non-masquerade-cidr make-iptables-util-chains iptables-masquerade-bit iptables-drop-bit"},
	{"cordon the node on the hub: kubectl cordon", "register-schedulable"},
	{"the pause program is part of the agent", "pod-infra-container-image"},
	{"containers use the engine's default profile unless their securityContext sets another", "seccomp-default"},
	{"set unsafeSysctls in the file of --policy", "allowed-unsafe-sysctls"},
	{"set it in the engine's configuration",
		"kubelet-cgroups system-cgroups cgroup-driver cgroup-root cgroups-per-qos cpu-cfs-quota cpu-cfs-quota-period " +
			"image-credential-provider-bin-dir image-credential-provider-config registry-qps registry-burst " +
			"max-parallel-image-pulls serialize-image-pulls"},
	{"it is fixed: the agent manages images, logs and ended containers itself",
		"image-gc-high-threshold image-gc-low-threshold image-maximum-gc-age minimum-image-ttl-duration " +
			"minimum-container-ttl-duration maximum-dead-containers maximum-dead-containers-per-container " +
			"container-log-max-size container-log-max-files eviction-pressure-transition-period eviction-minimum-reclaim " +
			"keep-terminated-pod-volumes kernel-memcg-notification local-storage-capacity-isolation oom-score-adj " +
			"protect-kernel-defaults sync-frequency housekeeping-interval global-housekeeping-interval " +
			"volume-stats-agg-period volume-plugin-dir enable-controller-attach-detach max-open-files"},
	{"the agent has no such manager",
		"cpu-manager-policy-options cpu-manager-reconcile-period memory-manager-policy topology-manager-policy-options"},
	{"each agent locks its own --state-dir", "lock-file exit-on-lock-contention"},
}

// unknownFlag explains an unknown flag. It names the flag or command that the user probably meant,
// or what to do instead.
func unknownFlag(cmd *cobra.Command, name string) error {
	written, path := "--"+name, cmd.CommandPath()
	if len(name) == 1 {
		written = "-" + name
	}
	for _, a := range unsupportedFlags {
		if strings.Contains(" "+a.names+" ", " "+name+" ") {
			return usagef("%s is a kubelet flag that the agent does not have: %s", written, a.instead)
		}
	}
	for _, c := range cmd.Root().Commands() {
		if c.Flags().Lookup(name) != nil {
			return usagef("%s is not a flag of %s, but of %s", written, path, c.CommandPath())
		}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if closest := commands.Closest(name, names); closest != "" {
		return usagef("%s is not a flag of %s; did you mean --%s?", written, path, closest)
	}
	return usagef("%s is not a flag of %s; %s --help lists them", written, path, path)
}
