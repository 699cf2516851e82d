package podspec

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// A device validates its pods again, although the hub has validated them: an attacker who controls
// the hub must not go beyond what the device's owner allows. Names that become part of paths,
// container names and labels are checked on arrival, and an invalid pod is rejected without
// affecting others.

// Limits of a pod. Kubernetes has no such limits, but a device cannot run more, and some checks
// take quadratic time.
const (
	maxContainers = 128
	maxVolumes    = 512
	maxPerVolume  = 4096     // files of a volume
	maxVolumeSize = 16 << 20 // bytes of a volume's files
)

// hasIdentity reports whether a pod has a valid uid, namespace and name, so that its status can be
// reported.
func hasIdentity(pod *corev1.Pod) bool {
	for _, s := range []string{string(pod.UID), pod.Namespace, pod.Name} {
		if s == "" || len(s) > validation.DNS1123SubdomainMaxLength || bound.Hidden(s) {
			return false
		}
	}
	return true
}

// DropInvalid returns a desired state without duplicate pods and without pods that lack a valid
// identity, and the reason for each dropped pod.
func DropInvalid(d wire.Desired) (valid wire.Desired, reasons []string) {
	valid = d
	valid.Pods = make([]corev1.Pod, 0, len(d.Pods))
	seen := make(map[types.UID]bool, len(d.Pods))
	for i := range d.Pods {
		pod := &d.Pods[i]
		subject := fmt.Sprintf("pod %.64q in namespace %.64q with uid %.64q", pod.Name, pod.Namespace, pod.UID)
		switch {
		case len(valid.Pods) == wire.MaxPods:
			return valid, append(reasons, fmt.Sprintf("the limit of pods is exceeded: the first %d are run", wire.MaxPods))
		case !hasIdentity(pod):
			reasons = append(reasons, subject+": these are not valid names")
		case seen[pod.UID]:
			reasons = append(reasons, subject+": another pod has that uid")
		default:
			seen[pod.UID] = true
			valid.Pods = append(valid.Pods, *pod)
		}
	}
	if len(d.Pods) == len(valid.Pods) {
		valid.Pods = d.Pods
	}
	return valid, reasons
}

func ptr(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Malformed returns the first error in a pod, or "".
func Malformed(pod *corev1.Pod) string {
	if why := pod.Annotations[wire.Unreadable]; why != "" {
		return "the device cannot read the pod: " + why
	}
	if err := bound.Object(pod); err != nil {
		return err.Error()
	}
	if !IsUID(pod.UID) {
		return fmt.Sprintf("metadata.uid: %q cannot be part of a path: it must be letters, digits, '-', '_' and '.'", pod.UID)
	}
	if wrong := validation.IsDNS1123Label(pod.Namespace); len(wrong) > 0 {
		return fmt.Sprintf("metadata.namespace: %q: %s", pod.Namespace, wrong[0])
	}
	if wrong := validation.IsDNS1123Subdomain(pod.Name); len(wrong) > 0 {
		return fmt.Sprintf("metadata.name: %q: %s", pod.Name, wrong[0])
	}
	if c := pod.Spec.DNSConfig; c != nil {
		for _, o := range c.Options {
			if option := o.Name + ptr(o.Value); o.Name == "" || strings.ContainsFunc(option, unicode.IsSpace) ||
				bound.Hidden(option) {
				return fmt.Sprintf("spec.dnsConfig.options: %q is not an option of resolv.conf", option)
			}
		}
	}
	if why := malformedContainers(pod); why != "" {
		return why
	}
	return malformedVolumes(pod)
}

func malformedContainers(pod *corev1.Pod) string {
	all := slices.Concat(Containers(pod), Ephemerals(pod))
	if len(pod.Spec.Containers) == 0 {
		return "spec.containers: at least one is required"
	}
	if len(all) > maxContainers {
		return fmt.Sprintf("spec.containers: %d exceed the device's limit of %d", len(all), maxContainers)
	}
	names := map[string]bool{}
	for _, w := range all {
		c := w.Spec
		if wrong := validation.IsDNS1123Label(c.Name); len(wrong) > 0 {
			return fmt.Sprintf("container %q: name: %s", c.Name, wrong[0])
		}
		if names[c.Name] {
			return fmt.Sprintf("container %s: the name is used twice", c.Name)
		}
		names[c.Name] = true
		if n := len(c.VolumeMounts); n > maxVolumes {
			return fmt.Sprintf("container %s: volumeMounts: %d exceed the device's limit of %d", c.Name, n, maxVolumes)
		}
		for _, m := range c.VolumeMounts {
			if m.MountPath == "" {
				return fmt.Sprintf("container %s: volume %q: mountPath is missing", c.Name, m.Name)
			}
			if why := policy.MountPath(m.MountPath); why != "" {
				return fmt.Sprintf("container %s: volume %q: mountPath %q %s", c.Name, m.Name, m.MountPath, why)
			}
		}
		if why := policy.MountPath(MessagePath(c)); why != "" {
			return fmt.Sprintf("container %s: terminationMessagePath %q %s", c.Name, c.TerminationMessagePath, why)
		}
		if why := policy.WorkingDir(c.WorkingDir); why != "" {
			return fmt.Sprintf("container %s: workingDir %q %s", c.Name, c.WorkingDir, why)
		}
		for _, e := range c.Env {
			if e.Name == "" || strings.Contains(e.Name, "=") {
				return fmt.Sprintf("container %s: env: %q is not a variable name", c.Name, e.Name)
			}
		}
	}
	return ""
}

func malformedVolumes(pod *corev1.Pod) string {
	if n := len(pod.Spec.Volumes); n > maxVolumes {
		return fmt.Sprintf("spec.volumes: %d exceed the device's limit of %d", n, maxVolumes)
	}
	names := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if wrong := validation.IsDNS1123Label(v.Name); len(wrong) > 0 {
			return fmt.Sprintf("volume %q: name: %s", v.Name, wrong[0])
		}
		if names[v.Name] {
			return fmt.Sprintf("volume %s: the name is used twice", v.Name)
		}
		names[v.Name] = true
		if v.Image != nil && v.Image.Reference == "" {
			return fmt.Sprintf("volume %s: image.reference is missing", v.Name)
		}
		if n := filesNamed(v); n > maxPerVolume {
			return fmt.Sprintf("volume %s: its %d files exceed the device's limit of %d", v.Name, n, maxPerVolume)
		}
	}
	return ""
}

