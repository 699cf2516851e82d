package kube

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod can be replaced by the manifest that created it. Values that the hub has set stay.
func TestAPodIsReplacedByItsManifest(t *testing.T) {
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "kata",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"memory": quantity.MustParse("64Mi")}}}
	f := seeded()
	f.put(class)
	s := newServer(f)
	for name, spec := range map[string]string{
		"plain":   `"containers":[{"name":"main","image":"kiosk:1"}]`,
		"classed": `"runtimeClassName":"vm","containers":[{"name":"main","image":"kiosk:1"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{` + spec + `}}`
			send(t, s, "POST", ns+"/pods", "application/json", body, 201, nil)
			var was, is corev1.Pod
			send(t, s, "GET", ns+"/pods/"+name, "", "", 200, &was)
			send(t, s, "PUT", ns+"/pods/"+name, "application/json", strings.ReplaceAll(body, "kiosk:1", "kiosk:2"), 200, &is)
			was.Spec.Containers[0].Image = "kiosk:2"
			if !equality.Semantic.DeepEqual(is.Spec, was.Spec) || !maps.Equal(is.Annotations, was.Annotations) {
				t.Errorf("the new pod has the spec %+v and annotations %v, want %+v and %v", is.Spec, is.Annotations,
					was.Spec, was.Annotations)
			}
			for _, change := range []string{`{"spec":{"priority":7}}`, `{"spec":{"overhead":{"cpu":"1"}}}`,
				`{"metadata":{"annotations":{"flotilla.dev/runtime-handler":"x"}}}`} {
				send(t, s, "PATCH", ns+"/pods/"+name, mp, change, 422, nil)
			}
		})
	}
}
