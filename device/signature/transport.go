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

// certificateDirs are where engines look for the authorities of private registries:
// whoever has told the engine need not tell us.
var certificateDirs = []string{"/etc/docker/certs.d", "/etc/containers/certs.d"}

// transportTo is how to reach a registry, with credentials or without: by the system's authorities
// and those that the engines know for it.
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
		files, _ := fs.Glob(its, "*.crt") // the pattern is right
		for _, file := range files {
			if body, err := fs.ReadFile(its, file); err == nil { // what the engine cannot read either is its story to tell
				pool.AppendCertsFromPEM(body)
			}
		}
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return bounded{t, host, c != Credentials{}}
}

// bounded asks nobody whom a registry may not name, and takes no answer that is larger than any
// that is asked for here. The library reads a manifest of up to 100 MiB, which is more than an
// agent may have, and follows wherever the first answer leads.
type bounded struct {
	http.RoundTripper
	registry string // host, or host:port
	secret   bool   // there are credentials for it
}

// maxAnswer is what registries themselves take of a manifest at most.
const maxAnswer = 4 << 20

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := errors.Join(outward(b.registry, r.URL), b.hides(r)); err != nil {
		return nil, err
	}
	if proxy, err := http.ProxyFromEnvironment(r); err == nil && proxy != nil {
		r = r.WithContext(context.WithValue(r.Context(), proxiedKey{}, true)) // the proxy resolves the name, and asks
	}
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

// hides keeps credentials to itself where everybody hears them. The library asks without TLS at
// private addresses and names of a local network as soon as TLS is not there, or takes a moment;
// engines do so on loopback only, or where they are told to.
func (b bounded) hides(r *http.Request) error {
	host := r.URL.Hostname()
	addr, err := netip.ParseAddr(host)
	if !b.secret || r.URL.Scheme == "https" || host == "localhost" || err == nil && addr.IsLoopback() {
		return nil
	}
	if r.URL.Host != b.registry && r.Header.Get("Authorization") == "" && r.Body == nil { // a blob that is elsewhere
		return nil
	}
	return fmt.Errorf("the credentials for the registry %s are not sent to %s without TLS", b.registry, r.URL.Host)
}

// outward lets a registry send the agent to another host, but not to an address of the device's
// own networks: a registry may not make it ask in there.
func outward(registry string, to *url.URL) error {
	host := to.Hostname()
	if host == (&url.URL{Host: registry}).Hostname() {
		return nil
	}
	host, _, _ = strings.Cut(host, "%")
	addr, err := netip.ParseAddr(host)
	last := host[strings.LastIndexByte(host, '.')+1:]
	numeric := err != nil && last != "" && last[0] >= '0' && last[0] <= '9' // 127.1, 0x7f000001: no name of a host ends so
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
	return fmt.Errorf("the registry %s redirects to %s: an address of private networks is not asked", registry, to)
}

type proxiedKey struct{}

// A dialer checks the address that a host's name resolves to, at the moment of the connection.
type dialer struct {
	registry string      // host, or host:port
	private  atomic.Bool // it has itself been reached at an address of a private network
}

// dial connects to the registry wherever it is. To another host it connects on a private network
// only if the registry is on one, too, and never at an address of the device itself.
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

// isOwn tells whether an address is one of the device's own.
func isOwn(addr netip.Addr) bool {
	all, _ := net.InterfaceAddrs() // without them the address is none of its own
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
