package hardware

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// PressureHold is how long pressure stays after it was last seen, so that a
// node at the edge of a threshold does not flap.
const PressureHold = 5 * time.Minute

// Held is what Pressure must know of its last call. The zero value is a start.
type Held struct{ Memory, Disk, PID, OutOfDisk Hold }

// A Hold is the memory of one condition.
type Hold struct {
	Status  corev1.ConditionStatus
	Seen    time.Time // pressure was last seen; zero: never
	Changed time.Time // Status last changed
}

// A watch is one signal's measure.
type watch struct {
	signal string
	amount Amount
}

// wording is a condition's name and what Kubernetes says in each state.
type wording struct {
	condition        corev1.NodeConditionType
	badReason, bad   string
	goodReason, good string
}

var (
	memoryWords = wording{corev1.NodeMemoryPressure,
		"KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available"}
	diskWords = wording{corev1.NodeDiskPressure,
		"KubeletHasDiskPressure", "kubelet has disk pressure",
		"KubeletHasNoDiskPressure", "kubelet has no disk pressure"}
	pidWords = wording{corev1.NodePIDPressure,
		"KubeletHasInsufficientPID", "kubelet has insufficient PID available",
		"KubeletHasSufficientPID", "kubelet has sufficient PID available"}
	outOfDiskWords = wording{fleet.ConditionOutOfDisk,
		"KubeletOutOfDisk", "out of disk space",
		"KubeletHasSufficientDisk", "kubelet has sufficient disk space available"}
)

// Pressure decides the conditions MemoryPressure, DiskPressure, PIDPressure and
// OutOfDisk. Below a threshold a condition is True, and stays so for
// PressureHold; a signal that cannot be measured makes it Unknown unless another
// one decides. It is pure: what it must remember it returns.
func Pressure(s Stats, t Thresholds, held Held, now time.Time) ([]corev1.NodeCondition, Held) {
	conditions := []corev1.NodeCondition{
		decide(memoryWords, t, &held.Memory, now, watch{fleet.SignalMemoryAvailable, s.Memory}),
		decide(diskWords, t, &held.Disk, now,
			watch{fleet.SignalNodeFsAvailable, s.NodeFs}, watch{fleet.SignalNodeFsInodesFree, s.NodeFsInodes},
			watch{fleet.SignalImageFsAvailable, s.ImageFs}, watch{fleet.SignalImageFsInodesFree, s.ImageFsInodes}),
		decide(pidWords, t, &held.PID, now, watch{fleet.SignalPIDAvailable, s.PIDs}),
		decide(outOfDiskWords, t, &held.OutOfDisk, now, // a new pod needs room on both
			watch{fleet.SignalOutOfDiskAvailable, s.NodeFs}, watch{fleet.SignalOutOfDiskAvailable, s.ImageFs}),
	}
	return conditions, held
}

// The messages hold no measured figure: they would change with every call.
func decide(w wording, t Thresholds, h *Hold, now time.Time, watches ...watch) corev1.NodeCondition {
	var below, problems []string
	for _, x := range watches {
		limit, on := t.of(x.signal)
		switch {
		case !on:
		case x.amount.Problem != "":
			problems = append(problems, x.amount.Problem)
		case x.amount.Capacity == 0: // no such limit here
		case x.amount.Available < limit.Of(x.amount.Capacity):
			below = append(below, fmt.Sprintf("%s is below %s", x.signal, text(limit)))
		}
	}
	below, problems = slices.Compact(below), slices.Compact(problems) // often both are one file system
	c := corev1.NodeCondition{Type: w.condition, LastHeartbeatTime: metav1.NewTime(now)}
	switch {
	case len(below) > 0:
		h.Seen = now
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, w.badReason, w.bad+": "+strings.Join(below, ", ")
	case !h.Seen.IsZero() && now.Sub(h.Seen) < PressureHold:
		c.Status, c.Reason = corev1.ConditionTrue, w.badReason
		c.Message = fmt.Sprintf("%s: it has been seen within the last %v", w.bad, PressureHold)
	case len(problems) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "StatsUnavailable", strings.Join(problems, "; ")
	default:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, w.goodReason, w.good
	}
	if h.Status != c.Status {
		h.Status, h.Changed = c.Status, now
	}
	c.LastTransitionTime = metav1.NewTime(h.Changed)
	return c
}
