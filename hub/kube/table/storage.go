package table

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.Claims, columns("Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass",
		"VolumeAttributesClass", "Age", "(w)VolumeMode"), claimCells)
	show(state.Volumes, columns("Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass",
		"VolumeAttributesClass", "Reason", "Age",
		"(w)VolumeMode"), volumeCells)
	show(state.RuntimeClasses, columns("Name Handler Age"), func(obj state.Object, o *Options) []any {
		c := obj.(*nodev1.RuntimeClass)
		return []any{c.Name, c.Handler, age(c.CreationTimestamp, o)}
	})
	show(state.StorageClasses, columns("Name Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion Age"),
		classCells)
}

func claimCells(obj state.Object, o *Options) []any {
	c := obj.(*corev1.PersistentVolumeClaim)
	phase, capacity, modes := string(c.Status.Phase), "", ""
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if c.Spec.VolumeName != "" {
		modes = accessModes(c.Status.AccessModes)
		q := c.Status.Capacity[corev1.ResourceStorage]
		capacity = q.String()
	}
	return []any{
		c.Name, phase, c.Spec.VolumeName, capacity, modes, state.ClassOf(c), orUnset(c.Spec.VolumeAttributesClassName),
		age(c.CreationTimestamp, o), volumeMode(c.Spec.VolumeMode),
	}
}

func volumeCells(obj state.Object, o *Options) []any {
	v := obj.(*corev1.PersistentVolume)
	phase, claim := string(v.Status.Phase), ""
	if v.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if r := v.Spec.ClaimRef; r != nil {
		claim = r.Namespace + "/" + r.Name
	}
	q := v.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		v.Name, q.String(), accessModes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim,
		v.Spec.StorageClassName,
		orUnset(v.Spec.VolumeAttributesClassName), v.Status.Reason, age(v.CreationTimestamp, o),
		volumeMode(v.Spec.VolumeMode),
	}
}

func classCells(obj state.Object, o *Options) []any {
	c := obj.(*storagev1.StorageClass)
	name, reclaim, mode := c.Name, string(corev1.PersistentVolumeReclaimDelete), "<unset>"
	if c.Annotations[state.DefaultClassAnnotation] == "true" {
		name += " (default)"
	}
	if c.ReclaimPolicy != nil {
		reclaim = string(*c.ReclaimPolicy)
	}
	if c.VolumeBindingMode != nil {
		mode = string(*c.VolumeBindingMode)
	}
	return []any{name, c.Provisioner, reclaim, mode, c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion,
		age(c.CreationTimestamp, o)}
}

func volumeMode(m *corev1.PersistentVolumeMode) string {
	if m == nil {
		return "<unset>"
	}
	return string(*m)
}

func orUnset(s *string) string {
	if s == nil {
		return "<unset>"
	}
	return *s
}

// accessModes formats access modes in kubectl's short form.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var short []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"}} {
		for _, have := range modes {
			if have == m.mode {
				short = append(short, m.short)
				break
			}
		}
	}
	return strings.Join(short, ",")
}
