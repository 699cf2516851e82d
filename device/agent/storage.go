package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"flotilla.dev/device/engine"
)

const (
	storageTime = time.Minute // at least, between two measurements of what pods have written
	storageRest = 20          // times the last measurement's length, where that is longer
	storageMost = 5 * time.Minute
)

// A Stored is what a pod has written on its device, in bytes.
type Stored struct {
	Volumes    map[string]int64 // its emptyDirs
	Containers map[string]int64 // outside of these, with their logs and messages, while they run
}

// limitsStorage tells whether a pod has a limit that only measuring enforces.
func limitsStorage(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if sizeLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	for _, w := range everyContainer(pod) {
		if q, has := w.spec.Resources.Limits[corev1.ResourceEphemeralStorage]; has && !q.IsZero() {
			return true
		}
	}
	return false
}

// sizeLimit is the size of an emptyDir that is not a file system of its own.
func sizeLimit(v *corev1.Volume) *resource.Quantity {
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}

// TooMuch says, in the kubelet's words, why a pod has to go that has written more than it
// may; empty: it may stay. A limit is reached and not passed with exactly as much.
func TooMuch(pod *corev1.Pod, s Stored) string {
	var sum int64
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		used := s.Volumes[v.Name]
		if limit := sizeLimit(v); limit != nil && used > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
		if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			sum += used
		}
	}
	for _, n := range s.Containers {
		sum += n
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limit, has := limits[corev1.ResourceEphemeralStorage]; has && !limit.IsZero() && sum > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit, has := c.Resources.Limits[corev1.ResourceEphemeralStorage]; has && !limit.IsZero() && s.Containers[c.Name] > limit.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}

// checkStorage measures those pods that have limits, from time to time, and evicts those
// that are over them.
func (a *Agent) checkStorage(now time.Time) {
	l := &a.loop
	if l.storing || now.Before(l.storageAt) || a.disk.root == "" {
		return
	}
	var pods []*corev1.Pod
	for _, p := range l.living() {
		if limitsStorage(p) {
			pods = append(pods, p)
		}
	}
	if len(pods) == 0 {
		return
	}
	type instance struct {
		id      string
		attempt int
	}
	ids := map[types.UID]map[string]instance{}
	for _, p := range pods {
		ids[p.UID] = map[string]instance{}
		for name, c := range l.o.Pods[p.UID].Container {
			if name != "" && c.Running() {
				ids[p.UID][name] = instance{c.ID, c.Attempt}
			}
		}
	}
	l.storing = true
	e := l.engine
	a.async(storageMost, func(ctx context.Context) func() {
		why := make([]string, len(pods))
		for i, p := range pods {
			s := Stored{map[string]int64{}, map[string]int64{}}
			for j := range p.Spec.Volumes {
				v := &p.Spec.Volumes[j]
				if v.EmptyDir == nil {
					continue
				}
				n, err := engine.SizeOf(ctx, a.disk.dir(v, p.UID))
				if err != nil && ctx.Err() == nil {
					a.log.Warn("measure a volume", "pod", p.Namespace+"/"+p.Name, "volume", v.Name, "err", err)
				}
				s.Volumes[v.Name] = n
				if errors.Is(err, engine.ErrDeep) { // or nobody would ever know what it holds
					why[i] = fmt.Sprintf("EmptyDir volume %q cannot be measured: %v. ", v.Name, err)
				}
			}
			for name, c := range ids[p.UID] {
				n, err := e.Written(ctx, c.id)
				if errors.Is(err, engine.ErrDeep) {
					why[i] = fmt.Sprintf("What container %s has written cannot be measured: %v. ", name, err)
				}
				if err != nil { // what cannot be measured cannot be blamed
					continue
				}
				said, _ := engine.SizeOf(ctx, filepath.Join(a.disk.root, messageName(Place{p.UID, name}, c.attempt)))
				s.Containers[name] = n + said
			}
			why[i] = cmp.Or(TooMuch(p, s), why[i])
		}
		return func() {
			l.storing = false
			end := time.Now()
			l.storageAt = now.Add(max(storageTime, storageRest*end.Sub(now)))
			for i, p := range pods {
				if r := l.o.Pods[p.UID]; why[i] != "" && r != nil && running(r) {
					a.evict(p, why[i])
				}
			}
		}
	})
}
