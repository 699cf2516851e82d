// Package wire is how the hub and its devices talk over MQTT: the topics, the
// payloads, and the limits of both (protocol v1).
//
// A payload states the whole truth, never a difference, so a lost or doubled
// message costs time and nothing else. The lease carries the counters of
// everything else; what is behind is asked for again. The package holds values,
// parsers and their limits; it never opens a connection and never reads a clock.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/fleet"
)

// Limits of the protocol, in bytes.
const (
	MaxLease      = 1 << 10   // a lease payload
	MaxFromDevice = 256 << 10 // any other payload of a device
	MaxToDevice   = 4 << 20   // a payload to a device
	MaxWill       = 512       // a will
	MaxUsage      = 1 << 20   // a Usage, which comes in chunks
	MaxRequest    = 512 << 10 // a request to a device
	MaxInput      = 32 << 10  // data of one stdin request
)

// A Lease is a device's sign of life. It is sent every lease interval (10 s)
// and carries the counters by which either side notices what was lost.
type Lease struct {
	Boot    string    `json:"boot"`           // random id of this agent start
	Seq     uint64    `json:"seq"`            // +1 for every lease of this boot
	Status  uint64    `json:"status"`         // seq of the newest Status sent in this boot
	Pods    uint64    `json:"pods"`           // seq of the newest Pods sent in this boot
	Desired int64     `json:"desired"`        // generation of the desired state stored durably
	Time    time.Time `json:"time,omitempty"` // the device's wall clock, for the skew only
}

// A Status is the whole truth about a device but its pods.
type Status struct {
	Boot         string            `json:"boot"`
	Seq          uint64            `json:"seq"`
	Time         time.Time         `json:"time"`
	MachineID    string            `json:"machineID"` // 16 hex digits, see the client id
	AgentVersion string            `json:"agentVersion"`
	Registration Registration      `json:"registration"`
	Status       corev1.NodeStatus `json:"status"`
	Hardware     json.RawMessage   `json:"hardware,omitempty"` // board, sensors, buses, storage
	// those of the desired state that are there, or have been removed
	Volumes []VolumeState `json:"volumes,omitempty"`
	Vitals  *Vitals       `json:"vitals,omitempty"` // nil: the agent is older than they are, or has not measured yet
	// nil: the agent is older than this, or nothing is wanted of its boot
	Firmware *FirmwareStatus `json:"firmware,omitempty"`
	// Proof that the boot is of the holder of the node's key, for a hub that does not see the
	// certificate: its devices connect to a broker.
	Proof *Proof `json:"proof,omitempty"`
	// Profile is the name of the board profile under which Status was computed, "" for none; nil: the
	// agent is older than this.
	Profile *string `json:"profile,omitempty"`
	// Connection is the number of the connection in this boot, from 1; 0: the agent is older than
	// this.
	Connection uint64 `json:"connection,omitempty"`

	TooMuch string `json:"-"` // what of it was said and not kept, in half a sentence
}

// Vitals are how a device fares, as it measured when it last had a reason to: no more
// often than is shown. What its board does not tell is nil.
type Vitals struct {
	CPU         *float64 `json:"cpu,omitempty"`         // share of all processors since the measurement before, 0 to 1
	Memory      *float64 `json:"memory,omitempty"`      // share that is in use, 0 to 1
	Disk        *float64 `json:"disk,omitempty"`        // the same of the file system of the containers
	Temperature *float64 `json:"temperature,omitempty"` // °C, of the hottest sensor
	Supply      *float64 `json:"supply,omitempty"`      // V
	RTT         *float64 `json:"rtt,omitempty"`         // s, from the status before to its acknowledgement
}

