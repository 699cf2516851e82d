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
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A proxyTarget is what a request below pods/proxy or services/proxy asks, from a name such as
// https:kiosk-1:8443.
type proxyTarget struct {
	scheme, name string
	port         string // "": the first that the pod or service names
}

func parseProxyTarget(name string) (t proxyTarget, err error) {
	parts := strings.Split(name, ":")
	switch len(parts) {
	case 1, 2:
		t.name = parts[0]
	case 3:
		t.scheme, t.name = parts[0], parts[1]
	default:
		return t, apierrors.NewBadRequest(fmt.Sprintf("%q is nothing to ask: write name, name:port or https:name:port", name))
	}
	if t.scheme == "" {
		t.scheme = "http"
	}
	if t.scheme != "http" && t.scheme != "https" {
		return t, apierrors.NewBadRequest(fmt.Sprintf("%q is not spoken below proxy: use http or https", t.scheme))
	}
	if len(parts) > 1 {
		t.port = parts[len(parts)-1]
	}
	return t, nil
}

// portOf is the port at which a pod is asked.
func portOf(p *corev1.Pod, text string) (int32, error) {
	if text == "" {
		return firstPort(p), nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("%q is no port: use 1 to 65535", text))
	}
	return int32(n), nil
}

// firstPort is the port that a pod is asked at unless the request says which.
func firstPort(p *corev1.Pod) int32 {
	for _, c := range p.Spec.Containers {
		if len(c.Ports) > 0 {
			return c.Ports[0].ContainerPort
		}
	}
	return 80
}

// podProxy asks a web server in a pod, over its device's link, and answers what it
// says. The pod is told nothing of who asks, and what it answers is of no use to it
// here: a browser runs none of it as a page of the hub, and keeps no cookie of it.
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
	if err := c.reachable(pod); err != nil {
		return err
	}
	if err := running(pod, ""); err != nil {
		return err
	}
	if _, err := c.upgrades(); err != nil { // a page of another site
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
		DialContext: func(context.Context, string, string) (net.Conn, error) { // the connection lives as long as the request
			rw, err := c.Streams.Forward(ctx, pod, port)
			if err != nil {
				return nil, err
			}
			return podConn{rw}, nil
		},
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // nobody vouches for a pod's certificate, as with Kubernetes
		DisableKeepAlives:  true,
		DisableCompression: true,

		MaxResponseHeaderBytes: 64 << 10,
	}
	to, err := belowProxy(c.r.URL)
	if err != nil {
		return err
	}
	to.Scheme, to.Host = t.scheme, net.JoinHostPort(hostOf(pod), strconv.Itoa(int(port)))
	// Besides what holds for every answer: no script, no form, no origin.
	guard := c.w.Header()
	guard.Set("Content-Security-Policy", strings.TrimPrefix(guard.Get("Content-Security-Policy")+"; sandbox", "; "))
	(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = to, to.Host
			for _, name := range []string{"Authorization", "Cookie", "Origin", "Referer"} {
				p.Out.Header.Del(name)
			}
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Set-Cookie")
			for name := range c.w.Header() {
				r.Header.Del(name) // what guards the hub's own answers guards these
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			if ctx.Err() == nil {
				c.fail(apierrors.NewServiceUnavailable(fmt.Sprintf("ask pod %s/%s at port %d: %v", pod.Namespace, pod.Name, port, err)))
			}
		},
	}).ServeHTTP(c.w, c.r.WithContext(ctx))
	return nil
}

func hostOf(p *corev1.Pod) string {
	if p.Status.PodIP != "" {
		return p.Status.PodIP
	}
	return "localhost"
}

// A podConn is a connection to a pod's port. It has no deadlines: it ends with the
// request that it is for.
type podConn struct{ io.ReadWriteCloser }

func (podConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (podConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (podConn) SetDeadline(time.Time) error      { return nil }
func (podConn) SetReadDeadline(time.Time) error  { return nil }
func (podConn) SetWriteDeadline(time.Time) error { return nil }
