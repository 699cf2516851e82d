package fleet

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/shared/bound"
)

// A BoardProfile describes a kind of board: how it is recognised, what is reserved for its system,
// and when the device evicts pods.
type BoardProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BoardProfileSpec `json:"spec,omitempty"`
}

// A BoardProfileSpec is the specification of a BoardProfile.
type BoardProfileSpec struct {
	Title     string            `json:"title,omitempty"`
	Match     BoardMatch        `json:"match,omitempty"`
	Platforms []string          `json:"platforms,omitempty"` // such as linux/arm/v7
	Resources BoardResources    `json:"resources,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"` // become the node labels board.flotilla.dev/<key>
	Taints    []corev1.Taint    `json:"taints,omitempty"`

	Peripherals []Peripheral `json:"peripherals,omitempty"`

	// names of built-in overlays; a later overlay overrides an earlier one, and the profile
	// overrides all overlays
	Extends  []string      `json:"extends,omitempty"`
	Boot     *BoardBoot    `json:"boot,omitempty"`
	Watchdog *BootWatchdog `json:"watchdog,omitempty"`
	Health   *BootHealth   `json:"health,omitempty"`
}

// A BoardBoot is the boot configuration of a profile. Only nodes of a FirmwareRollout use it.
type BoardBoot struct {
	Backend string       `json:"backend,omitempty"` // one of BootBackends
	Trial   string       `json:"trial,omitempty"`   // one of BootTrials
	Config  BootSettings `json:"config,omitzero"`
	Cmdline BootCmdline  `json:"cmdline,omitzero"`
}

// BootConfig returns the boot configuration of a profile, or nil if the profile has none. Other
// fields of the profile do not change the digest of the configuration.
func (b *BoardProfile) BootConfig() *BootConfig {
	s := &b.Spec
	if s.Boot == nil && s.Watchdog == nil && s.Health == nil {
		return nil
	}
	c := &BootConfig{Profile: b.Name, Watchdog: s.Watchdog}
	if s.Boot != nil {
		c.Backend, c.Trial, c.Config, c.Cmdline = s.Boot.Backend, s.Boot.Trial, s.Boot.Config, s.Boot.Cmdline
	}
	if s.Health != nil {
		c.Health = *s.Health
	}
	return c.DeepCopy()
}

// ResourceName returns the extended resource of a device.
func ResourceName(device string) corev1.ResourceName {
	return corev1.ResourceName(Group + "/" + device)
}

// A BoardMatch selects boards. All fields that are set must match; of several matching profiles the
// most specific one is used.
type BoardMatch struct {
	Compatible []string   `json:"compatible,omitempty"` // any of the board's device-tree compatible strings
	Arch       []string   `json:"arch,omitempty"`       // GOARCH of the device
	MemoryMiB  *MiBBounds `json:"memoryMiB,omitempty"`
}

// MiBBounds are the inclusive bounds of an amount of memory in MiB; 0 means unbounded.
type MiBBounds struct {
	Min int64 `json:"min,omitempty"`
	Max int64 `json:"max,omitempty"`
}

// Signals that a threshold can watch, in addition to SignalTemperature. The first six are the
// kubelet's.
const (
	SignalMemoryAvailable   = "memory.available"   // bytes
	SignalNodeFsAvailable   = "nodefs.available"   // bytes
	SignalNodeFsInodesFree  = "nodefs.inodesFree"  // count
	SignalImageFsAvailable  = "imagefs.available"  // bytes
	SignalImageFsInodesFree = "imagefs.inodesFree" // count
	SignalPIDAvailable      = "pid.available"      // count
	// bytes; not in Kubernetes: below the threshold the condition OutOfDisk is True
	SignalOutOfDiskAvailable = "outofdisk.available"
)

// Signals lists every signal, sorted.
var Signals = []string{
	SignalImageFsAvailable, SignalImageFsInodesFree, SignalMemoryAvailable, SignalNodeFsAvailable,
	SignalNodeFsInodesFree, SignalOutOfDiskAvailable, SignalPIDAvailable, SignalTemperature,
}

// A Threshold is the amount of a signal below which a device is under pressure; for
// SignalTemperature, the amount above which it is. It is a quantity or a percentage of the
// capacity. Zero disables the signal.
type Threshold struct {
	Signal   string
	Quantity resource.Quantity
	Percent  float64 // if above 0, it replaces Quantity
}

// Of returns the threshold in units of the signal, for a device with the given capacity.
func (t Threshold) Of(capacity int64) int64 {
	if t.Percent > 0 {
		return int64(float64(capacity) * t.Percent / 100)
	}
	return t.Quantity.Value()
}

