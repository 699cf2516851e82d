// Package wire is the protocol between hub and devices over MQTT (protocol v1): topics, payloads,
// and their limits.
//
// A payload has the whole state, never a difference, so a lost or repeated message only costs time.
// The lease has counters of all other messages; the receiver requests missing ones again. The
// package has values, parsers and limits. It never opens a connection and never reads a clock. Hub
// and devices import it.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/fleet"
)

// Limits of the protocol, in bytes.
const (
	MaxLease      = 1 << 10   // size of a lease payload
	MaxFromDevice = 256 << 10 // size of any other payload of a device
	MaxToDevice   = 4 << 20   // size of a payload to a device
	MaxWill       = 512       // size of a will
	MaxUsage      = 1 << 20   // size of a Usage, which is sent in chunks
	MaxRequest    = 512 << 10 // size of a request to a device
	MaxInput      = 32 << 10  // size of the data of one stdin request
)

// A Lease renews a node's lease. A device sends it every lease interval (10 s), with counters by
// which both sides detect lost messages.
type Lease struct {
	Boot    string    `json:"boot"`           // random id of one start of the agent
	Seq     uint64    `json:"seq"`            // incremented with every lease of this boot
	Status  uint64    `json:"status"`         // seq of the newest Status sent in this boot
	Pods    uint64    `json:"pods"`           // seq of the newest Pods sent in this boot
	Desired int64     `json:"desired"`        // generation of the durably stored desired state
	Time    time.Time `json:"time,omitempty"` // by the device's clock, only to measure its skew
}

// A Status is the state of a device without its pods.
type Status struct {
	Boot         string            `json:"boot"`
	Seq          uint64            `json:"seq"`
	Time         time.Time         `json:"time"`
	MachineID    string            `json:"machineID"` // 16 hex digits, see the client id
	AgentVersion string            `json:"agentVersion"`
	Registration Registration      `json:"registration"`
	Status       corev1.NodeStatus `json:"status"`
	Hardware     json.RawMessage   `json:"hardware,omitempty"` // board, sensors, buses, storage
	// volumes of the desired state that exist or have been removed
	Volumes []VolumeState `json:"volumes,omitempty"`
	Vitals  *Vitals       `json:"vitals,omitempty"` // nil: not measured yet, or an older agent
	// nil: the hub wants no boot configuration, or an older agent
	Firmware *FirmwareStatus `json:"firmware,omitempty"`
	Upgrade  *UpgradeStatus  `json:"upgrade,omitempty"` // nil: an older agent, which cannot upgrade itself
	// Proof shows that the boot id belongs to the node's key. A hub behind a broker needs it,
	// because it does not see the certificate.
	Proof *Proof `json:"proof,omitempty"`
	// Profile is the name of the board profile with which Status was computed, or "" without a
	// profile. nil: an older agent.
	Profile *string `json:"profile,omitempty"`
	// Connection is the number of this connection in this boot, from 1. 0: an older agent.
	Connection uint64 `json:"connection,omitempty"`

	TooMuch string `json:"-"` // says which parts were dropped; it is a part of a sentence
}

// Vitals are a device's last measurements. A value that the board does not measure is nil.
type Vitals struct {
	CPU         *float64 `json:"cpu,omitempty"`         // share of all processors since the last measurement, 0 to 1
	Memory      *float64 `json:"memory,omitempty"`      // used share of the memory, 0 to 1
	Disk        *float64 `json:"disk,omitempty"`        // used share of the containers' file system, 0 to 1
	Temperature *float64 `json:"temperature,omitempty"` // of the hottest sensor, in °C
	Supply      *float64 `json:"supply,omitempty"`      // in V
	RTT         *float64 `json:"rtt,omitempty"`         // from the last status to its acknowledgement, in s
}

// A Registration is used only when the hub creates the Node.
type Registration struct {
	Labels        map[string]string `json:"labels,omitempty"`
	Taints        []corev1.Taint    `json:"taints,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
}

// Pods is every pod on a device. A missing pod is gone. For a pod that is being deleted, that
// confirms that it has stopped.
type Pods struct {
	Boot       string `json:"boot"`
	Seq        uint64 `json:"seq"`
	Part       int    `json:"part,omitempty"`  // part number from 1, if the list has several parts, each with other pods
	Parts      int    `json:"parts,omitempty"` // number of parts, if the list has several
	Generation int64  `json:"generation"`      // generation of the desired state that this list reflects
	// Base is the seq of an earlier list that the hub has acknowledged. Entries with only a uid are
	// unchanged since that list. A hub without that list refuses such entries and requests the
	// whole list.
	Base uint64      `json:"base,omitempty"`
	Pods []PodStatus `json:"pods"`
}

// A PodStatus is a pod of Pods.
type PodStatus struct {
	UID       types.UID        `json:"uid"`
	Namespace string           `json:"namespace,omitempty"`
	Name      string           `json:"name,omitempty"`
	Status    corev1.PodStatus `json:"status,omitzero"`
}

// AsBefore reports whether the entry has only a uid, because the pod is unchanged.
func (p *PodStatus) AsBefore() bool { return p.UID != "" && p.Namespace == "" && p.Name == "" }

// An Event is an event on a device.
type Event struct {
	Boot      string    `json:"boot"`
	Time      time.Time `json:"time"`
	Type      string    `json:"type"`   // Normal or Warning
	Reason    string    `json:"reason"` // CamelCase, as in Kubernetes
	Message   string    `json:"message"`
	PodUID    types.UID `json:"podUID,omitempty"` // empty if the event is about the node
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
}

// A Presence is the MQTT will ("lost") or an intended stop ("shutdown").
type Presence struct {
	Boot   string `json:"boot"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Connection is the connection to which the will belongs: a broker may report a dead connection
	// long after the device has reconnected. 0: unknown.
	Connection uint64 `json:"connection,omitempty"`
}

