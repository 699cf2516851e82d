package agent

import (
	"cmp"
	"context"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// maxImages limits the images in a status to the biggest, like the kubelet's
// --node-status-max-images.
const maxImages = 50

// measureDue starts the measurements that are due: pressure, hardware, images.
func (a *Agent) measureDue(now time.Time) (next time.Time) {
	l := &a.loop
	root := l.info.Root
	if !l.reportingHardware && !now.Before(l.reportAt) {
		l.reportingHardware = true
		l.reportAt = now.Add(reportTime)
		a.async(time.Minute, func(ctx context.Context) func() {
			r, err := a.c.Hardware.Probe(ctx, root)
			return func() {
				l.reportingHardware, l.hardwareKnown = false, true
				if a.trouble("read the hardware", err); err != nil {
					l.reportAt = time.Now().Add(time.Minute)
					return
				}
				a.reportPlugged(l.report, &r)
				l.report = &r
				l.o.Node.Boot = r.Host.BootID
				l.o.Node.Memory, l.o.Node.Swap, l.o.Node.NUMA = r.Capacity.Memory, r.Capacity.Swap, r.NUMA
				was := l.o.Node.HostIP
				l.o.Node.HostIP, l.o.Node.OtherIP = "", ""
				for _, ad := range r.Addresses { // at most one of each family
					switch {
					case ad.Type != corev1.NodeInternalIP:
					case l.o.Node.HostIP == "":
						l.o.Node.HostIP = ad.Address
					default:
						l.o.Node.OtherIP = ad.Address
					}
				}
				if l.o.Node.HostIP != was {
					l.o.RetryWaiting()
				}
			}
		})
	}
	if !l.measuring && !now.Before(l.statsAt) {
		l.measuring = true
		l.statsAt = now.Add(measureTime)
		a.async(askTimeout, func(ctx context.Context) func() {
			s := a.c.Hardware.Measure(ctx, root)
			return func() {
				l.measuring, l.stats = false, s
				if l.report != nil && s.Addresses != nil && !slices.Equal(s.Addresses, l.report.Addresses) {
					l.reportAt = time.Time{} // the device has a new address
				}
				a.updatePressure(time.Now())
				a.updateVitals(time.Now())
			}
		})
	}
	if l.engine != nil && l.engineErr == nil && !l.listingImages && !now.Before(l.imagesAt) {
		l.listingImages = true
		l.imagesAt = now.Add(imagesTime)
		e := l.engine
		a.async(askTimeout, func(ctx context.Context) func() {
			images, err := e.Images(ctx)
			return func() {
				l.listingImages = false
				if err != nil {
					images = nil // an old list would be wrong, so the status has none
				}
				l.images = images
			}
		})
	}
	next = now.Add(maxIdle)
	// A measurement with a time in the past is in progress, and wakes the loop when it ends.
	for _, t := range []time.Time{l.reportAt, l.statsAt, l.imagesAt} {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}

// limits are the effective reservations and thresholds: flags override the board profile, which
// overrides the defaults.
func (a *Agent) limits() hardware.Limits {
	lim, err := hardware.With(a.loop.desired.Profile, a.c.Flags)
	a.trouble("part of the board profile is invalid", err)
	return lim
}

// updatePressure computes the pressure conditions and starts to reclaim resources.
func (a *Agent) updatePressure(now time.Time) {
	l := &a.loop
	l.conditions, l.pressure = hardware.Pressure(l.stats, a.limits(), l.pressure, now)
	is := func(t corev1.NodeConditionType, s corev1.ConditionStatus) bool {
		return slices.ContainsFunc(l.conditions, func(c corev1.NodeCondition) bool { return c.Type == t && c.Status == s })
	}
	l.o.Pressure = plan.Pressure{
		Memory: is(corev1.NodeMemoryPressure, corev1.ConditionTrue), Disk: is(corev1.NodeDiskPressure, corev1.ConditionTrue),
		PID: is(corev1.NodePIDPressure, corev1.ConditionTrue), Heat: is(fleet.ConditionTemperatureOK, corev1.ConditionFalse),
	}
	a.reclaim(now)
}

// nodeStatus computes the node's status.
func (a *Agent) nodeStatus(now time.Time) (st corev1.NodeStatus, ok bool) {
	l := &a.loop
	if l.report == nil {
		return st, false
	}
	soft := hardware.Software{Agent: KubeletVersion(), Arch: l.info.Arch}
	if l.info.Name != "" {
		soft.Engine = l.info.Name + "://" + l.info.Version
	}
	st = hardware.NodeStatus(*l.report, a.limits(), soft, l.o.Node.Offers...)
	st.DeclaredFeatures = []string{fleet.FeatureEphemeralContainers}
	st.Images, st.RuntimeHandlers = l.preparedImages(imagesOf(l.images)), runtimeHandlers(a.c.Runtimes, l.info)
	l.health = hardware.Health(*l.report, l.health, now)
	st.Conditions = slices.Concat(l.conditions, l.health)
	st.Conditions = append(st.Conditions, l.networkCondition())
	if c, ok := l.peripherals.condition(); ok {
		st.Conditions = append(st.Conditions, c)
	}
	if c, ok := plan.SwapCondition(l.o.Node, l.info); ok {
		st.Conditions = append(st.Conditions, c)
	}
	if a.c.Memory.Dir() != "" { // a simulated device has no volumes
		st.Conditions = append(st.Conditions, a.disk.Condition(), stored(a.c.Memory.Trouble()))
	}
	st.Conditions = append(st.Conditions, a.readiness(st, now)) // last, because it summarizes the others
	return st, true
}

// stored is the condition that says whether the device knows its workloads after a reboot without
// network.
func stored(trouble string) corev1.NodeCondition {
	if trouble == "" {
		return corev1.NodeCondition{Type: fleet.ConditionStateStored, Status: corev1.ConditionTrue, Reason: "StateStored",
			Message: "the desired state is stored on this device's disk"}
	}
	return corev1.NodeCondition{Type: fleet.ConditionStateStored, Status: corev1.ConditionFalse, Reason: "StateDamaged",
		Message: bound.Text(trouble, 1000)}
}

// readiness is the Ready condition. Its message has every reason against readiness.
func (a *Agent) readiness(st corev1.NodeStatus, now time.Time) corev1.NodeCondition {
	l := &a.loop
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status", LastHeartbeatTime: metav1.NewTime(now)}
	var reasons []string
	if l.engineErr != nil && now.Sub(l.downSince) >= graceDown {
		c.Reason = "ContainerEngineUnavailable"
		reasons = append(reasons, l.engineErr.Error())
	} else if l.engine == nil && l.engineErr == nil {
		reasons = append(reasons, "the container engine has not answered yet")
	}
	var short []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourcePods} {
		if q := st.Capacity[name]; q.IsZero() {
			short = append(short, string(name))
		}
	}
	if len(short) > 0 {
		reasons = append(reasons, "missing node capacity for resources: "+strings.Join(short, ", "))
	}
	if len(l.report.Unwritable) > 0 {
		reasons = append(reasons, "read-only file system: "+strings.Join(l.report.Unwritable, ", "))
	}
	if len(reasons) > 0 {
		c.Status, c.Message = corev1.ConditionFalse, strings.Join(reasons, "; ")
		if c.Reason == "KubeletReady" {
			c.Reason = "KubeletNotReady"
		}
	}
	return c
}

func imagesOf(images []engine.Image) []corev1.ContainerImage {
	sorted := slices.Clone(images)
	sort.Slice(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.ID, b.ID)) < 0
	})
	var out []corev1.ContainerImage
	for _, im := range sorted[:min(len(sorted), maxImages)] {
		names := im.Tags
		if len(names) == 0 {
			names = []string{im.ID}
		}
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), 5)], SizeBytes: im.Size})
	}
	return out
}

