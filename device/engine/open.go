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
// each call connects if needed, and Info negotiates the API version again when the engine's version
// changes.
type api struct {
	socket     string
	current    atomic.Pointer[session]
	making     sync.Mutex // creates one network at a time: of two concurrent calls, one fails before the other is ready
	killed     oomKills
	seen       seen
	stall      time.Duration
	silence    time.Duration // longest pause of an ended container's log
	answerTime time.Duration // longest wait for one answer about containers
}

// A session is a client for one version of the engine.
type session struct {
	client *client.Client
	speaks string // the engine's newest API version
	info   Info
}

// Open opens the engine at a unix socket (a path, or a unix:// URL). It returns ErrUnavailable if
// the engine does not answer, and ErrUnsupported if the engine's API version does not fit.
func Open(ctx context.Context, socket string) (Engine, error) {
	a := &api{socket: strings.TrimPrefix(socket, "unix://"), stall: pullStall, silence: logSilence, answerTime: AnswerTime}
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
		return Info{}, fmt.Errorf("use the container engine at %s: %w: its API version is %q, but %s or newer is "+
			"needed; upgrade it to Docker 19.03, Podman 4 or newer",
			a.socket, ErrUnsupported, ping.APIVersion, client.MinAPIVersion)
	}
	if s.client == nil || s.speaks != ping.APIVersion {
		// A client only negotiates downwards, so an upgraded engine needs a new client. The old one
		// stays open for running calls.
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

// dial makes a client. The client connects and negotiates the API version at its first call.
func dial(socket string) (*client.Client, error) {
	c, err := client.New(client.WithHost("unix://"+socket), client.WithUserAgent("flotilla-device"))
	if err != nil {
		return nil, fmt.Errorf("open the container engine at %s: %w", socket, err)
	}
	return c, nil
}

// describe requests the engine's version and settings.
func describe(ctx context.Context, c *client.Client, socket string) (Info, error) {
	v, err := c.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return Info{}, explain(err, "ask the version of the container engine at", socket)
	}
	if v.MinAPIVersion != "" && versions.LessThan(client.MaxAPIVersion, v.MinAPIVersion) {
		return Info{}, fmt.Errorf("use the container engine at %s: %w: it requires API version %s or newer, but this "+
			"program supports at most %s; upgrade this program",
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

// armVariant returns which 32-bit ARM images an engine runs. machine is the engine's name for its
// host: armv6l, armv7l, or aarch64 for a 32-bit system on a 64-bit kernel. Podman only says arm;
// then the processor's model name decides: a Raspberry Pi Zero reports "CPU architecture: 7" for
// its ARMv6 core, but "ARMv6-compatible processor … (v6l)".
func armVariant(machine, model string) string {
	if strings.HasPrefix(machine, "armv6") || machine == "arm" && strings.Contains(model, "v6l") {
		return "v6"
	}
	return "v7"
}

// cpuModel returns the processor's model name, or "".
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
