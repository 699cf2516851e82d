package podspec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/wire"
)

// Sources are the objects and facts from which a pod's environment and files are computed.
type Sources struct {
	Pod         *corev1.Pod
	ConfigMaps  []corev1.ConfigMap
	Secrets     []corev1.Secret
	Volumes     []wire.Volume
	NodeName    string
	HostIPs     []string            // the primary address first
	Allocatable corev1.ResourceList // the device's allocatable amounts, for unset limits
	PodIP       string
	Devices     []hardware.Device
	ImageUser   string            // user of the image; set if plan.NeedsImageUser
	Images      map[string]string // directories of unpacked images by volume name
	Booting     bool              // the device has just booted, so its network may still start
}

// configMap returns a config map of the pod's namespace, or nil. An unreadable config map is an
// error, even for optional references.
func (s Sources) configMap(name string) (*corev1.ConfigMap, error) {
	i := slices.IndexFunc(s.ConfigMaps, func(c corev1.ConfigMap) bool {
		return c.Name == name &&
			c.Namespace == s.Pod.Namespace
	})
	if i < 0 {
		return nil, nil
	}
	m := &s.ConfigMaps[i]
	if why, bad := m.Annotations[wire.Unreadable]; bad {
		return nil, fmt.Errorf("the device cannot read configmap %q: %s", name, why)
	}
	return m, nil
}

// Secret returns a secret of the pod's namespace, or nil. The error for an unreadable secret
// contains no cause, because a cause may quote the secret.
func (s Sources) Secret(name string) (*corev1.Secret, error) {
	i := slices.IndexFunc(s.Secrets, func(c corev1.Secret) bool {
		return c.Name == name &&
			c.Namespace == s.Pod.Namespace
	})
	if i < 0 {
		return nil, nil
	}
	m := &s.Secrets[i]
	if _, bad := m.Annotations[wire.Unreadable]; bad {
		return nil, fmt.Errorf("the device cannot read secret %q: it is not a valid Secret", name)
	}
	return m, nil
}

// SecretData returns a secret's data with stringData merged in.
func SecretData(c *corev1.Secret) map[string][]byte {
	if len(c.StringData) == 0 {
		return c.Data
	}
	out := make(map[string][]byte, len(c.Data)+len(c.StringData))
	for k, v := range c.Data {
		out[k] = v
	}
	for k, v := range c.StringData {
		out[k] = []byte(v)
	}
	return out
}

// configData returns a config map's data and binaryData, for files. As with the kubelet,
// environment variables use only data.
func configData(c *corev1.ConfigMap) map[string][]byte {
	out := make(map[string][]byte, len(c.Data)+len(c.BinaryData))
	for k, v := range c.BinaryData {
		out[k] = v
	}
	for k, v := range c.Data {
		out[k] = []byte(v)
	}
	return out
}

// Environment computes the environment of a container like the kubelet: envFrom first, then env in
// order, so that each variable may use earlier ones.
func (s Sources) Environment(c *corev1.Container) ([]string, map[string]string, error) {
	values := map[string]string{}
	var order []string
	room := maxTexts
	set := func(k, v string) {
		was, has := values[k]
		if !has {
			order = append(order, k)
		}
		values[k] = v
		room += len(was) - len(v)
	}
	names, paths := deviceEnv(s.Devices)
	for _, name := range names {
		set(name, paths[name])
	}
	for _, from := range c.EnvFrom {
		var data map[string][]byte
		switch {
		case from.ConfigMapRef != nil:
			m, err := s.configMap(from.ConfigMapRef.Name)
			if err != nil {
				return nil, nil, err
			}
			if m == nil {
				if IsTrue(from.ConfigMapRef.Optional) {
					continue
				}
				return nil, nil, fmt.Errorf("configmap %q not found", from.ConfigMapRef.Name)
			}
			data = make(map[string][]byte, len(m.Data))
			for k, v := range m.Data {
				data[k] = []byte(v)
			}
		case from.SecretRef != nil:
			m, err := s.Secret(from.SecretRef.Name)
			if err != nil {
				return nil, nil, err
			}
			if m == nil {
				if IsTrue(from.SecretRef.Optional) {
					continue
				}
				return nil, nil, fmt.Errorf("secret %q not found", from.SecretRef.Name)
			}
			data = SecretData(m)
		}
		keys := make([]string, 0, len(data))
		for k := range data {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if k != "" && !strings.ContainsAny(k, "=\x00") {
				set(from.Prefix+k, string(data[k]))
			}
		}
	}
	for _, e := range c.Env {
		if room < 0 {
			break
		}
		if e.ValueFrom == nil {
			set(e.Name, expand(e.Value, values))
			continue
		}
		v, ok, err := s.valueFrom(c, e.ValueFrom)
		if err != nil {
			return nil, nil, fmt.Errorf("environment variable %s: %w", e.Name, err)
		}
		if ok {
			set(e.Name, v)
		}
	}
	out := make([]string, len(order))
	for i, k := range order {
		if room < 0 || len(values[k]) > maxText {
			return nil, nil, errTooLong
		}
		if strings.ContainsRune(values[k], 0) {
			return nil, nil, fmt.Errorf(
				"environment variable %s: its value has a NUL character, which Linux does not allow: mount it as a file", k)
		}
		out[i] = k + "=" + values[k]
	}
	return out, values, nil
}

