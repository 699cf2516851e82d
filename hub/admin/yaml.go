package admin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/state"
)

// toYAML writes an object as `kubectl get -o yaml` does, without the managed
// fields, which nobody reads.
func toYAML(o state.Object) (string, error) {
	o = o.DeepCopyObject().(state.Object)
	o.SetManagedFields(nil)
	switch o.(type) {
	case *corev1.Node:
		o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	case *corev1.Pod:
		o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	}
	b, err := yaml.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("write %s as YAML: %w", state.KeyOf(o), err)
	}
	return string(b), nil
}
