package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SignalTemperature is the processor's temperature in degrees Celsius. It is the only signal whose
// pressure begins above the threshold.
const SignalTemperature = "temperature.celsius"

// A SoftThreshold evicts pods with a grace period once the signal has crossed it for the time For.
type SoftThreshold struct {
	Value string          `json:"value"` // as for a hard threshold
	For   metav1.Duration `json:"for"`
}

// MaxSoftFor is the longest For of a SoftThreshold.
const MaxSoftFor = time.Hour

// A Soft is a parsed SoftThreshold.
type Soft struct {
	Threshold
	For time.Duration
}

// SoftSignals returns the signals with soft thresholds: all signals except that of OutOfDisk, which
// evicts no pods.
func SoftSignals() []string {
	return slices.DeleteFunc(slices.Clone(Signals), func(s string) bool { return s == SignalOutOfDiskAvailable })
}

// ParseSoft parses a signal's soft threshold.
func ParseSoft(signal string, s SoftThreshold) (Soft, error) {
	if !slices.Contains(SoftSignals(), signal) {
		return Soft{}, fmt.Errorf("%q has no soft threshold: use one of %s", signal,
			strings.Join(SoftSignals(), ", "))
	}
	t, err := ParseThreshold(signal, s.Value)
	if err != nil {
		return Soft{}, fmt.Errorf("value: %w", err)
	}
	if d := s.For.Duration; d < time.Second || d > MaxSoftFor {
		return Soft{}, fmt.Errorf("for: is %s: write how long the threshold must be crossed before pods are evicted, 1s to 1h", d)
	}
	return Soft{t, s.For.Duration}, nil
}

// Crossed reports whether an amount is beyond the threshold for a device with the given capacity.
func (t Threshold) Crossed(amount, capacity int64) bool {
	if t.Signal == SignalTemperature { // amount is in thousandths of a degree
		return amount > t.Quantity.MilliValue()
	}
	return amount < t.Of(capacity)
}

// Softer reports whether the soft threshold is crossed before the hard one. If that depends on the
// board's capacity, it returns true.
func (s Soft) Softer(hard Threshold) bool {
	switch {
	case (s.Percent > 0) != (hard.Percent > 0):
		return true
	case s.Percent > 0:
		return s.Percent > hard.Percent
	case hard.Quantity.IsZero() || s.Quantity.IsZero(): // one of the thresholds is disabled
		return true
	case s.Signal == SignalTemperature:
		return s.Quantity.Cmp(hard.Quantity) < 0
	}
	return s.Quantity.Cmp(hard.Quantity) > 0
}
