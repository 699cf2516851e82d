package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flotilla.dev/hub/state"
)

// A proxyTarget is the target in a path below pods/proxy or services/proxy, such as
// https:kiosk-1:8443.
type proxyTarget struct {
	scheme, name string
	port         string // "": the first port of the pod or service
}

func parseProxyTarget(name string) (t proxyTarget, err error) {
	parts := strings.Split(name, ":")
	switch len(parts) {
	case 1, 2:
		t.name = parts[0]
	case 3:
		t.scheme, t.name = parts[0], parts[1]
	default:
		return t, apierrors.NewBadRequest(fmt.Sprintf("invalid target %q: use name, name:port or https:name:port", name))
	}
	if t.scheme == "" {
		t.scheme = "http"
	}
	if t.scheme != "http" && t.scheme != "https" {
		return t, apierrors.NewBadRequest(fmt.Sprintf("unsupported scheme %q: use http or https", t.scheme))
	}
	if len(parts) > 1 {
		t.port = parts[len(parts)-1]
	}
	return t, nil
}

// portOf returns the pod's port that a text names.
func portOf(p *corev1.Pod, text string) (int32, error) {
	if text == "" {
		return firstPort(p), nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("%q is not a port: use 1 to 65535", text))
	}
	return int32(n), nil
}

// firstPort returns a pod's default port for the proxy.
func firstPort(p *corev1.Pod) int32 {
	for _, c := range p.Spec.Containers {
		if len(c.Ports) > 0 {
			return c.Ports[0].ContainerPort
		}
	}
	return 80
}

// podProxy passes a request to a web server in a pod, over its device's link. The pod gets no
// credentials of the caller, and its answer cannot act as a page of the hub.
func (c *call) podProxy() error {
	t, err := parseProxyTarget(c.name)
	if err != nil {
		return err
	}
	pod := c.Fleet.Snapshot().Pod(c.namespace, t.name)
	if pod == nil {
		c.name = t.name
		return c.missing()
	}
	port, err := portOf(pod, t.port)
	if err != nil {
		return err
	}
	if err := c.checkReachable(pod); err != nil {
		return err
	}
	if err := checkRunning(pod, ""); err != nil {
		return err
	}
	if _, err := c.upgrades(); err != nil { // refuses pages of other sites
		return err
	}
	leave, err := c.enter()
	if err != nil {
		return err
	}
	defer leave()
	c.audit(fmt.Sprintf("%s port %d", c.r.Method, port), nil)

	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { // the connection ends with the request
			rw, err := c.Streams.Forward(ctx, pod, port)
			if err != nil {
				return nil, err
			}
			return podConn{rw}, nil
		},
		// a pod's certificate is not verified, as in Kubernetes
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives:  true,
		DisableCompression: true,

		MaxResponseHeaderBytes: 64 << 10,
	}
	to, err := belowProxy(c.r.URL)
	if err != nil {
		return err
	}
	above := aboveProxy(c.r.URL)
	to.Scheme, to.Host = t.scheme, net.JoinHostPort(hostOf(pod), strconv.Itoa(int(port)))
	(&httputil.ReverseProxy{
		Transport: finalAnswers{ctx, transport}, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = to, to.Host
			for _, name := range []string{"Authorization", "Cookie", "Origin", "Referer"} {
				p.Out.Header.Del(name)
			}
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header = foreignHeader(r, to, above)
			for name := range r.Header {
				c.w.Header().Del(name)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() == nil {
				c.fail(apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach pod %s/%s at port %d: %v",
					pod.Namespace, pod.Name, port, err)))
			}
		},
	}).ServeHTTP(c.w, c.r.WithContext(ctx))
	return nil
}

// foreignHeaders are the response headers that a pod may set: they describe the body. Every other
// header is dropped, because a browser applies it to the hub's origin.
var foreignHeaders = []string{
	"Accept-Ranges", "Allow", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Length",
	"Content-Range", "Content-Type", "Etag", "Last-Modified", "Retry-After", "Vary",
}

// upgradeHeaders are further headers that a pod may set when it accepts a WebSocket.
var upgradeHeaders = []string{
	"Connection", "Upgrade", "Sec-Websocket-Accept", "Sec-Websocket-Extensions", "Sec-Websocket-Protocol",
}

