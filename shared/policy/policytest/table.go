// Package policytest is a table of pods, policies and expected refusals. Hub and device run all of
// its cases in their tests.
package policytest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/shared/policy"
)

// A Case is a pod, a document, and the expected refusal.
type Case struct {
	Name     string
	Document string // policy in YAML
	Pod      string // lines of the pod's spec, in addition to its one container
	Web      string // lines of that container, in addition to its name
	Refused  string // beginning of "field: reason"; empty: allowed
}

// Public keys: one of each kind, and another one.
const (
	ECDSA   = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEQUPwyfSCVMBFfhrG8AJWBcEg3u7N\ncNP7orpf1t8vrcQN9IzP/8J2NqDf3R8jXzZx52Gj1uKsfK3bnCwQ6JM4hw==\n-----END PUBLIC KEY-----\n"
	Ed25519 = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA21pH8j/5r0SJr/OpXaaTBLTdkWERZPdTImd+IMII/e0=\n-----END " +
		"PUBLIC KEY-----\n"
)

func signed(images string) string {
	return "signatures: [{images: [" + images + "], keys: [" + fmt.Sprintf("%q", Ed25519) + "]}]"
}

func imageVolume(reference string) string {
	return "volumes: [{name: a, image: {reference: '" + reference + "'}}]"
}

const claim = "volumes: [{name: a, persistentVolumeClaim: {claimName: data}}]"

const digest = "@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func hostPath(path string) string { return "volumes: [{name: v, hostPath: {path: '" + path + "'}}]" }

func capability(name string) string { return "securityContext: {capabilities: {add: [" + name + "]}}" }

