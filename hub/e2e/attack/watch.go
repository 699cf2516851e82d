package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

// unreadWatches opens watches that begin with all objects, and does not read them.
func unreadWatches(ctx context.Context, a *harness.Hub) (string, error) {
	for i := range 8 {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m%d"},"data":{"a":%q}}`, i,
			noise(i, 900_000))
		if err := a.Create(ctx, "/api/v1/namespaces/default/configmaps", body); err != nil {
			return "", err
		}
	}
	viewer, err := a.As(ctx, "viewer", "vera")
	if err != nil {
		return "", err
	}
	viewer.Timeout = 0
	var in, refused atomic.Int64
	harness.Each(ctx, 400, 100, func(i int) {
		c := *viewer
		c.Transport = viewer.Transport.(*http.Transport).Clone() // each watch has its own connection
		path := []string{"/api/v1/configmaps?watch=true",
			"/api/v1/configmaps?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
			"/api/v1/configmaps?watch=true&labelSelector=!x"}[i%3]
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL(path), nil)
		if err != nil {
			return
		}
		r.Header.Set("Accept-Encoding", "identity")
		resp, err := c.Do(r)
		if err != nil {
			return
		}
		switch resp.StatusCode {
		case http.StatusOK:
			in.Add(1)
		case http.StatusTooManyRequests:
			refused.Add(1)
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 1000) // read no more than this
	})
	seen := fmt.Sprintf("%d opened, %d refused as too many", in.Load(), refused.Load())
	if in.Load() == 0 {
		return seen, errors.New("the attack's own watches do not open")
	}
	harness.Pause(ctx, 15*time.Second)
	code, _, err := a.Call(ctx, a.Admin, http.MethodGet, "/api/v1/nodes", "", "")
	if err != nil || code != http.StatusOK {
		return seen, fmt.Errorf("another user's list: %d %w", code, err)
	}
	return seen, nil
}
