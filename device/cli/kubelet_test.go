package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// kubeletFlags are the flags on the kubelet's reference page, and fields of its configuration that
// users mistake for flags.
const kubeletFlags = `address allowed-unsafe-sysctls anonymous-auth authentication-token-webhook authentication-token-webhook-cache-ttl
authorization-mode authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bootstrap-kubeconfig cert-dir
cgroup-driver cgroup-root cgroups-per-qos client-ca-file cloud-config cloud-provider cluster-dns cluster-domain config config-dir
container-log-max-files container-log-max-size container-runtime container-runtime-endpoint contention-profiling cpu-cfs-quota cpu-cfs-quota-period
cpu-manager-policy cpu-manager-policy-options cpu-manager-reconcile-period enable-controller-attach-detach enable-debugging-handlers enable-server
enforce-node-allocatable event-burst event-qps eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim
eviction-pressure-transition-period eviction-soft eviction-soft-grace-period exit-on-lock-contention experimental-allocatable-ignore-eviction
fail-swap-on feature-gates file-check-frequency hairpin-mode healthz-bind-address healthz-port hostname-override
http-check-frequency image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold image-gc-low-threshold
image-maximum-gc-age image-service-endpoint kernel-memcg-notification kube-api-burst kube-api-content-type kube-api-qps kube-reserved
kube-reserved-cgroup kubeconfig kubelet-cgroups local-storage-capacity-isolation lock-file logging-format make-iptables-util-chains manifest-url
manifest-url-header max-open-files max-parallel-image-pulls max-pods maximum-dead-containers maximum-dead-containers-per-container
memory-manager-policy minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels node-lease-duration-seconds
node-status-max-images node-status-report-frequency node-status-update-frequency oom-score-adj pod-cidr pod-infra-container-image
pod-manifest-path pod-max-pids pods-per-core port protect-kernel-defaults provider-id qos-reserved read-only-port register-node
register-schedulable register-with-taints registry-burst registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates
rotate-server-certificates runonce runtime-cgroups runtime-request-timeout seccomp-default serialize-image-pulls shutdown-grace-period
shutdown-grace-period-critical-pods streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved system-reserved-cgroup
tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file topology-manager-policy topology-manager-policy-options
topology-manager-scope v vmodule volume-plugin-dir volume-stats-agg-period`

func TestEveryFlagOfTheKubeletIsAcceptedOrExplained(t *testing.T) {
	run, _, err := command(nil).Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(kubeletFlags) {
		if run.Flags().Lookup(name) != nil {
			continue
		}
		if message := unknownFlag(run, name).Error(); !strings.Contains(message,
			"is a kubelet flag that the agent does not have: ") {
			t.Errorf("unknownFlag(%q): got %q", name, message)
		}
	}
}

func TestTheKubeletsFlagNamesAreAccepted(t *testing.T) {
	t.Setenv("FLOTILLA_NODE_NAME", "of-the-environment")
	for _, c := range []struct{ args, name, labels, taints string }{
		{"--node-name a --label b=c --taint d=e:NoSchedule", "a", "[b=c]", "[d=e:NoSchedule]"},
		{"--hostname-override a --node-labels b=c,f=g --register-with-taints d=e:NoSchedule,h:NoExecute", "a", "[b=c,f=g]", "[d=e:NoSchedule,h:NoExecute]"},
		{"--label b=c --node-labels f=g", "of-the-environment", "[b=c f=g]", "[]"},
	} {
		for _, cmd := range []*cobra.Command{runCommand(), joinCommand()} {
			fl := cmd.Flags()
			if err := errors.Join(fl.Parse(strings.Fields(c.args)), fromEnvironment(fl)); err != nil {
				t.Fatal(err)
			}
			labels, _ := fl.GetStringArray("label")
			taints, _ := fl.GetStringArray("taint")
			if name, _ := fl.GetString("node-name"); name != c.name || fmt.Sprint(labels) != c.labels ||
				fmt.Sprint(taints) != c.taints {
				t.Errorf("%s %s: the name is %s, the labels %v, the taints %v", cmd.Name(), c.args, name, labels, taints)
			}
		}
	}
}
