package agent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

func TestAPodsResolverOptionsAreLaidOverTheDevices(t *testing.T) {
	old := resolverOptions("search a\noptions edns0\nnameserver 192.0.2.1\noptions ndots:3 timeout:1 trust-ad\n")
	if got, want := layOver(old, []string{"ndots:5", "rotate"}), []string{"timeout:1", "trust-ad", "ndots:5", "rotate"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	p := makePod("app", "wait")
	two := "2"
	p.Spec.DNSPolicy = corev1.DNSNone
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "rotate"}}}
	if why := malformed(&p); why != "" {
		t.Error(why)
	}
	var spec engine.Spec
	networked(&spec, &p)
	resolving(&spec, &p)
	if want := []string{"ndots:2", "rotate"}; !slices.Equal(spec.DNSOptions, want) {
		t.Errorf("%q, want %q", spec.DNSOptions, want)
	}
	two = "2\nnameserver 198.51.100.1"
	if why := malformed(&p); why == "" {
		t.Error("an option of two lines is taken")
	}
}

func TestRealEngineHasAPodsResolverOptions(t *testing.T) {
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("names", "cat /etc/resolv.conf then exit 1", "wait")
		p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		p.UID = types.UID("uid-names-" + d.node)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		four := "4"
		p.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &four}, {Name: "rotate"}}}
		q := p.DeepCopy() // without a sandbox
		q.Name, q.UID, q.Spec.Containers = "one", types.UID("uid-one-"+d.node), q.Spec.Containers[:1]
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p, *q}}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"names", "one"} {
			said := func() string {
				if st := d.pod(name); st != nil && len(st.ContainerStatuses) > 0 && st.ContainerStatuses[0].State.Terminated != nil {
					return st.ContainerStatuses[0].State.Terminated.Message
				}
				return ""
			}
			d.await(name+" has told", func() bool { return said() != "" })
			if options := resolverOptions(said()); !slices.Contains(options, "ndots:4") || !slices.Contains(options, "rotate") {
				t.Errorf("%s: %s", name, strings.TrimSpace(said()))
			}
		}
	})
}
