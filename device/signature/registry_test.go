package signature

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
)

// Redirects to other hosts are followed, but not into private networks.
func TestARedirectIntoAPrivateNetworkIsRefused(t *testing.T) {
	for to, refused := range map[string]bool{
		"https://registry.test/x": false, "https://cdn.test/x": false, "https://8.8.8.8/x": false,
		"https://[2001:4860::1]/x":  false,
		"https://169.254.169.254/x": true, "https://10.1.2.3/x": true, "https://127.1/x": true, "https://0x7f000001/x": true,
		"https://2130706433/x": true, "https://[::1]/x": true, "https://[::ffff:192.168.1.1]/x": true,
		"https://[fe80::1%25eth0]/x": true, "https://0.0.0.0/x": true,
		"http://localhost:631/x": true, "http://LOCALHOST./x": true, "http://a.localhost/x": true,
		"https://localhost.test/x": false,
	} {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkRedirect("registry.test:5000", u); (err != nil) != refused {
			t.Errorf("redirect to %s: %v, want it refused: %v", to, err, refused)
		}
	}
}

// Every request of Verify, from the first one on, is checked for redirects into private networks.
func TestNoRequestIsRedirectedIntoAPrivateNetwork(t *testing.T) {
	inside, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "private content", http.StatusTeapot)
	}))
	_ = server.Listener.Close()
	server.Listener = inside
	server.Start()
	t.Cleanup(server.Close)
	for _, of := range []string{"/v2/", "/manifests/1", ".sig", "/blobs/"} {
		redirecting := false
		host := aRegistry(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if redirecting && (strings.HasSuffix(r.URL.Path, of) || of == "/blobs/" && strings.Contains(r.URL.Path, of)) {
					http.Redirect(w, r, server.URL+"/secret", http.StatusTemporaryRedirect)
					return
				}
				h.ServeHTTP(w, r)
			})
		})
		tag, err := name.NewTag(host + "/web:1")
		if err != nil {
			t.Fatal(err)
		}
		digest, trusted := push(t, tag), ecdsaSigner(t)
		attach(t, tag.Context(), digest, layer{payload(digest.String()), trusted.sign(t, payload(digest.String()))})
		redirecting = true
		if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err == nil ||
			errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "private networks") || requests.Load() > 0 {
			t.Errorf("redirects of %s: %d requests to the private network, %v; want none, and an error that says so", of,
				requests.Load(), err)
		}
	}
}

func TestANameThatResolvesToAPrivateAddressIsNotDialled(t *testing.T) {
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	_, port, _ := net.SplitHostPort(inside.Addr().String())
	name, err := os.Hostname() // a name that resolves to this machine
	if err != nil {
		t.Skip(err)
	}
	if found, err := net.DefaultResolver.LookupHost(t.Context(), name); err != nil || len(found) == 0 {
		t.Skip("the host's own name does not resolve here")
	}
	for _, c := range []struct {
		what, registry, host string
		proxied, refused     bool
	}{
		{"another host by name", "registry.test", name, false, true},
		{"another host by address", "registry.test", "127.0.0.1", false, true},
		{"the registry itself", "127.0.0.1:" + port, "127.0.0.1", false, false},
		{"a proxy", "registry.test", "127.0.0.1", true, false},
	} {
		ctx := t.Context()
		if c.proxied {
			ctx = context.WithValue(ctx, proxiedKey{}, true)
		}
		conn, err := (&dialer{registry: c.registry}).dial(ctx, "tcp", net.JoinHostPort(c.host, port))
		if err == nil {
			_ = conn.Close()
		}
		if refused := err != nil && strings.Contains(err.Error(), "private networks"); refused != c.refused || !refused &&
			err != nil {
			t.Errorf("%s: %v, want it refused: %v", c.what, err, c.refused)
		}
	}
	for _, private := range []bool{false, true} {
		d := &dialer{registry: "registry.test"}
		d.private.Store(private)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // the address has no server
		conn, err := d.dial(ctx, "tcp", "10.255.255.1:9")
		cancel()
		if err == nil {
			_ = conn.Close()
		}
		if refused := err != nil && strings.Contains(err.Error(), "private networks"); refused == private {
			t.Errorf("private registry %v: dialling a private address returns %v, want it refused: %v", private, err, !private)
		}
	}
}

