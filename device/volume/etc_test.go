package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const managedLines = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
	"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"

func TestFilesInEtcMatchTheKubelets(t *testing.T) {
	two := "2"
	aliases := []corev1.HostAlias{
		{IP: "192.0.2.1", Hostnames: []string{"foo", "bar"}},
		{IP: "192.0.2.2", Hostnames: []string{"plc.local"}},
	}
	const added = "\n# Entries added by HostAliases.\n192.0.2.1\tfoo\tbar\n192.0.2.2\tplc.local\n"
	for name, c := range map[string]struct {
		spec  corev1.PodSpec
		mount string // mount path of a volume
		ip    string // address of the pod's shared network
		want  []etcFile
	}{
		"the pod's address and name":                {corev1.PodSpec{}, "", "10.0.0.9", []etcFile{{"hosts", managedLines + "10.0.0.9\tapp\n"}}},
		"a hostname":                                {corev1.PodSpec{Hostname: "web"}, "", "10.0.0.9", []etcFile{{"hosts", managedLines + "10.0.0.9\tweb\n"}}},
		"a subdomain":                               {corev1.PodSpec{Hostname: "web-0", Subdomain: "web"}, "", "10.0.0.9", []etcFile{{"hosts", managedLines + "10.0.0.9\tweb-0.web.default.svc.cluster.local\tweb-0\n"}}},
		"host aliases":                              {corev1.PodSpec{HostAliases: aliases}, "", "10.0.0.9", []etcFile{{"hosts", managedLines + "10.0.0.9\tapp\n" + added}}},
		"the device's file, with host network":      {corev1.PodSpec{HostNetwork: true, HostAliases: aliases}, "", "", []etcFile{{"hosts", "# Kubernetes-managed hosts file (host network).\n127.0.0.1 pi-1\n" + added}}},
		"no file while the address is unknown":      {corev1.PodSpec{}, "", "", nil},
		"no file if a volume is mounted there":      {corev1.PodSpec{}, "/etc/hosts/", "10.0.0.9", nil},
		"a volume mounted elsewhere does not count": {corev1.PodSpec{}, "/etc/hosts.d", "10.0.0.9", []etcFile{{"hosts", managedLines + "10.0.0.9\tapp\n"}}},
		"a complete resolver": {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{
			Nameservers: []string{"192.0.2.53", "2001:db8::53"}, Searches: []string{"a.test", "b.test"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "rotate"}},
		}}, "", "",
			[]etcFile{{"resolv.conf",
				"search a.test b.test\nnameserver 192.0.2.53\nnameserver 2001:db8::53\noptions ndots:2 rotate\n"}}},
		"an addition to the device's resolver": {corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}}}, "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := makePod("app", "wait")
			p.Spec.HostNetwork, p.Spec.HostAliases, p.Spec.Hostname, p.Spec.Subdomain = c.spec.HostNetwork,
				c.spec.HostAliases, c.spec.Hostname, c.spec.Subdomain
			p.Spec.DNSPolicy, p.Spec.DNSConfig = c.spec.DNSPolicy, c.spec.DNSConfig
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: c.mount}}
			got := etcFiles(&p, &p.Spec.Containers[0], c.ip, "127.0.0.1 pi-1\n")
			if !slices.Equal(got, c.want) {
				t.Errorf("%q\nwant %q", got, c.want)
			}
		})
	}
}

func TestFilesInEtcKeepTheirInodesAndFollowThePod(t *testing.T) {
	for _, mounts := range []bool{false, true} {
		d := Disk{Root: t.TempDir(), Memory: filepath.Join(t.TempDir(), "volatile"), MayMount: mounts}
		must(t, d.Prepare())
		t.Cleanup(func() { must(t, RemoveVolumes(d.Root, d.Memory)) })
		if mounts && d.mounts.why != "" {
			t.Log("tested without mounts only: ", d.mounts.why)
			continue
		}
		p := makePod("app", "wait", "wait")
		look := func(ip, want string) fs.FileInfo {
			t.Helper()
			m, err := d.Etc(&p, &p.Spec.Containers[0], ip)
			must(t, err)
			if len(m) != 1 || m[0].Target != "/etc/hosts" || m[0].ReadOnly {
				t.Fatalf("the mounts are %+v, want a writable /etc/hosts", m)
			}
			b, err := os.ReadFile(m[0].Source)
			must(t, err)
			info, err := os.Stat(m[0].Source)
			must(t, err)
			if !strings.Contains(string(b), want) || info.Mode().Perm() != 0o644 {
				t.Errorf("the file has mode %v and the text %s, want mode 0644 and %q", info.Mode(), b, want)
			}
			if isMounted(filepath.Dir(m[0].Source)) != mounts {
				t.Errorf("the directory is a tmpfs: %v, want %v", !mounts, mounts)
			}
			return info
		}
		first := look("10.0.0.1", "10.0.0.1\tapp\n")
		m, err := d.Etc(&p, &p.Spec.Containers[0], "10.0.0.1")
		must(t, err)
		if mounts { // a container may fill only its own tmpfs
			if err := os.WriteFile(m[0].Source, make([]byte, 4<<20), 0o600); err == nil {
				t.Error("a container could write 4 MiB to its tmpfs of 1 MiB")
			}
		}
		must(t, os.Chmod(m[0].Source, 0))
		if again := look("10.0.0.2", "10.0.0.2\tapp\n"); !os.SameFile(first, again) {
			t.Error("the file of running containers was replaced")
		}
		must(t, d.Clean(p.UID))
		if _, err := os.Stat(m[0].Source); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after Clean the file still exists: %v", err)
		}
	}
}
