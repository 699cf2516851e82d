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

// maxImages is how many images a status names, the biggest first (as the kubelet's
// --node-status-max-images).
const maxImages = 50

// look measures what is due: pressure, hardware, images.
func (a *Agent) look(now time.Time) (next time.Time) {
	l := &a.loop
	root := l.info.Root
	if !l.probing && !now.Before(l.reportAt) {
		l.probing = true
		l.reportAt = now.Add(reportTime)
		a.async(time.Minute, func(ctx context.Context) func() {
			r, err := a.c.Hardware.Probe(ctx, root)
			return func() {
				l.probing, l.looked = false, true
				if a.trouble("the hardware could not be looked at", err); err != nil {
					l.reportAt = time.Now().Add(time.Minute)
					return
				}
				a.compare(l.report, &r)
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
					l.o.HasCome()
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
					l.reportAt = time.Time{} // the network has come, or has given the device another address
				}
				a.weigh(time.Now())
				a.takeVitals(time.Now())
			}
		})
	}
	if l.engine != nil && l.engineErr == nil && !l.imaging && !now.Before(l.imagesAt) {
		l.imaging = true
		l.imagesAt = now.Add(imagesTime)
		e := l.engine
		a.async(askTimeout, func(ctx context.Context) func() {
			images, err := e.Images(ctx)
			return func() {
				l.imaging = false
				if err != nil {
					images = nil // better none than some that may be gone
				}
				l.images = images
			}
		})
	}
	next = now.Add(maxIdle)
	for _, t := range []time.Time{l.reportAt, l.statsAt, l.imagesAt} { // what is past is under way, and its end is news
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}

// limits are the reservations and thresholds that hold: flags over board profile
// over defaults.
func (a *Agent) limits() hardware.Limits {
	lim, err := hardware.With(a.loop.desired.Profile, a.c.Flags)
	a.trouble("something of the board profile cannot be used", err)
	return lim
}

// weigh decides about pressure, and relieves it.
func (a *Agent) weigh(now time.Time) {
	l := &a.loop
	l.conditions, l.heldP = hardware.Pressure(l.stats, a.limits(), l.heldP, now)
	is := func(t corev1.NodeConditionType, s corev1.ConditionStatus) bool {
		return slices.ContainsFunc(l.conditions, func(c corev1.NodeCondition) bool { return c.Type == t && c.Status == s })
	}
	l.o.Pressure = plan.Pressure{
		Memory: is(corev1.NodeMemoryPressure, corev1.ConditionTrue), Disk: is(corev1.NodeDiskPressure, corev1.ConditionTrue),
		PID: is(corev1.NodePIDPressure, corev1.ConditionTrue), Heat: is(fleet.ConditionTemperatureOK, corev1.ConditionFalse),
	}
	a.relieve(now)
}

// nodeStatus computes what the status says of the node.
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
	st.Images, st.RuntimeHandlers = imagesOf(l.images), runtimeHandlers(a.c.Runtimes, l.info)
	l.health = hardware.Health(*l.report, l.health, now)
	st.Conditions = slices.Concat(l.conditions, l.health)
	st.Conditions = append(st.Conditions, l.networkCondition())
	if c, ok := l.peripherals.condition(); ok {
		st.Conditions = append(st.Conditions, c)
	}
	if c, ok := plan.SwapCondition(l.o.Node, l.info); ok {
		st.Conditions = append(st.Conditions, c)
	}
	if a.c.Memory.Dir() != "" { // else the device is a simulated one, which has no volumes
		st.Conditions = append(st.Conditions, a.disk.Condition(), stored(a.c.Memory.Trouble()))
	}
	st.Conditions = append(st.Conditions, a.readiness(st, now)) // last, for it sums up
	return st, true
}

// stored says whether the device will know after a reboot without network what it runs.
func stored(trouble string) corev1.NodeCondition {
	if trouble == "" {
		return corev1.NodeCondition{Type: fleet.ConditionStateStored, Status: corev1.ConditionTrue, Reason: "StateStored",
			Message: "what the hub wants here is on this device's disk"}
	}
	return corev1.NodeCondition{Type: fleet.ConditionStateStored, Status: corev1.ConditionFalse, Reason: "StateDamaged",
		Message: bound.Text(trouble, 1000)}
}

