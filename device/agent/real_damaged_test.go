package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// layerOf is the directory of the newest layer of an image.
func layerOf(t *testing.T, socket, image string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	r, err := c.Get("http://engine/v1.41/images/" + image + "/json")
	must(t, err)
	var at struct {
		GraphDriver struct{ Data struct{ UpperDir string } }
	}
	must(t, json.NewDecoder(r.Body).Decode(&at))
	must(t, r.Body.Close())
	return filepath.Dir(at.GraphDriver.Data.UpperDir)
}

// Both containers and the sandbox are stopped, as after a power cut.
func TestRealEngineADamagedImageIsPulledAgain(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		defer server.Close()
		tag, err := name.NewTag(fmt.Sprintf("%s/team-%d/web:1", strings.TrimPrefix(server.URL, "http://"),
			time.Now().UnixNano()))
		must(t, err)
		must(t, remote.Write(tag, pauseImage(t, tag.String())))
		t.Cleanup(func() { // after the containers, which use the image
			if eng, err := openReal(socket); err == nil {
				_ = eng.RemoveImage(context.Background(), tag.String())
			}
		})
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		pod := makePod("web", "", "")
		pod.UID = types.UID("uid-web-" + d.node)
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Image, pod.Spec.Containers[i].ImagePullPolicy,
				pod.Spec.Containers[i].Args = tag.String(),
				corev1.PullIfNotPresent, nil
		}
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{pod}}))
		d.await("the pod runs", func() bool { return ready(d.pod("web")) })
		d.end()
		for _, c := range d.list() {
			must(t, d.eng.Stop(t.Context(), c.ID, 0))
		}
		layer := layerOf(t, socket, tag.String())
		if _, err := os.Stat(filepath.Join(layer, "diff")); err != nil {
			t.Skip("cannot find the image's layers: ", err)
		}
		must(t, os.RemoveAll(layer))
		d.start()
		d.await("the pod runs again", func() bool { return ready(d.pod("web")) })
		for _, c := range d.pod("web").ContainerStatuses {
			if c.RestartCount != 1 {
				t.Errorf("container %s has been restarted %d times", c.Name, c.RestartCount)
			}
		}
	})
}
