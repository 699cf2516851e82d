package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/shared/wire"
)

func TestAsWhomAContainerRuns(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	yes, no := true, false
	for _, c := range []struct {
		name      string
		pod       *corev1.PodSecurityContext
		container *corev1.SecurityContext
		image     string
		want      string // the user, or a part of why not
		refused   bool
	}{
		{name: "nobody says anything", image: "1000"},
		{name: "the pod says", pod: &corev1.PodSecurityContext{RunAsUser: number(7)}, image: "1000:1000", want: "7"},
		{name: "the container says otherwise", pod: &corev1.PodSecurityContext{RunAsUser: number(7)}, container: &corev1.SecurityContext{RunAsUser: number(8), RunAsGroup: number(9)}, want: "8:9"},
		{name: "not root, by the pod's own user", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: number(7)}, want: "7"},
		{name: "not root, and the user is", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: number(0)}, want: "breaks non-root policy", refused: true},
		{name: "not root, by the image", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "1000", want: "1000"},
		{name: "not root, by the image with its group", container: &corev1.SecurityContext{RunAsNonRoot: &yes}, image: "1000:50", want: "1000:50"},
		{name: "not root, by the image, with another group", container: &corev1.SecurityContext{RunAsNonRoot: &yes, RunAsGroup: number(60)}, image: "1000:50", want: "1000:60"},
		{name: "not root, and the image says nothing", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, want: "image will run as root", refused: true},
		{name: "not root, and the image is", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "0:1000", want: "image will run as root", refused: true},
		{name: "not root, and the image is, in another way", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "000", want: "image will run as root", refused: true},
		{name: "not root, and the image's user is a name", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "app", want: "non-numeric user (app)", refused: true},
		{name: "not root, and the image's user is no number that there is", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "4294967296", want: "non-numeric user (4294967296)", refused: true},
		{name: "not root, and the image's user is below it", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, image: "-1", want: "non-numeric user (-1)", refused: true},
		{name: "the container takes the pod's word back", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, container: &corev1.SecurityContext{RunAsNonRoot: &no}},
		{name: "a group for the image's user", pod: &corev1.PodSecurityContext{RunAsGroup: number(60)}, image: "app:50", want: "app:60"},
		{name: "a group for an image without a user", pod: &corev1.PodSecurityContext{RunAsGroup: number(60)}, want: "0:60"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var spec engine.Spec
			err := identity(&spec, c.pod, c.container, c.image)
			if c.refused && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("it runs as %q, %v, want an error with %q", spec.User, err, c.want)
			} else if !c.refused && (err != nil || spec.User != c.want) {
				t.Errorf("it runs as %q, %v, want %q", spec.User, err, c.want)
			}
		})
	}
}

// notRootPod is a pod of an image that must not run as root.
func notRootPod(name, image string) corev1.Pod {
	p, yes := makePod(name, "wait"), true
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes}
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, corev1.PullNever
	return p
}

func TestAnImageSaysThatItIsNotRoot(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for image, user := range map[string]string{"user:1": "1000", "root:1": ""} {
			d.twin.AddImage(image, 1<<20, nil)
			d.twin.SetImageUser(image, user)
		}
		d.desire(1, notRootPod("good", "user:1"), notRootPod("bad", "root:1"))
		time.Sleep(time.Second)
		d.wantPhase("good", corev1.PodRunning, "")
		st := d.wantPhase("bad", corev1.PodPending, "")
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerConfigError" || !strings.Contains(w.Message, "image will run as root") {
			t.Errorf("the image of root waits with %+v", w)
		}
	})
}

// withUser makes an image of the test image whose programs run as somebody.
func withUser(t *testing.T, socket, user string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	call := func(method, path string, body any, into any) {
		t.Helper()
		b, err := json.Marshal(body)
		made(t, err)
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "http://engine/v1.41"+path, bytes.NewReader(b))
		made(t, err)
		r.Header.Set("Content-Type", "application/json")
		a, err := c.Do(r)
		made(t, err)
		defer func() { _ = a.Body.Close() }()
		if a.StatusCode >= 300 {
			t.Fatalf("%s %s: %s", method, path, a.Status)
		}
		if into != nil {
			made(t, json.NewDecoder(a.Body).Decode(into))
		}
	}
	var of struct{ ID string }
	call("POST", "/containers/create", map[string]any{"Image": enginetest.ToolImage}, &of)
	image := fmt.Sprintf("flotilla.test/user-%s:%d", strings.NewReplacer(":", "-").Replace(user), time.Now().UnixNano())
	repo, tag, _ := strings.Cut(image, ":")
	call("POST", "/commit?"+url.Values{"container": {of.ID}, "repo": {repo}, "tag": {tag}, "changes": {"USER " + user}}.Encode(), map[string]any{}, nil)
	call("DELETE", "/containers/"+of.ID+"?force=true", nil, nil)
	t.Cleanup(func() { call("DELETE", "/images/"+image+"?force=true", nil, nil) })
	return image
}

func TestRealEngineReadsTheImagesUser(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		image := withUser(t, socket, "1000:1000")
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		good, bad := notRootPod("good", image), notRootPod("bad", enginetest.ToolImage)
		good.UID, bad.UID = types.UID("uid-good-"+d.node), types.UID("uid-bad-"+d.node)
		good.Spec.TerminationGracePeriodSeconds = new(int64)
		made(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{good, bad}}))
		d.await("the image's user runs", func() bool { return ready(d.pod("good")) })
		d.await("the image of root does not", func() bool {
			st := d.pod("bad")
			return st != nil && len(st.ContainerStatuses) > 0 && st.ContainerStatuses[0].State.Waiting != nil && strings.Contains(st.ContainerStatuses[0].State.Waiting.Message, "image will run as root")
		})
	})
}
