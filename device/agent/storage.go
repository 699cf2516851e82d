package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
)

const (
	storageTime    = time.Minute // time between two measurements of a pod
	measureRatio   = 20          // wait this many times the duration of the last measurement
	maxMeasureTime = time.Minute // timeout for one pod
	judgeAfter     = time.Second // measuring pauses after this time, to judge the pods measured so far
)

// A Stored is the amount of data that a pod has written on its device, in bytes.
type Stored struct {
	Volumes    map[string]int64 // emptyDirs
	Containers map[string]int64 // writable layers, logs and messages of running containers
}

// disk is the amount on the disk, without emptyDirs in memory.
func (s Stored) disk(pod *corev1.Pod) (sum int64) {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; liesOnDisk(v) {
			sum += s.Volumes[v.Name]
		}
	}
	for _, n := range s.Containers {
		sum += n
	}
	return sum
}

// OverLimit returns the kubelet's message for a pod that has written more than its limits, or "".
// Usage equal to the limit is allowed.
func OverLimit(pod *corev1.Pod, s Stored) string {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if limit := sizeLimit(v); limit != nil && s.Volumes[v.Name] > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	sum := s.disk(pod)
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limit, has := limits[corev1.ResourceEphemeralStorage]; has && !limit.IsZero() && sum > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit, has := c.Resources.Limits[corev1.ResourceEphemeralStorage]; has && !limit.IsZero() &&
			s.Containers[c.Name] > limit.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}

// checkStorage measures the pods with limits at intervals, and evicts pods that exceed them. Each
// pod has its own interval, so that a pod with millions of files does not delay others. The longest
// overdue pod comes first.
func (a *Agent) checkStorage(now time.Time) {
	l := &a.loop
	if l.measuringPods || a.disk.Root == "" {
		return
	}
	var pods []*corev1.Pod
	due := map[types.UID]time.Time{}
	for _, p := range l.evictable() {
		if !limitsStorage(p) {
			continue
		}
		due[p.UID] = l.storageAt[p.UID]
		if !now.Before(due[p.UID]) {
			pods = append(pods, p)
		}
	}
	l.storageAt = due // drops the pods that have gone
	if len(pods) == 0 {
		return
	}
	sort.SliceStable(pods, func(i, j int) bool { return due[pods[i].UID].Before(due[pods[j].UID]) })
	running := l.instancesOf(pods)
	l.measuringPods = true
	e := l.engine
	a.async(maxMeasureTime+judgeAfter, func(ctx context.Context) func() {
		var done []measurement
		for began := time.Now(); len(done) < len(pods) && time.Since(began) < judgeAfter; {
			done = append(done, a.measure(ctx, e, pods[len(done)], running[len(done)]))
		}
		return func() {
			l.measuringPods = false
			for _, m := range done {
				a.judgeStorage(m)
			}
		}
	})
}

// instancesOf copies the running containers of the given pods for use outside of the loop.
func (l *loop) instancesOf(pods []*corev1.Pod) []map[string]*plan.ContainerRecord {
	running := make([]map[string]*plan.ContainerRecord, len(pods))
	for i, p := range pods {
		running[i] = map[string]*plan.ContainerRecord{}
		for name, c := range l.o.Pods[p.UID].Container {
			if name != "" && c.Running() {
				running[i][name] = &plan.ContainerRecord{ID: c.ID, Attempt: c.Attempt}
			}
		}
	}
	return running
}

// A measurement is the result of measuring a pod.
type measurement struct {
	pod   *corev1.Pod
	why   string        // reason to evict the pod; empty: the pod stays
	whole bool          // the whole pod was measured
	sum   int64         // bytes
	disk  int64         // the part of sum on the disk
	took  time.Duration // at most maxMeasureTime
	err   error         // error of the volumes that could not be measured
}

