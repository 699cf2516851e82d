package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const hubImageYAML = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: till}
spec:
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: till, image: "hub/shop/till:1", imagePullPolicy: Always, args: [wait]}]
`

// A device without internet runs an image that was pushed to its hub. It can start the image again
// while the hub is stopped.
func TestADeviceRunsAnImageOfItsHub(t *testing.T) {
	engines(t, func(t *testing.T, e *engine) {
		h := newHub(t)
		configuration := pushTool(t, h, e, "shop/till:1")
		d := h.join("oslo", e)
		d.mirror = freePort(t)
		d.run()
		t.Cleanup(func() {
			_, _ = e.ask(http.MethodDelete, "/images/"+d.mirror+"/shop/till:1?force=1")
		})
		await(t, "the node", patience, func() error { return h.ready(d.node, "True") })
		h.kubectlWith(hubImageYAML, "apply", "-f", "-")
		var before []container
		await(t, "the device runs the hub's image", patience, func() (err error) {
			if before, err = e.running(d.node); err == nil && len(before) != 1 {
				err = fmt.Errorf("%d containers run, want 1: %s", len(before), h.kubectl("get", "pods,events"))
			}
			return err
		})
		await(t, "the image's id in the pod's status, by which the hub keeps the image", patience, func() error {
			pods, err := h.pods("till", d.node)
			if err == nil && (len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 ||
				pods[0].Status.ContainerStatuses[0].ImageID != configuration) {
				err = fmt.Errorf("want the image %s in the pods %+v", configuration, pods)
			}
			return err
		})
		list := output(t, program(t, "hub", here), "image", "list", "--data-dir", h.dir)
		if !strings.Contains(list, "hub/shop/till:1 ") || !strings.Contains(list, "hub/shop/till:1-saved ") {
			t.Errorf("image list must have hub/shop/till:1 and 1-saved:\n%s", list)
		}
		r := command{path: program(t, "hub", here), args: []string{"image", "rm", "hub/shop/till:1",
			"--data-dir", h.dir}}.run(t)
		if r.code == 0 || !strings.Contains(r.err, "is used by") {
			t.Errorf("image rm of a used image must be refused: code %d: %s%s", r.code, r.out, r.err)
		}

		h.kill()
		if _, err := e.ask(http.MethodPost, "/containers/"+before[0].ID+"/kill"); err != nil {
			t.Fatal(err)
		}
		await(t, "the container runs again while the hub is stopped", patience, func() error {
			now, err := e.running(d.node)
			if err == nil && (len(now) != 1 || now[0].Started == before[0].Started) {
				err = fmt.Errorf("%d containers run, want a new one", len(now))
			}
			return err
		})
	})
}

// pushTool pushes the tests' image to a hub with the administrator's certificate. It returns the
// digest of the image's configuration.
func pushTool(t *testing.T, h *hub, e *engine, as string) string {
	t.Helper()
	saved, err := e.ask(http.MethodGet, "/images/"+toolImage+"/get")
	if err != nil {
		t.Fatal(err)
	}
	im, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(saved)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(h.https + "/" + as)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(file, saved, 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, program(t, "hub", here), "image", "push", file, "hub/"+as+"-saved", "--data-dir", h.dir)
	at := https{h.client.Transport}
	if err := remote.Write(to, im, remote.WithTransport(at)); err != nil {
		t.Fatal(err)
	}
	configuration, err := im.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return configuration.String()
}

// https sends requests over TLS that the library would send to loopback without TLS.
type https struct{ http.RoundTripper }

func (s https) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.URL.Scheme = "https"
	return s.RoundTripper.RoundTrip(q)
}
