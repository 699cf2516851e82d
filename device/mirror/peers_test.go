package mirror

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flotilla.dev/shared/wire"
)

// A site is a hub, and devices that share images.
type site struct {
	t    *testing.T
	blob []byte
	name string // the blob's digest
	hub  *httptest.Server
	sent atomic.Int64 // bytes of blobs that left the hub

	cut   atomic.Int64 // the hub's line breaks after so many bytes, once for each; 0: it does not
	mu    sync.Mutex
	asked []string // addresses of devices, in the order of their first requests
	root  *x509.Certificate
	key   *ecdsa.PrivateKey
	pool  *x509.CertPool
}

func newSite(t *testing.T, size int) *site {
	s := &site{t: t, blob: make([]byte, size)}
	_, _ = rand.Read(s.blob)
	s.name = fmt.Sprintf("sha256:%x", sha256.Sum256(s.blob))
	s.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, of, of, s.key.Public(), s.key)
	if err != nil {
		t.Fatal(err)
	}
	s.root, _ = x509.ParseCertificate(der)
	s.pool = x509.NewCertPool()
	s.pool.AddCert(s.root)
	s.hub = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.hub.TLS = &tls.Config{Certificates: []tls.Certificate{s.certificate("hub", x509.ExtKeyUsageServerAuth)}}
	s.hub.StartTLS()
	t.Cleanup(s.hub.Close)
	return s
}

