package node

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// Desired returns everything that a node should run, without the generation and other metadata.
func Desired(s state.Snapshot, node string) wire.Desired { return profiles{}.desired(s, node) }

func (known profiles) desired(s state.Snapshot, node string) wire.Desired {
	d := wire.Desired{Pods: []corev1.Pod{}, ConfigMaps: []corev1.ConfigMap{}, Secrets: []corev1.Secret{}}
	var configs, secrets map[state.Key]bool
	var prepare []wire.Preparation
	for p := range s.PodsOn(node) {
		if configs == nil {
			configs, secrets = map[state.Key]bool{}, map[state.Key]bool{}
		}
		d.Pods = append(d.Pods, forDevice(p))
		references(p, func(k state.Key) {
			if k.Kind == state.Secrets {
				secrets[k] = true
			} else {
				configs[k] = true
			}
		})
		if t := state.PrepullTemplate(s, p); t != nil {
			for _, image := range state.NewImages(t, p) {
				of := wire.Preparation{Namespace: p.Namespace, Image: image}
				for _, ref := range t.Spec.ImagePullSecrets {
					of.PullSecrets = append(of.PullSecrets, ref.Name)
					secrets[state.Key{Kind: state.Secrets, Namespace: p.Namespace, Name: ref.Name}] = true
				}
				if len(prepare) < wire.MaxPrepare && !slices.ContainsFunc(prepare, of.Equal) {
					prepare = append(prepare, of)
				}
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(configs), byName) {
		if cm, ok := s.Get(k).(*corev1.ConfigMap); ok {
			d.ConfigMaps = append(d.ConfigMaps, corev1.ConfigMap{ObjectMeta: name(cm), Data: cm.Data, BinaryData: cm.BinaryData})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(secrets), byName) {
		if sec, ok := s.Get(k).(*corev1.Secret); ok {
			d.Secrets = append(d.Secrets, corev1.Secret{ObjectMeta: name(sec), Data: sec.Data, Type: sec.Type})
		}
	}
	d.Images = &wire.Images{Prepare: prepare}
	if len(prepare) == 0 {
		d.Images = nil
	}
	d.Volumes = volumesFor(s, node)
	if n := s.Node(node); n != nil {
		d.PodCIDR = n.Spec.PodCIDR
		d.Profile = known.ofNode(s, n).published
	}
	return d
}

func byName(a, b state.Key) int {
	if a.Namespace != b.Namespace {
		if a.Namespace < b.Namespace {
			return -1
		}
		return 1
	}
	if a.Name < b.Name {
		return -1
	}
	return 1
}

func name(o state.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// forDevice returns the parts of a pod that its device needs: the spec, and the metadata that
// containers can read. The status belongs to the device, except that a finished pod stays finished.
func forDevice(p *corev1.Pod) corev1.Pod {
	out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Generation: p.Generation, Labels: p.Labels,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
		DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
	}, Spec: p.Spec}
	for k, v := range p.Annotations {
		if k != corev1.LastAppliedConfigAnnotation {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[k] = v
		}
	}
	if state.Terminated(p) {
		out.Status = corev1.PodStatus{Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message}
	}
	return out
}

// references calls each with the config maps and secrets that a pod uses.
func references(p *corev1.Pod, each func(state.Key)) {
	config := func(name string) {
		if name != "" {
			each(state.Key{Kind: state.ConfigMaps, Namespace: p.Namespace, Name: name})
		}
	}
	secret := func(name string) {
		if name != "" {
			each(state.Key{Kind: state.Secrets, Namespace: p.Namespace, Name: name})
		}
	}
	var ephemeral []corev1.Container
	for i := range p.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers, ephemeral} {
		for _, c := range list {
			for _, from := range c.EnvFrom {
				if from.ConfigMapRef != nil {
					config(from.ConfigMapRef.Name)
				}
				if from.SecretRef != nil {
					secret(from.SecretRef.Name)
				}
			}
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
					config(e.ValueFrom.ConfigMapKeyRef.Name)
				}
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					secret(e.ValueFrom.SecretKeyRef.Name)
				}
			}
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap != nil {
			config(v.ConfigMap.Name)
		}
		if v.Secret != nil {
			secret(v.Secret.SecretName)
		}
		if v.Projected != nil {
			for _, src := range v.Projected.Sources {
				if src.ConfigMap != nil {
					config(src.ConfigMap.Name)
				}
				if src.Secret != nil {
					secret(src.Secret.Name)
				}
			}
		}
	}
	for _, ref := range p.Spec.ImagePullSecrets {
		secret(ref.Name)
	}
}
