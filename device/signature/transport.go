package signature

import (
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
	"strings"
	"time"
)

// certificateDirs are where engines look for the authorities of private registries:
// whoever has told the engine need not tell us.
var certificateDirs = []string{"/etc/docker/certs.d", "/etc/containers/certs.d"}

// transportTo is how to reach a registry, with credentials or without: by the system's authorities and those that
// the engines know for it.
func transportTo(host string, c Credentials) http.RoundTripper {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
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
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

// hides keeps credentials to itself where everybody hears them. The library asks without TLS at private addresses and names
// of a local network as soon as TLS is not there, or takes a moment; engines do so on loopback only, or where they are told to.
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
	if numeric || strings.HasSuffix(name, ".localhost") || err == nil && (addr.IsLoopback() || addr.IsPrivate() || addr.IsUnspecified() || addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast()) {
		return fmt.Errorf("the registry %s redirects to %s: an address of private networks is not asked", registry, host)
	}
	return nil
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
