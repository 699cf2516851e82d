package agent

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

func TestAPodsDNSOptionsAreAddedToTheDevices(t *testing.T) {
	old := readResolver("search a\noptions edns0\nnameserver 192.0.2.1\noptions ndots:3 timeout:1 trust-ad\n").options
	if got, want := mergeOptions(old, []string{"ndots:5", "rotate"}),
		[]string{"timeout:1", "trust-ad", "ndots:5", "rotate"}; !slices.Equal(got, want) {
		t.Errorf("the merged options are %q, want %q", got, want)
	}
	p := makePod("app", "wait")
	two := "2"
	p.Spec.DNSPolicy = corev1.DNSNone
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "rotate"}}}
	if why := podspec.Malformed(&p); why != "" {
		t.Error(why)
	}
	spec := engine.Spec{DNSOptions: podspec.DNSOptions(p.Spec.DNSConfig)}
	applyDNS(&spec, &p)
	if want := []string{"ndots:2", "rotate"}; !slices.Equal(spec.DNSOptions, want) {
		t.Errorf("the container's options are %q, want %q", spec.DNSOptions, want)
	}
	two = "2\nnameserver 198.51.100.1"
	if why := podspec.Malformed(&p); why == "" {
		t.Error("applyDNS accepts an option with a newline")
	}
}

func TestTheDevicesResolverForContainers(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  resolver
	}{
		"an ordinary file": {map[string]string{"/etc/resolv.conf": "# made by hand\ndomain old\nsearch a b\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions edns0\n"},
			resolver{[]string{"192.0.2.1", "2001:db8::1"}, []string{"a", "b"}, []string{"edns0"}}},
		"systemd-resolved's upstream servers": {map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.53\noptions trust-ad\n", "/run/systemd/resolve/resolv.conf": "nameserver 192.0.2.2\nsearch c\n"},
			resolver{[]string{"192.0.2.2"}, []string{"c"}, nil}},
		"the device's loopback addresses are left out": {map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.1\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 192.0.2.3\nnameserver\nnameserver x\n"},
			resolver{[]string{"192.0.2.3"}, nil, nil}},
		"a missing file": {nil, resolver{}},
	} {
		got := deviceResolver(func(name string) ([]byte, error) {
			if s, has := c.files[name]; has {
				return []byte(s), nil
			}
			return nil, fs.ErrNotExist
		})
		if !slices.Equal(got.servers, c.want.servers) || !slices.Equal(got.searches, c.want.searches) ||
			!slices.Equal(got.options, c.want.options) {
			t.Errorf("%s: the resolver is %q, want %q", name, got, c.want)
		}
	}
	if got, want := union([]string{"a", "b"}, []string{"c", "a"}), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("the union is %q, want %q", got, want)
	}
}

func TestRealEngineHasAPodsResolverOptions(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("names", "cat /etc/resolv.conf then exit 1", "wait")
		p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		p.UID = types.UID("uid-names-" + d.node)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		four := "4"
		p.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &four},
			{Name: "rotate"}}}
		q := p.DeepCopy() // the same pod without a sandbox
		q.Name, q.UID, q.Spec.Containers = "one", types.UID("uid-one-"+d.node), q.Spec.Containers[:1]
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p, *q}}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"names", "one"} {
			output := func() string {
				if st := d.pod(name); st != nil && len(st.ContainerStatuses) > 0 &&
					st.ContainerStatuses[0].State.Terminated != nil {
					return st.ContainerStatuses[0].State.Terminated.Message
				}
				return ""
			}
			d.await(name+" has printed its resolv.conf", func() bool { return output() != "" })
			if options := readResolver(output()).options; !slices.Contains(options, "ndots:4") ||
				!slices.Contains(options, "rotate") {
				t.Errorf("%s lacks ndots:4 or rotate in its resolv.conf: %s", name, strings.TrimSpace(output()))
			}
		}
	})
}
