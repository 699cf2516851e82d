package hardware

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions that Kubernetes does not define. True means good, as for Ready.
const (
	ConditionPowerOK        corev1.NodeConditionType = "PowerOK"
	ConditionStorageHealthy corev1.NodeConditionType = "StorageHealthy"
	ConditionClockSynced    corev1.NodeConditionType = "ClockSynced"
	ConditionMemoryLimits   corev1.NodeConditionType = "MemoryLimits"
)

// Health returns the conditions of a report. It takes transition times from before, the result of
// the last call. An unknown fact has no condition. Health is a pure function.
func Health(r Report, before []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	var list []corev1.NodeCondition
	add := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
		c := corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
			LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		}
		i := slices.IndexFunc(before, func(b corev1.NodeCondition) bool { return b.Type == kind && b.Status == status })
		if i >= 0 {
			c.LastTransitionTime = before[i].LastTransitionTime
		}
		list = append(list, c)
	}
	if p := r.Power; p != nil {
		switch {
		case p.UnderVoltage:
			add(ConditionPowerOK, corev1.ConditionFalse, "UnderVoltage",
				"the supply voltage is too low now"+when(p.doubted != "", " ("+p.doubted+")")+
					": use a stronger power supply or a shorter cable")
		case p.Throttled || p.FrequencyCapped:
			add(ConditionPowerOK, corev1.ConditionFalse, "Throttled",
				"the firmware throttles the processor: check its cooling and its power supply")
		case p.UnderVoltageSeen:
			add(ConditionPowerOK, corev1.ConditionTrue, "UnderVoltageSeen", "the supply voltage has been too low since "+
				"the boot")
		default:
			add(ConditionPowerOK, corev1.ConditionTrue, "PowerSufficient", "the firmware reports sufficient power")
		}
	}
	worn := slices.IndexFunc(r.Disks, func(d Disk) bool { return d.EndOfLife == "urgent" || d.LifeUsed > 100 })
	switch {
	case len(r.Unwritable) > 0:
		add(ConditionStorageHealthy, corev1.ConditionFalse, "ReadOnlyFileSystem",
			strings.Join(r.Unwritable, ", ")+" cannot be written: the file system is read-only; check the kernel's log and "+
				"replace the card or disk")
	case worn >= 0:
		add(ConditionStorageHealthy, corev1.ConditionFalse, "WornOut",
			fmt.Sprintf("%s is at the end of its life: replace it", r.Disks[worn].Name))
	default:
		add(ConditionStorageHealthy, corev1.ConditionTrue, "StorageWritable", "the storage can be written")
	}
	if c := r.Clock; c != nil && c.Synced {
		add(ConditionClockSynced, corev1.ConditionTrue, "ClockSynced", "a time service adjusts the clock")
	} else if c != nil {
		add(ConditionClockSynced, corev1.ConditionFalse, "ClockNotSynced",
			"no time service adjusts the clock: check the network and systemd-timesyncd or chrony")
	}
	if r.MemoryLimits {
		add(ConditionMemoryLimits, corev1.ConditionTrue, "MemoryControllerEnabled",
			"the kernel limits the memory of containers")
	} else {
		add(ConditionMemoryLimits, corev1.ConditionFalse, "MemoryControllerDisabled",
			"the kernel does not limit the memory of containers: on a Raspberry Pi add cgroup_enable=memory to cmdline.txt "+
				"and reboot")
	}
	return list
}
