package fleet

import corev1 "k8s.io/api/core/v1"

// Conditions of devices in addition to those of Kubernetes.
const (
	ConditionPowerOK        = "PowerOK"        // the supply voltage is sufficient
	ConditionStorageHealthy = "StorageHealthy" // no disk or card is worn out
	ConditionClockSynced    = "ClockSynced"    // a time service adjusts the clock
	ConditionMemoryLimits   = "MemoryLimits"   // the kernel can limit the memory of containers
	ConditionSwapLimits     = "SwapLimits"     // the swap of containers is limited as configured
	// the processor's temperature is below the board profile's threshold
	ConditionTemperatureOK      = "TemperatureOK"
	ConditionPeripheralsPresent = "PeripheralsPresent" // all peripherals of the board profile are connected
	// the board has the rollout's boot configuration; the hub sets it from the device's status
	ConditionFirmwareReady = "FirmwareReady"
	// all data for a reboot without network is on the disk
	ConditionStateStored = "StateStored"
)

// ConditionDevicesPresent is a pod's condition: all its devices are plugged in.
const ConditionDevicesPresent corev1.PodConditionType = "flotilla.dev/DevicesPresent"

// A Meaning is what status True of a node condition means.
type Meaning int

// Values of Meaning.
const (
	Unjudged Meaning = iota // unknown condition
	Trouble                 // True is bad, as in Kubernetes' pressure conditions
	Health                  // False and Unknown are bad
	Feature                 // False is not bad: some boards lack the feature
)

var meanings = map[corev1.NodeConditionType]Meaning{
	corev1.NodeMemoryPressure: Trouble, corev1.NodeDiskPressure: Trouble, corev1.NodePIDPressure: Trouble,
	corev1.NodeNetworkUnavailable: Trouble,
	ConditionOutOfDisk:            Trouble, ConditionFlapping: Trouble, ConditionIdentityConflict: Trouble,
	corev1.NodeReady: Health, ConditionPowerOK: Health, ConditionStorageHealthy: Health, ConditionStateStored: Health,
	ConditionPodCIDRAvailable: Health,
	ConditionTemperatureOK:    Health, ConditionPeripheralsPresent: Health,
	ConditionClockSynced: Feature, ConditionMemoryLimits: Feature, ConditionFirmwareReady: Feature,
	ConditionSwapLimits: Feature,
}

// MeaningOf returns the meaning of a condition type.
func MeaningOf(t corev1.NodeConditionType) Meaning { return meanings[t] }
