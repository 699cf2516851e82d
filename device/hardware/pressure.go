package hardware

import (
	"fmt"
	"maps"
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
type Held struct {
	Memory, Disk, PID, OutOfDisk, Heat Hold

	Soft map[string]time.Time // since when the soft threshold of a signal is crossed
}

// A Hold is the memory of one condition.
type Hold struct {
	Status  corev1.ConditionStatus
	Seen    time.Time // pressure was last seen; zero: never
	Changed time.Time // Status last changed
	Due     Due       // whether something must go now
	For     string    // the signal for which it is due; the first of those for which it is most
}

// lasts tells whether pressure that was seen stays.
func (h *Hold) lasts(now time.Time) bool {
	return !h.Seen.IsZero() && now.Sub(h.Seen) < PressureHold
}

// A Due says whether pods must go, and how.
type Due int

// When pods must go.
const (
	NotDue  Due = iota
	SoftDue     // a soft threshold has been crossed for as long as it says: with their grace
	HardDue     // at once
)

// A watch is one signal's measure.
type watch struct {
	signal string
	amount Amount
}

// wording is a condition's name and what Kubernetes says in each state, but for the kubelet, which
// is not here.
type wording struct {
	condition        corev1.NodeConditionType
	badReason, bad   string
	goodReason, good string
}

var (
	memoryWords = wording{corev1.NodeMemoryPressure,
		"KubeletHasInsufficientMemory", "insufficient memory available",
		"KubeletHasSufficientMemory", "sufficient memory available"}
	diskWords = wording{corev1.NodeDiskPressure,
		"KubeletHasDiskPressure", "disk pressure",
		"KubeletHasNoDiskPressure", "no disk pressure"}
	pidWords = wording{corev1.NodePIDPressure,
		"KubeletHasInsufficientPID", "insufficient PID available",
		"KubeletHasSufficientPID", "sufficient PID available"}
	outOfDiskWords = wording{fleet.ConditionOutOfDisk,
		"KubeletOutOfDisk", "out of disk space",
		"KubeletHasSufficientDisk", "sufficient disk space available"}
	heatWords = wording{fleet.ConditionTemperatureOK,
		"TooHot", "the processor is too hot: look at the fan, the case, and what else warms the board",
		"TemperatureGood", "the processor is cool enough"}
)

// Pressure decides the conditions MemoryPressure, DiskPressure, PIDPressure,
// OutOfDisk and, where a threshold of it is set, TemperatureOK. Beyond a threshold,
// hard or soft, there is pressure, and it stays for PressureHold; a signal that
// cannot be measured makes its condition Unknown unless another one decides. What
// must go for it is due at once for a hard threshold, and for a soft one when it has
// been crossed for as long as it says. It is pure: what it must remember it returns.
func Pressure(s Stats, l Limits, held Held, now time.Time) ([]corev1.NodeCondition, Held) {
	held.Soft = maps.Clone(held.Soft)
	if held.Soft == nil {
		held.Soft = map[string]time.Time{}
	}
	d := decider{l, held.Soft, now}
	conditions := []corev1.NodeCondition{
		d.decide(memoryWords, &held.Memory, watch{fleet.SignalMemoryAvailable, s.Memory}),
		d.decide(diskWords, &held.Disk,
			watch{fleet.SignalNodeFsAvailable, s.NodeFs}, watch{fleet.SignalNodeFsInodesFree, s.NodeFsInodes},
			watch{fleet.SignalImageFsAvailable, s.ImageFs}, watch{fleet.SignalImageFsInodesFree, s.ImageFsInodes}),
		d.decide(pidWords, &held.PID, watch{fleet.SignalPIDAvailable, s.PIDs}),
		d.decide(outOfDiskWords, &held.OutOfDisk, // a new pod needs room on both
			watch{fleet.SignalOutOfDiskAvailable, s.NodeFs}, watch{fleet.SignalOutOfDiskAvailable, s.ImageFs}),
	}
	_, hard := l.Hard.of(fleet.SignalTemperature)
	if _, soft := l.softOf(fleet.SignalTemperature); hard || soft {
		c := d.decide(heatWords, &held.Heat, watch{fleet.SignalTemperature, s.Temperature})
		switch c.Status { // True is good, as with Ready
		case corev1.ConditionTrue:
			c.Status = corev1.ConditionFalse
		case corev1.ConditionFalse:
			c.Status = corev1.ConditionTrue
		}
		conditions = append(conditions, c)
	} else {
		held.Heat = Hold{}
		delete(held.Soft, fleet.SignalTemperature)
	}
	return conditions, held
}

// A decider decides one condition after the other.
type decider struct {
	l    Limits
	soft map[string]time.Time // see Held
	now  time.Time
}

// The messages hold no measured figure: they would change with every call.
func (d decider) decide(w wording, h *Hold, watches ...watch) corev1.NodeCondition {
	var beyond, problems []string
	now := d.now
	h.Due, h.For = NotDue, ""
	need := func(due Due, signal string) {
		if due > h.Due {
			h.Due, h.For = due, signal
		}
	}
	for _, x := range watches {
		hard, on := d.l.Hard.of(x.signal)
		soft, softly := d.l.softOf(x.signal)
		since, crossed := d.soft[x.signal]
		delete(d.soft, x.signal)
		switch {
		case !on && !softly:
			continue
		case x.amount.Problem != "":
			if problems = append(problems, x.amount.Problem); softly && crossed && h.lasts(now) {
				d.soft[x.signal] = since // for all that is known it is crossed still
			}
			continue
		case x.amount.Capacity == 0: // no such limit here
			continue
		}
		if softly && soft.Crossed(x.amount.Available, x.amount.Capacity) {
			if !crossed {
				since = now
			}
			d.soft[x.signal] = since
			if now.Sub(since) >= soft.For {
				need(SoftDue, x.signal)
			}
		}
		switch _, softly = d.soft[x.signal]; {
		case on && hard.Crossed(x.amount.Available, x.amount.Capacity):
			need(HardDue, x.signal)
			beyond = append(beyond, crossing(hard))
		case softly:
			beyond = append(beyond, crossing(soft.Threshold)+" (soft)")
		}
	}
	beyond, problems = slices.Compact(beyond), slices.Compact(problems) // often both are one file system
	c := corev1.NodeCondition{Type: w.condition, LastHeartbeatTime: metav1.NewTime(now)}
	switch {
	case len(beyond) > 0:
		h.Seen = now
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, w.badReason, w.bad+": "+strings.Join(beyond, ", ")
	case h.lasts(now):
		c.Status, c.Reason = corev1.ConditionTrue, w.badReason
		c.Message = fmt.Sprintf("%s: it was seen within the last %d min", w.bad, int(PressureHold.Minutes()))
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

// crossing says of a threshold that it is crossed.
func crossing(t fleet.Threshold) string {
	if t.Signal == fleet.SignalTemperature {
		return fmt.Sprintf("%s is above %s", t.Signal, text(t))
	}
	return fmt.Sprintf("%s is below %s", t.Signal, text(t))
}

// softOf is a signal's soft threshold; false: none, or switched off.
func (l Limits) softOf(signal string) (fleet.Soft, bool) {
	i := slices.IndexFunc(l.Soft, func(x fleet.Soft) bool { return x.Signal == signal })
	if i < 0 || l.Soft[i].Percent == 0 && l.Soft[i].Quantity.IsZero() {
		return fleet.Soft{}, false
	}
	return l.Soft[i], true
}
