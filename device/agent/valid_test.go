package agent

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// wrongPods are changes that make a pod invalid, by the message that reports each of them.
func wrongPods() map[string]func(p *corev1.Pod) {
	return map[string]func(p *corev1.Pod){
		"env[0].value":     func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", Value: "a\x00b"}} },
		"command[1]":       func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/tool", "a\x00"} },
		"labels":           func(p *corev1.Pod) { p.Labels = map[string]string{"a": "\x00"} },
		"metadata.uid":     func(p *corev1.Pod) { p.UID = "." },
		"part of a path":   func(p *corev1.Pod) { p.UID = "../../x" },
		"metadata.name":    func(p *corev1.Pod) { p.Name = "../x" },
		"namespace":        func(p *corev1.Pod) { p.Namespace = "a/b" },
		`container "../c"`: func(p *corev1.Pod) { p.Spec.Containers[0].Name = "../c" },
		`container ""`:     func(p *corev1.Pod) { p.Spec.Containers[0].Name = "" },
		"at least one":     func(p *corev1.Pod) { p.Spec.Containers = nil },
		"the name is used twice": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{p.Spec.Containers[0]}
		},
		`volume "../../.."`:      func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{emptyDir("../../..", "")} },
		"is not a variable name": func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A=B"}} },
		"mountPath is missing": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{emptyDir("v", "")}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v"}}
		},
		`mountPath "/m,source=/etc"`: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{emptyDir("v", "")}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/m,source=/etc"}}
		},
		`workingDir "/x/../proc/self/fd/8"`: func(p *corev1.Pod) { p.Spec.Containers[0].WorkingDir = "/x/../proc/self/fd/8" },
		`mountPath "/proc/self"`: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{emptyDir("v", "")}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/proc/self"}}
		},
		"volume v: the name is used twice": func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{emptyDir("v", ""), secretVolume("v")} },
		"volumeMounts: 2000 exceed": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{emptyDir("v", "")}
			for i := range 2000 {
				p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
					corev1.VolumeMount{Name: "v", MountPath: fmt.Sprint("/", i)})
			}
		},
		"limit of 512": func(p *corev1.Pod) {
			for i := range 2000 {
				p.Spec.Volumes = append(p.Spec.Volumes, emptyDir(fmt.Sprint("v", i), ""))
			}
		},
		"limit of 128": func(p *corev1.Pod) {
			for i := range 2000 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "x"})
			}
		},
		"limit of 4096": func(p *corev1.Pod) {
			v := secretVolume("v")
			v.Secret.Items = make([]corev1.KeyToPath, 5000)
			p.Spec.Volumes = []corev1.Volume{v}
		},
		"cannot read the pod: pods[3]": func(p *corev1.Pod) {
			p.Annotations = map[string]string{wire.Unreadable: "pods[3]: something"}
			p.Spec = corev1.PodSpec{}
		},
	}
}

// created is the number of containers that the agent has created.
func (d *device) created() (n int) {
	for _, r := range d.reasons() {
		if r == "Created" {
			n++
		}
	}
	return n
}

// An invalid pod does not affect other pods: they run, and deleted pods are removed.
func TestAnInvalidPodIsRejectedAlone(t *testing.T) {
	for want, spoil := range wrongPods() {
		t.Run(want, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				old := makePod("old", "wait")
				d.desire(1, old)
				time.Sleep(5 * time.Second)
				bad := makePod("bad", "wait")
				spoil(&bad)
				d.desire(2, deletedPod(old, 1), bad, makePod("good", "wait"))
				time.Sleep(10 * time.Second)
				var names []string
				for _, p := range heldPods(d.agent) {
					names = append(names, p.Name)
					if p.Name != bad.Name || p.UID != bad.UID {
						continue
					}
					if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Invalid" ||
						!strings.Contains(p.Status.Message, want) || strings.Contains(p.Status.Message, "\x00") {
						t.Errorf("the invalid pod is %s because of %s: %s", p.Status.Phase, p.Status.Reason,
							p.Status.Message)
					}
				}
				if got := slices.Sorted(slices.Values(names)); !slices.Equal(got,
					slices.Sorted(slices.Values([]string{bad.Name, "good"}))) {
					t.Errorf("the device reports %v, want %s and good", got, bad.Name)
				}
				if n := d.created(); n != 2 {
					t.Errorf("%d containers were created, want those of old and good", n)
				}
				d.end() // a restarted agent rejects the pod too
				d.start()
				time.Sleep(5 * time.Second)
				if n := d.created(); n != 2 {
					t.Errorf("%d containers were created after a restart of the agent", n)
				}
				d.desire(3, makePod("good", "wait"))
				time.Sleep(5 * time.Second)
				if pods := d.agent.Pods().Pods; len(pods) != 1 || pods[0].Status.Phase != corev1.PodRunning {
					t.Errorf("without the invalid pod the device reports %+v, want one running pod", pods)
				}
			})
		})
	}
}

