package admission

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// supported lists, by type, the fields that the hub and its devices implement. All other fields of
// these types are refused. "*" stands for all fields of a type. A field with ~ is accepted with a
// warning: it has no effect, but everything else in the object has. All fields of an unlisted type
// of k8s.io/api are refused. Types of other modules (quantities, selectors, times) are values.
var supported = map[string]string{
	"PodSpec": "volumes initContainers containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds " +
		"dnsPolicy " +
		"nodeSelector nodeName hostNetwork hostPID shareProcessNamespace securityContext imagePullSecrets hostname " +
		"affinity schedulerName tolerations runtimeClassName overhead " +
		"hostAliases priorityClassName priority preemptionPolicy dnsConfig enableServiceLinks topologySpreadConstraints os " +
		"readinessGates schedulingGates ephemeralContainers " +
		"~serviceAccountName serviceAccount ~automountServiceAccountToken ~subdomain",
	"Container": "name image command args workingDir ports envFrom env resources restartPolicy restartPolicyRules " +
		"volumeMounts livenessProbe " +
		"readinessProbe startupProbe lifecycle terminationMessagePath terminationMessagePolicy imagePullPolicy " +
		"securityContext stdin stdinOnce tty resizePolicy",
	"ContainerResizePolicy": "*",
	"EphemeralContainer": "name image command args workingDir envFrom env volumeMounts terminationMessagePath " +
		"terminationMessagePolicy imagePullPolicy " +
		"securityContext stdin stdinOnce tty targetContainerName",
	"ContainerPort":                   "*",
	"ContainerRestartRule":            "*",
	"ContainerRestartRuleOnExitCodes": "*",
	"ResourceRequirements":            "limits requests",

	"EnvVar":                "*",
	"EnvVarSource":          "fieldRef resourceFieldRef configMapKeyRef secretKeyRef",
	"ObjectFieldSelector":   "*",
	"ResourceFieldSelector": "*",
	"ConfigMapKeySelector":  "*",
	"SecretKeySelector":     "*",
	"EnvFromSource":         "*",
	"ConfigMapEnvSource":    "*",
	"SecretEnvSource":       "*",
	"LocalObjectReference":  "*",

	"Probe": "exec httpGet tcpSocket grpc initialDelaySeconds timeoutSeconds periodSeconds successThreshold " +
		"failureThreshold " +
		"terminationGracePeriodSeconds",
	"Lifecycle":        "postStart preStop",
	"LifecycleHandler": "exec httpGet sleep",
	"SleepAction":      "*",
	"ExecAction":       "*",
	"HTTPGetAction":    "path port host scheme httpHeaders",
	"HTTPHeader":       "*",
	"TCPSocketAction":  "*",
	"GRPCAction":       "*",

	"Volume": "name emptyDir hostPath persistentVolumeClaim image configMap secret " +
		"downwardAPI projected",
	"VolumeMount":                       "name readOnly mountPath subPath subPathExpr",
	"EmptyDirVolumeSource":              "*",
	"PersistentVolumeClaimVolumeSource": "*",
	"HostPathVolumeSource":              "*",
	"ImageVolumeSource":                 "*",
	"ConfigMapVolumeSource":             "name items defaultMode optional",
	"SecretVolumeSource":                "secretName items defaultMode optional",
	"KeyToPath":                         "key path mode",
	"DownwardAPIVolumeSource":           "items defaultMode",
	"DownwardAPIVolumeFile":             "path fieldRef resourceFieldRef mode",
	"ProjectedVolumeSource":             "sources defaultMode",
	"VolumeProjection":                  "configMap secret downwardAPI",
	"ConfigMapProjection":               "*",
	"SecretProjection":                  "*",
	"DownwardAPIProjection":             "*",

	"PodSecurityContext": "runAsUser runAsGroup runAsNonRoot supplementalGroups fsGroup fsGroupChangePolicy sysctls " +
		"seccompProfile appArmorProfile " +
		"~seLinuxOptions ~seLinuxChangePolicy",
	"SecurityContext": "capabilities privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem " +
		"allowPrivilegeEscalation procMount seccompProfile appArmorProfile ~seLinuxOptions",
	"Capabilities":    "*",
	"Sysctl":          "*",
	"SeccompProfile":  "*",
	"AppArmorProfile": "*",

	"PodDNSConfig":       "*",
	"PodDNSConfigOption": "*",
	"HostAlias":          "*",
	"PodOS":              "*",
	"PodReadinessGate":   "*",
	"PodSchedulingGate":  "*",

	"Toleration":               "*",
	"TopologySpreadConstraint": "*",
	"Affinity":                 "*",
	"NodeAffinity":             "*",
	"NodeSelector":             "*",
	"NodeSelectorTerm":         "*",
	"NodeSelectorRequirement":  "*",
	"PreferredSchedulingTerm":  "*",
	"PodAffinity":              "*",
	"PodAntiAffinity":          "*",
	"WeightedPodAffinityTerm":  "*",
	"PodAffinityTerm":          "*",

	"PersistentVolumeClaimSpec":  "accessModes resources storageClassName volumeMode volumeName",
	"VolumeResourceRequirements": "requests ~limits",
	"PersistentVolumeSpec": "accessModes capacity claimRef local nodeAffinity persistentVolumeReclaimPolicy " +
		"storageClassName volumeMode",
	"ObjectReference":    "*",
	"LocalVolumeSource":  "path",
	"VolumeNodeAffinity": "*",

	"NodeSpec":  "podCIDR podCIDRs providerID unschedulable taints",
	"Taint":     "*",
	"LeaseSpec": "holderIdentity leaseDurationSeconds acquireTime renewTime leaseTransitions ~strategy ~preferredHolder",
}