func (s Sources) valueFrom(c *corev1.Container, from *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		v, err := s.field(from.FieldRef.FieldPath)
		return v, err == nil, err
	case from.ResourceFieldRef != nil:
		v, err := s.resource(c, from.ResourceFieldRef)
		return v, err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		m, err := s.configMap(r.Name)
		if err != nil {
			return "", false, err
		}
		if m == nil {
			return "", false, missing(IsTrue(r.Optional), "configmap %q not found", r.Name)
		}
		v, has := m.Data[r.Key]
		if !has {
			return "", false, missing(IsTrue(r.Optional), "couldn't find key %v in ConfigMap %v/%v", r.Key, s.Pod.Namespace,
				r.Name)
		}
		return v, true, nil
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		m, err := s.Secret(r.Name)
		if err != nil {
			return "", false, err
		}
		if m == nil {
			return "", false, missing(IsTrue(r.Optional), "secret %q not found", r.Name)
		}
		v, has := SecretData(m)[r.Key]
		if !has {
			return "", false, missing(IsTrue(r.Optional), "couldn't find key %v in Secret %v/%v", r.Key, s.Pod.Namespace, r.Name)
		}
		return string(v), true, nil
	}
	return "", false, fmt.Errorf("this kind of valueFrom is not supported on devices")
}

func missing(optional bool, format string, args ...any) error {
	if optional {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// IsTrue reports whether an optional flag is set.
func IsTrue(b *bool) bool { return b != nil && *b }

// field resolves a fieldRef of the downward API.
func (s Sources) field(path string) (string, error) {
	switch path {
	case "metadata.name":
		return s.Pod.Name, nil
	case "metadata.namespace":
		return s.Pod.Namespace, nil
	case "metadata.uid":
		return string(s.Pod.UID), nil
	case "metadata.labels":
		return formatMap(s.Pod.Labels), nil
	case "metadata.annotations":
		return formatMap(s.Pod.Annotations), nil
	case "spec.nodeName":
		return s.NodeName, nil
	case "spec.serviceAccountName":
		return s.Pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return s.waitForIPs(strings.Join(s.HostIPs[:min(len(s.HostIPs), 1)], ""))
	case "status.hostIPs":
		return s.waitForIPs(strings.Join(s.HostIPs, ","))
	case "status.podIP", "status.podIPs": // see isAddress
		switch {
		case !s.Pod.Spec.HostNetwork:
			return s.PodIP, nil
		case path == "status.podIPs":
			return s.field("status.hostIPs")
		}
		return s.field("status.hostIP")
	}
	for prefix, m := range map[string]map[string]string{"metadata.labels['": s.Pod.Labels,
		"metadata.annotations['": s.Pod.Annotations} {
		if key, ok := strings.CutPrefix(path, prefix); ok {
			if key, ok = strings.CutSuffix(key, "']"); ok {
				return m[key], nil
			}
		}
	}
	return "", fmt.Errorf("field path %q is not supported on devices", path)
}

// waitForIPs returns the device's addresses. As with the kubelet, a container that needs them
// waits, but only shortly after a boot: a device without a network still starts its earlier pods.
func (s Sources) waitForIPs(ips string) (string, error) {
	if ips == "" && s.Booting {
		return "", errors.New("host IP unknown: the device has no address yet")
	}
	return ips, nil
}

func formatMap(m map[string]string) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// resource resolves a resourceFieldRef. An unset limit stands for the device's allocatable amount.
func (s Sources) resource(c *corev1.Container, r *corev1.ResourceFieldSelector) (string, error) {
	if r.ContainerName != "" && r.ContainerName != c.Name {
		if c = Find(s.Pod, r.ContainerName); c == nil {
			return "", fmt.Errorf("container %q not found in the pod", r.ContainerName)
		}
	}
	kind, name, _ := strings.Cut(r.Resource, ".")
	list := c.Resources.Limits
	if kind == "requests" {
		list = c.Resources.Requests
	} else if kind != "limits" {
		return "", fmt.Errorf("resource %q is not supported on devices: use limits.… or requests.…", r.Resource)
	}
	q := list[corev1.ResourceName(name)]
	if q.IsZero() && kind == "limits" {
		switch name {
		case "cpu":
			q = *s.Allocatable.Cpu()
		case "memory":
			q = *s.Allocatable.Memory()
		case "ephemeral-storage":
			q = s.Allocatable[corev1.ResourceEphemeralStorage]
		}
	}
	divisor := r.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == "cpu" {
		return strconv.FormatInt(ceilDiv(q.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(ceilDiv(q.Value(), divisor.Value()), 10), nil
}

// deviceEnv returns the environment variables that name a container's devices, such as
// FLOTILLA_I2C_1=/dev/i2c-1; several nodes are separated by commas. A network interface, which has
// no node, is named by its ID.
func deviceEnv(devices []hardware.Device) (names []string, values map[string]string) {
	values = map[string]string{}
	for _, d := range devices {
		name := "FLOTILLA_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(d.Resource))
		value := cmp.Or(strings.Join(d.Nodes, ","), d.ID)
		if have, ok := values[name]; ok {
			value = have + "," + value
		} else {
			names = append(names, name)
		}
		values[name] = value
	}
	return names, values
}