// An unreadable signature does not hide others. If no readable signature is trusted, the error is
// not ErrUntrusted.
func TestAnUnreadableSignatureDoesNotHideOthers(t *testing.T) {
	missing, trusted, stranger := "", ecdsaSigner(t), ecdsaSigner(t)
	host := aRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if missing != "" && strings.HasSuffix(r.URL.Path, "/blobs/"+missing) {
				http.NotFound(w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	tag, err := name.NewTag(host + "/web:1")
	if err != nil {
		t.Fatal(err)
	}
	digest := push(t, tag)
	first, second := payload(digest.String()), append(payload(digest.String()), '\n')
	attach(t, tag.Context(), digest, layer{first, stranger.sign(t, first)}, layer{second, trusted.sign(t, second)})
	missing = sum(first)
	if v, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err != nil ||
		v.Key != trusted.keys[0].ID {
		t.Errorf("if the untrusted signature is unreadable: %+v, %v; want the trusted key", v, err)
	}
	missing = sum(second)
	if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err == nil ||
		errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "404") {
		t.Errorf("if the trusted signature is unreadable: %v, want status 404", err)
	}
}

// A payload must match its digest. Verify fetches a token if the registry requires one.
func TestAPayloadMustMatchItsDigestAndATokenIsUsed(t *testing.T) {
	trusted, forged, requests := ecdsaSigner(t), false, ""
	locked := false
	host := aRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/token":
				requests = r.URL.Query().Get("scope")
				_, _ = w.Write([]byte(`{"token":"read"}`))
			case locked && r.Header.Get("Authorization") != "Bearer read":
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="test"`)
				http.Error(w, "who", http.StatusUnauthorized)
			case forged && strings.Contains(r.URL.Path, "/blobs/"):
				_, _ = w.Write([]byte("something else"))
			default:
				h.ServeHTTP(w, r)
			}
		})
	})
	tag, err := name.NewTag(host + "/web:1")
	if err != nil {
		t.Fatal(err)
	}
	digest := push(t, tag)
	attach(t, tag.Context(), digest, layer{payload(digest.String()), trusted.sign(t, payload(digest.String()))})
	locked = true
	if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err != nil ||
		requests != "repository:web:pull" {
		t.Errorf("tokens were requested for scope %q: %v; want one for repository:web:pull", requests, err)
	}
	forged = true
	if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err == nil ||
		!strings.Contains(err.Error(), "has another digest") {
		t.Errorf("a forged payload: %v, want an error about its digest", err)
	}
}

// The client library uses plain HTTP for private addresses and names in .local. Credentials are not
// sent there.
func TestCredentialsAreNotSentWithoutTLS(t *testing.T) {
	own := ""
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); own == "" && err == nil && p.Addr().Is4() && p.Addr().IsPrivate() {
			own = p.Addr().String()
		}
	}
	for _, host := range []string{own, "127.0.0.1"} {
		if host == "" {
			continue // this machine is not in a private network
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		sent, locked := atomic.Bool{}, false
		h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _, given := r.BasicAuth()
			if sent.Store(given || sent.Load()); locked && !given {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				http.Error(w, "who", http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		}))
		_ = server.Listener.Close()
		server.Listener = listener
		server.Start()
		t.Cleanup(server.Close)
		tag, err := name.NewTag(listener.Addr().String() + "/web:1")
		if err != nil {
			t.Fatal(err)
		}
		digest, trusted := push(t, tag), ecdsaSigner(t)
		attach(t, tag.Context(), digest, layer{payload(digest.String()), trusted.sign(t, payload(digest.String()))})
		if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err != nil {
			t.Errorf("%s without credentials: %v", host, err)
		}
		locked = true
		_, err = Verify(t.Context(), tag.String(), trusted.keys, Credentials{"me", "secret"})
		if loops := host == "127.0.0.1"; sent.Load() != loops || (err == nil) != loops || err != nil &&
			!strings.Contains(err.Error(), "without TLS") {
			t.Errorf("%s: credentials sent: %v, %v; want %v", host, sent.Load(), err, loops)
		}
	}
	for where, refused := range map[string]bool{
		"http://pi.local:5000/v2/": true, "https://pi.local:5000/v2/": false, "http://auth.test/token": true,
		"https://auth.test/token": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, where, strings.NewReader("password=secret"))
		if err != nil {
			t.Fatal(err)
		}
		if err := (bounded{nil, "pi.local:5000", true}).checkTLS(r); (err != nil) != refused {
			t.Errorf("credentials to %s: %v, want them refused: %v", where, err, refused)
		}
	}
}

// A registry's name in brackets, like an IPv6 address, is not a glob pattern.
func TestTheCAOfARegistryIsFoundByItsName(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	former := certificateDirs
	t.Cleanup(func() { certificateDirs = former })
	certificateDirs = []string{t.TempDir()}
	for _, host := range []string{"registry.example:5000", "[2001:db8::1]:5000"} {
		dir := filepath.Join(certificateDirs[0], host)
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o644)); err != nil {
			t.Fatal(err)
		}
		pool := transportTo(host, Credentials{}).(bounded).RoundTripper.(*http.Transport).TLSClientConfig.RootCAs
		if _, err := server.Certificate().Verify(x509.VerifyOptions{Roots: pool}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}
