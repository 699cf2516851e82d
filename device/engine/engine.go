// Package engine drives a device's container engine through the Docker Engine API: Docker Engine,
// Podman and balenaEngine.
//
// It hides the differences between engines and never decides which containers run: package agent
// does. It alone imports the engine's client. Package enginetest has a fake in memory.
package engine

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// Errors that tell the caller the next step.
var (
	ErrNotFound    = errors.New("not found")          // the object does not exist, or no longer exists
	ErrUnavailable = errors.New("engine unavailable") // try again later
	ErrUnsupported = errors.New("engine unsupported") // the engine's API is too old, or it does not support the request
	ErrNoImage     = errors.New("image not present")  // pull it first
	// ErrDamaged means that a layer's files are gone: remove the image and its containers, and pull
	// the image again.
	ErrDamaged = errors.New("image damaged")
)

// Info describes an engine.
type Info struct {
	Name       string // docker, podman, balena-engine
	Version    string // such as 20.10.24
	APIVersion string // negotiated API version
	OS, Arch   string // native platform of containers
	Variant    string // v6, v7 for arm
	Root       string // the engine's directory of images and containers
	Socket     string
	MemLimit   bool // the kernel enforces memory limits
	CPULimit   bool // the kernel enforces cpu quotas
	PidsLimit  bool
	SwapLimit  bool // the kernel counts and limits the swap of containers
	CPUSet     bool // containers can be pinned to processors
	CgroupV2   bool // the device uses cgroup v2

	Runtimes       []string // sorted names
	DefaultRuntime string
}

// A Mount is a host directory or file inside a container.
type Mount struct {
	Source   string // absolute path on the device
	Target   string
	ReadOnly bool
}

// A Port publishes a container port on the device.
type Port struct {
	HostIP        string
	HostPort      int32
	ContainerPort int32
	Protocol      string // TCP, UDP, SCTP
}

// A Spec describes a container to create.
type Spec struct {
	Name       string
	Image      string
	Entrypoint []string // nil: the image's
	Args       []string // nil: the image's
	Env        []string // K=V
	WorkingDir string
	User       string // "" : the image's
	Groups     []string
	Labels     map[string]string
	Hostname   string
	NetworkOf  string // id of the container whose network and IPC namespaces are shared; "": a new namespace
	// Network is a network of EnsureNetwork, if the container has its own namespace; "": the
	// engine's default network.
	Network        string
	HostNetwork    bool
	HostPID        bool
	PidOf          string // id of the container whose process namespace is shared; "": a new namespace
	Ports          []Port
	Mounts         []Mount
	Tmpfs          map[string]string // target path to options
	Devices        []Device          // device nodes in addition to those of every container
	MemoryBytes    int64             // 0: no limit
	SwapBytes      int64             // swap in addition to MemoryBytes, if that is not 0
	MilliCPU       int64             // 0: no limit
	CPUShares      int64             // from the CPU request
	CPUs           string            // processors to run on, such as 0-1,4; "": all
	PidsLimit      int64             // processes and threads; -1: unlimited, 0: the engine's default
	ReadOnlyRoot   bool
	Privileged     bool
	NoNewPrivs     bool
	CapAdd         []string
	CapDrop        []string
	TTY            bool
	Stdin          bool
	StdinOnce      bool // close stdin after the first attachment with stdin
	StopSignal     string
	DNS, DNSSearch []string
	DNSOptions     []string // options of resolv.conf, as name or name:value; empty: the device's
	Sysctls        map[string]string
	OOMScoreAdj    int
	Seccomp        *Seccomp // nil: the engine's default profile
	Runtime        string   // a runtime of Info.Runtimes; "": the engine's default
	AppArmor       string   // a loaded profile, or unconfined; "": the engine's default
}

// A Seccomp is a filter profile for system calls. Docker takes Text, Podman takes File.
type Seccomp struct {
	File string
	Text string
}

// A Device is a device node that a container may read and write. The container cannot create device
// nodes.
type Device struct {
	Host string // path on the device
	Path string // path in the container, below /dev
}

// A Progress is the progress of a pull. The size of a layer becomes known when its download begins.
type Progress struct {
	Layers, Done int
	Bytes, Total int64 // bytes of the layers with a known size
}

// A State is a container's state.
type State string

// States of a container.
const (
	Created State = "created"
	Running State = "running"
	Paused  State = "paused"
	Exited  State = "exited"
	Dead    State = "dead" // a removal was interrupted: remove it again
)

// A Container is a container as the engine reports it.
type Container struct {
	ID         string
	Name       string
	Image      string // image name as requested in Spec
	ImageID    string
	Labels     map[string]string
	State      State
	ExitCode   int
	OOMKilled  bool
	Error      string // why the container did not start
	Created    time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	IP         string // address in its own network; "": host network or not running
	Pid        int
	Net        string // id of the network namespace while the container runs; "": unknown
	Limits     Limits // present limits; Podman reports those of the creation
}

// Limits are the limits that an engine enforces; 0: no limit.
type Limits struct {
	Memory, MemorySwap, CPUQuota, CPUShares int64
	CPUs                                    string // processors; "": all
}

// A Network is a bridge network of containers.
type Network struct {
	Name   string
	CIDR   string // address range, such as 10.64.3.0/24
	Labels map[string]string
}

// An Image is a local image.
type Image struct {
	ID    string
	Tags  []string // without podman's localhost/ prefix
	Size  int64
	InUse bool // a container uses it, running or not
}

// Usage is the resource usage of a container.
type Usage struct {
	CPUNanos    uint64 // processor time since the container's start
	MemoryBytes uint64 // working set
}

// LogOptions select lines of a log.
type LogOptions struct {
	Follow     bool
	Timestamps bool
	Tail       int64 // number of last lines; < 0: all
	Since      time.Time
}