// publish makes changes visible and announces them to the hub. Heartbeats and small changes of
// readings do not count as changes.
func (a *Agent) publish(now time.Time) {
	l := &a.loop
	st, ok := a.nodeStatus(now)
	var pods = a.published.pods
	if l.everListed && l.desiredKnown {
		pods = plan.Statuses(l.desired, &l.o, cmp.Or(l.info.Name, "docker"), now)
		for i := range pods {
			uid := pods[i].UID
			if r := l.o.Pods[uid]; r == nil || r.Final == nil {
				plan.MergeConditions(l.podConditions[uid], pods[i].Status.Conditions, now)
			}
			l.podConditions[uid] = pods[i].Status.Conditions
		}
	} else if !l.everListed {
		pods = plan.Unobserved(l.desired, l.o.Node.HostIP)
	}

	volumes := a.disk.States(l.desired.Volumes)
	profile := ""
	if l.desired.Profile != nil {
		profile = l.desired.Profile.Name
	}
	a.published.Lock()
	statusChanged, podsChanged := false, false
	if ok {
		keepTimes(a.published.status.Conditions, st.Conditions, now)
		// The hub waits for the profile's name even if the status does not change.
		statusChanged = !slices.Equal(a.published.volumes, volumes) || !fleet.SameStatus(a.published.status, st) ||
			a.published.profile != profile
		if a.published.last != l.report {
			a.published.hardware = l.report.JSON()
			a.published.last, a.published.machineID = l.report, l.report.Host.MachineID
			statusChanged = statusChanged || fleet.HardwareChanged(a.published.announcedHardware, a.published.hardware)
		}
		if statusChanged {
			a.published.announcedHardware = a.published.hardware
		}
		a.published.status, a.published.volumes, a.published.profile = st, volumes, profile
	}
	if a.published.gen != l.desired.Generation || !equal(a.published.pods, pods) {
		a.published.pods, a.published.gen, podsChanged = pods, l.desired.Generation, true
	}
	hub := a.published.hub
	a.published.Unlock()
	if hub == nil {
		return
	}
	if statusChanged {
		hub.StatusChanged()
	}
	if podsChanged {
		hub.PodsChanged()
	}
}

