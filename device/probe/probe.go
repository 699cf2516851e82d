// Package probe runs the probes of containers like the kubelet's prober: a command, HTTP, TCP or
// gRPC.
//
// It counts no results and restarts nothing. Package agent decides when to probe and what a result
// means.
package probe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

// maxHeader limits a response's header: net/http allows 10 MB, and many containers may respond at
// once.
const maxHeader = 64 << 10

// maxBody is the number of bytes of a response that a probe reads, as in the kubelet. A response
// that ends early gives no result.
const maxBody = 10 << 10

// An Error means that the probe itself could not run, for example because the disk is full. As in
// the kubelet, it is not a result for the container.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// A dialer connects to an address, like net.Dialer.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// A Prober runs probes.
type Prober struct {
	Dial       dialer
	HasAddress func(address string) bool // reports whether the device has an address now
}

// A Target is the container to probe.
type Target struct {
	ID          string
	Spec        *corev1.Container
	HostNetwork bool
	IP          string // the pod's address; empty: not known yet
}

// Probe runs a probe once. An error is a failure of the container, unless it is an Error or
// engine.ErrUnavailable.
func (a *Prober) Probe(ctx context.Context, e engine.Engine, s Target, p *corev1.Probe) error {
	timeout := time.Duration(podspec.OrDefault(p.TimeoutSeconds, 1)) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	switch {
	case p.Exec != nil:
		err = probeExec(ctx, e, s.ID, p.Exec.Command)
	case p.HTTPGet != nil:
		err = a.probeHTTP(ctx, s, p.HTTPGet)
	case p.GRPC != nil:
		err = a.probeGRPC(ctx, s, p.GRPC)
	case p.TCPSocket != nil:
		err = a.probeTCP(ctx, s, p.TCPSocket)
	}
	var unmade *Error
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, engine.ErrUnavailable) &&
		!errors.As(err, &unmade) {
		return fmt.Errorf("no answer within %s", timeout)
	}
	return err
}

func probeExec(ctx context.Context, e engine.Engine, id string, command []string) error {
	out := &Limited{Max: 1 << 10}
	var began atomic.Bool
	code, err := e.Exec(ctx, id, command, engine.Streams{Stdout: out, Stderr: out,
		Began: func(string) { began.Store(true) }})
	switch {
	case err == nil:
	case ctx.Err() == nil: // a missing command has an exit code
		return &Error{err}
	case !began.Load(): // the engine hangs
		return fmt.Errorf("%w: the command did not start: %w", engine.ErrUnavailable, err)
	default:
		return err
	}
	if code != 0 {
		return fmt.Errorf("command exited with %d: %s", code, bytes.TrimSpace(out.Bytes))
	}
	return nil
}

func (a *Prober) probeHTTP(ctx context.Context, s Target, h *corev1.HTTPGetAction) error {
	resp, err := a.Get(ctx, s, h, "kube-probe/flotilla")
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	_ = resp.Body.Close()
	if err != nil {
		return &Error{fmt.Errorf("the response is incomplete: %w", err)}
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d: %s", resp.StatusCode,
			bytes.TrimSpace(body[:min(len(body), 256)]))
	}
	return nil
}

// addressOf returns the address of a probe or hook, and the dialer for it: a given host, or the
// pod. A container on the host's network is probed on loopback while the device has lost its
// address, because an unplugged cable must not restart it. Meanwhile a program that listens only at
// the lost address cannot be probed.
func (a *Prober) addressOf(s Target, host string) (string, dialer, error) {
	own := host == "" && s.HostNetwork
	switch host = cmp.Or(host, s.IP); {
	case own && (host == "" || !a.HasAddress(host)):
		return "127.0.0.1", func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := a.Dial(ctx, network, address)
			if err != nil {
				err = &Error{fmt.Errorf("the device has no address: %w", err)}
			}
			return conn, err
		}, nil
	case host == "":
		return "", nil, &Error{errors.New("the pod has no address yet")}
	}
	return host, a.Dial, nil
}

// HasAddress reports whether the device has an address now.
func HasAddress(address string) bool {
	all, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(all, func(a net.Addr) bool {
		ip, _, _ := strings.Cut(a.String(), "/")
		return ip == address
	})
}

// Get sends an HTTP request to a container or to a given host. The caller closes the response's
// body.
func (a *Prober) Get(ctx context.Context, s Target, h *corev1.HTTPGetAction, userAgent string) (*http.Response, error) {
	port, err := portOf(s.Spec, h.Port)
	if err != nil {
		return nil, &Error{err}
	}
	host, dial, err := a.addressOf(s, h.Host)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if h.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	path := h.Path
	if path == "" || path[0] != '/' {
		path = "/" + path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		scheme+"://"+net.JoinHostPort(host, strconv.Itoa(port))+path, nil)
	if err != nil {
		return nil, &Error{err}
	}
	for _, x := range h.HTTPHeaders {
		if http.CanonicalHeaderKey(x.Name) == "Host" {
			req.Host = x.Value
		}
		req.Header.Add(x.Name, x.Value)
	}
	if _, has := req.Header["User-Agent"]; !has {
		req.Header.Set("User-Agent", userAgent)
	}
	if _, has := req.Header["Accept"]; !has {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" { // an empty Accept removes the default header
		req.Header.Del("Accept")
	}
	client := &http.Client{
		Transport: &http.Transport{
			DialContext: dial, DisableKeepAlives: true, DisableCompression: true, Proxy: nil, MaxResponseHeaderBytes: maxHeader,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the kubelet does not verify certificates either
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			switch {
			case req.URL.Hostname() != via[0].URL.Hostname():
				return http.ErrUseLastResponse // the health of another host does not count
			case len(via) >= 10:
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
	return client.Do(req)
}

func (a *Prober) probeTCP(ctx context.Context, s Target, t *corev1.TCPSocketAction) error {
	port, err := portOf(s.Spec, t.Port)
	if err != nil {
		return &Error{err}
	}
	host, dial, err := a.addressOf(s, t.Host)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}

// portOf resolves a port number or name.
func portOf(c *corev1.Container, p intstr.IntOrString) (int, error) {
	if p.Type == intstr.Int {
		return p.IntValue(), nil
	}
	for _, x := range c.Ports {
		if x.Name == p.StrVal {
			return int(x.ContainerPort), nil
		}
	}
	if n, err := strconv.Atoi(p.StrVal); err == nil && n > 0 && n < 65536 {
		return n, nil
	}
	return 0, fmt.Errorf("container %s has no port named %q", c.Name, p.StrVal)
}

// Limited keeps the first bytes written to it.
type Limited struct {
	Bytes []byte
	Max   int
}

func (l *Limited) Write(p []byte) (int, error) {
	l.Bytes = append(l.Bytes, p[:min(len(p), l.Max-len(l.Bytes))]...)
	return len(p), nil
}
