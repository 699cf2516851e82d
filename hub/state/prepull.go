package state

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// ImagesOf returns the images that a pod spec names.
func ImagesOf(spec *corev1.PodSpec) (all []string) {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		all = append(all, c.Image)
	}
	for _, c := range spec.EphemeralContainers {
		all = append(all, c.Image)
	}
	for _, v := range spec.Volumes {
		if v.Image != nil {
			all = append(all, v.Image.Reference)
		}
	}
	return all
}

// WantsPrepull reports whether a workload's new images are pulled before its pods are replaced. The
// annotation stands on the workload or on its template.
func WantsPrepull(o Object, t *corev1.PodTemplateSpec) bool {
	return o.GetAnnotations()[fleet.AnnotationPrepull] == "true" || t.Annotations[fleet.AnnotationPrepull] == "true"
}

// PrepullTemplate returns the template by which a Deployment or DaemonSet that wants a prepull will
// replace a pod; nil: there is none.
func PrepullTemplate(s Snapshot, pod *corev1.Pod) *corev1.PodTemplateSpec {
	if Terminated(pod) || pod.DeletionTimestamp != nil {
		return nil
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref != nil && ref.Kind == "ReplicaSet" {
		rs, _ := s.Get(Key{Kind: ReplicaSets, Namespace: pod.Namespace, Name: ref.Name}).(*appsv1.ReplicaSet)
		if rs == nil {
			return nil
		}
		ref = metav1.GetControllerOfNoCopy(rs)
	}
	if ref == nil {
		return nil
	}
	switch o := s.Get(Key{Kind: KindNamed(ref.Kind), Namespace: pod.Namespace, Name: ref.Name}).(type) {
	case *appsv1.Deployment:
		if wantsPrepull(o) {
			return &o.Spec.Template
		}
	case *appsv1.DaemonSet:
		if wantsPrepull(o) {
			return &o.Spec.Template
		}
	}
	return nil
}

// NewImages returns the images of a template that a pod does not have.
func NewImages(t *corev1.PodTemplateSpec, pod *corev1.Pod) []string {
	had := ImagesOf(&pod.Spec)
	return slices.DeleteFunc(ImagesOf(&t.Spec), func(image string) bool { return slices.Contains(had, image) })
}

// HasImages reports whether a node's status names all of the images.
func HasImages(n *corev1.Node, images []string) bool {
	return !slices.ContainsFunc(images, func(image string) bool {
		return !slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
			return slices.Contains(i.Names, image)
		})
	})
}

// PrepullChanged reports whether a change of a Deployment or DaemonSet may change the images that
// devices prepare.
func PrepullChanged(old, next Object) bool {
	was, is := wantsPrepull(old), wantsPrepull(next)
	return was != is || is && old.GetGeneration() != next.GetGeneration()
}

func wantsPrepull(o Object) bool {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return WantsPrepull(o, &o.Spec.Template) && !o.Spec.Paused
	case *appsv1.DaemonSet:
		return WantsPrepull(o, &o.Spec.Template)
	}
	return false
}
