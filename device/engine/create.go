package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

// requestedImageLabel stores the requested image name, because engines answer with the resolved
// name or, once a tag has moved, with an id. Containers removes the label from its result.
const requestedImageLabel = "flotilla.dev/engine.image"

const (
	cpuPeriod   = 100_000 // µs, the kernel's default
	minCPUQuota = 1_000   // µs, the kernel refuses less
	minShares   = 2
	minMemory   = 6 << 20 // Docker refuses less
)

func (a *api) Create(ctx context.Context, s Spec) (string, error) {
	image := s.Image
	found, ok, err := a.findImage(ctx, s.Image)
	if err != nil {
		return "", err
	}
	if err := found.fit(); err != nil {
		return "", fmt.Errorf("create container %s of image %s: %w", s.Name, s.Image, err)
	}
	if a.podman() {
		// Podman names a local image without a registry localhost/…, and users leave that out.
		if ok {
			image = found.name
			if err := refuseInitProgram(s, found); err != nil {
				return "", fmt.Errorf("create container %s: %w", s.Name, err)
			}
		}
		if s.NetworkOf != "" {
			// Docker gives all containers on one network the same host name; Podman does not, so
			// use the owner's.
			owner, err := a.look(ctx, s.NetworkOf)
			if err != nil {
				return "", explain(err, "create container "+s.Name+" in the network of", s.NetworkOf)
			}
			s.Hostname = owner.Container.Config.Hostname
		}
	}
	options, err := translate(s, image, a.current.Load().info)
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", s.Name, err)
	}
	created, err := a.client().ContainerCreate(ctx, options)
	if err != nil && nameTaken(err) {
		if err := a.clearName(ctx, s.Name); err != nil {
			return "", err
		}
		created, err = a.client().ContainerCreate(ctx, options)
	}
	if errdefs.IsNotFound(err) {
		if _, ok, lookErr := a.HasImage(ctx, s.Image); lookErr == nil && !ok {
			return "", fmt.Errorf("create container %s: %w: %s", s.Name, ErrNoImage, s.Image)
		}
	}
	if err != nil {
		return "", a.explainLayers(err, "create container", s.Name)
	}
	a.seen.make(Container{ID: created.ID, Name: s.Name, Image: s.Image, ImageID: found.id, Labels: s.Labels,
		State:  Created,
		Limits: LimitsOf(s, a.current.Load().info), Created: time.Now()})
	return created.ID, nil
}

// initPrograms run in Podman's "systemd mode", and so does any program called systemd.
var initPrograms = []string{"/sbin/init", "/usr/sbin/init", "/usr/local/sbin/init"}

// refuseInitProgram refuses a container that Podman would treat as an init system because of its
// program's name. Podman mounts the container's cgroup writable, with the container's own limits in
// it, and the Docker API has no option against that.
func refuseInitProgram(s Spec, image foundImage) error {
	words := slices.Concat(s.Entrypoint, s.Args)
	if len(s.Entrypoint) == 0 {
		words = slices.Concat(image.entrypoint, s.Args)
		if len(s.Args) == 0 {
			words = slices.Concat(image.entrypoint, image.cmd)
		}
	}
	if len(words) == 0 || s.Privileged {
		return nil
	}
	if p := path.Clean(words[0]); !slices.Contains(initPrograms, p) && path.Base(p) != "systemd" {
		return nil
	}
	return fmt.Errorf("%w: Podman takes the program for an init system, which may change the container's limits; give "+
		"the program another path in the image, or make the container privileged", ErrUnsupported)
}

// nameTaken recognizes the response for a name in use: Docker's status 409, or Podman's 500 with a
// text.
func nameTaken(err error) bool {
	return strings.Contains(err.Error(), "already in use")
}

// clearName removes a container of this name that does not run. Left-overs of a power cut or of an
// incomplete removal would block the name for ever.
func (a *api) clearName(ctx context.Context, name string) error {
	found, err := a.look(ctx, name)
	if err == nil && found.Container.State != nil && found.Container.State.Running {
		return fmt.Errorf("create container %s: a running container has that name: %s; stop and remove it first", name,
			found.Container.ID)
	}
	if err == nil {
		name = found.Container.ID
	}
	return a.Remove(ctx, name)
}

