// Package engine drives the container engine of a device through the Docker
// Engine API: Docker Engine, Podman and balenaEngine alike.
//
// It knows containers, images and their states, hides the differences between
// engines, and decides nothing: which container should run is package agent's
// work. It is the only importer of the engine's client. Package enginetest is its
// fake in memory.
package engine

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// Sentinels, by what the caller has to do about them.
var (
	ErrNotFound    = errors.New("not found")          // it is not there (any more)
	ErrUnavailable = errors.New("engine unavailable") // ask again later
	ErrUnsupported = errors.New("engine unsupported") // an engine whose API is too old, or a wish that it cannot fulfil
	ErrNoImage     = errors.New("image not present")  // pull it first
	// a layer's files are gone: remove it, and what was made of it, and pull it again
	ErrDamaged = errors.New("image damaged")
)

// Info is what an engine says of itself.
type Info struct {
	Name       string // docker, podman, balena-engine
	Version    string // such as 20.10.24
	APIVersion string // negotiated
	OS, Arch   string // GOOS and GOARCH of the containers that it runs natively
	Variant    string // v6, v7 for arm
	Root       string // directory where images and containers live; its file system is the image disk
	Socket     string
	MemLimit   bool // memory limits are honoured
	CPULimit   bool // cpu quotas are honoured
	PidsLimit  bool
	SwapLimit  bool // swap of containers is counted and can be limited
	CPUSet     bool // containers can be kept on some of the processors
	CgroupV2   bool // the kernel's control groups are one tree

	Runtimes       []string // by name, in order
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

// A Spec is a container to be created.
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
	NetworkOf  string // id of the container whose network (and IPC) namespace to share; "" = its own
	// name of a network made by EnsureNetwork, where the container has one of its own; "" = the engine's default
	Network        string
	HostNetwork    bool
	HostPID        bool
	PidOf          string // id of the container whose processes to share; "" = its own
	Ports          []Port
	Mounts         []Mount
	Tmpfs          map[string]string // target to options
	Devices        []Device          // device nodes; no others but those that every container has
	MemoryBytes    int64             // 0: no limit
	SwapBytes      int64             // that it may use beyond MemoryBytes, where that is a limit
	MilliCPU       int64             // 0: no limit
	CPUShares      int64             // from the request
	CPUs           string            // processors that it stays on, such as 0-1,4; "": all
	PidsLimit      int64             // processes and threads; -1: no limit, 0: the engine's own
	ReadOnlyRoot   bool
	Privileged     bool
	NoNewPrivs     bool
	CapAdd         []string
	CapDrop        []string
	TTY            bool
	Stdin          bool
	StdinOnce      bool // stdin ends with the first attachment that has it
	StopSignal     string
	DNS, DNSSearch []string
	DNSOptions     []string // of resolv.conf: name, or name:value; empty: the device's
	Sysctls        map[string]string
	OOMScoreAdj    int
	Seccomp        *Seccomp // nil: the engine's own profile
	Runtime        string   // of the engine's runtimes; "": its default
	AppArmor       string   // name of a profile that the kernel has loaded, or unconfined; "": the engine's own
}

// A Seccomp is a profile of the kernel's filter for system calls. Docker is told its text, Podman
// its file.
type Seccomp struct {
	File string
	Text string
}

// A Device is a device node that a container may open for reading and writing; it makes none
// itself.
type Device struct {
	Host string // on the device
	Path string // in the container, below /dev
}

// A Progress is how far a pull is. An engine tells the size of a layer when it begins with it.
type Progress struct {
	Layers, Done int
	Bytes, Total int64 // of the layers whose size is known
}

// A State is where a container is in its life.
type State string

// States of a container.
const (
	Created State = "created"
	Running State = "running"
	Paused  State = "paused"
	Exited  State = "exited"
	Dead    State = "dead" // half removed: only removing again helps
)

// A Container is one container as the engine sees it.
type Container struct {
	ID         string
	Name       string
	Image      string // as it was asked for
	ImageID    string
	Labels     map[string]string
	State      State
	ExitCode   int
	OOMKilled  bool
	Error      string // why it could not start
	Created    time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	IP         string // in its own network; "" on the host network or when not running
	Pid        int
	Net        string // names the network that it is in while it runs; "": not to be seen from here
	Limits     Limits // Podman tells those that it was made with
}

// Limits are what an engine holds a container to, in its own numbers; 0: to nothing.
type Limits struct {
	Memory, MemorySwap, CPUQuota, CPUShares int64
	CPUs                                    string // processors; "": all
}

// A Network is a bridge of the device that containers can be on.
type Network struct {
	Name   string
	CIDR   string // its block of addresses, such as 10.64.3.0/24
	Labels map[string]string
}

// An Image is an image that the engine holds.
type Image struct {
	ID    string
	Tags  []string // without podman's localhost/ prefix
	Size  int64
	InUse bool // a container, running or not, was made of it
}

// Usage is what a container uses.
type Usage struct {
	CPUNanos    uint64 // since its start
	MemoryBytes uint64 // working set
}

// LogOptions select lines of a log.
type LogOptions struct {
	Follow     bool
	Timestamps bool
	Tail       int64 // lines; < 0: all
	Since      time.Time
}

