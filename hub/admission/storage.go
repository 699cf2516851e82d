package admission

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

func defaultClaim(c *corev1.PersistentVolumeClaim, _ Settings) {
	if c.Spec.VolumeMode == nil {
		mode := corev1.PersistentVolumeFilesystem
		c.Spec.VolumeMode = &mode
	}
	if c.Status.Phase == "" {
		c.Status.Phase = corev1.ClaimPending
	}
}

func defaultClass(c *storagev1.StorageClass, _ Settings) {
	if c.ReclaimPolicy == nil {
		reclaim := corev1.PersistentVolumeReclaimDelete
		c.ReclaimPolicy = &reclaim
	}
	if c.VolumeBindingMode == nil {
		mode := storagev1.VolumeBindingImmediate
		c.VolumeBindingMode = &mode
	}
}

func (l *list) claim(c *corev1.PersistentVolumeClaim) { l.claimSpec(&c.Spec, spec) }

func (l *list) claimSpec(s *corev1.PersistentVolumeClaimSpec, p *field.Path) {
	l.accessModes(s.AccessModes, p.Child("accessModes"))
	l.volumeMode(s.VolumeMode, p.Child("volumeMode"))
	at := p.Child("resources", "requests")
	if q, ok := s.Resources.Requests[corev1.ResourceStorage]; !ok {
		l.required(at.Key(string(corev1.ResourceStorage)), "")
	} else if q.Sign() <= 0 {
		l.invalid(at.Key(string(corev1.ResourceStorage)), q.String(), "must be greater than zero")
	}
	for _, name := range sortedKeys(s.Resources.Requests) {
		if name != corev1.ResourceStorage {
			l.errs = append(l.errs, field.NotSupported(at.Key(string(name)), name,
				[]corev1.ResourceName{corev1.ResourceStorage}))
		}
	}
	if n := s.StorageClassName; n != nil && *n != "" {
		subdomain(l, p.Child("storageClassName"), *n)
	}
	if s.VolumeName != "" {
		subdomain(l, p.Child("volumeName"), s.VolumeName)
	}
}