// States of a Presence.
const (
	PresenceLost     = "lost"
	PresenceShutdown = "shutdown"
)

// A Desired is everything that a device should run. The device stores it before it acts on it, and
// uses it while it is offline.
type Desired struct {
	Generation int64 `json:"generation"`
	// id of the hub: generations of different hubs cannot be compared
	Hub string `json:"hub"`
	// part number from 1, if the state has several parts, each with other objects
	Part       int                `json:"part,omitempty"`
	Parts      int                `json:"parts,omitempty"` // number of parts, if the state has several
	Pods       []corev1.Pod       `json:"pods"`
	ConfigMaps []corev1.ConfigMap `json:"configMaps"`
	Secrets    []corev1.Secret    `json:"secrets"`
	// persistent volumes: those of the pods, and those to remove
	Volumes []Volume            `json:"volumes,omitempty"`
	Profile *fleet.BoardProfile `json:"profile,omitempty"` // the board profile that matches this node
	// addresses of pods with their own network; empty: the engine chooses
	PodCIDR  string    `json:"podCIDR,omitempty"`
	Images   *Images   `json:"images,omitempty"`
	Firmware *Firmware `json:"firmware,omitempty"` // nil: the hub wants no boot configuration
	// public Ed25519 key; a device keeps the first key that it receives
	FirmwareKey          []byte    `json:"firmwareKey,omitempty"`
	Upgrade              *Upgrade  `json:"upgrade,omitempty"` // nil: no other version is wanted
	LeaseIntervalSeconds int32     `json:"leaseIntervalSeconds"`
	Time                 time.Time `json:"time"`
	// Dismissed means that the enrolment has ended. All other fields are empty then.
	Dismissed *Dismissed `json:"dismissed,omitempty"`
}

// Images says where images come from.
type Images struct {
	// Mirrors are registries, or repositories in one, whose images are pulled from the hub if it
	// has them, such as docker.io.
	Mirrors []string `json:"mirrors,omitempty"`
	// Prepare are images to pull before a pod needs them. The status names those that are there.
	Prepare []Preparation `json:"prepare,omitempty"`
	// PeerKey is the secret of the site's devices, which share layers of images; empty: they do not.
	PeerKey []byte `json:"peerKey,omitempty"`
}

// A Preparation is an image to pull in advance.
type Preparation struct {
	Image       string   `json:"image"`
	Namespace   string   `json:"namespace,omitempty"` // of the pull secrets
	PullSecrets []string `json:"pullSecrets,omitempty"`
}

// Equal reports whether two preparations are the same.
func (p Preparation) Equal(q Preparation) bool {
	return p.Image == q.Image && p.Namespace == q.Namespace && slices.Equal(p.PullSecrets, q.PullSecrets)
}

// Mirrors returns Images.Mirrors.
func (d *Desired) Mirrors() []string {
	if d.Images == nil {
		return nil
	}
	return d.Images.Mirrors
}

// A Volume is a directory on the device that outlives pods.
type Volume struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace,omitempty"` // namespace of the volume's claim
	Claim     string    `json:"claim,omitempty"`
	Made      bool      `json:"made,omitempty"` // the volume existed before, so a missing one is not created again
	// Remove deletes the volume's data. A volume that is missing from the list is not deleted,
	// because the hub may have lost it.
	Remove bool `json:"remove,omitempty"`
}

// A VolumeState says that a volume of the desired state exists or, with Gone, has been removed.
type VolumeState struct {
	UID  types.UID `json:"uid"`
	Gone bool      `json:"gone,omitempty"`
}

// A Dismissed ends a device's enrolment. The device stops and removes its workloads, and waits to
// join again.
type Dismissed struct {
	Time   time.Time `json:"time"`
	By     string    `json:"by,omitempty"` // the user, token or program that ended it; empty: unknown
	Reason string    `json:"reason"`
}

