package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/policy"
)

// admitPods admits or rejects the new pods, and returns the admitted ones for their first steps.
// The device decides by its real resources: two pods with the same host port, or with too much
// requested memory, would disturb running pods.
func (p *pass) admitPods(pods []corev1.Pod) []*corev1.Pod {
	var holders, leaving []*corev1.Pod // admitted pods that stay, and admitted pods that end
	var waiting []*corev1.Pod
	for _, pod := range byPriority(pods) {
		r := p.o.Pods[pod.UID]
		switch {
		case r != nil && r.Admitted && p.ended(pod, r) && p.o.mayRun(pod.UID):
			leaving = append(leaving, pod) // an ended pod holds its resources until it is removed
		case r != nil && (r.Final != nil || r.Verdict != nil || r.Cleaned):
		case pod.DeletionTimestamp != nil:
			if r != nil && r.Admitted {
				leaving = append(leaving, pod)
			}
		case p.endForbidden(pod, r):
			leaving = append(leaving, pod)
		case r != nil && r.Admitted:
			if !p.ended(pod, r) {
				holders = append(holders, pod)
			}
		default:
			waiting = append(waiting, pod)
		}
	}
	if p.o.Node.Allocatable == nil {
		return nil
	}
	p.grantResizes(holders, leaving)
	var admitted []*corev1.Pod
	for _, pod := range waiting {
		at := Place{Pod: pod.UID}
		if want := p.o.Requested[pod.UID]; want != nil { // the device has not granted these resources yet
			p.step(Step{Action: Grant, Place: at, Pod: want})
			continue
		}
		v := p.rejection(pod)
		if v == nil {
			if v = fits(pod, holders, p.o.Node.Allocatable); v == nil &&
				fits(pod, slices.Concat(holders, leaving), p.o.Node.Allocatable) != nil {
				continue // the pod fits once the leaving pods have gone, which wakes the loop
			}
		}
		var numa map[string][]int
		if v == nil {
			var wait bool
			if numa, wait = p.align(pod, holders, leaving); wait {
				continue
			}
			if numa == nil {
				v = &Verdict{topologyAffinityError, "Resources cannot be allocated with Topology locality"}
			}
		}
		if v != nil {
			p.step(Step{Action: Reject, Place: at, Pod: pod, Verdict: *v})
			continue
		}
		p.aligned[pod.UID] = numa
		p.step(Step{Action: Admit, Place: at, Pod: pod, NUMA: numa})
		holders = append(holders, pod)
		admitted = append(admitted, pod)
	}
	return admitted
}

// ended reports whether a pod has ended, even if a container still runs.
func (p *pass) ended(pod *corev1.Pod, r *Record) bool {
	return r.Final != nil || IsFinal(phaseOf(pod, r, p.o.Node.Boot)) || p.expired(pod, r)
}

// expired reports whether a pod has passed its activeDeadlineSeconds. If not, it sets the wake-up.
func (p *pass) expired(pod *corev1.Pod, r *Record) bool {
	s := pod.Spec.ActiveDeadlineSeconds
	if s == nil || r.Start.IsZero() {
		return false
	}
	from := r.MonotonicStart
	if from.IsZero() {
		from = r.Start
	}
	end := from.Add(time.Duration(min(*s, math.MaxInt32)) * time.Second)
	if p.now.Before(end) {
		p.wakeAt(end)
		return false
	}
	return true
}

// endForbidden ends an admitted pod that the policy now forbids: the owner has changed the policy
// while the agent was off, or the hub has changed the pod.
func (p *pass) endForbidden(pod *corev1.Pod, r *Record) bool {
	if r == nil || !r.Admitted || p.ended(pod, r) {
		return false
	}
	why := p.o.Policy.Forbids(pod)
	if why != "" {
		p.step(Step{Action: Reject, Place: Place{Pod: pod.UID}, Pod: pod, Verdict: Verdict{PolicyForbidden, why}})
	}
	return why != ""
}

// PolicyForbidden is the reason if the device's policy forbids a pod or container.
const PolicyForbidden = "PolicyForbidden"