// readiness is the Ready condition with every reason against it.
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

// publish makes what has changed visible, and says so. Heartbeat times and readings
// that never stand still are no change.
func (a *Agent) publish(now time.Time) {
	l := &a.loop
	st, ok := a.nodeStatus(now)
	var pods = a.told.pods
	if l.seen && l.known {
		pods = plan.Statuses(l.desired, &l.o, cmp.Or(l.info.Name, "docker"), now)
		for i := range pods {
			uid := pods[i].UID
			if r := l.o.Pods[uid]; r == nil || r.Final == nil {
				plan.MergeConditions(l.podTimes[uid], pods[i].Status.Conditions, now)
			}
			l.podTimes[uid] = pods[i].Status.Conditions
		}
	} else if !l.seen {
		pods = plan.Unobserved(l.desired, l.o.Node.HostIP)
	}

	volumes := a.disk.States(l.desired.Volumes)
	profile := ""
	if l.desired.Profile != nil {
		profile = l.desired.Profile.Name
	}
	a.told.Lock()
	statusChanged, podsChanged := false, false
	if ok {
		keepTimes(a.told.status.Conditions, st.Conditions, now)
		// The hub waits for the profile's name, also where it changes nothing of the status.
		statusChanged = !slices.Equal(a.told.volumes, volumes) || !fleet.SameStatus(a.told.status, st) ||
			a.told.profile != profile
		if a.told.last != l.report {
			a.told.hardware = l.report.JSON()
			a.told.last, a.told.machineID = l.report, l.report.Host.MachineID
			statusChanged = statusChanged || fleet.HardwareChanged(a.told.news, a.told.hardware)
		}
		if statusChanged {
			a.told.news = a.told.hardware
		}
		a.told.status, a.told.volumes, a.told.profile = st, volumes, profile
	}
	if a.told.gen != l.desired.Generation || !alike(a.told.pods, pods) {
		a.told.pods, a.told.gen, podsChanged = pods, l.desired.Generation, true
	}
	hub := a.told.hub
	a.told.Unlock()
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

// keepTimes keeps the transition times of conditions whose status has not changed.
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

// alike is Kubernetes' equality. On most turns of the loop nothing differs at all, and the library
// finds that out faster.
func alike(a, b any) bool { return reflect.DeepEqual(a, b) || apiequality.Semantic.DeepEqual(a, b) }

// onlineCPUs are the processors of the device; empty where the kernel does not tell.
func onlineCPUs(sysDir string) plan.CPUSet {
	text, _ := os.ReadFile(filepath.Join(sysDir, "devices/system/cpu/online"))
	return plan.CPUsIn(string(text))
}

// vitalsTime is how often the figures that the hub keeps are made: a status without a
// change comes no sooner. Nothing is measured for them that is not measured anyway.
const vitalsTime = 150 * time.Second

// A vital is what the next figures are made from.
type vital struct {
	at    time.Time // zero: nothing has been measured
	stats hardware.Stats
}

// vitalsOf are the figures at a moment; the processors' are since the one before. What
// the board does not tell is absent.
func vitalsOf(before, now vital, r *hardware.Report) *wire.Vitals {
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
	if i := slices.IndexFunc(r.Voltages, func(x hardware.Voltage) bool { return supplies(x.Name) }); i >= 0 {
		v.Supply = figure(r.Voltages[i].Volts)
	}
	return &v
}

// supplies tells by its name whether an input of a hardware monitor is the board's
// supply: the bus voltage of a power monitor such as an INA226, or what is labelled so.
// Most inputs are other things.
func supplies(name string) bool {
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

// takeVitals makes the figures when it is time to.
func (a *Agent) takeVitals(now time.Time) {
	l := &a.loop
	if l.report == nil || now.Sub(l.vital.at) < vitalsTime {
		return
	}
	next := vital{now, l.stats}
	v := vitalsOf(l.vital, next, l.report)
	l.vital = next
	a.told.Lock()
	defer a.told.Unlock()
	a.told.vitals = v
}