func (s *site) certificate(name string, use x509.ExtKeyUsage) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	of := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{use},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, of, s.root, key.Public(), s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serve sends a device to the three devices that asked before it, or sends the blob.
func (s *site) serve(w http.ResponseWriter, q *http.Request) {
	port := q.Header.Get(wire.HeaderPeerPort)
	s.mu.Lock()
	var peers []string
	mine := "127.0.0.1:" + port
	for _, a := range s.asked {
		if a == mine {
			break
		}
		if !strings.Contains(q.Header.Get(wire.HeaderNotFrom), a) {
			peers = append(peers, a)
		}
	}
	if port != "" && !strings.Contains(strings.Join(s.asked, ","), mine) {
		s.asked = append(s.asked, mine)
	}
	s.mu.Unlock()
	if len(peers) > 0 && port != "" {
		w.Header().Set(wire.HeaderPeers, strings.Join(peers[max(0, len(peers)-3):], ","))
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var out http.ResponseWriter = counting{w, &s.sent}
	if n := s.cut.Swap(0); n > 0 {
		out = &breaking{out, int(n)}
	}
	http.ServeContent(out, q, "", time.Time{}, bytes.NewReader(s.blob))
}

// device starts a device's mirror, and returns it with the URL that its engine uses.
func (s *site) device(key string) (m *Mirror, url string) {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	c := &tls.Config{Certificates: []tls.Certificate{s.certificate("device", x509.ExtKeyUsageClientAuth)}, RootCAs: s.pool}
	m = New(func() (Hub, error) {
		return Hub{Addresses: []string{strings.TrimPrefix(s.hub.URL, "https://")}, TLS: c, PeerKey: []byte(key)}, nil
	}, slog.New(slog.DiscardHandler))
	if err := m.Share(s.t.TempDir(), 64<<20, port); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = m.RunPeers(ctx); close(ended) }()
	e := httptest.NewServer(m)
	s.t.Cleanup(func() { e.Close(); cancel(); <-ended })
	for { // until it listens
		if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			_ = conn.Close()
			return m, e.URL
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *site) wantBlob(url string) {
	s.t.Helper()
	if status, body, err := get(s.t, url+"/v2/app/blobs/"+s.name); err != nil || status != 200 || !bytes.Equal(body, s.blob) {
		s.t.Errorf("%d, %d of %d bytes, %v", status, len(body), len(s.blob), err)
	}
}

// Twelve devices pull a blob at once over a line that breaks; little more than one copy leaves the
// hub.
func TestDevicesOfASitePullABlobFromEachOther(t *testing.T) {
	s := newSite(t, 4<<20)
	s.cut.Store(1 << 20)
	var all sync.WaitGroup
	for range 12 {
		_, url := s.device("site")
		all.Go(func() { s.wantBlob(url) })
	}
	all.Wait()
	if n := s.sent.Load(); n > int64(len(s.blob))*13/10 {
		t.Errorf("%d bytes left the hub for a blob of %d", n, len(s.blob))
	}
	t.Logf("%.2f copies left the hub for 12 devices", float64(s.sent.Load())/float64(len(s.blob)))
}

func TestADamagedBlobOfANeighbourIsPulledFromTheHub(t *testing.T) {
	s := newSite(t, 1<<20)
	first, url := s.device("site")
	s.wantBlob(url)
	for namesIn(t, first.cache.dir) != strings.TrimPrefix(s.name, "sha256:") { // it is kept a moment later
		time.Sleep(time.Millisecond)
	}
	if err := os.WriteFile(first.cache.file(s.name), bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	_, url = s.device("site")
	if _, body, err := get(t, url+"/v2/app/blobs/"+s.name); err == nil && bytes.Equal(body, s.blob) {
		t.Error("the damaged blob was not noticed")
	}
	s.wantBlob(url) // the engine's second try
}

func TestWhoIsNotServedByANeighbour(t *testing.T) {
	s := newSite(t, 1<<20)
	m, url := s.device("site")
	s.wantBlob(url)
	stranger := newSite(t, 1)
	for _, c := range []struct {
		rule, path, key string
		certificate     tls.Certificate
		status          int // 0: the connection fails
	}{
		{"a neighbour", "/blobs/" + s.name, "site", s.certificate("b", x509.ExtKeyUsageClientAuth), 200},
		{"a device of another site", "/blobs/" + s.name, "other", s.certificate("b", x509.ExtKeyUsageClientAuth), 403},
		{"a device of another hub", "/blobs/" + s.name, "site", stranger.certificate("b", x509.ExtKeyUsageClientAuth), 0},
		{"another path", "/v2/app/manifests/1", "site", s.certificate("b", x509.ExtKeyUsageClientAuth), 404},
		{"a path that leads elsewhere", "/blobs/../x", "site", s.certificate("b", x509.ExtKeyUsageClientAuth), 404},
		{"a blob that it does not have", "/blobs/sha256:" + strings.Repeat("0", 64), "site",
			s.certificate("b", x509.ExtKeyUsageClientAuth), 404},
	} {
		q, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:"+m.port+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+proof([]byte(c.key), strings.TrimPrefix(c.path, "/blobs/")))
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
			Certificates: []tls.Certificate{c.certificate}}}}
		answer, err := client.Do(q)
		status := 0
		if err == nil {
			status = answer.StatusCode
			_ = answer.Body.Close()
		}
		if status != c.status {
			t.Errorf("%s: %d, %v; want %d", c.rule, status, err, c.status)
		}
	}
}

func TestTheCacheStaysWithinItsLimit(t *testing.T) {
	c := cache{dir: t.TempDir(), limit: 100}
	for i, age := range []time.Duration{time.Hour, 2 * time.Hour, 25 * time.Hour} {
		file := c.file(fmt.Sprint("sha256:", i))
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(file, make([]byte, 40), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if c.room(101) {
		t.Error("there is room for more than the limit")
	}
	c.trim(100)
	if names := namesIn(t, c.dir); names != "0 1" {
		t.Errorf("after a day there are %s", names)
	}
	c.room(60)
	if names := namesIn(t, c.dir); names != "0" {
		t.Errorf("with another blob there are %s", names)
	}
	if c.clear(); namesIn(t, c.dir) != "" {
		t.Error("blobs stay when nothing is shared")
	}
}

func namesIn(t *testing.T, dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}
