package node

import (
	"bytes"
	"encoding/json"
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

// hardwareChange returns the change by which what a device says of its hardware is remembered, if
// it says enough that is new. A status that says nothing of it (any more than can be kept)
// changes nothing.
func (d *Devices) hardwareChange(s state.Snapshot, node string, said json.RawMessage, now time.Time) []state.Change {
	if !bytes.HasPrefix(bytes.TrimSpace(said), []byte("{")) {
		return nil
	}
	r := &fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	if have := s.Report(node); have != nil {
		if bytes.Equal(have.Text(), said) || !fleet.HardwareChanged(have.Text(), said) {
			return nil
		}
		r = have.DeepCopy()
	}
	if !d.nodes.get(node).reportAllowed(d.Age()) {
		return nil
	}
	r.Reported, r.Hardware = metav1.NewTime(now.Truncate(time.Second)), runtime.RawExtension{Raw: bytes.Clone(said)}
	return []state.Change{state.Put(r, "")}
}
