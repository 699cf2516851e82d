package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/engine"
)

func TestPull(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		ctx := t.Context()

		t.Run("an image is pulled, listed as unused, and removed", func(t *testing.T) {
			ref := newRegistry(t, "").host + "/name:1"
			var last engine.Progress
			must(t, e.Pull(ctx, ref, nil, func(p engine.Progress) { last = p }))
			if last.Layers == 0 || last.Done != last.Layers {
				t.Errorf("the last progress is %+v, want all layers done", last)
			}
			id, ok, err := e.HasImage(ctx, ref)
			if err != nil || !ok {
				t.Fatalf("the image is missing after the pull: %v", err)
			}
			images, err := e.Images(ctx)
			must(t, err)
			i := slices.IndexFunc(images, func(i engine.Image) bool { return i.ID == id })
			if i < 0 || images[i].InUse || !slices.Contains(images[i].Tags, ref) {
				t.Fatalf("images are %+v, want %s unused among them", images, ref)
			}
			must(t, e.Pull(ctx, ref, nil, nil)) // prepares a second removal
			must(t, e.RemoveImage(ctx, id))
			if _, ok, err := e.HasImage(ctx, ref); err != nil || ok {
				t.Fatalf("the image is still there: %v", err)
			}
		})
		t.Run("an image is pulled and removed by its digest", func(t *testing.T) {
			r := newRegistry(t, "")
			ref := r.host + "/name@" + sum(r.manifest)
			must(t, e.Pull(ctx, ref, nil, nil))
			if _, ok, err := e.HasImage(ctx, ref); err != nil || !ok {
				t.Fatalf("the image is missing after the pull: %v", err)
			}
			must(t, e.RemoveImage(ctx, ref))
			if _, ok, err := e.HasImage(ctx, ref); err != nil || ok {
				t.Fatalf("the image is still there: %v", err)
			}
		})
		t.Run("an image with too many labels is refused and removed", func(t *testing.T) {
			ref := newRegistry(t, "", strings.Repeat("x", 70<<10)).host + "/name:1"
			if err := e.Pull(ctx, ref, nil, nil); !errors.Is(err, engine.ErrUnsupported) {
				t.Errorf("pulling: %v", err)
			}
			if _, ok, err := e.HasImage(ctx, ref); err != nil || ok {
				t.Errorf("the image is still there: %v", err)
			}
			post(t, socket, "/images/create?fromImage="+url.QueryEscape(ref)) // another program pulls the image
			if id, err := e.Create(ctx, engine.Spec{Name: fmt.Sprintf("flotilla-test-%d", time.Now().UnixNano()),
				Image: ref}); !errors.Is(err, engine.ErrUnsupported) {
				t.Errorf("creating: %v", errors.Join(err, e.Remove(ctx, id)))
			}
			must(t, e.RemoveImage(ctx, ref))
			ref = newRegistry(t, "", strings.Repeat("x", 60<<10)).host + "/name:1"
			must(t, e.Pull(ctx, ref, nil, nil))
			must(t, e.RemoveImage(ctx, ref))
		})
		t.Run("a tag or a name that does not exist is ErrNotFound", func(t *testing.T) {
			host := newRegistry(t, "").host
			for _, ref := range []string{host + "/name:2", host + "/other:1", "Not A Name"} {
				if err := e.Pull(ctx, ref, nil, nil); !errors.Is(err, engine.ErrNotFound) {
					t.Errorf("%s: %v, want ErrNotFound", ref, err)
				}
			}
		})
		t.Run("a registry with a password needs credentials", func(t *testing.T) {
			r := newRegistry(t, "secret")
			ref := r.host + "/name:1"
			for _, auth := range []*engine.RegistryAuth{nil, {Username: "device", Password: "wrong", ServerAddress: r.host}} {
				if err := e.Pull(ctx, ref, auth, nil); err == nil || errors.Is(err, engine.ErrNotFound) ||
					errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "credentials") {
					t.Errorf("with the credentials %+v: %v, want an error about credentials", auth, err)
				}
			}
			must(t, e.Pull(ctx, ref, &engine.RegistryAuth{Username: "device", Password: "secret", ServerAddress: r.host}, nil))
			must(t, e.RemoveImage(ctx, ref))
		})
		t.Run("a closed registry port is a temporary error", func(t *testing.T) {
			err := e.Pull(ctx, "127.0.0.1:9/name:1", nil, nil)
			if err == nil || errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrUnavailable) ||
				!strings.Contains(err.Error(), "refused") {
				t.Fatal(err)
			}
		})
		t.Run("a pull ends with its context", func(t *testing.T) {
			r := newRegistry(t, "")
			r.stall = make(chan struct{})
			defer close(r.stall)
			short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if err := e.Pull(short, r.host+"/name:1", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		})
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// post sends a POST request directly to an engine.
func post(t *testing.T, socket, path string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}, DisableKeepAlives: true}}
	resp, err := c.Post("http://engine/v1.41"+path, "application/json", nil)
	must(t, err)
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %.300s", path, resp.Status, body)
	}
}
