package admin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// usageTopic is what pages watch that show what a node uses.
func usageTopic(node string) string { return "usage/" + node }

// uses is what a node uses now, where that is known. A device measures when it is
// asked, and a page that shows it asks; when there is something new it is shown.
func (s *Server) uses(node string) wire.Usage {
	u, _ := s.Usage(node, func() { s.live.touch(usageTopic(node)) })
	return u
}

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