func filesNamed(v *corev1.Volume) (n int) {
	add := func(c *corev1.ConfigMapProjection, s *corev1.SecretProjection, d *corev1.DownwardAPIProjection) {
		if c != nil {
			n += len(c.Items)
		}
		if s != nil {
			n += len(s.Items)
		}
		if d != nil {
			n += len(d.Items)
		}
	}
	switch {
	case v.ConfigMap != nil:
		n = len(v.ConfigMap.Items)
	case v.Secret != nil:
		n = len(v.Secret.Items)
	case v.DownwardAPI != nil:
		n = len(v.DownwardAPI.Items)
	case v.Projected != nil:
		n = len(v.Projected.Sources)
		for _, p := range v.Projected.Sources {
			add(p.ConfigMap, p.Secret, p.DownwardAPI)
		}
	}
	return n
}

// IsUID reports whether a pod's uid can be part of a path and a label.
func IsUID(uid types.UID) bool {
	if uid == "" || len(uid) > 128 || uid == "." || uid == ".." {
		return false
	}
	for _, c := range string(uid) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// Unsupported names the first field of a pod that this agent does not support. Such a pod is
// rejected, because ignoring the field would run a different pod.
func Unsupported(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		s := v.VolumeSource
		if s.EmptyDir == nil && s.HostPath == nil && s.PersistentVolumeClaim == nil && s.Image == nil &&
			s.ConfigMap == nil && s.Secret == nil && s.DownwardAPI == nil && s.Projected == nil {
			return fmt.Sprintf("volume %q: its type is not supported on devices: use emptyDir, hostPath, "+
				"persistentVolumeClaim, image, configMap, secret, downwardAPI or projected", v.Name)
		}
		if s.Projected != nil {
			for _, src := range s.Projected.Sources {
				if src.ConfigMap == nil && src.Secret == nil && src.DownwardAPI == nil {
					return fmt.Sprintf("volume %q: a projected source is not supported on devices: use configMap, secret or "+
						"downwardAPI (and automountServiceAccountToken: false)", v.Name)
				}
			}
		}
	}
	if pod.Spec.HostIPC {
		return "hostIPC is not supported on devices: remove it"
	}
	if SharesProcesses(pod) && (pod.Spec.HostNetwork || pod.Spec.HostPID) {
		return "shareProcessNamespace is not supported on devices together with hostNetwork or hostPID: remove one of them"
	}
	for _, w := range Containers(pod) {
		if len(w.Spec.VolumeDevices) > 0 {
			return fmt.Sprintf("container %s: volumeDevices are not supported on devices", w.Spec.Name)
		}
		for _, kind := range []string{PostStart, PreStop} {
			switch h := Hook(w.Spec, kind); {
			case h == nil:
			case w.Kind == KindInit && !IsSidecar(w):
				return fmt.Sprintf("container %s: a %s hook of an init container needs restartPolicy: Always", w.Spec.Name,
					kind)
			case h.Exec == nil && h.HTTPGet == nil && h.Sleep == nil:
				return fmt.Sprintf("container %s: the type of the %s hook is not supported on devices: use exec, httpGet or sleep",
					w.Spec.Name, kind)
			}
		}
		if l := w.Spec.Lifecycle; l != nil && l.StopSignal != nil {
			return fmt.Sprintf("container %s: lifecycle.stopSignal is not supported on devices: "+
				"write STOPSIGNAL into the image", w.Spec.Name)
		}
		for k := Startup; k < ProbeKinds; k++ {
			if pr := ProbeOf(w.Spec, k); pr != nil && pr.Exec == nil && pr.HTTPGet == nil && pr.TCPSocket == nil &&
				pr.GRPC == nil {
				return fmt.Sprintf(
					"container %s: the type of the %s probe is not supported on devices: use exec, httpGet, tcpSocket or grpc",
					w.Spec.Name, k.Lower())
			}
		}
	}
	return ""
}