// measure measures the data that a pod has written. After a timeout it returns the measured part.
func (a *Agent) measure(ctx context.Context, e engine.Engine, p *corev1.Pod,
	running map[string]*plan.ContainerRecord) measurement {
	ctx, cancel := context.WithTimeout(ctx, maxMeasureTime)
	defer cancel()
	began := time.Now()
	m := measurement{pod: p}
	s := Stored{map[string]int64{}, map[string]int64{}}
	for j := range p.Spec.Volumes {
		v := &p.Spec.Volumes[j]
		if v.EmptyDir == nil || a.disk.Root == "" {
			continue
		}
		n, err := engine.SizeOf(ctx, a.disk.Dir(v, p.UID))
		if err != nil && ctx.Err() == nil {
			m.err = errors.Join(m.err, fmt.Errorf("volume %s: %w", v.Name, err))
		}
		s.Volumes[v.Name] = n.Bytes
		m.sum += n.Bytes
		if errors.Is(err, engine.ErrDeep) { // a volume that can never be measured is a reason to evict its pod
			m.why = fmt.Sprintf("EmptyDir volume %q cannot be measured: %v. ", v.Name, err)
		}
	}
	for name, c := range running {
		n, err := e.Written(ctx, c.ID)
		if errors.Is(err, engine.ErrDeep) {
			m.why = fmt.Sprintf("The data that container %s has written cannot be measured: %v. ", name, err)
		}
		if err != nil { // a container that could not be measured counts as 0
			continue
		}
		message, _ := engine.SizeOf(ctx, filepath.Join(a.disk.Root, messageName(plan.Place{Pod: p.UID, Container: name},
			c.Attempt)))
		s.Containers[name] = n + message.Bytes
		m.sum += n + message.Bytes
	}
	m.whole, m.took = !errors.Is(ctx.Err(), context.DeadlineExceeded), time.Since(began)
	m.disk, m.why = s.disk(p), cmp.Or(OverLimit(p, s), m.why)
	return m
}

// files counts the inodes of a pod on the disk. After a timeout it returns the counted part.
func (a *Agent) files(ctx context.Context, e engine.Engine, p *corev1.Pod,
	running map[string]*plan.ContainerRecord) (sum int64) {
	for j := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[j]; liesOnDisk(v) && a.disk.Root != "" {
			n, _ := engine.SizeOf(ctx, a.disk.Dir(v, p.UID))
			sum += int64(math.Ceil(n.Inodes))
		}
	}
	for _, c := range running {
		n, _ := e.Files(ctx, c.ID)
		sum += n
	}
	return sum
}

// judgeStorage evicts a pod over its limits, and sets its next measurement.
func (a *Agent) judgeStorage(m measurement) {
	l := &a.loop
	r := l.o.Pods[m.pod.UID]
	if r == nil || !plan.HasRunning(r) {
		return
	}
	a.trouble("measure the volumes of pod "+m.pod.Namespace+"/"+m.pod.Name, m.err)
	wait := max(storageTime, measureRatio*m.took)
	l.storageAt[m.pod.UID] = time.Now().Add(wait)
	switch {
	case m.why != "":
		a.evict(m.pod, m.why, nil)
	case !m.whole && !r.Unmeasured:
		a.event(corev1.EventTypeWarning, "StorageNotMeasured", m.pod, "",
			"The data that the pod has written could not be measured completely within %s, only %d bytes were counted: it has "+
				"too many files, or the disk is slow; it is measured again in %s", maxMeasureTime, m.sum, wait)
	}
	r.Unmeasured = !m.whole
}

func liesOnDisk(v *corev1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
}

// limitsStorage reports whether a pod has a limit that the agent enforces by measuring.
func limitsStorage(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if sizeLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	for _, w := range podspec.Containers(pod) {
		if q, has := w.Spec.Resources.Limits[corev1.ResourceEphemeralStorage]; has && !q.IsZero() {
			return true
		}
	}
	return false
}

// sizeLimit returns the size limit of an emptyDir, nil if there is none.
func sizeLimit(v *corev1.Volume) *resource.Quantity {
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}
