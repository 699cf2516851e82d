package engine

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"
	"golang.org/x/sys/unix"
)

// api is an engine behind the Docker Engine API. It survives restarts and upgrades of the engine:
// every call dials when it has to, and Info negotiates the API version anew when the engine speaks
// another one than before.
type api struct {
	socket   string
	current  atomic.Pointer[session]
	making   sync.Mutex // of networks: of two that make one at a time, one fails before the other is done
	killed   killed     // see there
	seen     seen       // see there
	stall    time.Duration
	silence  time.Duration // of a log
	patience time.Duration // for one answer about containers
}

// A session is what holds as long as the engine stays the same program.
type session struct {
	client *client.Client
	speaks string // newest API version of the engine
	info   Info
}

// Open opens the engine that listens at a unix socket (a path, or a unix:// URL). ErrUnavailable
// when it does not answer, ErrUnsupported when its API is not one that we speak.
func Open(ctx context.Context, socket string) (Engine, error) {
	a := &api{socket: strings.TrimPrefix(socket, "unix://"), stall: pullStall, silence: logSilence, patience: AnswerTime}
	if _, err := a.Info(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *api) client() *client.Client { return a.current.Load().client }
func (a *api) podman() bool           { return a.current.Load().info.Name == "podman" }

func (a *api) Close() error { return a.client().Close() }

func (a *api) Ping(ctx context.Context) error {
	_, err := a.client().Ping(ctx, client.PingOptions{})
	return explain(err, "ask the container engine at", a.socket)
}

func (a *api) Info(ctx context.Context) (Info, error) {
	s := a.current.Load()
	if s == nil {
		s = &session{}
	}
	c := s.client
	if c == nil {
		var err error
		if c, err = dial(a.socket); err != nil {
			return Info{}, err
		}
	}
	ping, err := c.Ping(ctx, client.PingOptions{})
	if err != nil {
		return Info{}, explain(err, "ask the container engine at", a.socket)
	}
	if ping.APIVersion == "" || versions.LessThan(ping.APIVersion, client.MinAPIVersion) {
		return Info{}, fmt.Errorf("use the container engine at %s: %w: it speaks API version %q, but %s or newer is "+
			"needed; upgrade it to Docker 19.03, Podman 4 or newer",
			a.socket, ErrUnsupported, ping.APIVersion, client.MinAPIVersion)
	}
	if s.client == nil || s.speaks != ping.APIVersion {
		// A client only ever negotiates downwards, so a changed engine gets a new one. The old one is not
		// closed: calls may still be under way on it.
		if c, err = dial(a.socket); err != nil {
			return Info{}, err
		}
	}
	info, err := describe(ctx, c, a.socket)
	if err != nil {
		return Info{}, err
	}
	a.current.Store(&session{client: c, speaks: ping.APIVersion, info: info})
	return info, nil
}

// dial makes a client; it connects with the first call, and then negotiates the API version.
func dial(socket string) (*client.Client, error) {
	c, err := client.New(client.WithHost("unix://"+socket), client.WithUserAgent("flotilla-device"))
	if err != nil {
		return nil, fmt.Errorf("open the container engine at %s: %w", socket, err)
	}
	return c, nil
}

// describe asks an engine who it is.
func describe(ctx context.Context, c *client.Client, socket string) (Info, error) {
	v, err := c.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return Info{}, explain(err, "ask the version of the container engine at", socket)
	}
	if v.MinAPIVersion != "" && versions.LessThan(client.MaxAPIVersion, v.MinAPIVersion) {
		return Info{}, fmt.Errorf("use the container engine at %s: %w: it speaks API version %s or newer, but this "+
			"program at most %s; upgrade this program",
			socket, ErrUnsupported, v.MinAPIVersion, client.MaxAPIVersion)
	}
	if v.Os != "linux" {
		return Info{}, fmt.Errorf("use the container engine at %s: %w: it runs %s containers, not linux", socket,
			ErrUnsupported, v.Os)
	}
	r, err := c.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Info{}, explain(err, "ask the state of the container engine at", socket)
	}
	info := Info{
		Name:       "docker",
		APIVersion: c.ClientVersion(),
		OS:         v.Os,
		Arch:       v.Arch,
		Root:       r.Info.DockerRootDir,
		Socket:     socket,
		MemLimit:   r.Info.MemoryLimit,
		CPULimit:   r.Info.CPUCfsQuota,
		PidsLimit:  r.Info.PidsLimit,
		SwapLimit:  r.Info.SwapLimit,
		CPUSet:     r.Info.CPUSet,
		CgroupV2:   strings.TrimPrefix(r.Info.CgroupVersion, "v") == "2", // Podman writes v2
	}
	info.Runtimes, info.DefaultRuntime = slices.Sorted(maps.Keys(r.Info.Runtimes)), r.Info.DefaultRuntime
	info.Version, _, _ = strings.Cut(v.Version, "+") // Debian appends +dfsg1
	if strings.Contains(r.Info.InitBinary+r.Info.DockerRootDir+socket, "balena") {
		info.Name = "balena-engine"
	}
	for _, part := range v.Components {
		if strings.HasPrefix(part.Name, "Podman") {
			info.Name = "podman"
		}
	}
	if info.Arch == "arm" {
		info.Variant = armVariant(r.Info.Architecture, cpuModel())
	}
	return info, nil
}

// armVariant tells which 32-bit ARM images an engine may run. machine is what the engine calls its
// host: armv6l, armv7l, or aarch64 for a 32-bit system on a 64-bit kernel. Podman only says arm;
// then the processor's model name decides, because a Raspberry Pi Zero calls its ARMv6 core "CPU
// architecture: 7" but "ARMv6-compatible processor … (v6l)".
func armVariant(machine, model string) string {
	if strings.HasPrefix(machine, "armv6") || machine == "arm" && strings.Contains(model, "v6l") {
		return "v6"
	}
	return "v7"
}

// cpuModel is the processor's model name, "" when the system does not tell.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func writable(path string) bool { return unix.Access(path, unix.W_OK) == nil }
