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

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/shared/wire"
)

// notRootPod is a pod with runAsNonRoot and the given image.
func notRootPod(name, image string) corev1.Pod {
	p, yes := makePod(name, "wait"), true
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes}
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, corev1.PullNever
	return p
}

func TestRunAsNonRootUsesTheImagesUser(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for image, user := range map[string]string{"user:1": "1000", "root:1": ""} {
			d.fake.AddImage(image, 1<<20, nil)
			d.fake.SetImageUser(image, user)
		}
		d.desire(1, notRootPod("good", "user:1"), notRootPod("bad", "root:1"))
		time.Sleep(time.Second)
		d.wantPhase("good", corev1.PodRunning, "")
		st := d.wantPhase("bad", corev1.PodPending, "")
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerConfigError" ||
			!strings.Contains(w.Message, "image will run as root") {
			t.Errorf("the container of the root image waits with %+v", w)
		}
	})
}

// withUser builds the test image with another user.
func withUser(t *testing.T, socket, user string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	call := func(method, path string, body any, into any) {
		t.Helper()
		b, err := json.Marshal(body)
		must(t, err)
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "http://engine/v1.41"+path,
			bytes.NewReader(b))
		must(t, err)
		r.Header.Set("Content-Type", "application/json")
		a, err := c.Do(r)
		must(t, err)
		defer func() { _ = a.Body.Close() }()
		if a.StatusCode >= 300 {
			t.Fatalf("%s %s: %s", method, path, a.Status)
		}
		if into != nil {
			must(t, json.NewDecoder(a.Body).Decode(into))
		}
	}
	var of struct{ ID string }
	call("POST", "/containers/create", map[string]any{"Image": enginetest.ToolImage}, &of)
	image := fmt.Sprintf("flotilla.test/user-%s:%d", strings.NewReplacer(":", "-").Replace(user), time.Now().UnixNano())
	repo, tag, _ := strings.Cut(image, ":")
	call("POST", "/commit?"+url.Values{"container": {of.ID}, "repo": {repo}, "tag": {tag},
		"changes": {"USER " + user}}.Encode(), map[string]any{}, nil)
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
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{good, bad}}))
		d.await("the pod whose image has a user runs", func() bool { return ready(d.pod("good")) })
		d.await("the pod with the root image waits", func() bool {
			st := d.pod("bad")
			return st != nil && len(st.ContainerStatuses) > 0 && st.ContainerStatuses[0].State.Waiting != nil &&
				strings.Contains(st.ContainerStatuses[0].State.Waiting.Message, "image will run as root")
		})
	})
}