// accessModes checks the access modes. A volume is a directory on one device, which limits them.
func (l *list) accessModes(modes []corev1.PersistentVolumeAccessMode, p *field.Path) {
	if len(modes) == 0 {
		l.required(p, "at least 1 access mode is required")
	}
	for i, m := range modes {
		switch m {
		case corev1.ReadWriteOnce, corev1.ReadWriteOncePod:
		case corev1.ReadOnlyMany, corev1.ReadWriteMany:
			l.forbidden(p.Index(i), string(m)+" is not supported: a volume is a directory on one device; use ReadWriteOnce "+
				"or ReadWriteOncePod")
		default:
			oneOf(l, p.Index(i), m, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		}
	}
	if len(modes) > 1 && slices.Contains(modes, corev1.ReadWriteOncePod) {
		l.forbidden(p, "may not use ReadWriteOncePod with other access modes")
	}
}

func (l *list) volumeMode(m *corev1.PersistentVolumeMode, p *field.Path) {
	if m != nil && *m == corev1.PersistentVolumeBlock {
		l.forbidden(p, "is not supported: devices have no block volumes; use Filesystem")
	} else if m != nil {
		oneOf(l, p, *m, corev1.PersistentVolumeFilesystem)
	}
}

func (l *list) claimUnchanged(c, was *corev1.PersistentVolumeClaim) {
	may := was.Spec.DeepCopy()
	if may.VolumeName == "" {
		may.VolumeName = c.Spec.VolumeName
	}
	if may.StorageClassName == nil {
		may.StorageClassName = c.Spec.StorageClassName
	}
	if !equality.Semantic.DeepEqual(&c.Spec, may) {
		l.forbidden(spec, "spec is immutable after creation except resources.requests and volumeAttributesClassName for "+
			"bound claims; here volumes cannot be resized: create another claim")
	}
}

// persistentVolume checks a volume that the hub created for a claim.
func (l *list) persistentVolume(v *corev1.PersistentVolume) {
	s := &v.Spec
	l.accessModes(s.AccessModes, spec.Child("accessModes"))
	l.volumeMode(s.VolumeMode, spec.Child("volumeMode"))
	if q, ok := s.Capacity[corev1.ResourceStorage]; !ok || q.Sign() <= 0 {
		l.required(spec.Child("capacity").Key(string(corev1.ResourceStorage)), "")
	}
	l.reclaim(s.PersistentVolumeReclaimPolicy, spec.Child("persistentVolumeReclaimPolicy"))
	if s.Local == nil || state.NodeOfVolume(v) == "" {
		l.required(spec.Child("local"), "a volume is a directory on the device that its node affinity names by "+
			corev1.LabelHostname)
	} else if s.Local.Path == "" {
		l.required(spec.Child("local", "path"), "")
	} else {
		noDotDot(l, spec.Child("local", "path"), s.Local.Path)
	}
	if r := s.ClaimRef; r != nil && (r.Name == "" || r.Namespace == "") {
		l.required(spec.Child("claimRef"), "must name a claim by namespace and name")
	}
}

// volumeUnchanged allows a change of the reclaim policy and, once the claim is removed, of the
// claimRef. A claimRef to a claim that never existed would delete the data.
func (l *list) volumeUnchanged(v, was *corev1.PersistentVolume) {
	may := was.Spec.DeepCopy()
	may.PersistentVolumeReclaimPolicy = v.Spec.PersistentVolumeReclaimPolicy
	if !equality.Semantic.DeepEqual(v.Spec.ClaimRef, was.Spec.ClaimRef) {
		switch {
		case was.Status.Phase == corev1.VolumeBound:
			l.forbidden(spec.Child("claimRef"), "the volume is bound: delete its claim first, with "+
				"persistentVolumeReclaimPolicy: Retain if the data is to stay")
		case v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID != "":
			l.forbidden(spec.Child("claimRef", "uid"), "is written by the hub when it binds: leave it out")
		}
	}
	may.ClaimRef = v.Spec.ClaimRef
	if !equality.Semantic.DeepEqual(&v.Spec, may) {
		l.forbidden(spec, "is immutable after creation except persistentVolumeReclaimPolicy and claimRef")
	}
}

func (l *list) reclaim(r corev1.PersistentVolumeReclaimPolicy, p *field.Path) {
	if r == corev1.PersistentVolumeReclaimRecycle {
		l.forbidden(p, "Recycle is not supported: use Delete or Retain")
		return
	}
	oneOf(l, p, r, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)
}

func (l *list) class(c *storagev1.StorageClass) {
	at := func(name string) *field.Path { return field.NewPath(name) }
	switch {
	case c.Provisioner == "":
		l.required(at("provisioner"), "")
	case c.Provisioner != state.LocalProvisioner:
		l.forbidden(at("provisioner"), "is not supported: volumes are directories on devices, use "+state.LocalProvisioner)
	}
	if c.ReclaimPolicy != nil {
		l.reclaim(*c.ReclaimPolicy, at("reclaimPolicy"))
	}
	switch m := c.VolumeBindingMode; {
	case m == nil:
	case *m == storagev1.VolumeBindingImmediate:
		l.forbidden(at("volumeBindingMode"), "Immediate, which is the default, is not supported: a volume is created where "+
			"its first pod runs; write WaitForFirstConsumer")
	default:
		oneOf(l, at("volumeBindingMode"), *m, storagev1.VolumeBindingWaitForFirstConsumer)
	}
	if is(c.AllowVolumeExpansion) {
		l.forbidden(at("allowVolumeExpansion"), "is not supported: a volume may use the free space of its device")
	}
	if len(c.Parameters) > 0 {
		l.forbidden(at("parameters"), "is not supported: "+state.LocalProvisioner+" has none")
	}
	if len(c.MountOptions) > 0 {
		l.forbidden(at("mountOptions"), "is not supported: a volume is a directory")
	}
	if len(c.AllowedTopologies) > 0 {
		l.forbidden(at("allowedTopologies"), "is not supported: write nodeSelector or affinity at the pods")
	}
}

func (l *list) classUnchanged(c, was *storagev1.StorageClass) {
	l.same(c.Provisioner, was.Provisioner, field.NewPath("provisioner"))
	l.same(c.ReclaimPolicy, was.ReclaimPolicy, field.NewPath("reclaimPolicy"))
	l.same(c.VolumeBindingMode, was.VolumeBindingMode, field.NewPath("volumeBindingMode"))
}
