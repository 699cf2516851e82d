package fleet

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A DeviceReport is what a device says of its hardware, under its node's name. The hub
// writes it and nobody else; it goes with the node.
type DeviceReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Reported is when the hub heard it, by the hub's clock: the device is looked at more
	// often than what is told here is worth writing anew.
	Reported metav1.Time `json:"reported"`
	// Hardware is the report as the device wrote it: what a newer device adds is kept.
	Hardware runtime.RawExtension `json:"hardware"`
}

// DeepCopy returns a copy that shares nothing that anyone changes.
func (r *DeviceReport) DeepCopy() *DeviceReport {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *DeviceReport) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// Text is the report as the device wrote it, nil where there is none.
func (r *DeviceReport) Text() json.RawMessage {
	if r == nil {
		return nil
	}
	return r.Hardware.Raw
}

// A DeviceReportList is a list of what devices say.
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
