package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A resize has three steps, as with the kubelet (KEP-1287): the hub requests it; the device grants
// or refuses it; then the engine updates the running container, or the container is restarted if
// its resizePolicy says so.
//
// While the request differs from the granted resources, the pod's status in the stored desired
// state has the granted ones. One write stores both, and an older agent uses the spec.

// A Refusal is a resize that the engine has refused.
type Refusal struct {
	Limits engine.Limits
	Until  time.Time
	Why    string
}

// KeepGrants copies the granted resources of the old desired state into the new one.
func KeepGrants(was, d wire.Desired) wire.Desired {
	before := make(map[types.UID]*corev1.Pod, len(was.Pods))
	for i := range was.Pods {
		before[was.Pods[i].UID] = &was.Pods[i]
	}
	d.Pods = slices.Clone(d.Pods)
	for i := range d.Pods {
		pod := &d.Pods[i]
		pod.Status.ContainerStatuses = nil
		old := before[pod.UID]
		if old == nil || IsFinal(pod.Status.Phase) {
			continue
		}
		old = granted(old)
		var has []corev1.ContainerStatus
		differs := false
		for _, w := range podspec.Containers(pod) {
			if c := podspec.Find(old, w.Spec.Name); c != nil {
				has = append(has, corev1.ContainerStatus{Name: c.Name, Resources: &c.Resources})
				differs = differs || !fleet.SameResources(c.Resources.Requests, w.Spec.Resources.Requests) ||
					!fleet.SameResources(c.Resources.Limits, w.Spec.Resources.Limits)
			}
		}
		if differs {
			pod.Status.ContainerStatuses = has
		}
	}
	return d
}

// granted returns a pod whose spec has the granted resources.
func granted(pod *corev1.Pod) *corev1.Pod {
	if len(pod.Status.ContainerStatuses) == 0 {
		return pod
	}
	out := *pod // a shallow copy: its shared fields are not written
	out.Status.ContainerStatuses = nil
	out.Spec.InitContainers, out.Spec.Containers = slices.Clone(pod.Spec.InitContainers), slices.Clone(pod.Spec.Containers)
	for _, st := range pod.Status.ContainerStatuses {
		if c := podspec.Find(&out, st.Name); c != nil && st.Resources != nil {
			c.Resources = *st.Resources
		}
	}
	return &out
}

// SplitGrants separates the desired state that the device runs from the requested resizes, by pod.
func SplitGrants(d wire.Desired) (run wire.Desired, requested map[types.UID]*corev1.Pod) {
	requested = map[types.UID]*corev1.Pod{}
	run = d
	run.Pods = slices.Clone(d.Pods)
	for i := range run.Pods {
		if pod := granted(&d.Pods[i]); pod != &d.Pods[i] {
			want := d.Pods[i]
			want.Status.ContainerStatuses = nil
			run.Pods[i], requested[pod.UID] = *pod, &want
		}
	}
	return run, requested
}

// grantResizes grants or defers the requested resizes of admitted pods. Resizes that need no more
// resources come first.
func (p *pass) grantResizes(holders, leaving []*corev1.Pod) {
	for _, more := range []bool{false, true} {
		for i, pod := range holders {
			want, r := p.o.Requested[pod.UID], p.o.Pods[pod.UID]
			if want == nil || more != asksMore(want, pod) {
				continue
			}
			others := slices.Concat(holders[:i], holders[i+1:], leaving)
			if v := p.refuseResize(want, pod, others); v == nil {
				p.step(Step{Action: Grant, Place: Place{Pod: pod.UID}, Pod: want})
				holders[i] = want
			} else if r.ResizePending == nil || *r.ResizePending != *v {
				p.step(Step{Action: Defer, Place: Place{Pod: pod.UID}, Pod: want, Verdict: *v})
			}
		}
	}
}

func asksMore(want, has *corev1.Pod) bool {
	was := resourcehelper.PodRequests(has, resourcehelper.PodResourcesOptions{})
	for name, q := range resourcehelper.PodRequests(want, resourcehelper.PodResourcesOptions{}) {
		if q.Cmp(was[name]) > 0 {
			return true
		}
	}
	return false
}

