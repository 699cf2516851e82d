package hardware

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/fleet"
)

// Thresholds are the amounts of signals below which a device is under pressure, at most one for
// each signal, sorted by signal.
type Thresholds []fleet.Threshold

// DefaultThresholds returns the kubelet's thresholds, and 256Mi of free disk for OutOfDisk.
func DefaultThresholds() Thresholds {
	t, err := thresholds(map[string]string{
		fleet.SignalMemoryAvailable:    "100Mi",
		fleet.SignalNodeFsAvailable:    "10%",
		fleet.SignalNodeFsInodesFree:   "5%",
		fleet.SignalImageFsAvailable:   "15%",
		fleet.SignalOutOfDiskAvailable: "256Mi",
	})
	if err != nil {
		panic(err) // the default quantities are constants
	}
	return t
}

// ParseThresholds parses the kubelet's syntax of --eviction-hard:
// memory.available<100Mi,nodefs.available<10%. Unlike in the kubelet, signals that the flag does
// not name keep their defaults; 0 switches a signal off.
func ParseThresholds(flag string) (Thresholds, error) {
	m, err := pairs(flag, "<", "memory.available<100Mi,nodefs.available<10%")
	if err != nil {
		return nil, err
	}
	return thresholds(m)
}

func thresholds(m map[string]string) (Thresholds, error) {
	var list Thresholds
	var errs []error
	for _, signal := range slices.Sorted(maps.Keys(m)) {
		t, err := fleet.ParseThreshold(signal, m[signal])
		if err != nil {
			errs = append(errs, fmt.Errorf("eviction threshold of %s: %w", signal, err))
			continue
		}
		list = append(list, t)
	}
	return list, errors.Join(errs...)
}

func softThresholds(m map[string]fleet.SoftThreshold) (list []fleet.Soft, err error) {
	var errs []error
	for _, signal := range slices.Sorted(maps.Keys(m)) {
		s, err := fleet.ParseSoft(signal, m[signal])
		if err != nil {
			errs = append(errs, fmt.Errorf("soft eviction threshold of %s: %w", signal, err))
			continue
		}
		list = append(list, s)
	}
	return list, errors.Join(errs...)
}

// ParseReserved parses the kubelet's syntax of --system-reserved: cpu=200m,memory=160Mi.
func ParseReserved(flag string) (corev1.ResourceList, error) {
	m, err := pairs(flag, "=", "cpu=200m,memory=160Mi")
	if err != nil {
		return nil, err
	}
	return reserved(m)
}

func reserved(m map[string]string) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m)) {
		q, err := fleet.ParseReserved(name, m[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("reserved %s: %w", name, err))
			continue
		}
		list[corev1.ResourceName(name)] = q
	}
	return list, errors.Join(errs...)
}

// pairs splits "a<1,b<2"; an empty flag has no pairs.
func pairs(flag, sep, example string) (map[string]string, error) {
	m := map[string]string{}
	if strings.TrimSpace(flag) == "" {
		return m, nil
	}
	for part := range strings.SplitSeq(flag, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), sep)
		if !ok || k == "" || v == "" {
			return nil, fmt.Errorf("%q does not have the form NAME%sAMOUNT: use for example %s", part, sep, example)
		}
		if _, twice := m[k]; twice {
			return nil, fmt.Errorf("%s is given twice: remove one", k)
		}
		m[k] = v
	}
	return m, nil
}

// Limits are the reserved resources and the eviction thresholds.
type Limits struct {
	System corev1.ResourceList // reserved for the operating system
	Agent  corev1.ResourceList // reserved for agent and engine
	Hard   Thresholds

	Soft     []fleet.Soft  // sorted by signal
	MaxGrace time.Duration // longest grace period of pods evicted for a soft threshold; 0: the pod's own
}

// With applies a board profile (may be nil) and then the flags to the defaults, name by name. The
// error names invalid parts of the profile; the other parts still apply.
func With(profile *fleet.BoardProfile, flags Limits) (Limits, error) {
	l := Limits{System: corev1.ResourceList{}, Agent: corev1.ResourceList{}, Hard: DefaultThresholds()}
	var errs []error
	if profile != nil {
		r := profile.Spec.Resources
		system, err1 := reserved(r.SystemReserved)
		agent, err2 := reserved(r.AgentReserved)
		hard, err3 := thresholds(r.EvictionHard)
		soft, err4 := softThresholds(r.EvictionSoft)
		for _, err := range []error{err1, err2, err3, err4} {
			if err != nil {
				errs = append(errs, fmt.Errorf("board profile %s: %w", profile.Name, err))
			}
		}
		l.System, l.Agent, l.Hard = system, agent, over(l.Hard, hard)
		l.Soft, l.MaxGrace = soft, time.Duration(r.EvictionMaxPodGracePeriod)*time.Second
	}
	maps.Copy(l.System, flags.System)
	maps.Copy(l.Agent, flags.Agent)
	l.Hard = over(l.Hard, flags.Hard)
	return l, errors.Join(errs...)
}

func over(base, top Thresholds) Thresholds {
	m := map[string]fleet.Threshold{}
	for _, t := range slices.Concat(base, top) {
		m[t.Signal] = t
	}
	var list Thresholds
	for _, signal := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[signal])
	}
	return list
}

// of returns a signal's threshold; false if it is missing or switched off.
func (t Thresholds) of(signal string) (fleet.Threshold, bool) {
	i := slices.IndexFunc(t, func(x fleet.Threshold) bool { return x.Signal == signal })
	if i < 0 || t[i].Percent == 0 && t[i].Quantity.IsZero() {
		return fleet.Threshold{}, false
	}
	return t[i], true
}

// Least returns how much of a capacity must stay available; 0: no threshold.
func (t Thresholds) Least(signal string, capacity int64) int64 {
	x, ok := t.of(signal)
	if !ok {
		return 0
	}
	return x.Of(capacity)
}

// text formats a threshold like the flag.
func text(t fleet.Threshold) string {
	if t.Percent > 0 {
		return fmt.Sprintf("%g%%", t.Percent)
	}
	return (*resource.Quantity).String(&t.Quantity)
}