// A Registration is used once, when the hub creates the Node object.
type Registration struct {
	Labels        map[string]string `json:"labels,omitempty"`
	Taints        []corev1.Taint    `json:"taints,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
}

// Pods is every pod that a device holds, as it observes them. A pod that is
// absent is not there any more: for a pod being deleted that is the
// confirmation that it has stopped.
type Pods struct {
	Boot       string `json:"boot"`
	Seq        uint64 `json:"seq"`
	Part       int    `json:"part,omitempty"`  // from 1, of a list that comes in Parts; each has pods of its own
	Parts      int    `json:"parts,omitempty"` //
	Generation int64  `json:"generation"`      // the desired generation that this list reflects
	// Base is the seq of an earlier list that the hub has acknowledged: entries with
	// nothing but their uid are as they were in it. To a hub that does not know Base such
	// entries are mistakes, and it asks for all of them.
	Base uint64      `json:"base,omitempty"`
	Pods []PodStatus `json:"pods"`
}

// A PodStatus is one pod of Pods.
type PodStatus struct {
	UID       types.UID        `json:"uid"`
	Namespace string           `json:"namespace,omitempty"`
	Name      string           `json:"name,omitempty"`
	Status    corev1.PodStatus `json:"status,omitzero"`
}

// AsBefore tells whether the entry only says that the pod is as it was.
func (p *PodStatus) AsBefore() bool { return p.UID != "" && p.Namespace == "" && p.Name == "" }

// An Event is something that a device found worth telling.
type Event struct {
	Boot      string    `json:"boot"`
	Time      time.Time `json:"time"`
	Type      string    `json:"type"`   // Normal or Warning
	Reason    string    `json:"reason"` // CamelCase, as in Kubernetes
	Message   string    `json:"message"`
	PodUID    types.UID `json:"podUID,omitempty"` // empty: about the node
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
}

// A Presence is the MQTT will ("lost") or an orderly stop ("shutdown").
type Presence struct {
	Boot   string `json:"boot"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Connection is the one that a will is of. A broker that has not noticed yet that a link is dead
	// says so when the device has long been back through another link; 0: not known.
	Connection uint64 `json:"connection,omitempty"`
}

// States of a Presence.
const (
	PresenceLost     = "lost"
	PresenceShutdown = "shutdown"
)

// A Desired is everything that a device is to run. The device stores it before
// it acts and lives from it while it is offline.
type Desired struct {
	Generation int64 `json:"generation"`
	// identity of the hub: generations compare within one hub only
	Hub string `json:"hub"`
	// from 1, of one that comes in Parts; each has objects of its own
	Part       int                `json:"part,omitempty"`
	Parts      int                `json:"parts,omitempty"` //
	Pods       []corev1.Pod       `json:"pods"`
	ConfigMaps []corev1.ConfigMap `json:"configMaps"`
	Secrets    []corev1.Secret    `json:"secrets"`
	// persistent ones: those of its pods, and those to be removed
	Volumes []Volume            `json:"volumes,omitempty"`
	Profile *fleet.BoardProfile `json:"profile,omitempty"` // the board profile that matches this node
	// addresses of the pods that have a network of their own; empty: the engine's choice
	PodCIDR  string    `json:"podCIDR,omitempty"`
	Firmware *Firmware `json:"firmware,omitempty"` // nil: the hub wants nothing of its boot
	// Ed25519, public; a device keeps the first that it is told
	FirmwareKey          []byte    `json:"firmwareKey,omitempty"`
	LeaseIntervalSeconds int32     `json:"leaseIntervalSeconds"`
	Time                 time.Time `json:"time"`
	// Dismissed: the device's enrolment has ended. There is nothing else in it then.
	Dismissed *Dismissed `json:"dismissed,omitempty"`
}

// A Volume is a directory of the device's that outlives pods.
type Volume struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace,omitempty"` // of the claim that has it
	Claim     string    `json:"claim,omitempty"`
	Made      bool      `json:"made,omitempty"` // it has been there already, so it is not made again where it is missing
	// Remove: its data is to be removed. Only this word removes any. That a volume is not
	// named says nothing: the hub may have forgotten it.
	Remove bool `json:"remove,omitempty"`
}

// A VolumeState says of a volume of the desired state that it is there, or (Gone) that it
// was to be removed and is not there.
type VolumeState struct {
	UID  types.UID `json:"uid"`
	Gone bool      `json:"gone,omitempty"`
}

// A Dismissed tells a device that it belongs to its hub no more: it stops and removes
// its workloads, and waits to be joined again.
type Dismissed struct {
	Time   time.Time `json:"time"`
	By     string    `json:"by,omitempty"` // the person, token or machinery that ended it; empty: not known
	Reason string    `json:"reason"`
}

