package admin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
)

// In a browser, a pod that waits for its image says why.
func TestAMissingImageInABrowser(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, append(admintest.Sample(), admintest.Pod("menu-77d8-plm2k", "pi-1", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image = "registry.example/shop/menu:2.1"
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
			Message: "pull image registry.example/shop/menu:2.1: not found: manifest unknown"}}}
	}))...)
	k.open("/pods/default/menu-77d8-plm2k")
	k.says("Container web: image not found, menu:2.1", "registry.example has no such image.", "shop/menu", "Check the name and the tag", "manifest unknown")
	k.look("no-image")
}
