package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/shared/wire"
)

// outside creates a directory with a file that no container may read.
func outside(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "canary"), []byte("nobody's business"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// One container replaces a directory of a volume with a link to the device's files, as fast as it
// can, while others mount that directory. No container may reach the device's files. A failed mount
// is tried again, so all containers run in the end.
func TestRealEngineMountsOnlyCheckedPaths(t *testing.T) {
	t.Parallel()
	const victims = 4
	for _, c := range []struct {
		name   string
		volume func(d *realDevice) corev1.VolumeSource // the attacker's volume
		victim func(d *realDevice) corev1.VolumeSource
		sub    string
	}{
		{"a subPath of an emptyDir",
			func(*realDevice) corev1.VolumeSource {
				return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
			}, nil, "d/below"},
		{"a host path below one that another pod can write",
			func(d *realDevice) corev1.VolumeSource { return onHost(d.shared) },
			func(d *realDevice) corev1.VolumeSource { return onHost(d.shared + "/d") }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			realEngines(t, func(t *testing.T, socket string) {
				d := newRealDevice(t, socket)
				defer func() { d.end() }()
				out := outside(t)
				if err := os.Mkdir(filepath.Join(out, "below"), 0o755); err != nil {
					t.Fatal(err)
				}
				p := makePod("evil", "wait")
				sidecar := corev1.ContainerRestartPolicyAlways
				p.UID = types.UID("uid-evil-" + d.node)
				p.Spec.TerminationGracePeriodSeconds = new(int64)
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.volume(d)}}
				name := "v"
				if c.victim != nil {
					name = "victim"
					p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: c.victim(d)})
				}
				all := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
				p.Spec.InitContainers = []corev1.Container{
					{Name: "init", Image: enginetest.ToolImage, VolumeMounts: all, Args: []string{"mkdir", "/v/d/below", "then", "link", out, "/v/e"}},
					{Name: "attacker", Image: enginetest.ToolImage, VolumeMounts: all, RestartPolicy: &sidecar,
						Args: []string{"exchange", "/v/d", "/v/e", "3s", "then", "wait"}},
				}
				for i := range victims {
					p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
						Name: fmt.Sprintf("victim%d", i), Image: enginetest.ToolImage,
						Args: []string{"write", fmt.Sprintf("/m/by%d", i), "x", "then", "ls", "/m", "then",
							"wait"},
						VolumeMounts: []corev1.VolumeMount{{Name: name, MountPath: "/m", SubPath: c.sub}},
					})
				}
				if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
					t.Fatal(err)
				}
				generation, sent := int64(1), time.Now()
				d.await("every container runs", func() bool {
					if time.Since(sent) > time.Second { // a new desired state retries failed mounts at once
						generation, sent = generation+1, time.Now()
						must(t, d.agent.Store(wire.Desired{Generation: generation, Hub: "h", Pods: []corev1.Pod{p}}))
					}
					return ready(d.pod("evil"))
				})
				if got := names(t, out); !slices.Equal(got, []string{"below", "canary"}) {
					t.Errorf("a container has changed the outside directory: %v", got)
				}
				if got := names(t, filepath.Join(out, "below")); len(got) > 0 {
					t.Errorf("a container has changed files below the outside directory: %v", got)
				}
			})
		})
	}
}

func onHost(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

// A container without root reads its secret and writes into its volume in memory, up to the
// volume's size. Another user of the device can access neither.
func TestRealEngineSecretsArePrivate(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		for dir := d.dir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
			must(t, os.Chmod(dir, 0o755)) // only the modes that the agent sets protect the files
		}
		p := makePod("private", "wait")
		p.UID = types.UID("uid-private-" + d.node)
		p.Spec.Volumes = []corev1.Volume{secretVolume("s"), emptyDir("m", corev1.StorageMediumMemory),
			emptyDir("v", "")}
		for _, v := range p.Spec.Volumes {
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
				corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
		}
		secrets := []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: p.Namespace},
			Data: map[string][]byte{"key": []byte("hush")}}}
		user, size := int64(1000), resource.MustParse("1Mi")
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, FSGroup: &user}
		p.Spec.Volumes[1].EmptyDir.SizeLimit = &size
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts,
			corev1.VolumeMount{Name: "v", MountPath: "/sub", SubPath: "made/for/it"},
			corev1.VolumeMount{Name: "s", MountPath: "/file", SubPath: "key"})
		c.Args = strings.Fields("cat /s/key /file then print then write /m/x y then write /sub/x y then wait")
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p},
			Secrets: secrets}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is ready", func() bool { return ready(d.pod("private")) })
		d.await("the container has read its secret", func() bool {
			a := d.request(wire.Request{Type: wire.RequestLogs, Pod: string(p.UID), Container: "c0"})
			ends(t, a)
			return a.Stdout() == "hushhush\n"
		})
		pods := filepath.Join(d.dir, "volatile", "pods", string(p.UID))
		for _, path := range []string{pods + "/s/key", pods + "/m/x",
			filepath.Join(d.dir, "pods", string(p.UID), "v/made/for/it/x")} {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
			cat := exec.Command("cat", path)
			cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			if out, err := cat.CombinedOutput(); err == nil {
				t.Errorf("another user of the device reads %s: %q", path, out)
			}
		}
		var st unix.Statfs_t
		if must(t, unix.Statfs(pods+"/m", &st)); uint64(st.Blocks)*uint64(st.Bsize) != 1<<20 {
			t.Errorf("the volume in memory has %d blocks of %d, want 1 MiB", st.Blocks, st.Bsize)
		}
		if binds := names(t, d.agent.disk.Binds()); len(binds) > 0 {
			t.Errorf("binds are left: %v", binds)
		}
	})
}