// A Request asks a device for something now; its id is in the topic.
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
	// exactly, by the device's clock; older agents go by sinceSeconds
	SinceTime       *time.Time `json:"sinceTime,omitempty"`
	Timestamps      bool       `json:"timestamps,omitempty"`
	LimitBytes      *int64     `json:"limitBytes,omitempty"`
	DeadlineSeconds int64      `json:"deadlineSeconds,omitempty"`
	Of              string     `json:"of,omitempty"`    // ack, cancel: the request meant
	Seq             uint64     `json:"seq,omitempty"`   // ack: the newest reply received; inputs: their order, from 1
	Data            []byte     `json:"data,omitempty"`  // stdin
	Port            int32      `json:"port,omitempty"`  // port-forward
	Width           uint16     `json:"width,omitempty"` // resize
	Height          uint16     `json:"height,omitempty"`
	// refresh: under a new boot id, because another has followed the device's
	NewBoot bool `json:"newBoot,omitempty"`
}

// Types of a Request. The inputs (stdin, resize, close-stdin) go to an exec, an
// attach or a port-forward under way and have its id in their topic.
const (
	RequestRefresh     = "refresh" // answered by status and pods
	RequestLogs        = "logs"
	RequestNodeLogs    = "node-logs" // of the agent itself
	RequestExec        = "exec"
	RequestAttach      = "attach"       // to a container's first process
	RequestPortForward = "port-forward" // one TCP connection into a pod
	RequestStdin       = "stdin"
	RequestResize      = "resize"
	RequestCloseStdin  = "close-stdin"
	RequestUsage       = "usage" // answered by a Usage
	RequestRestartPod  = "restart-pod"
	RequestReboot      = "reboot"
	RequestAck         = "ack"
	RequestCancel      = "cancel"
	RequestRenew       = "renew" // renew the certificate
)

// Unsupported is the error with which a device answers a type of request that it does
// not know.
func Unsupported(kind string) string { return fmt.Sprintf("unsupported request %q", kind) }

// ErrUnsupported is what an Unsupported answer means to the hub.
var ErrUnsupported = errors.New("unsupported request")

// Windows: how many chunks go ahead of their acknowledgements.
const (
	ReplyWindow = 64 // of one reply
	InputWindow = 8  // inputs of one request
)

// Input says whether the request is input for another one.
func (r *Request) Input() bool {
	return r.Type == RequestStdin || r.Type == RequestResize || r.Type == RequestCloseStdin
}

// A Reply is one chunk of the answer to a Request. The first one of logs, node-logs,
// exec, attach and port-forward comes when these have begun, and may be without data. A
// chunk whose Seq the hub has already is a repetition, and says that the device
// has had no acknowledgement for long.
type Reply struct {
	// Boot is whose answer it is, where a broker is between the device and the hub: what comes
	// without it there is not heard.
	Boot     string `json:"boot,omitempty"`
	Seq      uint64 `json:"seq"`
	Data     []byte `json:"data,omitempty"`
	Stderr   bool   `json:"stderr,omitempty"` // data is from the command's error output
	EOF      bool   `json:"eof,omitempty"`
	Error    string `json:"error,omitempty"`    // with eof: what went wrong
	ExitCode int32  `json:"exitCode,omitempty"` // with eof: of the command
	Ack      uint64 `json:"ack,omitempty"`      // the newest input that was taken: it leaves room for one more
}

// Err is what went wrong with a request of that type, nil for nothing. A device that does
// not know the type is too old for it: ErrUnsupported.
func (r Reply) Err(kind string) error {
	switch r.Error {
	case "":
		return nil
	case Unsupported(kind):
		return fmt.Errorf("%w %q", ErrUnsupported, kind)
	}
	return errors.New(r.Error)
}

// A Usage is what a device and its pods use now, as asked for by a usage request:
// processor time over a short while before, and memory that cannot be dropped.
type Usage struct {
	Time   time.Time           `json:"time"`           // the end of the while
	Window metav1.Duration     `json:"window"`         // its length
	Node   corev1.ResourceList `json:"node"`           // cpu, memory
	Pods   []PodUsage          `json:"pods,omitempty"` // those with containers that run
}

// A PodUsage is one pod of a Usage.
type PodUsage struct {
	UID        types.UID        `json:"uid"`
	Namespace  string           `json:"namespace"`
	Name       string           `json:"name"`
	Containers []ContainerUsage `json:"containers"`
}

// A ContainerUsage is one container of a PodUsage.
type ContainerUsage struct {
	Name  string              `json:"name"`
	Usage corev1.ResourceList `json:"usage"` // cpu, memory
}
