package agent

import (
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

// resolving completes the resolver's options of a pod that has any: as with the kubelet
// they are laid over the device's, unless its dnsPolicy is None. An engine takes the
// device's only where it is given none.
func resolving(spec *engine.Spec, pod *corev1.Pod) {
	if len(spec.DNSOptions) == 0 || pod.Spec.DNSPolicy == corev1.DNSNone {
		return
	}
	file, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return // the device has no options then
	}
	spec.DNSOptions = layOver(resolverOptions(string(file)), spec.DNSOptions)
}

// resolverOptions reads the options of a resolv.conf; as the resolver does, the last line that has some.
func resolverOptions(file string) (options []string) {
	for line := range strings.Lines(file) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == "options" {
			options = words[1:]
		}
	}
	return options
}

// layOver puts options over others: of one name the newer one counts.
func layOver(old, options []string) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	out := slices.DeleteFunc(slices.Clone(old), func(o string) bool {
		return slices.ContainsFunc(options, func(x string) bool { return name(x) == name(o) })
	})
	return append(out, options...)
}
