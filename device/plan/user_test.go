package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

func TestTheUserOfAContainer(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	yes, no := true, false
	for _, c := range []struct {
		name      string
		pod       *corev1.PodSecurityContext
		container *corev1.SecurityContext
		image     string
		want      string // the expected user, or part of the error
		refused   bool
	}{
		{name: "no user is set", image: "1000"},
		{name: "the pod's user", pod: &corev1.PodSecurityContext{RunAsUser: number(7)}, image: "1000:1000", want: "7"},
		{name: "the container's user overrides the pod's", pod: &corev1.PodSecurityContext{RunAsUser: number(7)}, container: &corev1.SecurityContext{RunAsUser: number(8), RunAsGroup: number(9)}, want: "8:9"},
		{name: "runAsNonRoot with the pod's user", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: number(7)}, want: "7"},
		{name: "runAsNonRoot with user 0", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: number(0)}, want: "breaks non-root policy", refused: true},
		{name: "runAsNonRoot with the image's user", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "1000", want: "1000"},
		{name: "runAsNonRoot with the image's user and group", container: &corev1.SecurityContext{RunAsNonRoot: &yes}, image: "1000:50", want: "1000:50"},
		{name: "runAsNonRoot with the image's user and another group", container: &corev1.SecurityContext{RunAsNonRoot: &yes, RunAsGroup: number(60)}, image: "1000:50", want: "1000:60"},
		{name: "runAsNonRoot with an image without a user", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, want: "image will run as root", refused: true},
		{name: "runAsNonRoot with an image of root", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "0:1000", want: "image will run as root", refused: true},
		{name: "runAsNonRoot with an image of user 0 in another notation", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "000", want: "image will run as root", refused: true},
		{name: "runAsNonRoot with an image's user name", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "app", want: "non-numeric user (app)", refused: true},
		{name: "runAsNonRoot with an image's user that is too large", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "4294967296", want: "non-numeric user (4294967296)", refused: true},
		{name: "runAsNonRoot with an image's negative user", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "-1", want: "non-numeric user (-1)", refused: true},
		{name: "the container overrides the pod's runAsNonRoot", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, container: &corev1.SecurityContext{RunAsNonRoot: &no}},
		{name: "a group for the image's user", pod: &corev1.PodSecurityContext{RunAsGroup: number(60)}, image: "app:50", want: "app:60"},
		{name: "a group for an image without a user", pod: &corev1.PodSecurityContext{RunAsGroup: number(60)}, want: "0:60"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var spec engine.Spec
			err := setUser(&spec, c.pod, c.container, c.image)
			if c.refused && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("the user is %q, error %v, want an error with %q", spec.User, err, c.want)
			} else if !c.refused && (err != nil || spec.User != c.want) {
				t.Errorf("the user is %q, error %v, want the user %q", spec.User, err, c.want)
			}
		})
	}
}
