package state

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Dismissal is what a device is told whose enrolment has ended: it is let in for
// nothing else. Its name is the hash of the key that spoke for the node, so that it
// concerns nobody who joins under the same name later. It is shown to nobody.
type Dismissal struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Node   string      `json:"node"`
	Time   metav1.Time `json:"time"`
	By     string      `json:"by,omitempty"` // the person, token or machinery that ended it
	Reason string      `json:"reason"`
	Until  metav1.Time `json:"until"` // then no certificate of the key is good for anything, and it is forgotten
}

// DeepCopy returns a copy that shares nothing that anyone changes.
func (d *Dismissal) DeepCopy() *Dismissal {
	out := *d
	d.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (d *Dismissal) DeepCopyObject() runtime.Object { return d.DeepCopy() }

// Dismissal returns what the holder of a key is to be told, nil for nothing.
func (s Snapshot) Dismissal(key string) *Dismissal {
	d, _ := s.Get(Key{Kind: Dismissals, Name: key}).(*Dismissal)
	return d
}
