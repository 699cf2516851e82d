package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

// The device makes these files of a pod's /etc, in the kubelet's format:
//
//   - hosts, for pods on the host's network, and pods whose address is known before their first
//     container starts. Other pods, with one container and without aliases and subdomain, use the
//     engine's file, which has the same lines.
//   - resolv.conf, for pods with dnsPolicy None, because engines add an address of their own and
//     the device's options.
//
// Containers may write to the files, so the files are on a small tmpfs of the pod, beside its
// volumes in memory.

const (
	etcDir        = ".etc"          // not a valid volume name, so it cannot collide
	etcRoom       = 1 << 20         // bytes, including what containers add
	clusterDomain = "cluster.local" // the domain that Helm charts expect
)

// An etcFile is a file in /etc.
type etcFile struct{ name, text string }

// etcFiles returns the /etc files that the device makes for a container; device is the text of the
// device's own hosts file.
func etcFiles(pod *corev1.Pod, c *corev1.Container, podIP, device string) (files []etcFile) {
	spec := &pod.Spec
	switch {
	case spec.HostNetwork:
		files = append(files, etcFile{"hosts", "# Kubernetes-managed hosts file (host network).\n" + device + aliases(pod)})
	case podIP != "":
		files = append(files, etcFile{"hosts", managedHosts(pod, podIP)})
	}
	if spec.DNSPolicy == corev1.DNSNone && spec.DNSConfig != nil {
		files = append(files, etcFile{"resolv.conf", resolvConf(spec.DNSConfig)})
	}
	return slices.DeleteFunc(files, func(f etcFile) bool {
		return slices.ContainsFunc(c.VolumeMounts,
			func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == "/etc/"+f.name })
	})
}

// managedHosts returns the hosts file of a pod with its own network.
func managedHosts(pod *corev1.Pod, ip string) string {
	names := podspec.Hostname(pod)
	if pod.Spec.Subdomain != "" {
		names = fmt.Sprintf("%s.%s.%s.svc.%s\t%s", names, pod.Spec.Subdomain, pod.Namespace, clusterDomain, names)
	}
	return "# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n" +
		ip + "\t" + names + "\n" + aliases(pod)
}

func aliases(pod *corev1.Pod) string {
	var b strings.Builder
	for i, h := range pod.Spec.HostAliases {
		if i == 0 {
			b.WriteString("\n# Entries added by HostAliases.\n")
		}
		b.WriteString(h.IP + "\t" + strings.Join(h.Hostnames, "\t") + "\n")
	}
	return b.String()
}

// Etc makes a container's /etc files and returns their mounts. podIP is the address of the pod's
// shared network; empty: unknown before this container starts.
func (d *Disk) Etc(pod *corev1.Pod, c *corev1.Container, podIP string) (mounts []engine.Mount, err error) {
	if d.Root == "" || !podspec.IsUID(pod.UID) {
		return nil, nil // this device has no directory for volumes
	}
	var device []byte
	if pod.Spec.HostNetwork {
		if device, err = os.ReadFile("/etc/hosts"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	files := etcFiles(pod, c, podIP, string(device))
	if len(files) == 0 {
		return nil, nil
	}
	defer d.locks.take(pod.UID)()
	dir := filepath.Join(d.Memory, PodsDir, string(pod.UID), etcDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if d.mounts.why == "" && !isMounted(dir) {
		if err := mountTmpfs(dir, fmt.Sprintf("mode=0700,size=%d", etcRoom+2*len(device))); err != nil {
			return nil, err
		}
	}
	// Running containers mount these files, so correct ones are not written and the inodes stay.
	var wrong []etcFile
	for _, f := range files {
		at := filepath.Join(dir, f.name)
		mounts = append(mounts, engine.Mount{Source: at, Target: "/etc/" + f.name})
		if b, err := os.ReadFile(at); err != nil || !bytes.Equal(b, []byte(f.text)) {
			wrong = append(wrong, f)
			_ = os.Truncate(at, 0) // a larger file may fill the tmpfs
		}
	}
	for _, f := range wrong {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), 0o600); err != nil {
			return nil, err
		}
	}
	for _, m := range mounts {
		if err := os.Chmod(m.Source, 0o644); err != nil { // undo the umask, or a container's chmod
			return nil, err
		}
	}
	return mounts, nil
}

// resolvConf returns the resolv.conf for a complete dnsConfig.
func resolvConf(c *corev1.PodDNSConfig) string {
	var b strings.Builder
	if len(c.Searches) > 0 {
		b.WriteString("search " + strings.Join(c.Searches, " ") + "\n")
	}
	for _, s := range c.Nameservers {
		b.WriteString("nameserver " + s + "\n")
	}
	if options := podspec.DNSOptions(c); len(options) > 0 {
		b.WriteString("options " + strings.Join(options, " ") + "\n")
	}
	return b.String()
}
