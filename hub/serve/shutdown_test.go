package serve

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/store"
)

// A stopping hub finishes its responses, with its database open, before it ends.
func TestAStoppingHubFinishesItsResponses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Config: config.Default(), Version: "test", Log: slog.New(slog.DiscardHandler),
		Listeners: Listeners{HTTPS: l, Dev: pipe.New()}}
	o.Config.DataDir = t.TempDir()
	hub, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	hub.web().routes.GET("/slow", func(c echo.Context) error {
		c.Response().WriteHeader(http.StatusOK)
		c.Response().Flush()
		<-c.Request().Context().Done()
		time.Sleep(200 * time.Millisecond) // long enough for everything that does not wait for the request
		_, err := hub.Store.Meta(context.Background(), store.MetaURL)
		asked <- err
		return c.String(http.StatusOK, "whole response")
	})
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- hub.Run(ctx) }()
	defer stop()
	<-hub.Up()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("https://" + l.Addr().String() + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
	select {
	case err := <-asked:
		if err != nil {
			t.Errorf("the request fails during the shutdown: %v", err)
		}
	default:
		t.Error("the hub ends before its response")
	}
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "whole response" {
		t.Errorf("the response is %q, %v", text, err)
	}
}
