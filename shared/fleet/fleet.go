// Package fleet is the vocabulary of Flotilla beside Kubernetes' own: its API
// kinds (flotilla.dev/v1alpha1), its label, taint and condition names, and the
// few rules that the hub and its devices must read alike.
//
// It holds values and pure functions. It never reads a clock, the network or the
// disk. Everything that Kubernetes has a word for is in k8s.io/api.
package fleet

// Names under which Flotilla writes into Kubernetes objects.
const (
	Group   = "flotilla.dev"
	Version = "v1alpha1"

	LabelBoard       = "flotilla.dev/board"   // short name of the board, such as raspberrypi4
	LabelProfile     = "flotilla.dev/profile" // name of the matched BoardProfile
	LabelBoardPrefix = "board.flotilla.dev/"  // labels of a BoardProfile

	LabelHardwarePrefix = "hardware.flotilla.dev/" // what a device has measured of itself; they follow it
	// RuntimeHandlerAnnotation is the handler of a pod's RuntimeClass, which the hub has found when it
	// took the pod.
	RuntimeHandlerAnnotation = "flotilla.dev/runtime-handler"

	// FeatureEphemeralContainers is what an agent declares that adds containers to pods that run.
	FeatureEphemeralContainers = "EphemeralContainers"

	TaintFlapping = "flotilla.dev/flapping" // PreferNoSchedule
	TaintTooHot   = "flotilla.dev/too-hot"  // NoSchedule, while ConditionTemperatureOK is False

	ConditionFlapping         = "Flapping"
	ConditionIdentityConflict = "IdentityConflict"
	ConditionOutOfDisk        = "OutOfDisk"
	// ConditionPodCIDRAvailable is False where a node has no block of addresses for its
	// pods, or one that is not its own alone.
	ConditionPodCIDRAvailable = "PodCIDRAvailable"

	// LabelExcludeDisruption keeps a node out of the count of its site.
	LabelExcludeDisruption = "node.kubernetes.io/exclude-disruption"
	TaintOutOfDisk         = "node.kubernetes.io/out-of-disk"
	TaintOutOfService      = "node.kubernetes.io/out-of-service"
)
