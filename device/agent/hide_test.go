package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
)

func TestWhatASecretSaysIsQuotedNowhere(t *testing.T) {
	of := func(data map[string]string) sources {
		return sources{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kiosk"}}, secrets: []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "keys"}, StringData: data}}}
	}
	c := &corev1.Container{Name: "web", Env: []corev1.EnvVar{
		{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "a"}}},
	}}
	all := &corev1.Container{Name: "web", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}}}}
	for _, tt := range []struct{ name, value, text string }{
		{"as it is", "../hunter2", `"../hunter2" must be a relative path that stays in the volume`},
		{"as Go quotes it", "hun\tter2", fmt.Sprintf("%q leads out of the volume", "hun\tter2")},
		{"a name of a path", "deep/hunter2//x", "openat hunter2: not a directory"},
		{"cleaned", "deep//hunter2", "mkdir /run/x/deep/hunter2: no space left"},
		{"amid another", "hunter2", `exec: "/bin/run-hunter2-now": no such file`},
		{"a line of it", "first\nhunter2\n", "cannot open hunter2"},
	} {
		for _, c := range []*corev1.Container{c, all} {
			err := of(map[string]string{"a": tt.value}).hide(c, fmt.Errorf("%s: %w", tt.text, engine.ErrUnavailable))
			if got := err.Error(); strings.Contains(got, "hunter2") || strings.Contains(got, "ter2") || !strings.Contains(got, "(secret keys, key a)") {
				t.Errorf("%s: %s", tt.name, got)
			}
			if !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("%s: its cause is lost", tt.name)
			}
		}
	}
	plain := errors.New("no space left on device")
	if got := of(map[string]string{"a": "hunter2"}).hide(c, plain); got != plain { //nolint:errorlint // it is the same one
		t.Errorf("another error becomes %v", got)
	}
	if got := of(map[string]string{"b": "no space"}).hide(c, plain); got != plain { //nolint:errorlint // the same
		t.Errorf("a key that the container has not: %v", got)
	}
}