// foreignHeader returns the headers of a pod's answer that are passed on, and adds the headers that
// isolate foreign content.
func foreignHeader(r *http.Response, asked *url.URL, above string) http.Header {
	h := http.Header{}
	allowed := foreignHeaders
	if r.StatusCode == http.StatusSwitchingProtocols {
		allowed = slices.Concat(foreignHeaders, upgradeHeaders)
	}
	for _, name := range allowed {
		if values := r.Header.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	// A client would send its token to wherever it is redirected.
	if to, err := asked.Parse(r.Header.Get("Location")); err == nil && r.Header.Get("Location") != "" &&
		to.Scheme == asked.Scheme && to.Host == asked.Host {
		at := url.URL{Path: to.Path, RawPath: to.RawPath, RawQuery: to.RawQuery, Fragment: to.Fragment}
		h.Set("Location", above+at.String())
	}
	setGuards(h)
	isolate(h)
	return h
}

// finalAnswers drops 1xx answers: net/http passes them to a hook that ReverseProxy put into the
// request's context, and the hook then clears the headers of the final answer.
type finalAnswers struct {
	ctx context.Context // the request's, without that hook
	to  *http.Transport
}

func (f finalAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.to.RoundTrip(r.WithContext(f.ctx))
	if err != nil {
		return nil, err
	}
	passed := *answer // the transport adds trailers to the original's map
	passed.Trailer = nil
	return &passed, nil
}

func hostOf(p *corev1.Pod) string {
	if p.Status.PodIP != "" {
		return p.Status.PodIP
	}
	return "localhost"
}

// A podConn is a connection to a pod's port. It has no deadlines: it ends with its request.
type podConn struct{ io.ReadWriteCloser }

func (podConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (podConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (podConn) SetDeadline(time.Time) error      { return nil }
func (podConn) SetReadDeadline(time.Time) error  { return nil }
func (podConn) SetWriteDeadline(time.Time) error { return nil }

type proxiedKey struct{}

// serviceProxy answers requests through the one Service that exists: kubernetes, which is this API.
// It answers them as if the sender had sent them directly, and checks authentication and rights
// again. A proxy through the proxy is refused.
func (c *call) serviceProxy() error {
	t, err := parseProxyTarget(c.name)
	if err != nil {
		return err
	}
	service, _ := c.Fleet.Snapshot().Get(state.Key{Kind: state.Services, Namespace: c.namespace,
		Name: t.name}).(*corev1.Service)
	if service == nil {
		c.name = t.name
		return c.missing()
	}
	if t.scheme != "https" {
		return apierrors.NewBadRequest(fmt.Sprintf("service %s serves only https: use https:%s:443", t.name, t.name))
	}
	// Tools use 443; the Service names the hub's own port.
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return t.port == "" || t.port == p.Name || t.port == strconv.Itoa(int(p.Port)) || t.port == "443"
	}) {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", t.port, t.name))
	}
	if c.r.Context().Value(proxiedKey{}) != nil {
		return apierrors.NewBadRequest("the API's proxy cannot proxy the API again: send the request directly")
	}
	to, err := belowProxy(c.r.URL)
	if err != nil {
		return err
	}
	r := c.r.Clone(context.WithValue(c.r.Context(), proxiedKey{}, true))
	r.URL.Path, r.URL.RawPath, r.RequestURI = to.Path, to.RawPath, to.RequestURI()
	var h http.Handler = c.Server
	if at, _, _ := strings.Cut(strings.TrimPrefix(to.Path, "/"), "/"); slices.Contains(healthPaths, "/"+at) {
		h = c.health
	}
	h.ServeHTTP(c.w, r)
	return nil
}

// belowProxy returns the path behind proxy, as the client wrote it:
// /api/v1/namespaces/NAMESPACE/KIND/NAME/proxy/PATH
func belowProxy(u *url.URL) (*url.URL, error) {
	to := &url.URL{RawQuery: u.RawQuery, RawPath: "/"}
	if parts := strings.SplitN(u.EscapedPath(), "/", 9); len(parts) == 9 {
		to.RawPath += parts[8]
	}
	var err error
	if to.Path, err = url.PathUnescape(to.RawPath); err != nil {
		return nil, apierrors.NewBadRequest("invalid path below proxy: " + err.Error())
	}
	return to, nil
}

// aboveProxy returns the path up to proxy, without a slash at its end.
func aboveProxy(u *url.URL) string {
	parts := strings.SplitN(u.EscapedPath(), "/", 9)
	return strings.Join(parts[:min(len(parts), 8)], "/")
}
