package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
)

// offerMessageApp offers the image "app". A container writes its first argument into the file named
// by the second, prints the third, and exits with code 1 after a second.
func (d *device) offerMessageApp(t *testing.T) {
	d.fake.AddImage("app", 1, func(s engine.Spec, run int) enginetest.Play {
		if len(s.Entrypoint) > 0 && s.Entrypoint[0] == pause.Target {
			return enginetest.Play{}
		}
		for _, m := range s.Mounts {
			if m.Target == s.Args[1] {
				if info, err := os.Stat(m.Source); err != nil || info.Mode().Perm() != 0o666 || info.Size() != 0 {
					t.Errorf("the message file is %v, error %v; want it empty and writable for all", info, err)
				}
				if err := os.WriteFile(m.Source, []byte(s.Args[0]), 0o600); err != nil {
					t.Error(err)
				}
			}
		}
		return enginetest.Play{Exits: true, ExitAfter: time.Second, ExitCode: 1,
			Lines: []enginetest.Line{{Text: s.Args[2]}}}
	})
}

func messagePod(restart corev1.RestartPolicy, containers ...corev1.Container) corev1.Pod {
	p := makePod("app", make([]string, len(containers))...)
	p.Spec.RestartPolicy = restart
	for i, c := range containers {
		c.Name, c.Image, c.ImagePullPolicy = p.Spec.Containers[i].Name, "app", corev1.PullNever
		p.Spec.Containers[i] = c
	}
	return p
}

func TestTheTerminationMessageIsInTheStatus(t *testing.T) {
	log := corev1.TerminationMessageFallbackToLogsOnError
	for name, c := range map[string]struct {
		container corev1.Container
		want      string
	}{
		"the default file": {corev1.Container{Args: []string{"bye", "/dev/termination-log", "log"}}, "bye"},
		"another file":     {corev1.Container{Args: []string{"bye", "/tmp/last", "log"}, TerminationMessagePath: "/tmp/last"}, "bye"},
		"no message":       {corev1.Container{Args: []string{"", "/dev/termination-log", "log"}}, ""},
		"without a message the end of the log is used": {corev1.Container{Args: []string{"", "/dev/termination-log", "log"}, TerminationMessagePolicy: log}, "log\n"},
		"with a message the log is not used":           {corev1.Container{Args: []string{"bye", "/dev/termination-log", "log"}, TerminationMessagePolicy: log}, "bye"},
		"the last 4096 bytes of a long file are used":  {corev1.Container{Args: []string{strings.Repeat("a", 5000) + "z", "/dev/termination-log", ""}}, strings.Repeat("a", 4095) + "z"},
		"the last 2048 bytes of a long log are used":   {corev1.Container{Args: []string{"", "", strings.Repeat("a", 5000) + "z"}, TerminationMessagePolicy: log}, strings.Repeat("a", 2046) + "z\n"},
		"a volume mounted at the path has priority":    {corev1.Container{Args: []string{"x", "/none", "log"}, TerminationMessagePath: "/data", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data/"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.offerMessageApp(t)
				p := messagePod(corev1.RestartPolicyNever, c.container)
				p.Spec.Volumes = []corev1.Volume{{Name: "data",
					VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
				d.desire(1, p)
				for _, agent := range []string{"the agent", "another agent"} {
					time.Sleep(5 * time.Second)
					st := d.wantPhase("app", corev1.PodFailed, "")
					if s := st.ContainerStatuses[0].State.Terminated; s == nil || s.Message != c.want {
						t.Errorf("the state of %s is %+v, want the message %q", agent, s, c.want)
					}
					d.end()
					d.start()
				}
			})
		})
	}
}

func TestTerminationMessagesOfAPodAreLimitedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.offerMessageApp(t)
		long := corev1.Container{Args: []string{strings.Repeat("a", 5000), "/dev/termination-log", ""}}
		d.desire(1, messagePod(corev1.RestartPolicyNever, long, long, long, long))
		time.Sleep(5 * time.Second)
		for _, s := range d.wantPhase("app", corev1.PodFailed, "").ContainerStatuses {
			if n := len(s.State.Terminated.Message); n != 3072 {
				t.Errorf("the message of %s has %d bytes, want 3072", s.Name, n)
			}
		}
	})
}

// The message files of earlier instances are removed with the instances; the status keeps the
// messages.
func TestACrashLoopLeavesTwoMessages(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.offerMessageApp(t)
		d.desire(1, messagePod(corev1.RestartPolicyAlways,
			corev1.Container{Args: []string{"bye", "/dev/termination-log", ""}}))
		time.Sleep(3 * time.Minute)
		st, _ := d.pod("app")
		if s := st.ContainerStatuses[0]; s.RestartCount < 3 || s.LastTerminationState.Terminated == nil ||
			s.LastTerminationState.Terminated.Message != "bye" {
			t.Errorf("the container's status is %+v, want 3 restarts and the message bye", s)
		}
		if files, err := filepath.Glob(filepath.Join(d.dir, volume.PodsDir, "uid-app", ".message-*")); err != nil ||
			len(files) != 2 {
			t.Errorf("the message files are %q, %v", files, err)
		}
	})
}

// If the message file is replaced by a link, the agent does not read the file that the link leads
// to.
func TestALinkInPlaceOfTheMessageFileIsNotFollowed(t *testing.T) {
	d := notebook{volume.Disk{Root: t.TempDir()}}
	secret := filepath.Join(d.Root, "secret")
	at := plan.Place{Pod: "uid", Container: "web"}
	path := filepath.Join(d.Root, messageName(at, 0))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path); err != nil {
		t.Fatal(err)
	}
	if message := d.readMessage(at, 0); message != "" {
		t.Errorf("the message is %q, want none", message)
	}
	// a new file replaces the link
	if _, err := d.makeMessageFile(plan.Step{Place: at, Spec: &corev1.Container{}}); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(secret); string(b) != "secret" {
		t.Errorf("the target of the link is now %q", b)
	}
}