// refuseResize returns why a pod cannot have a resize now or ever, or nil if it can.
func (p *pass) refuseResize(want, has *corev1.Pod, others []*corev1.Pod) *Verdict {
	node := p.o.Node
	why := p.o.Policy.Forbids(want)
	pinned := node.Topology != AnyTopology && node.Topology != "" && len(node.NUMA) > 1
	if (pinned || node.staticCPUs()) &&
		why == "" && podspec.QOSClass(want) == corev1.PodQOSGuaranteed {
		for _, w := range podspec.Containers(want) {
			if c := podspec.Find(has, w.Spec.Name); c == nil ||
				c.Resources.Limits.Cpu().Cmp(*w.Spec.Resources.Limits.Cpu()) != 0 {
				why = fmt.Sprintf("Resize is infeasible for the processors of Guaranteed Pods alongside topology manager "+
					"policy %q", node.Topology)
				if !pinned {
					why = "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy"
				}
			}
		}
	}
	v := &Verdict{corev1.PodReasonInfeasible, why}
	switch {
	case why != "":
		return v
	case !asksMore(want, has):
		return nil
	}
	if never := fits(want, nil, node.Allocatable); never != nil {
		v.Message = never.Message
		return v
	}
	if now := fits(want, others, node.Allocatable); now != nil {
		return &Verdict{corev1.PodReasonDeferred, now.Message}
	}
	return nil
}

// DescribeSizes lists the resources of the containers of a pod.
func DescribeSizes(pod *corev1.Pod) string {
	var all []string
	for _, w := range podspec.Containers(pod) {
		r := w.Spec.Resources
		all = append(all, fmt.Sprintf("%s cpu %s/%s memory %s/%s", w.Spec.Name, r.Requests.Cpu(), r.Limits.Cpu(),
			r.Requests.Memory(), r.Limits.Memory()))
	}
	return strings.Join(all, ", ") + " (requests/limits)"
}

// SizeOf is a container's resources as engine limits.
func SizeOf(pod *corev1.Pod, c *corev1.Container, node Facts) (s engine.Spec) {
	limits, requests := c.Resources.Limits, c.Resources.Requests
	s.MemoryBytes, s.MilliCPU = limits.Memory().Value(), limits.Cpu().MilliValue()
	cpu := requests.Cpu().MilliValue()
	if _, has := requests[corev1.ResourceCPU]; !has {
		cpu = s.MilliCPU
	}
	s.CPUShares = min(max(cpu*1024/1000, 2), 262144)
	limitSwap(&s, pod, c, node, node.Engine)
	return s
}

// limitsDiffer reports whether a running container's limits differ from its pod's. A limit that the
// pod lacks is ignored, because it cannot be removed from a running container.
func limitsDiffer(pod *corev1.Pod, w podspec.Container, c *ContainerRecord, node Facts) (want engine.Limits,
	differs bool) {
	want = engine.LimitsOf(SizeOf(pod, w.Spec, node), node.Engine)
	has := c.Limits
	for _, v := range [][2]int64{{want.Memory, has.Memory}, {want.MemorySwap, has.MemorySwap},
		{want.CPUQuota, has.CPUQuota}, {want.CPUShares, has.CPUShares}} {
		differs = differs || v[0] != 0 && v[0] != v[1]
	}
	return want, differs && c.Running()
}

// DoubtLimits marks the limits of resized pods as unknown when an agent starts, so that they are
// applied once more. Podman reports the limits at the container's creation, whatever the updates
// since.
func (o *Observed) DoubtLimits() {
	for _, r := range o.Pods {
		for _, c := range r.Container {
			c.LimitsUnknown = o.Node.Engine.Name == "podman"
		}
	}
}

