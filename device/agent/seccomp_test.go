package agent

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A profile is read only from the owner's directory. A container whose profile is missing does not
// start.
func TestASeccompProfileOfTheDevicesOwner(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const profile = `{"defaultAction": "SCMP_ACT_ALLOW"}`
	write("web/strict.json", profile)
	write("long.json", `["`+strings.Repeat("x", maxSeccomp)+`"]`)
	write("words.json", "no JSON")
	outside := filepath.Join(t.TempDir(), "mine.json")
	if err := os.WriteFile(outside, []byte(profile), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(folder, "link.json")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(folder, "pipe.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ pod, container, folder, text, err string }{
		{pod: "web/strict.json", text: profile},
		{container: "web/strict.json", text: profile},
		{pod: "none.json", container: "web/strict.json", text: profile},
		{pod: "none.json", err: `cannot load seccomp profile "none.json": openat none.json: no such file or directory; to allow the profile, put it into `},
		{pod: "web", err: "it is not a regular file"},
		{pod: "pipe.json", err: "it is not a regular file"},
		{pod: "long.json", err: "more than 262144 bytes"},
		{pod: "words.json", err: "it is not JSON"},
		{pod: "link.json", err: "path escapes from parent"},
		{pod: "../" + filepath.Base(folder) + "/web/strict.json", err: "path escapes from parent"},
		{pod: "web/strict.json", folder: folder + "-not", err: "no such file or directory"},
		{},
	} {
		t.Run(c.pod+" "+c.container, func(t *testing.T) {
			p := makePod("web", "wait")
			if c.pod != "" {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &c.pod}}
			}
			if c.container != "" {
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &c.container}}
			}
			if c.folder == "" {
				c.folder = folder
			}
			got, err := seccomp(c.folder, &p, &p.Spec.Containers[0])
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("the error is %v, want %s", err, c.err)
				}
			case err != nil || (got == nil) != (c.text == ""):
				t.Errorf("the profile is %v, error %v", got, err)
			case got != nil && (got.Text != c.text || got.File != filepath.Join(folder, "web/strict.json")):
				t.Errorf("the profile is %+v", got)
			}
		})
	}
}

func TestAMissingSeccompProfileIsReportedAndTriedAgain(t *testing.T) {
	folder, name := t.TempDir(), "strict.json"
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.config.Seccomp = folder
		d.start()
		p := makePod("web", "wait")
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}}
		d.desire(1, p)
		time.Sleep(2 * time.Second)
		st := d.wantPhase("web", corev1.PodPending, "")
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerError" ||
			!strings.Contains(w.Message, `cannot load seccomp profile "strict.json"`) {
			t.Errorf("the container's state is %v, want that the profile is missing", w)
		}
		d.wantContainers()
		if err := os.WriteFile(filepath.Join(folder, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
		d.wantContainers("web/c0#0 running")
	})
}
