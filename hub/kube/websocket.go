package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"flotilla.dev/hub/panics"
)

// Browsers use WebSockets for watches and logs, as Headlamp does.

// upgrades reports whether a request becomes a WebSocket. It refuses pages of other sites, because
// a browser sends its certificate or cookie for every page. With a token it accepts every page.
// With a certificate it accepts an origin that no site can have, or one on the operator's own
// machine, such as Headlamp's. With a cookie the page must be the hub's, because other programs on
// this machine count as the same site.
func (c *call) upgrades() (bool, error) {
	if !wsstream.IsWebSocketRequest(c.r) {
		return false, nil
	}
	if _, ok := c.w.(http.Hijacker); !ok {
		return false, apierrors.NewBadRequest("a WebSocket needs HTTP/1.1, not " + c.r.Proto)
	}
	origin := c.r.Header.Get("Origin")
	token := c.r.Header.Get("Authorization") != ""
	certificate := c.r.TLS != nil && len(c.r.TLS.PeerCertificates) > 0
	cookie := !token && !certificate && c.r.Header.Get("Cookie") != ""
	u, err := url.Parse(origin)
	ownPage := err == nil && u.Host == c.r.Host && (u.Scheme == "https" || c.r.TLS == nil)
	switch {
	case cookie && !ownPage:
		return false, apierrors.NewForbidden(c.res.GroupResource(), c.name, fmt.Errorf(
			"a page of %q may not open a WebSocket here with a session's cookie: use an API token", origin))
	case token || origin == "" || ownPage || err == nil && isLocal(u):
		return true, nil
	}
	return false, apierrors.NewForbidden(c.res.GroupResource(), c.name, fmt.Errorf(
		"a page of %s may not open a WebSocket here with a client certificate: use an API token", origin))
}

// isLocal reports whether an origin is a page of a program on the caller's machine.
func isLocal(origin *url.URL) bool {
	if origin.Scheme == "file" {
		return true
	}
	ip, err := netip.ParseAddr(origin.Hostname())
	return origin.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// logOverWebSocket copies a log to a WebSocket. The last message is the error, if any.
func (c *call) logOverWebSocket(copy func(ctx context.Context, w io.Writer) error) error {
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	r, w := io.Pipe()
	defer func() { _ = r.Close() }()
	go func() {
		defer panics.CatchThen("log", func(err error) { _ = w.CloseWithError(err) })
		err := copy(ctx, w)
		if err != nil && ctx.Err() == nil {
			_, _ = io.WriteString(w, "error: "+err.Error()+"\n")
		}
		_ = w.Close()
	}()
	if err := wsstream.NewReader(r, true, wsstream.NewDefaultReaderProtocols()).Copy(c.w, c.r); err != nil {
		c.Log.Debug("copy a log to a WebSocket", "err", err)
	}
	return nil
}
