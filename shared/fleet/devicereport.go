package fleet

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A DeviceReport is a device's hardware report, named like the node. Only the hub writes it, and it
// deletes the report with the node.
type DeviceReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Reported is when the hub received the report, by the hub's clock. The hub does not store
	// every small change.
	Reported metav1.Time `json:"reported"`
	// Hardware is the report as the device sent it, including fields of newer versions.
	Hardware runtime.RawExtension `json:"hardware"`
}

// DeepCopy returns a copy that shares no mutable data.
func (r *DeviceReport) DeepCopy() *DeviceReport {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *DeviceReport) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// Text returns the report as the device sent it, or nil.
func (r *DeviceReport) Text() json.RawMessage {
	if r == nil {
		return nil
	}
	return r.Hardware.Raw
}

// A DeviceReportList is a list of device reports.
type DeviceReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DeviceReport `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *DeviceReportList) DeepCopyObject() runtime.Object {
	out := &DeviceReportList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
