package node

import (
	"bytes"
	"encoding/json"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// How often a node's DeviceReport is written anew: a burst, as of a device that starts, and
// then once a minute at most. What is held back comes with one of the next statuses.
const (
	budgetReports = 5
	reportsPerSec = 1. / 60
)

// hysteresis is how far a reading moves, from what is remembered of it, before that is
// news; readings are known by their field in the hardware report. Whatever is no
// reading is news when it is another. The newest is in memory anyway, see Liveness.
var hysteresis = map[string]float64{
	"celsius": 5,
	"rpm":     1000,
	"volts":   0.25,
	"battery": 0.25,
	"signal":  10,      // dBm
	"written": 1 << 30, // bytes
	"some10":  math.Inf(1),
	"full10":  math.Inf(1),
	"some60":  25, // percent
	"full60":  25,
}

// remember returns the change by which what a device says of its hardware is remembered, if
// it says enough that is new. A status that says nothing of it (any more than can be kept)
// changes nothing.
func (d *Devices) remember(s state.Snapshot, node string, said json.RawMessage, now time.Time) []state.Change {
	if !bytes.HasPrefix(bytes.TrimSpace(said), []byte("{")) {
		return nil
	}
	r := &fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	if have := s.Report(node); have != nil {
		if bytes.Equal(have.Text(), said) || !news(have.Text(), said) {
			return nil
		}
		r = have.DeepCopy()
	}
	if !d.nodes.get(node).rewrite(d.Age()) {
		return nil
	}
	r.Reported, r.Hardware = metav1.NewTime(now.Truncate(time.Second)), runtime.RawExtension{Raw: bytes.Clone(said)}
	return []state.Change{state.Put(r, "")}
}

// news tells whether a hardware report says more than that readings have moved a little.
func news(have, said json.RawMessage) bool {
	var a, b any
	if json.Unmarshal(have, &a) != nil || json.Unmarshal(said, &b) != nil {
		return true
	}
	return moved("", a, b)
}

func moved(field string, a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return true
		}
		for k, v := range a {
			if w, ok := b[k]; !ok || moved(k, v, w) {
				return true
			}
		}
		return false
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return true
		}
		for i := range a {
			if moved(field, a[i], b[i]) {
				return true
			}
		}
		return false
	case float64:
		if b, ok := b.(float64); ok {
			return a != b && math.Abs(a-b) >= hysteresis[field]
		}
		return true
	}
	return a != b
}
