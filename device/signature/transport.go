package signature

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// certificateDirs are the engines' directories of CA certificates for private registries.
var certificateDirs = []string{"/etc/docker/certs.d", "/etc/containers/certs.d"}

// transportTo returns the transport for a registry, with the system's and the engines' CA
// certificates.
func transportTo(host string, c Credentials) http.RoundTripper {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&dialer{registry: host}).dial,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableKeepAlives:   true,
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, dir := range certificateDirs {
		its := os.DirFS(filepath.Join(dir, host))
		files, _ := fs.Glob(its, "*.crt") // the pattern is valid
		for _, file := range files {
			if body, err := fs.ReadFile(its, file); err == nil { // the engine reports unreadable files itself
				pool.AppendCertsFromPEM(body)
			}
		}
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return bounded{t, host, c != Credentials{}}
}

// bounded limits the hosts to which a registry may redirect, and the size of responses. The client
// library accepts manifests of 100 MiB, more than an agent's memory, and follows every redirect.
type bounded struct {
	http.RoundTripper
	registry string // host, or host:port
	secret   bool   // the agent has credentials for the registry
}

// maxAnswer is the size to which registries themselves limit a manifest.
const maxAnswer = 4 << 20

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := errors.Join(checkRedirect(b.registry, r.URL), b.checkTLS(r)); err != nil {
		return nil, err
	}
	if proxy, err := http.ProxyFromEnvironment(r); err == nil && proxy != nil {
		r = r.WithContext(context.WithValue(r.Context(), proxiedKey{}, true)) // the proxy resolves the host name
	}
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

// checkTLS returns an error before credentials are sent without TLS. The client library falls back
// to plain HTTP at private addresses and local names; engines use plain HTTP on loopback only, or
// when configured.
func (b bounded) checkTLS(r *http.Request) error {
	host := r.URL.Hostname()
	addr, err := netip.ParseAddr(host)
	if !b.secret || r.URL.Scheme == "https" || host == "localhost" || err == nil && addr.IsLoopback() {
		return nil
	}
	if r.URL.Host != b.registry && r.Header.Get("Authorization") == "" && r.Body == nil { // a redirect without credentials
		return nil
	}
	return fmt.Errorf("the credentials for the registry %s are not sent to %s without TLS", b.registry, r.URL.Host)
}

// checkRedirect allows redirects to other hosts, but not to addresses of private networks: a
// registry must not make the agent send requests there.
func checkRedirect(registry string, to *url.URL) error {
	host := to.Hostname()
	if host == (&url.URL{Host: registry}).Hostname() {
		return nil
	}
	host, _, _ = strings.Cut(host, "%")
	addr, err := netip.ParseAddr(host)
	last := host[strings.LastIndexByte(host, '.')+1:]
	numeric := err != nil && last != "" && last[0] >= '0' && last[0] <= '9' // such as 127.1 or 0x7f000001
	addr = addr.Unmap()
	name := "." + strings.TrimSuffix(strings.ToLower(host), ".")
	if numeric || strings.HasSuffix(name, ".localhost") || err == nil &&
		(addr.IsLoopback() || addr.IsPrivate() || addr.IsUnspecified() || addr.IsLinkLocalUnicast() ||
			addr.IsLinkLocalMulticast()) {
		return refusedAddress(registry, host)
	}
	return nil
}

func refusedAddress(registry, to string) error {
	return fmt.Errorf("the registry %s redirects to %s: redirects to private networks are not followed", registry, to)
}

type proxiedKey struct{}

// A dialer checks, when it connects, the address to which a host name resolves.
type dialer struct {
	registry string      // host, or host:port
	private  atomic.Bool // the registry itself has a private address
}

// dial connects to the registry at any address. It connects to another host at a private address
// only if the registry itself has a private address, and never to the device itself.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	own := host == (&url.URL{Host: d.registry}).Hostname()
	proxied := ctx.Value(proxiedKey{}) != nil
	return (&net.Dialer{Timeout: 30 * time.Second, Control: func(_, dialled string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(dialled)
		if err != nil || proxied {
			return err
		}
		addr := to.Addr().Unmap()
		switch {
		case own:
			d.private.Store(addr.IsPrivate())
		case addr.IsPrivate() && !d.private.Load(), addr.IsLoopback(), addr.IsUnspecified(), addr.IsMulticast(),
			addr.IsLinkLocalUnicast(), isOwn(addr):
			return refusedAddress(d.registry, fmt.Sprintf("%s (%s)", host, addr))
		}
		return nil
	}}).DialContext(ctx, network, address)
}

// isOwn reports whether an address is one of the device's own.
func isOwn(addr netip.Addr) bool {
	all, _ := net.InterfaceAddrs() // after an error the list is empty
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == addr
	})
}

type boundedBody struct {
	io.ReadCloser
	left int
}

var errLarge = fmt.Errorf("the registry's answer has more than %d bytes", maxAnswer)

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		return n, errLarge
	}
	return n, err
}
