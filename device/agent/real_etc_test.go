package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/probe"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/wire"
)

func TestAPodWithItsOwnHostsFileHasASandbox(t *testing.T) {
	plain := makePod("app", "wait")
	aliased, domain, device := *plain.DeepCopy(), *plain.DeepCopy(), *plain.DeepCopy()
	aliased.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"foo"}}}
	domain.Spec.Subdomain = "web"
	device.Spec.HostNetwork, device.Spec.HostAliases = true, aliased.Spec.HostAliases
	for _, c := range []struct {
		pod  corev1.Pod
		want bool
	}{{plain, false}, {aliased, true}, {domain, true}, {device, false}} {
		if podspec.NeedsSandbox(&c.pod) != c.want {
			t.Errorf("the need for a sandbox of %+v is not %v", c.pod.Spec, c.want)
		}
	}
}

// Every user can read the hosts file, also with a read-only root file system. A volume that the pod
// mounts there has priority. The file follows the pod's network, also after a restart of the agent,
// and is removed with the pod.
func TestRealEngineHasAPodsHosts(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		d.end()
		d.policy.HostNetwork = true
		d.start()
		own := filepath.Join(d.shared, "hosts")
		must(t, os.WriteFile(own, []byte("its own\n"), 0o644))
		const show = "cat /etc/hosts then wait"
		p := makePod("names", show, show, show)
		user, yes := int64(1234), true
		p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &user, ReadOnlyRootFilesystem: &yes}
		p.Spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: onHost(own)}}
		p.Spec.Containers[2].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/etc/hosts"}}
		aliased := makePod("aliased", show)
		aliased.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"foo", "bar"}}}
		host := makePod("host", show)
		host.Spec.HostNetwork, host.Spec.HostAliases = true, aliased.Spec.HostAliases
		none := makePod("none", "cat /etc/resolv.conf then wait", "cat /etc/resolv.conf then wait")
		none.Spec.DNSPolicy = corev1.DNSNone
		none.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"},
			Searches: []string{"fleet.test"}}
		one := *none.DeepCopy()
		one.Name, one.Spec.Containers = "one", one.Spec.Containers[:1]
		pods := []corev1.Pod{p, aliased, host, none, one}
		for i := range pods {
			pods[i].UID = types.UID("uid-" + pods[i].Name + "-" + d.node)
			pods[i].Spec.TerminationGracePeriodSeconds = new(int64)
		}
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: pods}))
		d.await("all pods are ready", func() bool {
			return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !ready(d.pod(p.Name)) })
		})
		output := func(pod, container string) string {
			out := probe.Limited{Max: 1 << 16}
			for _, c := range d.list() {
				if c.Labels[plan.LabelPodName] == pod && c.Labels[plan.LabelContainer] == container &&
					c.State == engine.Running {
					must(t, d.eng.Logs(t.Context(), c.ID, engine.LogOptions{Tail: -1}, &out, &out))
				}
			}
			return string(out.Bytes)
		}
		device, err := os.ReadFile("/etc/hosts")
		must(t, err)
		const entries = "\n# Entries added by HostAliases.\n192.0.2.1\tfoo\tbar\n"
		const resolv = "search fleet.test\nnameserver 192.0.2.53\n"
		ip := func(name string) string { return d.pod(name).PodIP }
		for _, c := range []struct{ pod, container, want string }{
			{"names", "c0", managed + ip("names") + "\tnames\n"},
			{"names", "c1", managed + ip("names") + "\tnames\n"},
			{"names", "c2", "its own\n"},
			{"aliased", "c0", managed + ip("aliased") + "\taliased\n" + entries},
			{"host", "c0", "# Kubernetes-managed hosts file (host network).\n" + string(device) + entries},
			{"none", "c0", resolv}, {"none", "c1", resolv}, {"one", "c0", resolv},
		} {
			d.await(c.pod+"/"+c.container+" prints output", func() bool { return output(c.pod, c.container) != "" })
			if got := output(c.pod, c.container); got != c.want {
				t.Errorf("%s/%s prints %q, want %q", c.pod, c.container, got, c.want)
			}
		}
		if got, _ := os.ReadFile(own); string(got) != "its own\n" {
			t.Errorf("the agent or the engine has written %q into a container's volume", got)
		}
		// While the agent is off, the network and the agent's files in memory are lost, as after a
		// reboot.
		d.end()
		for _, c := range d.list() {
			if c.Labels[plan.LabelPodName] == "names" {
				must(t, d.eng.Stop(t.Context(), c.ID, 0))
			}
		}
		must(t, (&volume.Disk{Root: d.dir, Memory: filepath.Join(d.dir, "volatile")}).Clean(pods[0].UID))
		d.start()
		d.await("the pod runs again", func() bool {
			st := d.pod("names")
			return ready(st) && st.ContainerStatuses[0].RestartCount > 0 && st.ContainerStatuses[1].RestartCount > 0
		})
		for _, c := range []string{"c0", "c1"} {
			d.await(c+" prints output again", func() bool { return output("names", c) != "" })
			if got, want := output("names", c), managed+ip("names")+"\tnames\n"; got != want {
				t.Errorf("%s prints %q, want %q", c, got, want)
			}
		}
		must(t, d.agent.Store(wire.Desired{Generation: 2, Hub: "h"}))
		d.await("all pods are gone", func() bool { return len(d.list()) == 0 && len(d.agent.disk.Pods()) == 0 })
		b, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		for line := range strings.Lines(string(b)) { // other tests mount directories too
			if strings.Contains(line, d.dir+"/") && strings.Contains(line, "/.etc ") {
				t.Errorf("a mount is left: %s", line)
			}
		}
	})
}

const managed = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
	"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