// A changed spec of a running pod is validated too.
func TestAChangedRunningPodIsValidated(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(p *corev1.Pod)
		reason string // reason of the pod or of its container
	}{
		{"a name with a path", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{emptyDir("../../..", "")} }, "Invalid"},
		{"more rights than the owner allows", func(p *corev1.Pod) {
			yes := true
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}, "PolicyForbidden"},
		{"a host path that the owner does not allow", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: onHost("/etc")}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		}, "PolicyForbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("web", "wait")
				d.desire(1, p)
				time.Sleep(5 * time.Second)
				p = *p.DeepCopy()
				c.change(&p)
				d.desire(2, p)
				time.Sleep(time.Second)
				d.fake.Exit(d.name("web"), 1) // the next instance uses the present spec
				time.Sleep(time.Minute)
				st := d.agent.Pods().Pods[0].Status
				got := st.Reason
				if w := st.ContainerStatuses; got == "" && len(w) > 0 && w[0].State.Waiting != nil {
					got = w[0].State.Waiting.Reason
				}
				if got != c.reason {
					t.Errorf("the pod's status is %+v, want %s", st, c.reason)
				}
				if n := d.created(); n != 1 {
					t.Errorf("%d containers were created, want only the first", n)
				}
			})
		})
	}
}

// The longest possible grace period does not overflow to 0.
func TestALongGraceDoesNotOverflow(t *testing.T) {
	for _, seconds := range []int64{math.MaxInt64, math.MaxInt64 / int64(time.Second), 1 << 40} {
		p := makePod("web", "wait")
		p.Spec.TerminationGracePeriodSeconds, p.Spec.ActiveDeadlineSeconds = &seconds, &seconds
		if g := podspec.Grace(&p); g < 24*time.Hour {
			t.Errorf("a grace period of %d s becomes %s", seconds, g)
		}
		if g := podspec.Grace(new(deletedPod(p, seconds))); g < 24*time.Hour {
			t.Errorf("a deletion grace period of %d s becomes %s", seconds, g)
		}
		bubble(t, func(t *testing.T, d *device) {
			d.desire(1, p)
			time.Sleep(time.Minute)
			d.wantPhase("web", corev1.PodRunning, "")
		})
	}
}

// A pod that becomes forbidden while it runs may use its whole grace period to stop, and is not
// ready meanwhile.
func TestARunningPodThatBecomesForbiddenIsNotReady(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "stubborn")
		d.desire(1, p)
		time.Sleep(5 * time.Second)
		if st := d.agent.Pods().Pods[0].Status; !ready(&st) || !st.ContainerStatuses[0].Ready {
			t.Fatalf("the pod is not ready before the change: %+v", st)
		}
		p = *p.DeepCopy()
		yes := true
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		d.desire(2, p)
		time.Sleep(5 * time.Second)
		st := d.agent.Pods().Pods[0].Status
		if st.Reason != plan.PolicyForbidden || st.ContainerStatuses[0].State.Running == nil {
			t.Fatalf("the status is %+v, want a forbidden pod that still stops", st)
		}
		if ready(&st) || st.ContainerStatuses[0].Ready {
			t.Errorf("the forbidden pod is ready: %+v", st)
		}
	})
}
