package mirror

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"
)

const (
	peerDial  = 3 * time.Second
	badTime   = time.Hour // for which a neighbour is not asked that sent something else than the blob
	maxServed = 16        // neighbours at once
	keepTime  = 24 * time.Hour
	lookTime  = 10 * time.Second // between two looks at the site's setting
)

var digestPattern = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)

// proof shows that a device is of the site: the site's key, used on a digest.
func proof(key []byte, digest string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(digest))
	return hex.EncodeToString(h.Sum(nil))
}

// peerTLS returns a configuration for both ends between devices: each shows the certificate by
// which the hub knows it. A device's certificate has no address, and is only for clients.
func peerTLS(hub *tls.Config) *tls.Config {
	c := hub.Clone()
	c.InsecureSkipVerify = true // VerifyConnection checks the chain
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the other device shows no certificate")
		}
		between := x509.NewCertPool()
		for _, cert := range s.PeerCertificates[1:] {
			between.AddCert(cert)
		}
		options := x509.VerifyOptions{Roots: hub.RootCAs, Intermediates: between,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if hub.Time != nil {
			options.CurrentTime = hub.Time()
		}
		_, err := s.PeerCertificates[0].Verify(options)
		return err
	}
	return c
}

// Share makes the mirror keep the blobs that it passes on in dir, at most limit bytes for a day, and
// serve them to devices of its site at a port, while the site's setting is on.
func (m *Mirror) Share(dir string, limit int64, port string) error {
	m.cache = cache{dir: dir, limit: limit}
	m.port = port
	return m.cache.open()
}

// sharing returns the site's key, if blobs are shared now.
func (m *Mirror) sharing() []byte {
	if m.port == "" {
		return nil
	}
	h, err := m.hub()
	if err != nil {
		return nil
	}
	return h.PeerKey
}

// RunPeers serves neighbours until ctx ends, whenever the site's setting is on.
func (m *Mirror) RunPeers(ctx context.Context) error {
	for {
		if m.sharing() != nil {
			if err := m.servePeers(ctx); err != nil {
				m.log.Warn("images are not shared with the devices of this site", "err", err)
			}
		} else if m.port != "" {
			m.cache.clear()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookTime):
		}
	}
}

// servePeers serves neighbours until ctx or the site's setting ends.
func (m *Mirror) servePeers(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+m.port)
	if err != nil {
		return err
	}
	slots := make(chan struct{}, maxServed)
	s := &http.Server{ReadHeaderTimeout: peerDial, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config,
			error) {
			h, err := m.hub()
			if err != nil {
				return nil, err
			}
			return peerTLS(h.TLS), nil
		}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				m.serveNeighbour(w, q)
			default:
				refuse(w, http.StatusServiceUnavailable, "TOOMANYREQUESTS", "ask another device")
			}
		})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	go func() {
		for ctx.Err() == nil && m.sharing() != nil {
			select {
			case <-ctx.Done():
			case <-time.After(lookTime):
			}
		}
		cancel()
	}()
	if err := s.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveNeighbour serves a blob that this device has, or is pulling.
func (m *Mirror) serveNeighbour(w http.ResponseWriter, q *http.Request) {
	digest, is := strings.CutPrefix(q.URL.Path, "/blobs/")
	key := m.sharing()
	given, _ := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
	switch {
	case !is || !digestPattern.MatchString(digest) || q.Method != http.MethodGet:
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN", "only blobs are served here")
	case key == nil || !hmac.Equal([]byte(given), []byte(proof(key, digest))):
		refuse(w, http.StatusForbidden, "DENIED", "only devices of the same site are served")
	default:
		f := m.find(digest)
		if f == nil {
			refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "this device does not have it")
			return
		}
		m.follow(w, w, q, f)
	}
}

// fromPeer asks a neighbour for the rest of a blob.
func (m *Mirror) fromPeer(ctx context.Context, address, digest string, offset int64) (*http.Response, error) {
	h, err := m.hub()
	if err != nil {
		return nil, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/blobs/"+digest, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Authorization", "Bearer "+proof(h.PeerKey, digest))
	if offset > 0 {
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	answer, err := m.peers.Do(q)
	want := http.StatusOK
	if offset > 0 {
		want = http.StatusPartialContent
	}
	if err == nil && answer.StatusCode != want {
		_ = answer.Body.Close()
		err = errors.New(answer.Status)
	}
	return answer, err
}

// dialPeer connects to a neighbour.
func (m *Mirror) dialPeer(ctx context.Context, network, address string) (net.Conn, error) {
	h, err := m.hub()
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: peerDial}, Config: peerTLS(h.TLS)}
	return d.DialContext(ctx, network, address)
}
