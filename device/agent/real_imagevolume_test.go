package agent

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/wire"
)

// An image volume shows the image's files read-only while a pod uses it. Remains of a killed agent
// are neither used nor kept.
func TestRealEngineMountsImages(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		id, _, err := d.eng.HasImage(t.Context(), enginetest.ToolImage)
		must(t, err)
		id = strings.TrimPrefix(id, "sha256:")
		pod := func(name string, args ...string) corev1.Pod {
			p := makePod(name, "wait")
			p.UID = types.UID("uid-" + name + "-" + d.node)
			p.Spec.TerminationGracePeriodSeconds = new(int64)
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: enginetest.ToolImage,
					PullPolicy: corev1.PullNever}}}}
			p.Spec.Containers = []corev1.Container{{Name: "c", Image: enginetest.ToolImage, Args: args,
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"},
					{Name: "v", MountPath: "/sub", SubPath: "etc"},
					{Name: "v", MountPath: "/one", SubPath: "etc/group"}}}}
			return p
		}
		output := func(name string) string {
			list, err := d.eng.Containers(t.Context(), plan.LabelPodUID+"=uid-"+name+"-"+d.node)
			must(t, err)
			var out strings.Builder
			for _, c := range list {
				must(t, d.eng.Logs(t.Context(), c.ID, engine.LogOptions{Tail: -1}, &out, io.Discard))
			}
			return out.String()
		}
		ended := func(name string, phase corev1.PodPhase) {
			t.Helper()
			d.await(name+" ends", func() bool { st := d.pod(name); return st != nil && st.Phase == phase })
		}
		// remains of a killed agent: a partial copy, and the container that reads the image
		d.end()
		images := filepath.Join(d.dir, "images")
		must(t, os.MkdirAll(filepath.Join(images, ".new-"+id, "half"), 0o700))
		state := StateDirID(d.dir)
		reader, err := d.eng.Create(t.Context(), engine.Spec{Name: "flotilla-image-" + state + "-" + id[:12],
			Image: enginetest.ToolImage, Labels: map[string]string{volume.LabelImageOf: state}})
		must(t, err)
		t.Cleanup(func() { _ = d.eng.Remove(context.Background(), reader) })
		d.start()

		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{
			pod("reader", "ls", "/v", "then", "cat", "/v/etc/group", "then", "cat", "/sub/group", "then", "cat",
				"/one"),
			pod("runner", "wait")}}))
		ended("reader", corev1.PodSucceeded)
		group := "root:x:0:\napp:x:1000:\n"
		if got, want := output("reader"), group+group+group; !strings.HasSuffix(got, want) {
			t.Errorf("the container prints %q", got)
		} else if got := strings.Fields(strings.TrimSuffix(got, want)); !slices.Equal(got,
			[]string{"data", "etc", "tar", "tmp", "tool", "volume"}) {
			t.Errorf("the image's files are %q", got)
		}
		d.await("the second pod runs", func() bool { return ready(d.pod("runner")) })
		if got := namesIn(images); !slices.Equal(got, []string{id}) {
			t.Errorf("the image copies are %q, want %s", got, id)
		}
		if list, err := d.eng.Containers(t.Context(), volume.LabelImageOf+"="+state); err != nil || len(list) != 0 {
			t.Errorf("containers that read images are left: %v, %v", list, err)
		}
		must(t, d.agent.Store(wire.Desired{Generation: 2, Hub: "h",
			Pods: []corev1.Pod{pod("intruder", "write", "/v/etc/group", "no"), pod("runner", "wait")}}))
		ended("intruder", corev1.PodFailed)
		d.end()
		d.start()
		d.await("the second pod still runs", func() bool { return ready(d.pod("runner")) })
		if got := namesIn(images); !slices.Equal(got, []string{id}) {
			t.Errorf("after a restart of the agent the image copies are %q, want %s", got, id)
		}
		must(t, d.agent.Store(wire.Desired{Generation: 3, Hub: "h"}))
		d.await("the copy is removed with its last pod", func() bool { return len(namesIn(images)) == 0 })
	})
}