// keepTimes keeps the transition times of conditions whose status is unchanged.
func keepTimes(old, next []corev1.NodeCondition, now time.Time) {
	for i := range next {
		next[i].LastHeartbeatTime = metav1.NewTime(now.Truncate(time.Second))
		t := metav1.NewTime(now.Truncate(time.Second))
		for _, o := range old {
			if o.Type == next[i].Type && o.Status == next[i].Status {
				t = o.LastTransitionTime
			}
		}
		next[i].LastTransitionTime = t
	}
}

// equal is Kubernetes' equality. It tries the faster reflect.DeepEqual first, because most cycles
// change nothing.
func equal(a, b any) bool { return reflect.DeepEqual(a, b) || apiequality.Semantic.DeepEqual(a, b) }

// onlineCPUs are the device's processors. The set is empty if the kernel does not list them.
func onlineCPUs(sysDir string) plan.CPUSet {
	text, _ := os.ReadFile(filepath.Join(sysDir, "devices/system/cpu/online"))
	return plan.ParseCPUs(string(text))
}

// vitalsTime is the interval of the vitals that the hub stores. They use existing measurements, and
// never cause an earlier status.
const vitalsTime = 150 * time.Second

// A vitalSample is the input of the next vitals.
type vitalSample struct {
	at    time.Time // zero: not measured yet
	stats hardware.Stats
}

// vitalsOf returns the vitals of the sample now. Processor values cover the time between the two
// samples. Unknown readings are absent.
func vitalsOf(before, now vitalSample, r *hardware.Report) *wire.Vitals {
	var v wire.Vitals
	figure := func(f float64) *float64 {
		f = math.Round(f*1000) / 1000
		return &f
	}
	used := func(a hardware.Amount) *float64 {
		if a.Problem != "" || a.Capacity <= 0 {
			return nil
		}
		return figure(min(max(1-float64(a.Available)/float64(a.Capacity), 0), 1))
	}
	v.Memory, v.Disk = used(now.stats.Memory), used(now.stats.ImageFs)
	if r == nil {
		return &v
	}
	if all := now.at.Sub(before.at) * time.Duration(r.Capacity.CPUs); !before.at.IsZero() && all > 0 &&
		before.stats.Busy > 0 && now.stats.Busy >= before.stats.Busy {
		v.CPU = figure(min(float64(now.stats.Busy-before.stats.Busy)/float64(all), 1))
	}
	for _, t := range r.Temperatures {
		if v.Temperature == nil || t.Celsius > *v.Temperature {
			v.Temperature = figure(t.Celsius)
		}
	}
	if i := slices.IndexFunc(r.Voltages, func(x hardware.Voltage) bool { return isSupply(x.Name) }); i >= 0 {
		v.Supply = figure(r.Voltages[i].Volts)
	}
	return &v
}

// isSupply reports whether the input of a hardware monitor with this name is the board's supply:
// the bus voltage of a power monitor such as an INA226, or a matching label.
func isSupply(name string) bool {
	name = strings.ToLower(name)
	if chip, ok := strings.CutPrefix(name, "ina2"); ok && len(chip) == 2 {
		return true
	}
	return slices.ContainsFunc(strings.Fields(name), func(word string) bool {
		switch word {
		case "vin", "vbus", "vsys", "supply", "ext5v", "ext5v_v", "+5v", "+12v", "+24v":
			return true
		}
		return false
	})
}

// updateVitals computes the vitals when they are due.
func (a *Agent) updateVitals(now time.Time) {
	l := &a.loop
	if l.report == nil || now.Sub(l.vital.at) < vitalsTime {
		return
	}
	next := vitalSample{now, l.stats}
	v := vitalsOf(l.vital, next, l.report)
	l.vital = next
	a.published.Lock()
	defer a.published.Unlock()
	a.published.vitals = v
}
