package fleet

import corev1 "k8s.io/api/core/v1"

// Conditions that devices report beside those of Kubernetes.
const (
	ConditionPowerOK        = "PowerOK"        // the supply holds its voltage
	ConditionStorageHealthy = "StorageHealthy" // no disk or card wears out
	ConditionClockSynced    = "ClockSynced"    // the clock follows a time server
	ConditionMemoryLimits   = "MemoryLimits"   // the kernel can limit the memory of containers
	ConditionSwapLimits     = "SwapLimits"     // containers are held to the swap that they may have
	// the processor is not too hot, where the board profile says what that is
	ConditionTemperatureOK      = "TemperatureOK"
	ConditionPeripheralsPresent = "PeripheralsPresent" // all peripherals of the board profile are there
	// its boot configuration is the one that its rollout wants; the hub makes it of what the device says
	ConditionFirmwareReady = "FirmwareReady"
	// what the device must know after a reboot without network is on its disk, whole
	ConditionStateStored = "StateStored"
)

// ConditionDevicesPresent is the condition of a pod that has devices: whether all of them are
// plugged in.
const ConditionDevicesPresent corev1.PodConditionType = "flotilla.dev/DevicesPresent"

// A Meaning is what it means that a node's condition is True.
type Meaning int

// What conditions mean.
const (
	Unjudged Meaning = iota // whoever reads it has to know
	Trouble                 // True is bad, as of Kubernetes' pressures
	Health                  // anything but True is bad
	Feature                 // some boards lack it for good
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

// MeaningOf returns what it means that a condition is True.
func MeaningOf(t corev1.NodeConditionType) Meaning { return meanings[t] }
