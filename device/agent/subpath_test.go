package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// As with the kubelet, a container with an impossible subPath waits with
// CreateContainerConfigError, because its volumes are mounted.
func TestAnImpossibleSubPathIsAConfigurationError(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for i, path := range []string{"/tmp", "..", "a/../../b"} {
			p := makePod(fmt.Sprintf("bad%d", i), "wait")
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			c := &p.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "WHERE", Value: path}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: "$(WHERE)"}}
			d.desire(int64(i+1), p)
			time.Sleep(time.Second)
			st := d.wantPhase(p.Name, corev1.PodPending, "")
			if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerConfigError" ||
				!strings.Contains(w.Message, "subPath") {
				t.Errorf("with the subPath %q the container waits with %+v", path, w)
			}
		}
	})
}

// The error for a missing key names the object and the key, not a path on the device.
func TestAMissingKeyOfASubPathIsReportedWithItsObject(t *testing.T) {
	items := []corev1.KeyToPath{{Key: "there", Path: "there"}}
	secret, config := corev1.LocalObjectReference{Name: "web-tls"}, corev1.LocalObjectReference{Name: "web-conf"}
	for name, c := range map[string]struct {
		volume corev1.VolumeSource
		want   []string
	}{
		"a secret":     {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret.Name}}, []string{`secret "web-tls"`}},
		"a config map": {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: config, Items: items}}, []string{`configmap "web-conf"`}},
		"a projected volume of both": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: secret}}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: config}},
		}}}, []string{`secret "web-tls"`, `configmap "web-conf"`}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("web", "wait")
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.volume}}
				p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: ".key"}}
				meta := func(name string) metav1.ObjectMeta {
					return metav1.ObjectMeta{Namespace: "default",
						Name: name}
				}
				must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{p},
					Secrets: []corev1.Secret{{ObjectMeta: meta("web-tls"), Data: map[string][]byte{"there": nil}}},
					ConfigMaps: []corev1.ConfigMap{{ObjectMeta: meta("web-conf"),
						Data: map[string]string{"there": ""}}}}))
				time.Sleep(time.Second)
				w := d.wantPhase("web", corev1.PodPending, "").ContainerStatuses[0].State.Waiting
				for _, want := range append(c.want, `".key"`) {
					if w == nil || w.Reason != "CreateContainerConfigError" || !strings.Contains(w.Message, want) ||
						strings.Contains(w.Message, d.dir) {
						t.Errorf("the container waits with %+v, want %s", w, want)
					}
				}
			})
		})
	}
}

// With an empty variable, a subPathExpr would select the whole volume, or the same directory for
// many pods. As with the kubelet, the container waits.
func TestASubPathWithAnEmptyVariableIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for i, expr := range []string{"$(EMPTY)", "$(MISSING)", "logs/$(EMPTY)", "$(WHERE)/$(MISSING)", "$(OPTIONAL)"} {
			p := makePod(fmt.Sprintf("lost%d", i), "wait")
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			c := &p.Spec.Containers[0]
			optional := &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"},
				Key: "k", Optional: new(true)}
			c.Env = []corev1.EnvVar{{Name: "EMPTY"}, {Name: "WHERE", Value: "a"},
				{Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: optional}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: expr}}
			d.desire(int64(i+1), p)
			time.Sleep(time.Second)
			st := d.wantPhase(p.Name, corev1.PodPending, "")
			if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerConfigError" ||
				!strings.Contains(w.Message, "subPath") {
				t.Errorf("with the subPathExpr %q the container waits with %+v", expr, w)
			}
		}
	})
	values := map[string]string{"WHERE": "a", "EMPTY": ""}
	if sub, err := podspec.ExpandSubPath("$(WHERE)/$$(MISSING)/$WHERE", values); sub != "a/$(MISSING)/$WHERE" ||
		err != nil {
		t.Errorf("the expansion of a value without variables is %q, %v", sub, err)
	}
}
