package admin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// containersOf is what the containers of a pod use, by name, as its device says.
func containersOf(u wire.Usage, pod types.UID) map[string]corev1.ResourceList {
	used := map[string]corev1.ResourceList{}
	for _, p := range u.Pods {
		if p.UID == pod {
			for _, c := range p.Containers {
				used[c.Name] = c.Usage
			}
		}
	}
	return used
}