// Streams are the caller's side of a command, or of an attachment. A Read of Stdin may still be
// under way when the call returns: the caller ends it.
type Streams struct {
	Stdin          io.Reader // nil: there is none, and reading it ends at once
	Stdout, Stderr io.Writer // nil: to nobody. With a terminal nothing goes to Stderr
	TTY            bool      // give the command a terminal
	Resize         <-chan Size
	Began          func(exec string) // called with the id of a command before it begins, for EndExec; nil: nobody keeps it
}

// A Size is that of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// AnswerTime is how long an engine that has not hung takes at most for one question about
// containers.
const AnswerTime = 10 * time.Second

// An Engine is what package agent asks of a container engine. Every call gives up with its context.
type Engine interface {
	// Info asks the engine who it is; ErrUnavailable where it does not answer.
	Info(ctx context.Context) (Info, error)
	// Ping asks whether the engine answers at all, which costs it next to nothing.
	Ping(ctx context.Context) error
	// Containers lists every container, running or not, that carries the label. It asks for each of
	// them, and waits AnswerTime for an answer: how long all of it takes goes by how many there are.
	Containers(ctx context.Context, label string) ([]Container, error)
	// Create makes a container and returns its id. ErrNoImage when the image is not there.
	// A container of the same name that is left over and not running is replaced.
	Create(ctx context.Context, s Spec) (id string, err error)
	Start(ctx context.Context, id string) error
	// Update holds a container that is there to the memory, swap, processor and CPUs of a Spec,
	// without a restart. What the Spec does not limit stays as it is. Once is as good as twice.
	Update(ctx context.Context, id string, s Spec) error
	// Stop ends a container: its stop signal, after grace SIGKILL. Stopping what has stopped or is
	// gone is no error.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove removes a container, running or not, with its anonymous volumes; gone already is no
	// error. Stop the containers in its network first: Podman refuses to remove it under them. Those
	// that have ended may go with it.
	Remove(ctx context.Context, id string) error
	// Images lists the images.
	Images(ctx context.Context) ([]Image, error)
	// HasImage tells whether the image is there, and its id.
	HasImage(ctx context.Context, ref string) (id string, ok bool, err error)
	// ImageUser is as whom the programs of an image that is there run, as its author wrote it: a name
	// or a uid, with a group after a colon perhaps. Empty: as root.
	ImageUser(ctx context.Context, ref string) (string, error)
	// ImageTree hands what an image holds that is there to take, one entry of a tar archive after the
	// other, whole or with an error; size is what it takes on the disk, about. It makes a container of
	// that name and labels for it, which never starts, and removes it; one that is left over is
	// replaced.
	ImageTree(ctx context.Context, ref string, s Spec,
		take func(size int64) (put func(*tar.Header, io.Reader) error, err error)) error
	// Pull brings an image of the engine's platform here. auth may be nil, and told, which hears how
	// far it is as often as the engine says something. ErrNotFound when the registry does not have it;
	// other errors may pass.
	Pull(ctx context.Context, ref string, auth *RegistryAuth, told func(Progress)) error
	// RemoveImage removes an image (id or name) with all its names. One that a container was made of
	// stays: an error. Gone already is none.
	RemoveImage(ctx context.Context, id string) error
	// Logs streams stdout and stderr (multiplexing removed) until the end, or until ctx ends when
	// following.
	Logs(ctx context.Context, id string, o LogOptions, stdout, stderr io.Writer) error
	// Exec runs a command in a running container and waits for its exit code; 126 or 127 when there is
	// no such command. When ctx ends first, or nobody takes its output, the command is hung up on, and
	// killed as far as we may.
	Exec(ctx context.Context, id string, command []string, s Streams) (exitCode int, err error)
	// EndExec ends a command as Exec does, whoever has begun it: engines let one run on whose caller
	// was killed. That it has ended, or that the engine knows it no more, is no error.
	EndExec(ctx context.Context, exec string) error
	// Attach joins in with the first process of a running container until that ends, or until ctx
	// ends: it goes on then. What it has said before is not repeated. Whether there is a terminal, the
	// container knows.
	Attach(ctx context.Context, id string, s Streams) error
	// Dial connects to a TCP port of a running container from inside its network, so that it also
	// reaches what listens on 127.0.0.1 there.
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
	// Usage measures a container; what does not run uses nothing.
	Usage(ctx context.Context, id string) (Usage, error)
	// Written measures what a container has written outside of the mounts that it was given, with its
	// log where that is a file, in bytes; ErrDeep where that cannot be said. It costs the engine a
	// walk through all of it.
	Written(ctx context.Context, id string) (int64, error)
	// Files counts the inodes of the same, with as much as the engine lets us see of it; ErrDeep as
	// there.
	Files(ctx context.Context, id string) (int64, error)
	// EnsureNetwork sees to it that the network is there with its addresses. One of that name with
	// other addresses is replaced if it carries the labels and nothing uses it; otherwise, and where
	// the addresses overlap what the device reaches by other ways, it is an error.
	EnsureNetwork(ctx context.Context, n Network) error
	// RemoveNetwork removes the network of that name. One that is in use, or lacks one of the labels,
	// stays: an error. Gone already is none.
	RemoveNetwork(ctx context.Context, n Network) error
	// Events calls changed whenever a container with the label starts, stops, dies or goes, until ctx
	// ends or the engine goes away (ErrUnavailable). It says that something changed, not what: look
	// again. The first call comes at once, when listening has begun, because nobody heard what
	// happened before.
	Events(ctx context.Context, label string, changed func()) error
	Close() error
}

// RegistryAuth are the credentials for one registry.
type RegistryAuth struct {
	Username, Password, ServerAddress string
}
