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

// The limits of writes to a node's DeviceReport: a burst, as at a device's start, then at most one
// a minute. A later status writes the values that were held back.
const (
	budgetReports = 5
	reportsPerSec = 1. / 60
)

// hardwareChange returns the change that stores a device's hardware report, if it differs enough
// from the stored one. A status without a report, or with a report that is too long, changes
// nothing.
func (d *Devices) hardwareChange(s state.Snapshot, node string, report json.RawMessage, now time.Time) []state.Change {
	if !bytes.HasPrefix(bytes.TrimSpace(report), []byte("{")) {
		return nil
	}
	r := &fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	if have := s.Report(node); have != nil {
		if bytes.Equal(have.Text(), report) || !fleet.HardwareChanged(have.Text(), report) {
			return nil
		}
		r = have.DeepCopy()
	}
	if !d.nodes.get(node).reportAllowed(d.Age()) {
		return nil
	}
	r.Reported, r.Hardware = metav1.NewTime(now.Truncate(time.Second)), runtime.RawExtension{Raw: bytes.Clone(report)}
	return []state.Change{state.Put(r, "")}
}
