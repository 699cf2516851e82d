package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
)

func makePod(name string, commands ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for i, c := range commands {
		p.Spec.Containers = append(p.Spec.Containers,
			corev1.Container{Name: fmt.Sprintf("c%d", i), Image: enginetest.ToolImage, Args: strings.Fields(c)})
	}
	return p
}

func deletedPod(p corev1.Pod, grace int64) corev1.Pod {
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	return p
}

func chip(n string) hardware.Device {
	return hardware.Device{Resource: "gpiochip", ID: "gpiochip" + n, Nodes: []string{"/dev/gpiochip" + n}}
}

func port(id, node string) hardware.Device {
	return hardware.Device{Resource: "serial", ID: id, Nodes: []string{"/dev/" + node}}
}

func requesting(name, device, count, command string) corev1.Pod {
	p := makePod(name, command)
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{fleet.ResourceName(device): resource.MustParse(count)}
	p.Spec.Containers[0].Resources.Requests = p.Spec.Containers[0].Resources.Limits
	return p
}

func execHook(words ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: words}}
}

func hookPod(l *corev1.Lifecycle, containers int) corev1.Pod {
	p := makePod("app", make([]string, containers)...)
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		c.Image, c.ImagePullPolicy = "app", corev1.PullNever
	}
	p.Spec.Containers[0].Lifecycle = l
	return p
}

func memoryPod(name, request, limit string) corev1.Pod {
	p := makePod(name, "wait")
	r := &p.Spec.Containers[0].Resources
	if request != "" {
		r.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
	}
	if limit != "" {
		r.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
	}
	return p
}

func guaranteedPod(p corev1.Pod, cpus string) corev1.Pod {
	for i := range p.Spec.Containers {
		r := &p.Spec.Containers[i].Resources
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[corev1.ResourceCPU], r.Limits[corev1.ResourceMemory] = resource.MustParse(cpus),
			resource.MustParse("1Mi")
		r.Requests = r.Limits
	}
	return p
}

func onNode(d hardware.Device, node int) hardware.Device {
	if node >= 0 {
		d.NUMA = &node
	}
	return d
}

func withResources(p corev1.Pod, container int, text string) corev1.Pod {
	p.Spec.Containers = slices.Clone(p.Spec.Containers)
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for i, pair := range strings.Fields(text) {
		name := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}[i]
		request, limit, _ := strings.Cut(pair, "/")
		if request != "-" {
			r.Requests[name] = resource.MustParse(request)
		}
		if limit != "-" {
			r.Limits[name] = resource.MustParse(limit)
		}
	}
	p.Spec.Containers[container].Resources = r
	return p
}

// twoNodes has two CPUs on each NUMA node.
var twoNodes = []hardware.NUMANode{{ID: 0, CPUs: "0-1"}, {ID: 1, CPUs: "2-3"}}
