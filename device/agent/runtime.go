package agent

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/fleet"
)

// runtimeOf is the engine's runtime for the containers of a pod that names a RuntimeClass; "": the engine's default.
// A runtime can give a container what the policy does not, such as a processor for graphics: beside the
// default a pod has only those that the device's owner allows.
func runtimeOf(allowed []string, info engine.Info, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	class, handler := *pod.Spec.RuntimeClassName, pod.Annotations[fleet.RuntimeHandlerAnnotation]
	switch {
	case handler == "":
		return "", fmt.Errorf("the hub did not say which runtime RuntimeClass %q names", class)
	case handler == info.DefaultRuntime:
		return "", nil
	case !slices.Contains(allowed, handler):
		return "", fmt.Errorf("RuntimeClass %q: the device's owner does not allow runtime %q: flotilla-device run --runtimes names those that pods may have", class, handler)
	case info.Name == "podman":
		return "", fmt.Errorf("RuntimeClass %q: Podman's API runs every container with the engine's default runtime, %s here, not with %q", class, info.DefaultRuntime, handler)
	case !slices.Contains(info.Runtimes, handler):
		return "", fmt.Errorf("RuntimeClass %q: the container engine has no runtime %q, it has %s", class, handler, strings.Join(info.Runtimes, ", "))
	}
	return handler, nil
}

// runtimeHandlers is what a node says of its runtimes, the default first; nil where there is no choice.
func runtimeHandlers(allowed []string, info engine.Info) []corev1.NodeRuntimeHandler {
	var all []corev1.NodeRuntimeHandler
	for _, name := range info.Runtimes {
		if name != info.DefaultRuntime && info.Name != "podman" && slices.Contains(allowed, name) {
			all = append(all, corev1.NodeRuntimeHandler{Name: name})
		}
	}
	if all == nil {
		return nil
	}
	return append([]corev1.NodeRuntimeHandler{{}, {Name: info.DefaultRuntime}}, all...)
}
