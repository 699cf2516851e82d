package state

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A persistent volume is a directory on a device. A claim gets its volume on the node of the first
// pod that uses it, and the volume stays there.
const (
	LocalProvisioner = "flotilla.dev/local" // the provisioner of every storage class
	LocalClass       = "local"              // the built-in class

	ClaimProtection  = "kubernetes.io/pvc-protection" // a finalizer, removed once no pod uses the claim
	VolumeProtection = "kubernetes.io/pv-protection"  // a finalizer, removed once no claim has the volume
	DataProtection   = "flotilla.dev/local-data"      // a finalizer, removed once the device reports that the data is gone

	// MadeAnnotation marks a volume whose directory has existed on the device. Such a directory is
	// never created again, because the new one would be empty.
	MadeAnnotation = "flotilla.dev/made"

	DefaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"
)

// Claim returns a claim, nil if there is none.
func (s Snapshot) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return get[*corev1.PersistentVolumeClaim](s, Key{Claims, namespace, name})
}

// Volume returns a persistent volume, nil if there is none.
func (s Snapshot) Volume(name string) *corev1.PersistentVolume {
	return get[*corev1.PersistentVolume](s, Key{Kind: Volumes, Name: name})
}

// StorageClass returns a storage class, nil if there is none.
func (s Snapshot) StorageClass(name string) *storagev1.StorageClass {
	return get[*storagev1.StorageClass](s, Key{Kind: StorageClasses, Name: name})
}

// RuntimeClass returns a runtime class, nil if there is none.
func (s Snapshot) RuntimeClass(name string) *nodev1.RuntimeClass {
	return get[*nodev1.RuntimeClass](s, Key{Kind: RuntimeClasses, Name: name})
}

// PodsUsingClaim walks the pods that use a claim.
func (s Snapshot) PodsUsingClaim(namespace, claim string) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		for name := range namesUnder(s.claimants, namespace+"\x00"+claim) {
			if p := s.Pod(namespace, name); p != nil && !yield(p) {
				return
			}
		}
	}
}

// VolumesOn walks the persistent volumes of a node.
func (s Snapshot) VolumesOn(node string) iter.Seq[*corev1.PersistentVolume] {
	on, volumes := s.volumesOn, s.tables[Volumes.index()] // the closure does not capture all of s
	return func(yield func(*corev1.PersistentVolume) bool) {
		for name := range namesUnder(on, node) {
			o, _ := volumes.Get(path("", name))
			if v, _ := o.(*corev1.PersistentVolume); v != nil && !yield(v) {
				return
			}
		}
	}
}

// ClaimsOf walks the names of a pod's claims. A claim that the pod uses twice comes twice.
func ClaimsOf(p *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range p.Spec.Volumes {
			if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil && !yield(c.ClaimName) {
				return
			}
		}
	}
}

// HasClaims tells whether a pod uses a claim.
func HasClaims(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

// NodeOfVolume returns the node that a volume's node affinity names, "" for none.
func NodeOfVolume(v *corev1.PersistentVolume) string {
	if v == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, t := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, r := range t.MatchExpressions {
			if r.Key == corev1.LabelHostname && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
				return r.Values[0]
			}
		}
	}
	return ""
}

// ClaimHasVolume tells whether a volume is bound to exactly this claim.
func ClaimHasVolume(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	return c != nil && v != nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID && c.Spec.VolumeName == v.Name
}

// VolumeOf returns the volume that a claim is bound to, nil for none.
func VolumeOf(s Snapshot, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	if c == nil || c.Spec.VolumeName == "" {
		return nil
	}
	if v := s.Volume(c.Spec.VolumeName); ClaimHasVolume(c, v) {
		return v
	}
	return nil
}

// FirstConsumer returns a placed pod on whose node an unbound claim gets its volume, nil if there
// is none.
func FirstConsumer(s Snapshot, c *corev1.PersistentVolumeClaim) *corev1.Pod {
	for p := range s.PodsUsingClaim(c.Namespace, c.Name) {
		if p.Spec.NodeName != "" && !Terminated(p) && s.Node(p.Spec.NodeName) != nil {
			return p
		}
	}
	return nil
}

// IsLocal tells whether an unbound claim gets a volume as soon as a pod that uses the claim is
// placed.
func IsLocal(s Snapshot, c *corev1.PersistentVolumeClaim) bool {
	if c.Spec.StorageClassName == nil || c.Spec.VolumeName != "" {
		return false
	}
	class := s.StorageClass(*c.Spec.StorageClassName)
	return class != nil && class.Provisioner == LocalProvisioner
}

// MustRemoveData tells whether a device must remove a volume's data: the volume is being deleted
// with its data, it has no claim and no pod uses it. There is no other reason to remove data. A
// volume that the hub does not know is never published, so its data stays.
func MustRemoveData(v *corev1.PersistentVolume) bool {
	return v.DeletionTimestamp != nil && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		slices.Contains(v.Finalizers, DataProtection) && !slices.Contains(v.Finalizers, VolumeProtection)
}

// VolumeUID is the uid of the volume made for a claim, and the name of its directory on the device.
// A claim gets at most one volume.
func VolumeUID(c *corev1.PersistentVolumeClaim) types.UID { return uidOf("volume", string(c.UID)) }

func (t *txn) swapClaimant(old, next *corev1.Pod) {
	if old != nil && next != nil && slices.Equal(slices.Collect(ClaimsOf(old)), slices.Collect(ClaimsOf(next))) {
		return
	}
	for i, p := range []*corev1.Pod{old, next} {
		if p == nil {
			continue
		}
		for claim := range ClaimsOf(p) {
			key := p.Namespace + "\x00" + claim + "\x00" + p.Name
			if claimants := writable(&t.claimants, &t.own.claimants); i == 1 {
				claimants.Set(key, struct{}{})
			} else {
				claimants.Delete(key)
			}
		}
	}
}

func (t *txn) swapVolume(old, next *corev1.PersistentVolume) {
	from, to := NodeOfVolume(old), NodeOfVolume(next)
	if old != nil && next != nil && from == to {
		return
	}
	volumesOn := writable(&t.volumesOn, &t.own.volumesOn)
	if old != nil {
		volumesOn.Delete(from + "\x00" + old.Name)
	}
	if next != nil {
		volumesOn.Set(to+"\x00"+next.Name, struct{}{})
	}
}
