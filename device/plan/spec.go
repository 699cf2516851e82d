package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/podspec"
)

// containerName is a readable name that is unique on the device.
func containerName(s Step) string {
	return NameOf(s.Place.Container, s.Pod.Name, s.Pod.Namespace, string(s.Pod.UID), strconv.Itoa(s.Attempt))
}

// NameOf is the name of a container in the engine. A sandbox has no container name.
func NameOf(container, pod, namespace, uid, attempt string) string {
	return fmt.Sprintf("flotilla_%s_%s_%s_%s_%s", cmp.Or(container, "POD"), pod, namespace, uid, attempt)
}

// labels identify the container to a restarted agent.
func labels(s Step, node Facts) map[string]string {
	l := map[string]string{
		LabelAgent: node.Name, LabelStateDir: node.StateDir, LabelBoot: node.Boot,
		LabelPodUID: string(s.Pod.UID), LabelPodName: s.Pod.Name, LabelNamespace: s.Pod.Namespace,
		LabelContainer: s.Place.Container, LabelKind: s.Kind, LabelRestarts: strconv.Itoa(s.Attempt),
		LabelGrace:    strconv.Itoa(int(podspec.Grace(s.Pod).Seconds())),
		LabelPodStart: strconv.FormatInt(s.Start.Unix(), 10),
		LabelShares:   strings.TrimSpace(s.Network + " " + s.Processes),
		// Empty labels are set too, because the image may define them.
		LabelPodUptime: "", LabelSpecHash: "", LabelDevices: "", LabelNUMA: "", LabelCPUs: "",
	}
	if node.Boot != "" && !node.Booted.IsZero() && !s.MonotonicStart.IsZero() {
		l[LabelPodUptime] = node.Boot + " " + strconv.FormatInt(s.MonotonicStart.Sub(node.Booted).Milliseconds(), 10)
	}
	if len(s.NUMA) > 0 {
		b, _ := json.Marshal(s.NUMA) // cannot fail
		l[LabelNUMA] = string(b)
	}
	if s.Exclusive {
		l[LabelCPUs] = s.CPUs
	}
	if s.Spec != nil {
		l[LabelSpecHash] = specHash(s.Spec)
	}
	return l
}

// addNetwork adds the pod's network settings to the spec of the container that owns the network:
// the sandbox or, without a sandbox, the container itself.
func addNetwork(spec *engine.Spec, pod *corev1.Pod) {
	spec.HostNetwork = pod.Spec.HostNetwork
	if !pod.Spec.HostNetwork {
		spec.Hostname = podspec.Hostname(pod)
	}
	if c := pod.Spec.DNSConfig; c != nil {
		spec.DNS, spec.DNSSearch, spec.DNSOptions = c.Nameservers, c.Searches, podspec.DNSOptions(c)
	}
	if s := pod.Spec.SecurityContext; s != nil && len(s.Sysctls) > 0 {
		spec.Sysctls = map[string]string{}
		for _, x := range s.Sysctls {
			spec.Sysctls[x.Name] = x.Value
		}
	}
	if pod.Spec.HostNetwork {
		return
	}
	for _, w := range podspec.Containers(pod) {
		if w.Kind == podspec.KindInit && !podspec.IsSidecar(w) {
			continue
		}
		for _, p := range w.Spec.Ports {
			if p.HostPort == 0 {
				continue
			}
			proto := p.Protocol
			if proto == "" {
				proto = corev1.ProtocolTCP
			}
			spec.Ports = append(spec.Ports, engine.Port{HostIP: p.HostIP, HostPort: p.HostPort, ContainerPort: p.ContainerPort,
				Protocol: string(proto)})
		}
	}
}

// SandboxSpec is the spec of the container that owns the pod's network. It runs the pause program
// in the image of the pod's first container, so it needs no other image.
func SandboxSpec(s Step, node Facts, pausePath string) engine.Spec {
	spec := engine.Spec{
		Name: containerName(s), Image: podspec.Containers(s.Pod)[0].Spec.Image, Labels: labels(s, node),
		Entrypoint: []string{pause.Target}, Args: []string{}, User: "65535:65535", WorkingDir: "/",
		ReadOnlyRoot: true, NoNewPrivs: true, CapDrop: []string{"ALL"}, CPUShares: 2,
		Mounts: []engine.Mount{{Source: pausePath, Target: pause.Target, ReadOnly: true}},
	}
	addNetwork(&spec, s.Pod)
	return spec
}