// translate converts a Spec for the engine. The engine never restarts or probes a container,
// because the agent does both. Every log has a size limit, so that it cannot fill or wear out the
// flash.
func translate(s Spec, image string, info Info) (client.ContainerCreateOptions, error) {
	config := &container.Config{
		Image:       image,
		Hostname:    s.Hostname,
		User:        s.User,
		Env:         s.Env,
		Entrypoint:  s.Entrypoint,
		Cmd:         s.Args,
		WorkingDir:  s.WorkingDir,
		Labels:      map[string]string{requestedImageLabel: s.Image},
		Tty:         s.TTY,
		OpenStdin:   s.Stdin,
		StdinOnce:   s.Stdin && s.StdinOnce,
		StopSignal:  s.StopSignal,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	maps.Copy(config.Labels, s.Labels)
	host := &container.HostConfig{
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:      container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "5m", "max-file": "2"}},
		IpcMode:        container.IPCModeShareable,
		CapAdd:         s.CapAdd,
		CapDrop:        s.CapDrop,
		GroupAdd:       s.Groups,
		Privileged:     s.Privileged,
		ReadonlyRootfs: s.ReadOnlyRoot,
		Sysctls:        s.Sysctls,
		OomScoreAdj:    s.OOMScoreAdj,
		Runtime:        s.Runtime,
	}
	if info.Name == "podman" {
		// The k8s-file driver truncates instead of rotating.
		host.LogConfig = container.LogConfig{Type: "k8s-file", Config: map[string]string{"max-size": "5m"}}
	}
	if s.NoNewPrivs {
		host.SecurityOpt = []string{"no-new-privileges"}
	}
	if p := s.Seccomp; p != nil {
		profile := p.Text
		if info.Name == "podman" {
			profile = p.File
		}
		host.SecurityOpt = append(host.SecurityOpt, "seccomp="+profile)
	}
	if s.AppArmor != "" {
		host.SecurityOpt = append(host.SecurityOpt, "apparmor="+s.AppArmor)
	}
	if s.PidOf != "" {
		host.PidMode = container.PidMode("container:" + s.PidOf)
	}
	if s.HostPID {
		host.PidMode = "host"
	}
	for _, m := range s.Mounts {
		if err := checkMountPaths(m); err != nil {
			return client.ContainerCreateOptions{}, err
		}
		host.Mounts = append(host.Mounts,
			mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	if len(s.Tmpfs) > 0 {
		host.Tmpfs = map[string]string{}
	}
	for target, options := range s.Tmpfs {
		// By default Docker forbids executing programs on a tmpfs; Podman and Kubernetes' memory
		// volumes allow it.
		if !slices.Contains(strings.Split(options, ","), "noexec") {
			options = strings.TrimPrefix(options+",exec", ",")
		}
		host.Tmpfs[target] = options
	}
	for _, d := range s.Devices {
		host.Devices = append(host.Devices,
			container.DeviceMapping{PathOnHost: d.Host, PathInContainer: d.Path, CgroupPermissions: "rw"})
	}
	limit(&host.Resources, s, info)
	if err := connect(config, host, s, info); err != nil {
		return client.ContainerCreateOptions{}, err
	}
	return client.ContainerCreateOptions{Name: s.Name, Config: config, HostConfig: host}, nil
}

// checkMountPaths refuses a mount whose paths an engine would misread. Podman writes a mount as
// type=bind,source=…,dst=… and parses that, so a comma in a path starts another option, such as
// another source.
func checkMountPaths(m Mount) error {
	for _, p := range []string{m.Source, m.Target} {
		if !path.IsAbs(p) || strings.ContainsAny(p, `,"`) || strings.ContainsFunc(p, unicode.IsControl) {
			return fmt.Errorf("mount %q at %q: %w: paths must be absolute, without commas, quotes and control characters",
				m.Source, m.Target, ErrUnsupported)
		}
	}
	if path.Clean(m.Target) == "/" {
		return fmt.Errorf("mount %q at %q: %w: the target is the container's root", m.Source, m.Target, ErrUnsupported)
	}
	return nil
}

// limit sets the limits that the kernel can enforce (see Info) and leaves out the others, because
// some engines refuse those and some ignore them; the agent reports a condition. By default engines
// allow as much swap as memory.
func limit(r *container.Resources, s Spec, info Info) {
	if s.MemoryBytes > 0 && info.MemLimit {
		r.Memory = max(s.MemoryBytes, minMemory)
		r.MemorySwap = r.Memory // memory and swap together
		if info.SwapLimit {
			r.MemorySwap += s.SwapBytes
		}
	}
	if s.MilliCPU > 0 && info.CPULimit {
		r.CPUPeriod = cpuPeriod
		r.CPUQuota = max(s.MilliCPU*cpuPeriod/1000, minCPUQuota)
	}
	if s.CPUShares > 0 {
		r.CPUShares = max(s.CPUShares, minShares)
	}
	if info.CPUSet {
		r.CpusetCpus = s.CPUs
	}
	if s.PidsLimit != 0 && info.PidsLimit {
		r.PidsLimit = &s.PidsLimit // also for -1: otherwise Podman uses its own limit
	}
}

// connect sets the network. A container on the host's or another container's network gets no ports
// and resolver of its own: the network's owner has them, and Docker refuses them.
func connect(config *container.Config, host *container.HostConfig, s Spec, info Info) error {
	if s.HostNetwork && s.NetworkOf != "" {
		return fmt.Errorf("%w: a container cannot use both the host's network and that of container %s",
			ErrUnsupported, s.NetworkOf)
	}
	if s.NetworkOf != "" {
		shared := "container:" + s.NetworkOf
		host.NetworkMode, host.IpcMode = container.NetworkMode(shared), container.IpcMode(shared)
		if info.Name != "podman" {
			config.Hostname = "" // the network's owner has the host name
		}
		return nil
	}
	host.DNSSearch, host.DNSOptions = s.DNSSearch, s.DNSOptions
	for _, server := range s.DNS {
		address, err := netip.ParseAddr(server)
		if err != nil {
			return fmt.Errorf("DNS server %q is not an IP address", server)
		}
		host.DNS = append(host.DNS, address)
	}
	if s.HostNetwork {
		host.NetworkMode = "host"
		return nil
	}
	host.NetworkMode = container.NetworkMode(cmp.Or(s.Network, "bridge"))
	config.ExposedPorts, host.PortBindings = network.PortSet{}, network.PortMap{}
	for _, p := range s.Ports {
		inside, err := network.ParsePort(fmt.Sprintf("%d/%s", p.ContainerPort, strings.ToLower(cmp.Or(p.Protocol, "tcp"))))
		if err != nil {
			return fmt.Errorf("port %d/%s: %w", p.ContainerPort, p.Protocol, err)
		}
		if !slices.Contains([]network.IPProtocol{network.TCP, network.UDP, network.SCTP}, inside.Proto()) {
			return fmt.Errorf("port %d: %w: protocol %s", p.ContainerPort, ErrUnsupported, p.Protocol)
		}
		if p.HostPort < 0 || p.HostPort > 65535 { // Podman would silently use the lower sixteen bits
			return fmt.Errorf("port %d: %w: the device has the ports from 1 to 65535", p.HostPort, ErrUnsupported)
		}
		binding := network.PortBinding{HostPort: fmt.Sprint(p.HostPort)}
		if p.HostIP != "" {
			if binding.HostIP, err = netip.ParseAddr(p.HostIP); err != nil {
				return fmt.Errorf("port %d: host IP %q is not an IP address", p.HostPort, p.HostIP)
			}
		}
		config.ExposedPorts[inside] = struct{}{}
		host.PortBindings[inside] = append(host.PortBindings[inside], binding)
	}
	return nil
}