// why is the reason why a field is not supported, and its replacement.
var why = map[string]string{
	"PodSpec.hostIPC":   "containers on devices never share the device's IPC",
	"PodSpec.subdomain": "it is only a name: there is no cluster DNS",
	"PodSpec.hostUsers": "devices run containers without user namespaces",
	"PodSpec.resources": "devices limit containers, not pods: write resources at " +
		"each container",
	"PodSpec.serviceAccountName": "there is no service account but default, and no token is " +
		"mounted",
	"PodSpec.automountServiceAccountToken": "service accounts have no tokens, and none is mounted",
	"Lifecycle.stopSignal":                 "write STOPSIGNAL into the image",
	"LifecycleHandler.tcpSocket":           "Kubernetes ignores it: use exec, httpGet or sleep",
	"Container.volumeDevices":              "devices have no block volumes: use a hostPath",
	"ResourceFieldSelector.divisor": "use 1m or 1 for cpu, and 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, " +
		"1Mi, 1Gi, 1Ti, 1Pi or 1Ei for memory and ephemeral-storage",
	"EnvVarSource.fileKeyRef":           "use configMapKeyRef or secretKeyRef",
	"VolumeResourceRequirements.limits": "a volume may use what its device has free",
	"PersistentVolumeClaimSpec.selector": "a volume is created for each claim: omit the selector, " +
		"or name a volume in volumeName",
	"PersistentVolumeClaimSpec.dataSource":                whyEmpty,
	"PersistentVolumeClaimSpec.dataSourceRef":             whyEmpty,
	"PersistentVolumeClaimSpec.volumeAttributesClassName": "volumes have no attributes",
	"VolumeProjection.serviceAccountToken": "service accounts have no tokens: remove it and set " +
		"automountServiceAccountToken: false",
	"PodSecurityContext.seLinuxOptions":      whySELinux,
	"PodSecurityContext.seLinuxChangePolicy": whySELinux,
	"SecurityContext.seLinuxOptions":         whySELinux,
	"PodSecurityContext.windowsOptions":      "devices run Linux",
	"SecurityContext.windowsOptions":         "devices run Linux",
	"NodeSpec.configSource":                  "devices are configured by BoardProfile",
	"NodeSpec.podPreemptionPolicy":           "write preemptionPolicy of the pod",
	"LeaseSpec.strategy":                     "clients elect among themselves",
	"LeaseSpec.preferredHolder":              "clients elect among themselves",
}

const whySELinux = "devices set no SELinux labels, like Kubernetes on a node without SELinux"

const whyEmpty = "a new volume is empty: fill it from an init container"

const whyVolume = "use emptyDir, hostPath, persistentVolumeClaim, image, configMap, secret, downwardAPI or projected"

// equalsDefault reports whether an explicit value has the same effect as an omitted field.
func equalsDefault(name string, v reflect.Value) bool {
	if name == "PodSpec.serviceAccountName" && v.String() == state.DefaultAccount { // the value that every pod has
		return true
	}
	switch x := v.Interface().(type) {
	case *bool:
		return x == nil || *x == (name == "PodSpec.hostUsers") // true is the default of hostUsers
	case *corev1.MountPropagationMode:
		return x == nil || *x == corev1.MountPropagationNone
	case *corev1.RecursiveReadOnlyMode:
		return x == nil || *x == corev1.RecursiveReadOnlyDisabled
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// A fieldWalk visits every non-zero field of an object.
type fieldWalk struct {
	refused func(p *field.Path, name string)
	ignored func(p *field.Path, name string)
}

const k8sAPI = "k8s.io/api/"

func (w fieldWalk) value(v reflect.Value, p *field.Path) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			w.value(v.Elem(), p)
		}
	case reflect.Slice:
		if t := v.Type().Elem(); t.Kind() == reflect.Struct {
			for i := range v.Len() {
				w.value(v.Index(i), p.Index(i))
			}
		}
	case reflect.Struct:
		if strings.HasPrefix(v.Type().PkgPath(), k8sAPI) {
			w.fields(v, v.Type().Name(), p)
		}
	}
}

