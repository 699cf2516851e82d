package admission

import (
	"fmt"

	"flotilla.dev/hub/state"
)

// Named warns of a pod, or pods of a template, that name their node themselves and will not run there as
// things are: no scheduler looks at them, so nothing else would say so before they are gone.
func Named(o state.Object, s state.Snapshot) []string {
	spec, p := podSpecOf(o)
	if spec == nil || spec.NodeName == "" {
		return nil
	}
	switch n := s.Node(spec.NodeName); {
	case n == nil:
		return []string{fmt.Sprintf("%s: no node is called %q: the pod is removed unless one of that name joins", p.Child("nodeName"), spec.NodeName)}
	case !state.NodeFits(spec, n):
		return []string{fmt.Sprintf("%s: node %q does not match the pod's nodeSelector or required node affinity: the pod fails with NodeAffinity", p.Child("nodeName"), n.Name)}
	}
	return nil
}
