package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
)

// VolumesRoot is the only place on a device that pods may mount from unless its
// owner allows more.
const VolumesRoot = "/var/lib/flotilla/volumes"

// defaultCapabilities are what Docker gives a container that asks for nothing; a
// pod may name them without leave.
var defaultCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
	"NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// A Policy is what the owner of a device lets the hub run on it. The hub cannot
// change it. Its zero value and DefaultPolicy allow nothing that reaches out of a
// container.
type Policy struct {
	Privileged    bool     `yaml:"privileged"`
	HostNetwork   bool     `yaml:"hostNetwork"`
	HostPID       bool     `yaml:"hostPID"`
	HostPaths     []string `yaml:"hostPaths"`          // prefixes, by whole path elements
	Capabilities  []string `yaml:"capabilities"`       // beyond Docker's default set; ALL for every one
	Registries    []string `yaml:"registries"`         // empty: any
	RequireDigest bool     `yaml:"requireDigest"`      // images by digest only
	NewPrivileges bool     `yaml:"allowNewPrivileges"` // set-user-ID programs may gain rights
}

// DefaultPolicy is the policy of a device whose owner has written none.
func DefaultPolicy() Policy { return Policy{HostPaths: []string{VolumesRoot}} }

// ParsePolicy reads a policy file: YAML, strict, so that a typing mistake opens nothing.
func ParsePolicy(body []byte) (Policy, error) {
	p := DefaultPolicy()
	d := yaml.NewDecoder(bytes.NewReader(body))
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil && !errors.Is(err, io.EOF) {
		return Policy{}, fmt.Errorf("parse the policy: %w; known keys are privileged, hostNetwork, hostPID, hostPaths, capabilities, registries, requireDigest, allowNewPrivileges", err)
	}
	for _, h := range p.HostPaths {
		if !path.IsAbs(h) || path.Clean(h) != h {
			return Policy{}, fmt.Errorf("parse the policy: hostPaths: %q must be a clean absolute path such as %s", h, VolumesRoot)
		}
	}
	for i, c := range p.Capabilities {
		p.Capabilities[i] = capability(c)
	}
	return p, nil
}

func capability(c string) string { return strings.TrimPrefix(strings.ToUpper(c), "CAP_") }

// AllowsPath tells whether a pod may mount a path of the device.
func (p Policy) AllowsPath(name string) bool {
	name = path.Clean(name)
	return slices.ContainsFunc(p.HostPaths, func(prefix string) bool {
		return prefix == "/" || name == prefix || strings.HasPrefix(name, prefix+"/")
	})
}

// Forbids returns the sentence why a pod may not run here; empty if it may.
func (p Policy) Forbids(pod *corev1.Pod) string {
	const how = "the device's owner can allow it in the file given with --policy"
	if pod.Spec.HostNetwork && !p.HostNetwork {
		return "hostNetwork is forbidden by this device's policy; " + how + " (hostNetwork: true)"
	}
	if pod.Spec.HostPID && !p.HostPID {
		return "hostPID is forbidden by this device's policy; " + how + " (hostPID: true)"
	}
	for _, v := range pod.Spec.Volumes {
		if h := v.HostPath; h != nil && (!path.IsAbs(h.Path) || !p.AllowsPath(h.Path)) {
			return fmt.Sprintf("host path %q of volume %q is forbidden by this device's policy, which allows %s; %s (hostPaths)",
				h.Path, v.Name, orNone(p.HostPaths), how)
		}
	}
	for _, w := range everyContainer(pod) {
		if why := p.forbidsContainer(w.spec); why != "" {
			return "container " + w.spec.Name + ": " + why + "; " + how
		}
	}
	return ""
}

func (p Policy) forbidsContainer(c *corev1.Container) string {
	if s := c.SecurityContext; s != nil {
		if s.Privileged != nil && *s.Privileged && !p.Privileged {
			return "privileged is forbidden by this device's policy (privileged: true)"
		}
		if s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount {
			return "procMount " + string(*s.ProcMount) + " is forbidden on devices"
		}
		if s.Capabilities != nil && !p.Privileged {
			for _, a := range s.Capabilities.Add {
				if name := capability(string(a)); !slices.Contains(defaultCapabilities, name) && !slices.Contains(p.Capabilities, name) && !slices.Contains(p.Capabilities, "ALL") {
					return "capability " + name + " is forbidden by this device's policy (capabilities: [" + name + "])"
				}
			}
		}
	}
	ref, err := reference.ParseDockerRef(c.Image)
	if err != nil {
		if len(p.Registries) > 0 || p.RequireDigest {
			return fmt.Sprintf("image %q is not a valid reference (%v), so this device's policy cannot allow it", c.Image, err)
		}
		return "" // the engine will say so
	}
	if d := reference.Domain(ref); len(p.Registries) > 0 && !slices.Contains(p.Registries, d) {
		return fmt.Sprintf("image %q comes from registry %s, and this device's policy allows %s (registries)", c.Image, d, strings.Join(p.Registries, ", "))
	}
	if _, ok := ref.(reference.Digested); p.RequireDigest && !ok {
		return fmt.Sprintf("image %q has no digest, and this device's policy requires one: use name@sha256:… (requireDigest)", c.Image)
	}
	return ""
}

func orNone(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}