// A Request asks a device for an action at once. Its id is in the topic.
type Request struct {
	Type         string   `json:"type"` // see the Request… constants
	Pod          string   `json:"pod,omitempty"`
	Container    string   `json:"container,omitempty"`
	Command      []string `json:"command,omitempty"`
	TTY          bool     `json:"tty,omitempty"`
	Stdin        bool     `json:"stdin,omitempty"`
	TailLines    *int64   `json:"tailLines,omitempty"`
	Follow       bool     `json:"follow,omitempty"`
	Previous     bool     `json:"previous,omitempty"`
	SinceSeconds *int64   `json:"sinceSeconds,omitempty"`
	// exact time by the device's clock; older agents use sinceSeconds
	SinceTime       *time.Time `json:"sinceTime,omitempty"`
	Timestamps      bool       `json:"timestamps,omitempty"`
	LimitBytes      *int64     `json:"limitBytes,omitempty"`
	DeadlineSeconds int64      `json:"deadlineSeconds,omitempty"`
	Of              string     `json:"of,omitempty"`    // ack, cancel: id of the other request
	Seq             uint64     `json:"seq,omitempty"`   // ack: the newest received chunk; inputs: their number, from 1
	Data            []byte     `json:"data,omitempty"`  // stdin
	Port            int32      `json:"port,omitempty"`  // port-forward
	Width           uint16     `json:"width,omitempty"` // resize
	Height          uint16     `json:"height,omitempty"`
	// refresh: use a new boot id, because another device has used this node's identity
	NewBoot bool `json:"newBoot,omitempty"`
}

// Types of a Request. The inputs (stdin, resize, close-stdin) belong to an exec, attach or
// port-forward in progress. Their topic has its id.
const (
	RequestRefresh     = "refresh" // the answers are a status and pods
	RequestLogs        = "logs"
	RequestNodeLogs    = "node-logs" // log of the agent itself
	RequestExec        = "exec"
	RequestAttach      = "attach"       // connects to a container's first process
	RequestPortForward = "port-forward" // one TCP connection to a pod
	RequestStdin       = "stdin"
	RequestResize      = "resize"
	RequestCloseStdin  = "close-stdin"
	RequestUsage       = "usage" // the answer is a Usage
	RequestRestartPod  = "restart-pod"
	RequestReboot      = "reboot"
	RequestAck         = "ack"
	RequestCancel      = "cancel"
	RequestRenew       = "renew" // renew the certificate
)

// Unsupported returns the error with which a device answers an unknown type of request.
func Unsupported(kind string) string { return fmt.Sprintf("unsupported request %q", kind) }

// ErrUnsupported is the hub's error for an Unsupported answer.
var ErrUnsupported = errors.New("unsupported request")

// Windows limit the number of unacknowledged chunks.
const (
	ReplyWindow = 64 // chunks of one reply
	InputWindow = 8  // inputs of one request
)

// Input reports whether the request is an input of another request.
func (r *Request) Input() bool {
	return r.Type == RequestStdin || r.Type == RequestResize || r.Type == RequestCloseStdin
}

// A Reply is a chunk of the answer to a Request. The first chunk of logs, node-logs, exec, attach
// and port-forward is sent when they have started, even without data. A chunk with a known Seq is a
// repetition, sent because the device has waited long for an acknowledgement.
type Reply struct {
	// Boot is the device's boot id. A hub behind a broker ignores chunks without it.
	Boot     string `json:"boot,omitempty"`
	Seq      uint64 `json:"seq"`
	Data     []byte `json:"data,omitempty"`
	Stderr   bool   `json:"stderr,omitempty"` // data is from the command's error output
	EOF      bool   `json:"eof,omitempty"`
	Error    string `json:"error,omitempty"`    // with eof: the error
	ExitCode int32  `json:"exitCode,omitempty"` // with eof: the command's exit code
	Ack      uint64 `json:"ack,omitempty"`      // number of the newest processed input, after which the hub may send more
}

// Err returns the error of a request of the given type, or nil. It returns ErrUnsupported if the
// device is too old for the type.
func (r Reply) Err(kind string) error {
	switch r.Error {
	case "":
		return nil
	case Unsupported(kind):
		return fmt.Errorf("%w %q", ErrUnsupported, kind)
	}
	return errors.New(r.Error)
}

// A Usage is the present use of a device and its pods: processor time over a short window, and
// memory that cannot be reclaimed.
type Usage struct {
	Time   time.Time           `json:"time"`           // end of the window
	Window metav1.Duration     `json:"window"`         // length of the window
	Node   corev1.ResourceList `json:"node"`           // cpu, memory
	Pods   []PodUsage          `json:"pods,omitempty"` // pods with running containers
}

// A PodUsage is a pod of a Usage.
type PodUsage struct {
	UID        types.UID        `json:"uid"`
	Namespace  string           `json:"namespace"`
	Name       string           `json:"name"`
	Containers []ContainerUsage `json:"containers"`
}

// A ContainerUsage is a container of a PodUsage.
type ContainerUsage struct {
	Name  string              `json:"name"`
	Usage corev1.ResourceList `json:"usage"` // cpu, memory
}
