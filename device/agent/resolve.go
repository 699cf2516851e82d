package agent

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

// A resolver is what a resolv.conf says.
type resolver struct{ servers, searches, options []string }

// resolving completes what a pod's dnsConfig says of the resolver: as with the kubelet that is laid over the device's,
// unless the pod's dnsPolicy is None. An engine takes the device's only where it is given none.
func resolving(spec *engine.Spec, pod *corev1.Pod) {
	if pod.Spec.DNSConfig == nil || pod.Spec.DNSPolicy == corev1.DNSNone {
		return
	}
	device := deviceResolver(os.ReadFile)
	if len(spec.DNS) > 0 {
		spec.DNS = both(device.servers, spec.DNS)
	}
	if len(spec.DNSSearch) > 0 {
		spec.DNSSearch = both(device.searches, spec.DNSSearch)
	}
	if len(spec.DNSOptions) > 0 {
		spec.DNSOptions = layOver(device.options, spec.DNSOptions)
	}
}

// deviceResolver is the device's resolver as containers can have it: where it asks systemd-resolved, that one's servers,
// and none of the device's own loopback, where containers have another.
func deviceResolver(read func(string) ([]byte, error)) resolver {
	file, _ := read("/etc/resolv.conf") // none: the device has nothing to add
	r := readResolver(string(file))
	if slices.Equal(r.servers, []string{"127.0.0.53"}) {
		if file, err := read("/run/systemd/resolve/resolv.conf"); err == nil {
			r = readResolver(string(file))
		}
	}
	r.servers = slices.DeleteFunc(r.servers, func(s string) bool {
		ip, err := netip.ParseAddr(s)
		return err != nil || ip.IsLoopback() || ip.Zone() != ""
	})
	return r
}

// readResolver reads a resolv.conf; as for the resolver, the last line of searches and of options counts.
func readResolver(file string) (r resolver) {
	for line := range strings.Lines(file) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "nameserver":
			r.servers = append(r.servers, words[1:min(2, len(words))]...)
		case "search", "domain":
			r.searches = words[1:]
		case "options":
			r.options = words[1:]
		}
	}
	return r
}

// both are the words of two lists, each once.
func both(a, b []string) (all []string) {
	for _, w := range slices.Concat(a, b) {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// layOver puts options over others: of one name the newer one counts.
func layOver(old, options []string) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	out := slices.DeleteFunc(slices.Clone(old), func(o string) bool {
		return slices.ContainsFunc(options, func(x string) bool { return name(x) == name(o) })
	})
	return append(out, options...)
}
