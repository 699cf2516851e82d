package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SignalTemperature is the processor's temperature in degrees Celsius, the only signal whose
// pressure is above its threshold.
const SignalTemperature = "temperature.celsius"

// A SoftThreshold evicts pods with a grace period once it has been crossed for a while.
type SoftThreshold struct {
	Value string          `json:"value"` // as for a hard threshold
	For   metav1.Duration `json:"for"`
}

// MaxSoftFor bounds a SoftThreshold's For.
const MaxSoftFor = time.Hour

// A Soft is a parsed SoftThreshold.
type Soft struct {
	Threshold
	For time.Duration
}

// SoftSignals returns the signals with soft thresholds: all except that of OutOfDisk, for which no
// pods are evicted.
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
		return Soft{}, fmt.Errorf("for: is %s: write how long it must be crossed before pods go, 1s to 1h", d)
	}
	return Soft{t, s.For.Duration}, nil
}

// Crossed reports whether an amount of a capacity is beyond the threshold.
func (t Threshold) Crossed(amount, capacity int64) bool {
	if t.Signal == SignalTemperature { // in thousandths of a degree
		return amount > t.Quantity.MilliValue()
	}
	return amount < t.Of(capacity)
}

// Softer reports whether a soft threshold is crossed before the hard one, as far as that is known
// without a board.
func (s Soft) Softer(hard Threshold) bool {
	switch {
	case (s.Percent > 0) != (hard.Percent > 0):
		return true
	case s.Percent > 0:
		return s.Percent > hard.Percent
	case hard.Quantity.IsZero() || s.Quantity.IsZero(): // one of them is off
		return true
	case s.Signal == SignalTemperature:
		return s.Quantity.Cmp(hard.Quantity) < 0
	}
	return s.Quantity.Cmp(hard.Quantity) > 0
}