// Table is every case.
var Table = []Case{
	{"an ordinary pod", "", "", "", ""},
	{"a privileged container", "", "", "securityContext: {privileged: true}",
		"WEB.securityContext.privileged: privileged containers are not allowed"},
	{"an allowed privileged container", "privileged: true", "", "securityContext: {privileged: true}", ""},
	{"an explicitly unprivileged container", "", "",
		"securityContext: {privileged: false, allowPrivilegeEscalation: false}", ""},
	{"privilege escalation", "", "", "securityContext: {allowPrivilegeEscalation: true}",
		"WEB.securityContext.allowPrivilegeEscalation: containers may not gain privileges"},
	{"privilege escalation where the document allows it", "allowNewPrivileges: true", "",
		"securityContext: {allowPrivilegeEscalation: true}", ""},
	{"the device's network", "", "hostNetwork: true", "", "spec.hostNetwork: pods may not use the device's network"},
	{"the device's network where the document allows it", "hostNetwork: true", "hostNetwork: true", "", ""},
	{"the device's processes", "", "hostPID: true", "", "spec.hostPID: pods may not see the device's processes"},
	{"the device's processes where only its network is allowed", "hostNetwork: true", "hostPID: true", "",
		"spec.hostPID: "},
	{"the device's processes where the document allows them", "hostPID: true", "hostPID: true", "", ""},

	{"a port of the device", "", "", "ports: [{containerPort: 80, hostPort: 8080}]", ""},
	{"a port of the device where none is allowed", "hostPorts: []", "", "ports: [{containerPort: 80, hostPort: 8080}]",
		"WEB.ports[0].hostPort: port 8080 of the device is not allowed"},
	{"a port of the device outside of the ranges", "hostPorts: [80, 8000-8079]", "",
		"ports: [{containerPort: 80, hostPort: 8080}]", "WEB.ports[0].hostPort: port 8080 of the device is outside"},
	{"a port of the device at the end of a range", "hostPorts: [80, 8000-8080]", "",
		"ports: [{containerPort: 80, hostPort: 8080}]", ""},
	{"a container's port where no port of the device is allowed", "hostPorts: []", "", "ports: [{containerPort: 80}]", ""},
	{"ports of a pod on the device's network", "{hostNetwork: true, hostPorts: []}", "hostNetwork: true",
		"ports: [{containerPort: 80, hostPort: 80}]", ""},

	{"the root of the device", "", hostPath("/"), "",
		`spec.volumes[0].hostPath.path: "/" is outside /var/lib/flotilla/volumes`},
	{"the root of the device for privileged containers only", "privileged: true", hostPath("/"), "",
		"spec.volumes[0].hostPath.path: "},
	{"the root of the device where the document allows it", "hostPaths: [/]", hostPath("/"), "", ""},
	{"the engine's socket", "", hostPath("/var/run/docker.sock"), "", "spec.volumes[0].hostPath.path: "},
	{"the kernel's files", "", hostPath("/proc"), "", "spec.volumes[0].hostPath.path: "},
	{"the directory for volumes", "", hostPath("/var/lib/flotilla/volumes"), "", ""},
	{"a directory below the directory for volumes", "", hostPath("/var/lib/flotilla/volumes/web"), "", ""},
	{"a path with repeated slashes", "", hostPath("//var//lib/flotilla/./volumes/a/"), "", ""},
	{"a path that only begins like the allowed one", "", hostPath("/var/lib/flotilla/volumes2"), "",
		"spec.volumes[0].hostPath.path: "},
	{"a path that leaves by ..", "", hostPath("/var/lib/flotilla/volumes/../../../../etc"), "",
		"spec.volumes[0].hostPath.path: "},
	{"a path with .. where every path is allowed", "hostPaths: [/]", hostPath("/srv/../etc"), "",
		"spec.volumes[0].hostPath.path: "},
	{"a relative path", "", hostPath("var/lib/flotilla/volumes/a"), "", "spec.volumes[0].hostPath.path: "},
	{"the directory for volumes where another directory is allowed", "hostPaths: [/srv/data]",
		hostPath("/var/lib/flotilla/volumes/a"), "", "spec.volumes[0].hostPath.path: "},
	{"an allowed path", "hostPaths: [/srv/data]", hostPath("/srv/data/x"), "", ""},
	{"a volume path where no path is allowed", "hostPaths: []", hostPath("/var/lib/flotilla/volumes/a"), "",
		"spec.volumes[0].hostPath.path: "},

	{"a persistent volume", "", claim, "", ""},
	{"a persistent volume where the document forbids it", "localVolumes: false", claim, "",
		"spec.volumes[0].persistentVolumeClaim: pods may not use persistent volumes on the device"},

	{"one of the engine's own capabilities", "", "",
		"securityContext: {capabilities: {add: [CAP_NET_BIND_SERVICE], drop: [ALL]}}", ""},
	{"a capability", "", "", capability("CAP_SYS_ADMIN"),
		"WEB.securityContext.capabilities.add[0]: capability CAP_SYS_ADMIN is not allowed"},
	{"a capability in small letters", "", "", capability("sys_admin"), "WEB.securityContext.capabilities.add[0]: "},
	{"every capability", "", "", capability("all"), "WEB.securityContext.capabilities.add[0]: "},
	{"every capability where one is allowed", "capabilities: [NET_ADMIN]", "", capability("ALL"),
		"WEB.securityContext.capabilities.add[0]: "},
	{"an allowed capability", "capabilities: [CAP_SYS_TIME]", "", capability("SYS_TIME"), ""},
	{"a capability where all are allowed", "capabilities: [ALL]", "", capability("SYS_TIME"), ""},
	{"a capability where privileged containers are allowed", "privileged: true", "", capability("SYS_TIME"), ""},

	{"a safe sysctl", "", "securityContext: {sysctls: [{name: net/ipv4/tcp_syncookies, value: '1'}]}", "", ""},
	{"a safe sysctl that would change the device", "hostNetwork: true",
		"hostNetwork: true\nsecurityContext: {sysctls: [{name: net/ipv4/tcp_syncookies, value: '1'}]}", "",
		"spec.securityContext.sysctls[0].name: net/ipv4/tcp_syncookies may not be set where hostNetwork is true"},
	{"an unsafe sysctl", "", "securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", "",
		"spec.securityContext.sysctls[0].name: kernel.msgmax is not one of the safe sysctls"},
	{"an allowed unsafe sysctl", "unsafeSysctls: [kernel.msg*]",
		"securityContext: {sysctls: [{name: kernel/msgmax, value: '1'}]}", "", ""},
	{"a sysctl whose name is longer than the allowed one", "unsafeSysctls: [kernel.msg]",
		"securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", "", "spec.securityContext.sysctls[0].name: "},
	{"a pod without seccomp", "", "securityContext: {seccompProfile: {type: Unconfined}}", "",
		"spec.securityContext.seccompProfile.type: is not supported"},
	{"a container without seccomp, with every permission", "privileged: true", "",
		"securityContext: {seccompProfile: {type: Unconfined}}", "WEB.securityContext.seccompProfile.type: is not supported"},
	{"a profile of the device's owner", "",
		"securityContext: {seccompProfile: {type: Localhost, localhostProfile: web/strict.json}}", "", ""},
	{"a profile without a name", "", "securityContext: {seccompProfile: {type: Localhost}}", "",
		"spec.securityContext.seccompProfile.localhostProfile: must be a path below"},
	{"a profile from another directory", "", "",
		"securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../../../tmp/mine.json}}",
		"WEB.securityContext.seccompProfile.localhostProfile: must be a path below"},
	{"a profile with an absolute path", "", "",
		"securityContext: {seccompProfile: {type: Localhost, localhostProfile: /tmp/mine.json}}",
		"WEB.securityContext.seccompProfile.localhostProfile: must be a path below"},
	{"a container without AppArmor", "", "", "securityContext: {appArmorProfile: {type: Unconfined}}",
		"WEB.securityContext.appArmorProfile.type: a container needs an AppArmor profile"},
	{"a pod without AppArmor where privileged containers are allowed", "privileged: true",
		"securityContext: {appArmorProfile: {type: Unconfined}}", "", ""},
	{"an AppArmor profile that the device's owner names", "",
		"securityContext: {appArmorProfile: {type: Localhost, localhostProfile: web-strict}}", "", ""},
	{"an AppArmor profile without a name", "", "", "securityContext: {appArmorProfile: {type: Localhost}}",
		"WEB.securityContext.appArmorProfile.localhostProfile: must be a name in"},
	{"an AppArmor profile from another directory", "", "",
		"securityContext: {appArmorProfile: {type: Localhost, localhostProfile: ../seccomp/a}}",
		"WEB.securityContext.appArmorProfile.localhostProfile: must be a name in"},
	{"the AppArmor profile unconfined, with every permission", "", "",
		"securityContext: {appArmorProfile: {type: Localhost, localhostProfile: unconfined}}",
		"WEB.securityContext.appArmorProfile.localhostProfile: must be a name in"},
	{"an unmasked /proc, with every permission", "privileged: true", "", "securityContext: {procMount: Unmasked}",
		"WEB.securityContext.procMount: is not supported"},

	{"a probe of the pod", "", "", "livenessProbe: {httpGet: {port: 80, path: /}}", ""},
	{"a probe that connects to the device", "", "", "livenessProbe: {httpGet: {port: 80, path: /, host: 127.0.0.1}}",
		`WEB.livenessProbe.httpGet.host: the device would connect to "127.0.0.1" from its own network`},
	{"a probe that connects to another host", "", "",
		"readinessProbe: {tcpSocket: {port: 80, host: 169.254.169.254}}",
		"WEB.readinessProbe.tcpSocket.host: "},
	{"a hook that connects to the device", "", "",
		"lifecycle: {preStop: {httpGet: {port: 80, path: /, host: localhost}}}", "WEB.lifecycle.preStop.httpGet.host: "},
	{"a probe that connects to the device where its network is allowed", "hostNetwork: true", "",
		"livenessProbe: {httpGet: {port: 80, path: /, host: 127.0.0.1}}", ""},

	{"a registry that is not allowed", "registries: [registry.example.org]", "", "image: docker.io/library/nginx:1",
		`WEB.image: image "docker.io/library/nginx:1" comes from docker.io/library/nginx, and images may come from registry.example.org`},
	{"an allowed registry", "registries: [registry.example.org]", "", "image: registry.example.org/team/web:1", ""},
	{"a registry whose name only begins like the allowed one", "registries: [registry.example.org]", "",
		"image: registry.example.org.evil.test/web:1", "WEB.image: "},
	{"another port of an allowed registry", "registries: [registry.example.org]", "",
		"image: registry.example.org:5000/web:1", "WEB.image: "},
	{"an allowed registry in capital letters and with its port", "registries: [registry.example.org]", "",
		"image: REGISTRY.example.org:443/web:1", ""},
	{"a short name, which means Docker's registry", "registries: [docker.io]", "", "image: nginx:1", ""},
	{"Docker's registry by another name", "registries: [docker.io/library]", "", "image: index.docker.io/library/nginx:1",
		""},
	{"Docker's registry by the name of its server", "registries: [docker.io/library]", "",
		"image: registry-1.docker.io/library/nginx:1", ""},
	{"another repository of Docker's registry by the name of its server",
		"registries: [registry.example.org, docker.io/library]", "", "image: registry-1.docker.io/evil/nginx:1",
		"WEB.image: "},
	{"a short name where only another registry is allowed", "registries: [registry.example.org]", "", "image: nginx:1",
		"WEB.image: "},
	{"a repository that is not allowed", "registries: [registry.example.org/team]", "",
		"image: registry.example.org/other/web:1", "WEB.image: "},
	{"a repository in an allowed repository", "registries: [registry.example.org/team]", "",
		"image: registry.example.org/team/web:1", ""},
	{"a repository whose name only begins like an allowed one", "registries: [registry.example.org/team]", "",
		"image: registry.example.org/team2/web:1", "WEB.image: "},
	{"an allowed registry as a path of another registry", "registries: [registry.example.org]", "",
		"image: evil.test/registry.example.org/web:1", "WEB.image: "},
	{"a volume of an image from a registry that is not allowed", "registries: [registry.example.org/team/before]",
		imageVolume("registry.example.org/team:1"), "image: registry.example.org/team/before:1",
		`spec.volumes[0].image.reference: image "registry.example.org/team:1" comes from`},
	{"a volume of an image from a registry that is allowed", "registries: [docker.io]", imageVolume("web:1"), "", ""},
	{"a volume of an image without a digest", "requireDigest: true", imageVolume("web:1"), "image: nginx" + digest,
		`spec.volumes[0].image.reference: image "web:1" has no digest`},
	{"a volume of an image without a signature rule", signed("registry.example.org/team/before"),
		imageVolume("registry.example.org/team:1"), "image: registry.example.org/team/before:1",
		"spec.volumes[0].image.reference: no signature rule covers"},
	{"an image without a digest", "requireDigest: true", "", "image: nginx:1", `WEB.image: image "nginx:1" has no digest`},
	{"an image with a digest", "requireDigest: true", "", "image: nginx" + digest, ""},
	{"an image with a tag and a digest", "requireDigest: true", "", "image: registry.example.org:5000/web:1" + digest, ""},
	{"an image id instead of a digest", "requireDigest: true", "",
		"image: 'sha256:" + strings.TrimPrefix(digest, "@sha256:") + "'", "WEB.image: "},
	{"an image id where registries are listed", "registries: [registry.example.org]", "",
		"image: 'sha256:" + strings.TrimPrefix(digest, "@sha256:") + "'", "WEB.image: "},
	{"an invalid name", "requireDigest: true", "", "image: 'NGINX:1'",
		"WEB.image: image \"NGINX:1\" is not a valid reference"},
	{"an image without a signature rule", signed("registry.example.org"), "", "image: nginx:1",
		`WEB.image: no signature rule covers image "nginx:1"`},
	{"an image with a signature rule", signed("registry.example.org"), "", "image: registry.example.org/web:1",
		""},
	{"every image where a rule has no images", signed(""), "", "image: nginx:1", ""},
	{"an image that needs no signature", signed("registry.example.org")[:len(signed("registry.example.org"))-1] +
		", {unsigned: true}]", "", "image: nginx:1", ""},
}

