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

// PressureHold is how long pressure lasts after a threshold was last crossed, so that a node near a
// threshold does not flap.
const PressureHold = 5 * time.Minute

// Held is the state between two calls of Pressure. The zero value is the initial state.
type Held struct {
	Memory, Disk, PID, OutOfDisk, Heat Hold

	Soft map[string]time.Time // since when the soft threshold of each signal is crossed
}

// A Hold is the state of one condition.
type Hold struct {
	Status  corev1.ConditionStatus
	Seen    time.Time // when a threshold was last crossed; zero: never
	Changed time.Time // when the status last changed
	Due     Due       // whether pods must be evicted now
	For     string    // the most urgent signal, which made Due
}

// lasts reports whether pressure lasts although no threshold is crossed now.
func (h *Hold) lasts(now time.Time) bool {
	return !h.Seen.IsZero() && now.Sub(h.Seen) < PressureHold
}

// A Due says whether and how pods must be evicted.
type Due int

// Values of Due.
const (
	NotDue  Due = iota
	SoftDue     // a soft threshold was crossed for its whole period: evict with a grace period
	HardDue     // evict at once
)

// A watch is the measurement of one signal.
type watch struct {
	signal string
	amount Amount
}

// wording holds a condition's type, reasons and messages as in Kubernetes, without the word
// kubelet.
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
		"TooHot", "the processor is too hot: check the fan, the case, and heat sources near the board",
		"TemperatureGood", "the processor's temperature is below its limit"}
)

// Pressure computes the conditions MemoryPressure, DiskPressure, PIDPressure, OutOfDisk and, if the
// temperature has a threshold, TemperatureOK. Pressure begins when a hard or soft threshold is
// crossed and lasts for PressureHold. A signal that cannot be measured makes its condition Unknown
// unless another signal of the condition crosses its threshold. Eviction is due at once for a hard
// threshold, and for a soft one after its period. Pressure is a pure function: it returns its
// state.
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
		d.decide(outOfDiskWords, &held.OutOfDisk, // a new pod needs space on both file systems
			watch{fleet.SignalOutOfDiskAvailable, s.NodeFs}, watch{fleet.SignalOutOfDiskAvailable, s.ImageFs}),
	}
	_, hard := l.Hard.of(fleet.SignalTemperature)
	if _, soft := l.softOf(fleet.SignalTemperature); hard || soft {
		c := d.decide(heatWords, &held.Heat, watch{fleet.SignalTemperature, s.Temperature})
		switch c.Status { // True means good here, as for Ready
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

// A decider computes one condition after the other.
type decider struct {
	l    Limits
	soft map[string]time.Time // Held.Soft
	now  time.Time
}

// decide computes a condition. Its message has no measured value, which would change at every call.
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
				d.soft[x.signal] = since // an unknown signal may still be beyond its threshold
			}
			continue
		case x.amount.Capacity == 0: // the system has no such limit
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
	beyond, problems = slices.Compact(beyond), slices.Compact(problems) // two signals may be about the same file system
	c := corev1.NodeCondition{Type: w.condition, LastHeartbeatTime: metav1.NewTime(now)}
	switch {
	case len(beyond) > 0:
		h.Seen = now
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, w.badReason, w.bad+": "+strings.Join(beyond, ", ")
	case h.lasts(now):
		c.Status, c.Reason = corev1.ConditionTrue, w.badReason
		c.Message = fmt.Sprintf("%s: this occurred within the last %d min", w.bad, int(PressureHold.Minutes()))
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

// crossing describes a crossed threshold.
func crossing(t fleet.Threshold) string {
	if t.Signal == fleet.SignalTemperature {
		return fmt.Sprintf("%s is above %s", t.Signal, text(t))
	}
	return fmt.Sprintf("%s is below %s", t.Signal, text(t))
}

// softOf returns a signal's soft threshold; false if it is missing or switched off.
func (l Limits) softOf(signal string) (fleet.Soft, bool) {
	i := slices.IndexFunc(l.Soft, func(x fleet.Soft) bool { return x.Signal == signal })
	if i < 0 || l.Soft[i].Percent == 0 && l.Soft[i].Quantity.IsZero() {
		return fleet.Soft{}, false
	}
	return l.Soft[i], true
}
