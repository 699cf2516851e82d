package wire

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Unreadable is the annotation, with the reason, of a pod, config map or secret that could not be
// parsed. Only its name is known. An invalid object must not prevent a device from applying the
// others, including deletions.
const Unreadable = "flotilla.dev/unreadable"

// rawDesired is a desired state whose objects are not parsed yet.
type rawDesired struct {
	Desired
	Pods       []json.RawMessage `json:"pods"`
	ConfigMaps []json.RawMessage `json:"configMaps"`
	Secrets    []json.RawMessage `json:"secrets"`
}

// joined parses the objects. The device checks their characters and amounts. Of the pods beyond the
// limit it keeps one, so that the device detects the excess.
func (a *rawDesired) joined() Desired {
	d := a.Desired
	d.Pods = decodeEach[corev1.Pod]("pods", a.Pods[:min(len(a.Pods), MaxPods+1)])
	d.ConfigMaps = decodeEach[corev1.ConfigMap]("configMaps", a.ConfigMaps)
	d.Secrets = decodeEach[corev1.Secret]("secrets", a.Secrets)
	return d
}

// decodeEach parses objects one by one.
func decodeEach[T any, P interface {
	*T
	metav1.Object
}](list string, raws []json.RawMessage) []T {
	if raws == nil {
		return nil
	}
	out := make([]T, len(raws))
	for i, raw := range raws {
		if err := decode(payload{fmt.Sprintf("%s[%d]", list, i), raw, MaxToDevice}, P(&out[i])); err != nil {
			out[i] = *new(T)
			unreadable(P(&out[i]), raw, err)
		}
	}
	return out
}

// unreadable sets the known fields of an object that could not be parsed.
func unreadable(o metav1.Object, raw []byte, why error) {
	var known struct {
		Metadata struct {
			Name, Namespace            string
			UID                        types.UID
			DeletionTimestamp          *metav1.Time
			DeletionGracePeriodSeconds *int64
		}
	}
	_ = json.Unmarshal(raw, &known) // parses the fields before the error
	m := known.Metadata
	o.SetName(m.Name)
	o.SetNamespace(m.Namespace)
	o.SetUID(m.UID)
	o.SetDeletionTimestamp(m.DeletionTimestamp)
	o.SetDeletionGracePeriodSeconds(m.DeletionGracePeriodSeconds)
	o.SetAnnotations(map[string]string{Unreadable: why.Error()})
}