// rejection returns why a pod cannot run on this device, whatever other pods run.
func (p *pass) rejection(pod *corev1.Pod) *Verdict {
	if n := pod.Spec.NodeName; n != "" && n != p.o.Node.Name {
		return &Verdict{"NodeName", fmt.Sprintf("Pod is bound to node %s, and this is %s", n, p.o.Node.Name)}
	}
	if why := podspec.Unsupported(pod); why != "" {
		return &Verdict{"Unsupported", why}
	}
	if why := needsHostNetwork(pod, p.o.Node); why != "" {
		return &Verdict{"Unsupported", why}
	}
	if why := p.o.Policy.Forbids(pod); why != "" {
		return &Verdict{PolicyForbidden, why}
	}
	if asksAppArmor(pod) && !p.o.Node.AppArmor {
		return &Verdict{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	// As with the kubelet, system-critical pods are admitted under pressure.
	if podspec.Priority(pod) >= podspec.SystemCritical {
		return nil
	}
	var under []string
	if p.o.Pressure.Memory && podspec.IsBestEffort(pod) && !tolerates(pod, corev1.TaintNodeMemoryPressure) {
		under = append(under, "MemoryPressure")
	}
	if p.o.Pressure.Disk && !tolerates(pod, corev1.TaintNodeDiskPressure) {
		under = append(under, "DiskPressure")
	}
	if p.o.Pressure.PID && !tolerates(pod, corev1.TaintNodePIDPressure) {
		under = append(under, "PIDPressure")
	}
	// Every pod warms the board, even without requests.
	if p.o.Pressure.Heat && !tolerates(pod, fleet.TaintTooHot) {
		under = append(under, "TemperatureOK=False")
	}
	if len(under) > 0 {
		return &Verdict{Evicted, "Pod was rejected: The node had condition: [" + strings.Join(under, ", ") + "]. "}
	}
	return nil
}

func tolerates(pod *corev1.Pod, key string) bool {
	taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
	return schedcorev1.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, &taint, false)
}

// fits checks a pod against the number, host ports and resources of the other pods.
func fits(pod *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) *Verdict {
	for _, o := range others {
		for _, a := range hostPorts(pod) {
			for _, b := range hostPorts(o) {
				if a.clashes(b) {
					return &Verdict{"NodePorts", fmt.Sprintf("Predicate NodePorts failed: host port %d/%s is held by pod %s/%s",
						a.port, a.protocol, o.Namespace, o.Name)}
				}
			}
		}
	}
	if max := allocatable[corev1.ResourcePods]; int64(len(others))+1 > max.Value() {
		return outOf(corev1.ResourcePods, *resource.NewQuantity(1, resource.DecimalSI),
			*resource.NewQuantity(int64(len(others)), resource.DecimalSI), max)
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	used := corev1.ResourceList{}
	for _, o := range others {
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	names := make([]corev1.ResourceName, 0, len(requests))
	for name := range requests {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		want, sum, has := requests[name], used[name], allocatable[name]
		if _, known := allocatable[name]; want.IsZero() || !known && isForeign(name) {
			continue
		}
		total := sum.DeepCopy()
		total.Add(want)
		if total.Cmp(has) > 0 {
			return outOf(name, want, sum, has)
		}
	}
	return nil
}

// isForeign reports whether an administrator has added the resource to the Node. Only the hub
// counts such a resource.
func isForeign(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), fleet.Group+"/")
}

func outOf(name corev1.ResourceName, want, used, has resource.Quantity) *Verdict {
	unit := func(q resource.Quantity) int64 {
		if name == corev1.ResourceCPU {
			return q.MilliValue()
		}
		return q.Value()
	}
	return &Verdict{"OutOf" + string(name),
		fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			name, unit(want), unit(used), unit(has))}
}

type hostPort struct {
	ip       string
	port     int32
	protocol corev1.Protocol
}

func (a hostPort) clashes(b hostPort) bool {
	return a.port == b.port && a.protocol == b.protocol && (a.ip == b.ip || a.ip == "" || b.ip == "")
}