// ParseThreshold parses a signal's threshold: a quantity such as 100Mi, or a percentage such as
// 10%.
func ParseThreshold(signal, value string) (Threshold, error) {
	if !slices.Contains(Signals, signal) {
		return Threshold{}, fmt.Errorf("unknown signal %q: use one of %s", signal, strings.Join(Signals, ", "))
	}
	t := Threshold{Signal: signal}
	if signal == SignalTemperature {
		q, err := bound.ParseQuantity(value)
		if err != nil || q.Sign() < 0 || q.MilliValue() > 150_000 {
			return Threshold{}, fmt.Errorf("%q is not a temperature: write degrees Celsius from 0 to 150, such as 88", value)
		}
		t.Quantity = q
		return t, nil
	}
	if number, ok := strings.CutSuffix(value, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || math.IsNaN(percent) || percent < 0 || percent >= 100 {
			return Threshold{}, fmt.Errorf("%q is not a percentage: write a number from 0%% to below 100%%, such as 10%%", value)
		}
		t.Percent = percent
		return t, nil
	}
	q, err := bound.ParseQuantity(value)
	if err != nil || q.Sign() < 0 {
		return Threshold{}, fmt.Errorf(
			"%q is not a quantity of 0 or more, such as 100Mi, or a percentage, such as 10%%", value)
	}
	t.Quantity = q
	return t, nil
}

// ReservableResources are the resources that can be reserved, sorted.
var ReservableResources = []string{string(corev1.ResourceCPU), string(corev1.ResourceEphemeralStorage),
	string(corev1.ResourceMemory)}

// ParseReserved parses a reserved amount of a resource.
func ParseReserved(name, value string) (resource.Quantity, error) {
	if !slices.Contains(ReservableResources, name) {
		return resource.Quantity{},
			fmt.Errorf("%q cannot be reserved: use one of %s", name, strings.Join(ReservableResources, ", "))
	}
	q, err := bound.ParseQuantity(value)
	if err != nil || q.Sign() < 0 {
		return resource.Quantity{},
			fmt.Errorf("%q is not a quantity of 0 or more, such as 200m of cpu or 160Mi of memory", value)
	}
	return q, nil
}

// BoardResources are a profile's reservations and thresholds as Kubernetes quantities. A threshold
// may be a percentage ("10%").
type BoardResources struct {
	SystemReserved map[string]string `json:"systemReserved,omitempty"`
	AgentReserved  map[string]string `json:"agentReserved,omitempty"`
	EvictionHard   map[string]string `json:"evictionHard,omitempty"`

	EvictionSoft map[string]SoftThreshold `json:"evictionSoft,omitempty"`
	// longest grace period in seconds of a pod that is evicted for a soft threshold; 0: the pod's
	// own
	EvictionMaxPodGracePeriod int64 `json:"evictionMaxPodGracePeriod,omitempty"`

	// Sharing is how many containers may share one device of a resource, for example i2c-1: 4. The
	// default is 1.
	Sharing map[string]int64 `json:"sharing,omitempty"`
}

// DeepCopy returns a copy that shares nothing.
func (b *BoardProfile) DeepCopy() *BoardProfile {
	if b == nil {
		return nil
	}
	out := *b
	b.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	s := &out.Spec
	s.Match.Compatible = slices.Clone(s.Match.Compatible)
	s.Match.Arch = slices.Clone(s.Match.Arch)
	s.Match.MemoryMiB = clone(s.Match.MemoryMiB)
	s.Platforms = slices.Clone(s.Platforms)
	s.Resources.SystemReserved = maps.Clone(s.Resources.SystemReserved)
	s.Resources.AgentReserved = maps.Clone(s.Resources.AgentReserved)
	s.Resources.EvictionHard = maps.Clone(s.Resources.EvictionHard)
	s.Resources.EvictionSoft = maps.Clone(s.Resources.EvictionSoft)
	s.Resources.Sharing = maps.Clone(s.Resources.Sharing)
	s.Peripherals = slices.Clone(s.Peripherals)
	for i := range s.Peripherals {
		s.Peripherals[i].Bus = clone(s.Peripherals[i].Bus)
	}
	s.Extends = slices.Clone(s.Extends)
	if c := b.BootConfig(); c != nil {
		if s.Boot != nil {
			s.Boot = &BoardBoot{Backend: c.Backend, Trial: c.Trial, Config: c.Config, Cmdline: c.Cmdline}
		}
		if s.Health != nil {
			s.Health = &c.Health
		}
		s.Watchdog = c.Watchdog
	}
	s.Labels = maps.Clone(s.Labels)
	s.Taints = slices.Clone(s.Taints)
	for i := range s.Taints {
		s.Taints[i].TimeAdded = s.Taints[i].TimeAdded.DeepCopy()
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (b *BoardProfile) DeepCopyObject() runtime.Object { return b.DeepCopy() }

// A BoardProfileList is a list of board profiles.
type BoardProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BoardProfile `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *BoardProfileList) DeepCopyObject() runtime.Object {
	out := &BoardProfileList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
