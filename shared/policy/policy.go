// Package policy decides which pods may run, by a document that an administrator gives to the hub
// and an owner to the device.
//
// The hub applies its document before it stores a workload (package admission), and the device
// before it runs a pod (package plan), so both interpret every field in the same way. A pod must
// satisfy both documents: the hub cannot extend the device's. The package reads no files, pulls no
// images, and does not know namespaces or users. Other packages refuse what no device supports.
package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"flotilla.dev/shared/bound"
)

// VolumesRoot is the only directory of a device that pods may mount by default.
const VolumesRoot = "/var/lib/flotilla/volumes"

// DefaultPidsLimit is the default number of processes and threads of a container; Unlimited removes
// the limit.
const (
	DefaultPidsLimit = 1024
	Unlimited        = -1

	leastPids = 32      // an engine needs this many to start a shell
	mostPids  = 1 << 22 // the kernel's limit
)

// A Document says what pods may use. Default and the zero value allow only what stays inside the
// container, and host ports. Default also allows persistent volumes and host paths below
// VolumesRoot.
type Document struct {
	Privileged    bool     `yaml:"privileged"`         // privileged containers, which include every capability and sysctl
	HostNetwork   bool     `yaml:"hostNetwork"`        // pods on the device's own network
	HostPID       bool     `yaml:"hostPID"`            // pods in the device's process namespace
	HostPaths     []string `yaml:"hostPaths"`          // prefixes of paths, compared by whole path elements
	HostPorts     []string `yaml:"hostPorts"`          // ports of the device, such as 8080 or 8000-8100; nil: every port
	Capabilities  []string `yaml:"capabilities"`       // capabilities in addition to the engine's default set; ALL: all
	NewPrivileges bool     `yaml:"allowNewPrivileges"` // set-user-ID programs may gain privileges
	UnsafeSysctls []string `yaml:"unsafeSysctls"`      // sysctls in addition to the safe ones; a trailing * is a wildcard

	// registries of images, or repositories in them; empty: any
	Registries    []string    `yaml:"registries"`
	RequireDigest bool        `yaml:"requireDigest"` // images must be named by digest
	Signatures    []Signature `yaml:"signatures"`    // rules for signatures; empty: none

	LocalVolumes bool `yaml:"localVolumes"` // pods may use persistent volumes on the device

	PodPidsLimit int64 `yaml:"podPidsLimit"` // processes and threads of a container; 0: DefaultPidsLimit, -1: unlimited
}

// A Signature is a rule for signatures. The first rule that covers an image applies; an image
// without a rule may not run.
type Signature struct {
	Images   []string `yaml:"images"`   // registries, or repositories in them; empty: every image
	Keys     []string `yaml:"keys"`     // public keys in PEM, of which one must have signed
	Unsigned bool     `yaml:"unsigned"` // no signature is needed
}

// Default returns the policy that applies without a document.
func Default() Document {
	return Document{HostPaths: []string{VolumesRoot}, LocalVolumes: true, PodPidsLimit: DefaultPidsLimit}
}

const knownKeys = "privileged, hostNetwork, hostPID, hostPaths, hostPorts, capabilities, allowNewPrivileges, " +
	"unsafeSysctls, " +
	"registries, requireDigest, signatures, localVolumes, podPidsLimit"

// Parse parses a document in YAML. It is strict, so that a typing mistake allows nothing.
func Parse(body []byte) (Document, error) {
	if err := bound.Document(body); err != nil {
		return Document{}, fmt.Errorf("parse the policy: %w", err)
	}
	d := Default()
	decoder := yaml.NewDecoder(bytes.NewReader(body))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return Document{}, fmt.Errorf("parse the policy: %w; known keys are %s", err, knownKeys)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Document{}, errors.New("parse the policy: it has more than one document (---): write one")
	}
	if err := d.Validate(); err != nil {
		return Document{}, fmt.Errorf("parse the policy: %w", err)
	}
	return d, nil
}

var (
	capabilityForm = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)
	sysctlForm     = regexp.MustCompile(`^([a-z0-9][-_a-z0-9]*[./])*([a-z0-9][-_a-z0-9]*)?\*?$`)
)

// ValidCapability reports whether a name without prefix has the form of a capability.
func ValidCapability(name string) bool { return capabilityForm.MatchString(name) }