func hostPorts(pod *corev1.Pod) []hostPort {
	var out []hostPort
	for _, w := range podspec.Containers(pod) {
		if w.Kind == podspec.KindInit && !podspec.IsSidecar(w) {
			continue
		}
		for _, port := range w.Spec.Ports {
			h := hostPort{port.HostIP, port.HostPort, port.Protocol}
			if pod.Spec.HostNetwork {
				h.port = port.ContainerPort
			}
			if h.protocol == "" {
				h.protocol = corev1.ProtocolTCP
			}
			if h.ip == "0.0.0.0" || h.ip == "::" {
				h.ip = ""
			}
			if h.port != 0 {
				out = append(out, h)
			}
		}
	}
	return out
}

// Evicted is the reason of a pod that the device has evicted for a shortage.
const Evicted = "Evicted"

// asksAppArmor reports whether a pod sets an AppArmor profile. As with the kubelet, the engine's
// default profile counts too.
func asksAppArmor(pod *corev1.Pod) bool {
	asks := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if s := pod.Spec.SecurityContext; s != nil && asks(s.AppArmorProfile) {
		return true
	}
	for _, w := range podspec.Containers(pod) {
		if s := w.Spec.SecurityContext; s != nil && asks(s.AppArmorProfile) {
			return true
		}
	}
	return false
}

// A Policy says what the device's owner lets the hub run; the hub cannot change it. See
// policy.Document for the zero value and the default.
type Policy struct {
	policy.Document
	// Mirror is the address at which the engine pulls the hub's images; empty: it cannot pull them.
	Mirror string
}

// DefaultPolicy is the policy of a device without a policy file.
func DefaultPolicy() Policy { return Policy{Document: policy.Default()} }

// ParsePolicy parses a policy file.
func ParsePolicy(body []byte) (Policy, error) {
	d, err := policy.Parse(body)
	return Policy{Document: d}, err
}

// Forbids returns why a pod may not run on this device, or "". forbidsEphemeral checks each
// ephemeral container separately.
func (p Policy) Forbids(pod *corev1.Pod) string {
	spec := pod.Spec
	spec.EphemeralContainers = nil
	return p.forbids(&spec, "spec")
}

// forbids checks only the fields below a path.
func (p Policy) forbids(spec *corev1.PodSpec, below string) string {
	var why []string
	allowable := false
	for _, r := range p.Judge(spec, field.NewPath("spec")) {
		s := r.Field.String() + ": " + r.Why
		if !strings.HasPrefix(s, below) {
			continue
		}
		if r.Allow != "" {
			allowable = true
			s += " (" + r.Allow + ")"
		}
		why = append(why, s)
	}
	if len(why) == 0 {
		return ""
	}
	if !allowable {
		return strings.Join(why, "; ")
	}
	return strings.Join(why, "; ") +
		"; this device's policy forbids it, and its owner can allow it in the file given with --policy"
}

func capability(name string) string { return policy.Capability(name) }

// ImageOf returns the image name for the engine. If the policy has rules for images, it is the full
// name, because an engine may resolve a short name or id to an image that the policy has not
// checked. An image of the hub, such as hub/app:1.2, gets the address of the device's mirror.
func (p Policy) ImageOf(image string) string {
	if path, ok := strings.CutPrefix(strings.TrimPrefix(image, "docker.io/"), "hub/"); ok && p.Mirror != "" {
		return p.Mirror + "/" + path
	}
	return p.fullName(image)
}

// Sources returns the names by which the engine may have or pull an image: first at the hub, if one
// of mirrors names its registry or repository.
func (p Policy) Sources(image string, mirrors []string) []string {
	if name, other := policy.HubName(image); other && p.Mirror != "" && p.AllowsMirror(image, mirrors) {
		return []string{p.Mirror + "/" + name, p.fullName(image)}
	}
	return []string{p.ImageOf(image)}
}

func (p Policy) fullName(image string) string {
	if p.JudgesImages() {
		if whole, err := policy.Canonical(image); err == nil {
			return whole
		}
	}
	return image
}