// Field returns Refused with p as the path of the container.
func (c Case) Field(p string) string { return strings.Replace(c.Refused, "WEB", p, 1) }

// Policy returns the document of the case.
func (c Case) Policy() policy.Document {
	d, err := policy.Parse([]byte(c.Document))
	if err != nil {
		panic(c.Name + ": " + err.Error())
	}
	return d
}

// Spec returns the pod of the case.
func (c Case) Spec() (s corev1.PodSpec) {
	web := c.Web
	if !strings.HasPrefix(web, "image:") {
		web = "image: kiosk:1\n    " + web
	}
	text := c.Pod + "\ncontainers:\n  - name: web\n    " + web + "\n"
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		panic(c.Name + ": " + err.Error() + "\n" + text)
	}
	return s
}

// InInit returns the pod with its container's fields in an init container.
func (c Case) InInit() corev1.PodSpec {
	s := c.Spec()
	first := *s.Containers[0].DeepCopy()
	first.Name = "prepare"
	s.InitContainers = []corev1.Container{first}
	s.Containers[0].SecurityContext, s.Containers[0].Ports = nil, nil
	// init containers cannot have these fields
	if first.LivenessProbe != nil || first.ReadinessProbe != nil || first.Lifecycle != nil {
		s.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		s.Containers[0].LivenessProbe, s.Containers[0].ReadinessProbe, s.Containers[0].Lifecycle = nil, nil, nil
	}
	if c.OfImage() {
		s.Containers[0].Image = first.Image
	}
	return s
}

// OfImage reports whether the case is about the container's image.
func (c Case) OfImage() bool { return strings.HasPrefix(c.Web, "image:") }
