package node

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// volumesFor returns the persistent volumes that are sent to a device: those that its pods use, and
// those whose data it must remove. The device leaves other volumes as they are.
func volumesFor(s state.Snapshot, node string) (list []wire.Volume) {
	for v := range s.VolumesOn(node) {
		if len(list) == wire.MaxVolumes {
			break // the rest is sent after some were removed
		}
		switch ref := v.Spec.ClaimRef; {
		// This holds even if the volume is being deleted.
		case ref != nil && state.ClaimHasVolume(s.Claim(ref.Namespace, ref.Name), v) && claimedOn(s, ref, node):
			list = append(list, wire.Volume{UID: v.UID, Namespace: ref.Namespace, Claim: ref.Name,
				Made: v.Annotations[state.MadeAnnotation] != ""})
		case state.MustRemoveData(v):
			list = append(list, wire.Volume{UID: v.UID, Remove: true})
		}
	}
	return list
}

// claimedOn tells whether a pod on a node uses a claim.
func claimedOn(s state.Snapshot, claim *corev1.ObjectReference, node string) bool {
	for p := range s.PodsUsingClaim(claim.Namespace, claim.Name) {
		if p.Spec.NodeName == node {
			return true
		}
	}
	return false
}

// volumeChanges returns the changes from a device's report of its persistent volumes. A volume that
// exists is never created again. A volume whose data was removed as requested is removed.
func volumeChanges(s state.Snapshot, node string, reported []wire.VolumeState) (changes []state.Change) {
	for _, st := range reported {
		v, _ := s.ByUID(st.UID).(*corev1.PersistentVolume)
		switch {
		case v == nil || state.NodeOfVolume(v) != node: // a device may only report its own volumes
		case !st.Gone && v.Annotations[state.MadeAnnotation] == "":
			v = v.DeepCopy()
			if v.Annotations == nil {
				v.Annotations = map[string]string{}
			}
			v.Annotations[state.MadeAnnotation] = "true"
			changes = append(changes, state.Put(v, ""))
		case st.Gone && state.MustRemoveData(v):
			why := fmt.Sprintf("remove volume %s: %s has removed its data", v.Name, node)
			v = v.DeepCopy()
			v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == state.DataProtection })
			if len(v.Finalizers) > 0 {
				changes = append(changes, state.Put(v, ""))
			} else {
				changes = append(changes, state.Remove(v, why))
			}
		}
	}
	return changes
}
