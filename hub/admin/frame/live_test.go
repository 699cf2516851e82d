package frame

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestAListOfWorkloadsHearsOfEachKindOfThem(t *testing.T) {
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old-rc", Namespace: "default"}}
	hit := map[string]bool{}
	if topics([]state.Applied{{Key: state.KeyOf(rc), New: rc}}, hit); !hit["workloads"] {
		t.Error("a page that lists workloads does not hear of a replication controller")
	}
}