// fields visits the fields of a struct, including those of embedded structs.
func (w fieldWalk) fields(v reflect.Value, owner string, p *field.Path) {
	list := " " + supported[owner] + " "
	for i := range v.NumField() {
		f := v.Type().Field(i)
		json, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && json == "" {
			w.fields(v.Field(i), owner, p)
			continue
		}
		name := owner + "." + json
		at := p.Child(json)
		switch {
		case name == "ResourceFieldSelector.divisor" && !validDivisor(v.Interface().(corev1.ResourceFieldSelector)):
			w.refused(at, name)
		case list == " * " || strings.Contains(list, " "+json+" "):
			w.value(v.Field(i), at)
		case equalsDefault(name, v.Field(i)):
		case strings.Contains(list, " ~"+json+" "):
			w.ignored(at, name)
		default:
			w.refused(at, name)
		}
	}
}

// validDivisor reports whether devices support a divisor: 1m or 1 for CPU; 1 or a unit from
// 1k to 1Ei for bytes.
func validDivisor(f corev1.ResourceFieldSelector) bool {
	known := "1 1k 1M 1G 1T 1P 1E 1Ki 1Mi 1Gi 1Ti 1Pi 1Ei"
	if strings.HasSuffix(f.Resource, ".cpu") {
		known = "1m 1"
	}
	return f.Divisor.Sign() <= 0 || slices.Contains(strings.Fields(known), f.Divisor.String())
}

// unsupported refuses fields that neither the hub nor devices implement. The parameter what is a
// pod spec or claim spec at p, or a whole object.
func (l *list) unsupported(what any, p *field.Path) {
	w := fieldWalk{
		refused: func(p *field.Path, name string) {
			l.forbidden(p, "is not supported: "+reason(name))
		},
		ignored: func(*field.Path, string) {},
	}
	w.object(what, p)
}

// object visits a spec, or the spec of an object that has no pod spec.
func (w fieldWalk) object(what any, p *field.Path) {
	switch o := what.(type) {
	case *corev1.PodSpec, *corev1.PersistentVolumeClaimSpec:
		w.value(reflect.ValueOf(o), p)
	case state.Object:
		if spec := reflect.ValueOf(o).Elem().FieldByName("Spec"); spec.IsValid() {
			if _, listed := supported[spec.Type().Name()]; listed {
				w.value(spec, field.NewPath("spec"))
			}
		}
	}
}

// Warnings names the fields of an object that have no effect on this hub. It does not repeat
// errors.
func Warnings(o state.Object) (warnings []string) {
	warn := func(p *field.Path, reason string) {
		warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", p, reason))
	}
	w := fieldWalk{refused: func(*field.Path, string) {}, ignored: func(p *field.Path, name string) { warn(p, why[name]) }}
	spec, p := podSpecOf(o)
	if spec == nil {
		w.object(o, nil)
		return warnings
	}
	w.object(spec, p)
	for i, secret := range spec.ImagePullSecrets {
		if secret.Name == "" { // charts write an empty name for an unset value
			warn(p.Child("imagePullSecrets").Index(i), "the secret's name is empty")
		}
	}
	return warnings
}

// Support says how a field of a type of k8s.io/api is handled.
type Support int

// How a field is handled.
const (
	Honoured Support = iota // implemented as in Kubernetes
	Ignored                 // accepted with a warning that it has no effect
	Refused
)

// SupportOf returns how a field, named as in JSON, is handled, and why. The API's OpenAPI documents
// show the result. Fields of types that admission does not visit are honoured.
func SupportOf(typ, field string) (Support, string) {
	list, listed := supported[typ]
	switch list = " " + list + " "; {
	case !listed, list == " * ", strings.Contains(list, " "+field+" "):
		return Honoured, ""
	case strings.Contains(list, " ~"+field+" "):
		return Ignored, why[typ+"."+field]
	}
	return Refused, reason(typ + "." + field)
}

func reason(name string) string {
	switch r := why[name]; {
	case r != "":
		return r
	case strings.HasPrefix(name, "EphemeralContainer."):
		return "cannot be set for an Ephemeral Container"
	case strings.HasPrefix(name, "Volume."):
		return whyVolume
	}
	return "devices do not implement it"
}
