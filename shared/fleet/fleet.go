// Package fleet has Flotilla's API kinds (flotilla.dev/v1alpha1), the names of its labels, taints
// and conditions, and the few rules that hub and devices must apply in the same way.
//
// It has values and pure functions, and never uses a clock, the network or the disk. Kubernetes'
// own types are in k8s.io/api. Hub and devices import it.
package fleet

// Names in Kubernetes objects.
const (
	Group   = "flotilla.dev"
	Version = "v1alpha1"

	LabelBoard       = "flotilla.dev/board"   // short name of the board, such as raspberrypi4
	LabelProfile     = "flotilla.dev/profile" // name of the matched BoardProfile
	LabelBoardPrefix = "board.flotilla.dev/"  // labels of a BoardProfile

	LabelHardwarePrefix = "hardware.flotilla.dev/" // the device measures them and updates the label
	// RuntimeHandlerAnnotation has the handler of a pod's RuntimeClass. The hub sets it at
	// admission.
	RuntimeHandlerAnnotation = "flotilla.dev/runtime-handler"

	// AnnotationPrepull of a Deployment or DaemonSet, or of its pod template: "true" pulls new images
	// on the devices of old pods before these are stopped.
	AnnotationPrepull = "flotilla.dev/prepull"

	// FeatureEphemeralContainers is declared by an agent that can add containers to running pods.
	FeatureEphemeralContainers = "EphemeralContainers"

	TaintFlapping = "flotilla.dev/flapping" // PreferNoSchedule
	TaintTooHot   = "flotilla.dev/too-hot"  // NoSchedule, while ConditionTemperatureOK is False

	ConditionFlapping         = "Flapping"
	ConditionIdentityConflict = "IdentityConflict"
	ConditionOutOfDisk        = "OutOfDisk"
	// ConditionPodCIDRAvailable is False if a node has no pod CIDR or shares its pod CIDR with
	// another node.
	ConditionPodCIDRAvailable = "PodCIDRAvailable"

	// LabelExcludeDisruption excludes a node from its site's disruption state.
	LabelExcludeDisruption = "node.kubernetes.io/exclude-disruption"
	TaintOutOfDisk         = "node.kubernetes.io/out-of-disk"
	TaintOutOfService      = "node.kubernetes.io/out-of-service"
)
