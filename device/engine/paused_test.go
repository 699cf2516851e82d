package engine_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"flotilla.dev/device/engine"
)

// A container that a user has paused can still be stopped.
func TestAPausedContainerCanBeStopped(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		id := begin(t, e, engine.Spec{Labels: map[string]string{}}, "wait")
		client := http.Client{
			Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", socket)
				},
			},
		}
		resp, err := client.Post("http://engine/v1.40/containers/"+id+"/pause", "", nil)
		must(t, err)
		must(t, resp.Body.Close())
		var c struct{ State struct{ Status string } }
		if ask(t, socket, "/containers/"+id+"/json", &c); c.State.Status != "paused" {
			t.Skipf("this engine cannot pause: the container is %s after %s", c.State.Status, resp.Status)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Stop(ctx, id, 5*time.Second); err != nil {
			t.Error(err)
		}
		if ask(t, socket, "/containers/"+id+"/json", &c); c.State.Status != "exited" {
			t.Errorf("after Stop the container is %s, want exited", c.State.Status)
		}
	})
}
