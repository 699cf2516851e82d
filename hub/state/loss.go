package state

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Loss is what the hub remembers of a workload whose pods are lost as soon as they are
// placed, so that it makes them again ever more rarely. It belongs to the workload, goes with
// it or after a time of peace, and is shown to nobody. Its name is the workload's uid, and for a
// DaemonSet, whose pods belong to their nodes, behind that the node's name; for a Job that counts
// the failures of each index, the index. Of a CronJob it is that a quota had no room for its
// next Job, and that the next one waits for the last.
type Loss struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Strikes int              `json:"strikes"`          // how often in a row the replacement was lost too
	Last    metav1.MicroTime `json:"last"`             // the newest strike
	Owed    int              `json:"owed"`             // pods lost since then and not to be replaced yet
	Failed  bool             `json:"failed,omitempty"` // whether the pod of that strike failed by itself, or was rejected: nobody drove it out

	Failures int32 `json:"failures,omitempty"` // of an index of a Job: those that its limit counts, for as long as the Job is there

	Waits metav1.Time `json:"waits,omitzero"` // the start of a CronJob that waits for its last Job to end, as it was told
}

// DeepCopy returns a copy that shares nothing.
func (l *Loss) DeepCopy() *Loss {
	out := *l
	l.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *Loss) DeepCopyObject() runtime.Object { return l.DeepCopy() }