// ContainerSpec is the spec of a container. The caller adds the mounts, because they must exist on
// the disk.
func ContainerSpec(s Step, node Facts, src podspec.Sources, policy Policy) (engine.Spec, error) {
	c := s.Spec
	env, values, err := src.Environment(c)
	if err != nil {
		return engine.Spec{}, err
	}
	command, err := podspec.ExpandAll(c.Command, values)
	if err != nil {
		return engine.Spec{}, err
	}
	args, err := podspec.ExpandAll(c.Args, values)
	if err != nil {
		return engine.Spec{}, err
	}
	spec := engine.Spec{
		Name: containerName(s), Image: c.Image, Labels: labels(s, node), Env: env,
		Entrypoint: command, Args: args, WorkingDir: c.WorkingDir,
		TTY: c.TTY, Stdin: c.Stdin, StdinOnce: c.StdinOnce, HostPID: s.Pod.Spec.HostPID, NetworkOf: s.Network,
		NoNewPrivs: !policy.NewPrivileges,
		PidsLimit:  policy.PidsLimit(),
	}
	if podspec.SharesProcesses(s.Pod) {
		spec.PidOf = s.Network
	}
	if s.Processes != "" {
		spec.PidOf = s.Processes
	}
	if s.Network == "" {
		addNetwork(&spec, s.Pod)
		if s.Kind == podspec.KindInit || s.Kind == podspec.KindEphemeral {
			spec.Ports = nil
		}
	}
	if err := setUser(&spec, s.Pod.Spec.SecurityContext, c.SecurityContext, src.ImageUser); err != nil {
		return engine.Spec{}, err
	}
	if sc := c.SecurityContext; sc != nil {
		spec.ReadOnlyRoot = podspec.IsTrue(sc.ReadOnlyRootFilesystem)
		spec.Privileged = podspec.IsTrue(sc.Privileged)
		if sc.AllowPrivilegeEscalation != nil {
			spec.NoNewPrivs = !*sc.AllowPrivilegeEscalation
		}
		if spec.Privileged {
			spec.NoNewPrivs = false
		}
		if sc.Capabilities != nil {
			for _, a := range sc.Capabilities.Add {
				spec.CapAdd = append(spec.CapAdd, capability(string(a)))
			}
			for _, d := range sc.Capabilities.Drop {
				spec.CapDrop = append(spec.CapDrop, capability(string(d)))
			}
		}
	}
	sized := SizeOf(s.Pod, c, node)
	spec.MemoryBytes, spec.SwapBytes, spec.MilliCPU, spec.CPUShares = sized.MemoryBytes, sized.SwapBytes, sized.MilliCPU,
		sized.CPUShares
	spec.OOMScoreAdj = oomScore(s.Pod, c, node.Allocatable.Memory().Value())
	return spec, nil
}

// oomScore is the kubelet's oom_score_adj, but at least 0: negative values need a capability that
// rootless engines lack.
func oomScore(pod *corev1.Pod, c *corev1.Container, memory int64) int {
	switch podspec.QOSClass(pod) {
	case corev1.PodQOSGuaranteed:
		return 0
	case corev1.PodQOSBestEffort:
		return 1000
	}
	if memory <= 0 {
		return 999
	}
	adj := 1000 - 1000*c.Resources.Requests.Memory().Value()/memory
	return int(min(max(adj, 3), 999))
}

// NeedsImageUser reports whether the image's user is needed: runAsNonRoot or a group is set, but
// not runAsUser.
func NeedsImageUser(pod *corev1.Pod, c *corev1.Container) bool {
	user, group, nonRoot := runAs(pod.Spec.SecurityContext, c.SecurityContext)
	return user == nil && (podspec.IsTrue(nonRoot) || group != nil)
}

// nonRootUID parses an image's user, or returns why the user may be root. Like the kubelet it
// accepts only a number, because only the image defines the meaning of a name.
func nonRootUID(name string) (string, error) {
	uid, err := strconv.ParseInt(name, 10, 32)
	switch {
	case name == "", err == nil && uid == 0:
		return "", fmt.Errorf("container has runAsNonRoot and image will run as root: set runAsUser")
	case err != nil || uid < 0:
		return "", fmt.Errorf(
			"container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root: set runAsUser",
			name)
	}
	return strconv.FormatInt(uid, 10), nil
}

// runAs merges the user and group of the pod and its container.
func runAs(pod *corev1.PodSecurityContext, c *corev1.SecurityContext) (user, group *int64, nonRoot *bool) {
	if pod != nil {
		user, group, nonRoot = pod.RunAsUser, pod.RunAsGroup, pod.RunAsNonRoot
	}
	if c != nil {
		user, group, nonRoot = cmp.Or(c.RunAsUser, user), cmp.Or(c.RunAsGroup, group), cmp.Or(c.RunAsNonRoot, nonRoot)
	}
	return user, group, nonRoot
}

// setUser sets the user and groups. imageUser is the image's user, if NeedsImageUser.
func setUser(spec *engine.Spec, pod *corev1.PodSecurityContext, c *corev1.SecurityContext,
	imageUser string) (err error) {
	user, group, nonRoot := runAs(pod, c)
	if pod != nil {
		for _, g := range pod.SupplementalGroups {
			spec.Groups = append(spec.Groups, strconv.FormatInt(g, 10))
		}
		if pod.FSGroup != nil {
			spec.Groups = append(spec.Groups, strconv.FormatInt(*pod.FSGroup, 10))
		}
	}
	name, imageGroup, _ := strings.Cut(imageUser, ":")
	switch {
	case user != nil && *user == 0 && podspec.IsTrue(nonRoot):
		return fmt.Errorf("container's runAsUser breaks non-root policy: it is 0 and runAsNonRoot is true")
	case user != nil:
		spec.User, imageGroup = strconv.FormatInt(*user, 10), ""
	case podspec.IsTrue(nonRoot):
		if spec.User, err = nonRootUID(name); err != nil {
			return err
		}
	case group != nil:
		spec.User = cmp.Or(name, "0")
	default:
		return nil
	}
	if group != nil {
		imageGroup = strconv.FormatInt(*group, 10)
	}
	if imageGroup != "" {
		spec.User += ":" + imageGroup
	}
	return nil
}