// updateContainers updates the limits of running containers to the granted ones.
func (p *pass) updateContainers(pod *corev1.Pod, r *Record, stopping []string) {
	for _, w := range podspec.Containers(pod) {
		c, at := r.Peek(w.Spec.Name), Place{pod.UID, w.Spec.Name}
		want, differs := limitsDiffer(pod, w, c, p.o.Node)
		has := c.Limits
		if cpus := p.sharedCPUs(at, c.ID); cpus != "" && c.Running() {
			want.CPUs, differs = cpus, differs || cpus != has.CPUs
		}
		if c.LimitsUnknown && c.Running() && (pod.Generation > 1 || want.CPUs != "") {
			has, differs = engine.Limits{}, true
		}
		switch {
		case !differs || !p.free(at) || slices.Contains(stopping, w.Spec.Name):
		case c.Refused != nil && c.Refused.Limits == want && p.now.Before(c.Refused.Until):
			p.wakeAt(c.Refused.Until)
		default:
			p.step(Step{Action: Update, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, ID: c.ID, OldLimits: has, Limits: want})
		}
	}
}

// ResizeState reports whether a container still differs from the granted resources, and the
// engine's error.
func ResizeState(pod *corev1.Pod, r *Record, node Facts) (busy bool, why string) {
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		want, differs := limitsDiffer(pod, w, c, node)
		if c.Refused != nil {
			want.CPUs = c.Refused.Limits.CPUs
		}
		if differs && c.Refused != nil && c.Refused.Limits == want {
			why = c.Refused.Why
		}
		busy = busy || differs || resized(c.Hash, w.Spec)
	}
	return busy, why
}

// resizeConditions are the resize conditions of a pod.
func resizeConditions(pod *corev1.Pod, r *Record, o *Observed) (out []corev1.PodCondition) {
	if v := r.ResizePending; v != nil && o.Requested[pod.UID] != nil {
		out = append(out, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: v.Reason,
			Message: v.Message})
	}
	if busy, why := ResizeState(pod, r, o.Node); busy {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Message: why}
		if why != "" {
			c.Reason = corev1.PodReasonError
		}
		out = append(out, c)
	}
	return out
}

// resourcesOf are the granted resources of a container. For a running container they are those that
// the engine enforces.
func resourcesOf(pod *corev1.Pod, w podspec.Container, c *ContainerRecord, node Facts) *corev1.ResourceRequirements {
	want, differs := limitsDiffer(pod, w, c, node)
	if !differs {
		return &w.Spec.Resources
	}
	out := &corev1.ResourceRequirements{Requests: maps.Clone(w.Spec.Resources.Requests),
		Limits: maps.Clone(w.Spec.Resources.Limits)}
	put := func(list corev1.ResourceList, name corev1.ResourceName, want, has int64, q *resource.Quantity) {
		if _, asked := list[name]; asked && want != has {
			if list[name] = *q; has == 0 {
				delete(list, name)
			}
		}
	}
	has := c.Limits
	put(out.Limits, corev1.ResourceMemory, want.Memory, has.Memory, resource.NewQuantity(has.Memory, resource.BinarySI))
	put(out.Limits, corev1.ResourceCPU, want.CPUQuota, has.CPUQuota,
		resource.NewMilliQuantity(has.CPUQuota/100, resource.DecimalSI))
	put(out.Requests, corev1.ResourceCPU, want.CPUShares, has.CPUShares,
		resource.NewMilliQuantity((has.CPUShares*1000+1023)/1024, resource.DecimalSI))
	return out
}

// restartHash is a hash of the resources that change only with a restart, or "" if there are none.
func restartHash(c *corev1.Container) string {
	text := ""
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer {
			request, limit := c.Resources.Requests[p.ResourceName], c.Resources.Limits[p.ResourceName]
			text += string(p.ResourceName) + " " + strconv.FormatInt(request.MilliValue(), 10) + " " +
				strconv.FormatInt(limit.MilliValue(), 10) + "\n"
		}
	}
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return "-" + hex.EncodeToString(sum[:6])
}

// resized reports whether an instance with that hash was created for other resources than its
// container has now. An instance of an agent without resizing has no such hash, and is not
// replaced.
func resized(hash string, c *corev1.Container) bool {
	definition, size, hasSize := strings.Cut(hash, "-")
	want, now, needsRestart := strings.Cut(specHash(c), "-")
	return hasSize && needsRestart && definition == want && size != now
}