// ValidPath reports whether a path can stand for the files below it: it must be absolute and clean.
func ValidPath(p string) bool { return path.IsAbs(p) && path.Clean(p) == p }

// Validate returns every invalid value, each with what to write instead.
func (d Document) Validate() error {
	var wrong []error
	no := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for _, h := range d.HostPaths {
		if !ValidPath(h) {
			no("hostPaths: %q must be a clean absolute path such as %s", h, VolumesRoot)
		}
	}
	for _, h := range d.HostPorts {
		if _, _, ok := portRange(h); !ok {
			no("hostPorts: %q must be a port such as 8080, or a range such as 8000-8100", h)
		}
	}
	for _, c := range d.Capabilities {
		if !ValidCapability(Capability(c)) {
			no("capabilities: %q must be a name such as NET_ADMIN, or ALL", c)
		}
	}
	for _, s := range d.UnsafeSysctls {
		if s == "" || !sysctlForm.MatchString(s) {
			no("unsafeSysctls: %q must be a name such as kernel.msgmax, or a prefix of one followed by *", s)
		}
	}
	for _, r := range d.Registries {
		if err := validPlace(r); err != nil {
			no("registries: %w", err)
		}
	}
	for i, s := range d.Signatures {
		at := fmt.Sprintf("signatures[%d]", i)
		for _, r := range s.Images {
			if err := validPlace(r); err != nil {
				no("%s.images: %w", at, err)
			}
		}
		switch keys, err := s.keys(); {
		case err != nil:
			no("%s.keys: %w", at, err)
		case s.Unsigned == (len(keys) > 0):
			no("%s: write keys, of which one must have signed, or unsigned: true", at)
		}
	}
	if n := d.PodPidsLimit; n != 0 && n != Unlimited && (n < leastPids || n > mostPids) {
		no("podPidsLimit: %d must be between %d and %d, or %d for no limit", n, leastPids, mostPids, Unlimited)
	}
	return errors.Join(wrong...)
}

// PidsLimit returns the highest number of processes and threads of a container, or Unlimited.
func (d Document) PidsLimit() int64 {
	if d.PodPidsLimit == 0 {
		return DefaultPidsLimit
	}
	return d.PodPidsLimit
}

// AllowsPath reports whether a pod may mount a path of the device.
func (d Document) AllowsPath(name string) bool {
	if !path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return false
	}
	name = path.Clean(name)
	return slices.ContainsFunc(d.HostPaths, func(prefix string) bool {
		return prefix == "/" || name == prefix || strings.HasPrefix(name, prefix+"/")
	})
}

// AllowsHostPort reports whether a pod may use a port of the device.
func (d Document) AllowsHostPort(port int32) bool {
	return d.HostPorts == nil || slices.ContainsFunc(d.HostPorts, func(h string) bool {
		first, last, ok := portRange(h)
		return ok && first <= port && port <= last
	})
}

// portRange parses a port or a range of ports.
func portRange(text string) (first, last int32, ok bool) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return int32(a), int32(b), errA == nil && errB == nil && 0 < a && a <= b
}

// defaultCapabilities are the capabilities that an engine gives every container. A pod may always
// add them.
var defaultCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
	"NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// Capability returns a capability's name without its prefix.
func Capability(name string) string { return strings.TrimPrefix(strings.ToUpper(name), "CAP_") }

// AllowsCapability reports whether a container may add a capability.
func (d Document) AllowsCapability(name string) bool {
	name = Capability(name)
	if d.Privileged || slices.Contains(defaultCapabilities, name) {
		return true
	}
	return slices.ContainsFunc(d.Capabilities, func(c string) bool {
		return Capability(c) == name || Capability(c) == "ALL"
	})
}

// safeSysctls are the sysctls that Kubernetes calls safe: they affect only the pod's own
// namespaces.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}

// AllowsSysctl reports whether a pod may set a sysctl.
func (d Document) AllowsSysctl(name string) bool {
	dotted := func(s string) string { return strings.ReplaceAll(s, "/", ".") }
	name = dotted(name)
	if d.Privileged || slices.Contains(safeSysctls, name) {
		return true
	}
	return slices.ContainsFunc(d.UnsafeSysctls, func(s string) bool {
		begin, open := strings.CutSuffix(dotted(s), "*")
		return name == begin || open && strings.HasPrefix(name, begin)
	})
}