// Streams connect a command or an attachment with its caller. A Read of Stdin may still be running
// when the call returns; the caller must end it.
type Streams struct {
	Stdin          io.Reader // nil: empty input
	Stdout, Stderr io.Writer // nil: discarded; with a terminal, all output goes to Stdout
	TTY            bool      // give the command a terminal
	Resize         <-chan Size
	Began          func(exec string) // called with the command's id before the command starts, for EndExec; may be nil
}

// A Size is a terminal's size in characters.
type Size struct{ Width, Height uint16 }

// AnswerTime is the longest time that a healthy engine takes for one request about containers.
const AnswerTime = 10 * time.Second

// An Engine is a container engine as package agent uses it. Every call ends with its context.
type Engine interface {
	// Info describes the engine. It returns ErrUnavailable if the engine does not answer.
	Info(ctx context.Context) (Info, error)
	// Ping checks that the engine answers. It is cheap.
	Ping(ctx context.Context) error
	// Containers lists all containers with the label, running or not. It inspects each of them and
	// waits up to AnswerTime for each answer.
	Containers(ctx context.Context, label string) ([]Container, error)
	// Create creates a container and returns its id. Without the image it returns ErrNoImage. It
	// replaces a container of the same name that does not run.
	Create(ctx context.Context, s Spec) (id string, err error)
	Start(ctx context.Context, id string) error
	// Update changes the memory, swap, CPU and CPUs limits of a container without a restart. Limits
	// that are zero in the Spec stay unchanged. It is idempotent.
	Update(ctx context.Context, id string, s Spec) error
	// Stop sends a container its stop signal, and SIGKILL after grace. A container that has stopped
	// or is gone is not an error.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove removes a container, running or not, with its anonymous volumes. A container that is
	// gone is not an error. Stop the containers that share its network first: Podman refuses the
	// removal while they run. Ended ones may be removed too.
	Remove(ctx context.Context, id string) error
	// Images lists the images.
	Images(ctx context.Context) ([]Image, error)
	// Layers returns the digests of the unpacked layers of all images. It inspects each of them.
	Layers(ctx context.Context) (map[string]bool, error)
	// HasImage reports whether a local image exists, and returns its id.
	HasImage(ctx context.Context, ref string) (id string, ok bool, err error)
	// ImageUser returns the user of a local image as its author wrote it: a name or uid, optionally
	// with a group after a colon. Empty: root.
	ImageUser(ctx context.Context, ref string) (string, error)
	// ImageTree calls take with the entries of a local image, one after the other as in a tar
	// archive: all of them, or it returns an error. size is their approximate size on the disk. It
	// creates a container from s that never starts, and removes it; an old container of that name
	// is replaced.
	ImageTree(ctx context.Context, ref string, s Spec,
		take func(size int64) (put func(*tar.Header, io.Reader) error, err error)) error
	// Pull pulls an image for the engine's platform. auth may be nil. progress, which may be nil
	// too, is called with the progress. ErrNotFound means that the registry does not have the
	// image; other errors may be temporary.
	Pull(ctx context.Context, ref string, auth *RegistryAuth, progress func(Progress)) error
	// RemoveImage removes an image (id or name) with all its names. An image with containers is an
	// error; an image that is gone is not.
	RemoveImage(ctx context.Context, id string) error
	// Logs streams stdout and stderr until the end of the log. A followed log ends with the
	// container or with ctx.
	Logs(ctx context.Context, id string, o LogOptions, stdout, stderr io.Writer) error
	// Exec runs a command in a running container and returns its exit code, or 126 or 127 if the
	// command cannot run. When ctx ends, or the output is not read, the command gets SIGHUP and
	// then SIGKILL, if the agent has the permission.
	Exec(ctx context.Context, id string, command []string, s Streams) (exitCode int, err error)
	// EndExec ends a command as Exec does, even if another process started the command: engines
	// keep a command running after its caller was killed. An ended or unknown command is not an
	// error.
	EndExec(ctx context.Context, exec string) error
	// Attach connects to the first process of a running container until the process or ctx ends;
	// the process continues after ctx. Earlier output is not repeated. The container's Spec decides
	// whether the process has a terminal.
	Attach(ctx context.Context, id string, s Streams) error
	// Dial connects to a TCP port from inside a running container's network, so it reaches
	// listeners on 127.0.0.1 there.
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
	// Usage measures a container; the usage of a stopped container is zero.
	Usage(ctx context.Context, id string) (Usage, error)
	// Written returns the bytes that a container has written outside of its mounts, including its
	// log if that is a file. ErrDeep means that they cannot be measured. The call is slow, because
	// the engine walks through all files.
	Written(ctx context.Context, id string) (int64, error)
	// Files counts the inodes of the files that Written measures, as far as the engine shows them.
	// It returns ErrDeep as Written does.
	Files(ctx context.Context, id string) (int64, error)
	// EnsureNetwork makes sure that the network exists with its addresses. It replaces an unused
	// network of this name that has the labels and other addresses. If that network is in use, or
	// the device reaches the addresses by another route, it returns an error.
	EnsureNetwork(ctx context.Context, n Network) error
	// RemoveNetwork removes the network of this name. A network in use, or without the labels, is
	// an error; a network that is gone is not.
	RemoveNetwork(ctx context.Context, n Network) error
	// Events calls changed whenever a container with the label starts, stops, dies or is removed,
	// until ctx ends or the engine goes away (ErrUnavailable). It also calls changed once at the
	// start, since earlier changes were missed. The caller lists the containers to find the change.
	Events(ctx context.Context, label string, changed func()) error
	Close() error
}

// RegistryAuth are the credentials for one registry.
type RegistryAuth struct {
	Username, Password, ServerAddress string
}
