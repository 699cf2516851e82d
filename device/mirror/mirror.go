// Package mirror serves the hub's images to this device's container engine, on loopback.
//
// It passes requests for images on to the hub with the device's certificate, so that the engine
// needs neither credentials nor the hub's certificate authority. It continues a download where the
// line broke. If the site's devices share images, it keeps blobs for a while, and serves them to its
// neighbours; else it stores nothing. Package cli runs it beside the agent; package plan maps the
// names of the hub's images to its address.
package mirror

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// How long the mirror waits for the hub.
const (
	headerWait = 30 * time.Second // for an answer to begin, and for each next byte
	retryWait  = time.Second      // before a broken download is continued
	giveUp     = 5 * time.Minute  // without any progress
)

// A Hub is how the hub is reached now; certificates and addresses change.
type Hub struct {
	Addresses []string // host:port of HTTPS; more than one if several hubs share the database
	TLS       *tls.Config
	PeerKey   []byte // of the site, whose devices serve blobs to each other; nil: they do not
}

// A Mirror is an http.Handler.
type Mirror struct {
	hub    func() (Hub, error)
	log    *slog.Logger
	client *http.Client
	peers  *http.Client // for neighbours
	cache  cache
	port   string // at which neighbours are served; "": nothing is shared

	mu      sync.Mutex
	passed  map[string]int64 // bytes of blobs by repository
	fetches map[string]*fetch
	bad     map[string]time.Time // neighbours that are not asked until then
}

// New makes a mirror; hub is called for each connection.
func New(hub func() (Hub, error), log *slog.Logger) *Mirror {
	m := &Mirror{hub: hub, log: log, passed: map[string]int64{}, fetches: map[string]*fetch{},
		bad: map[string]time.Time{}}
	m.client = &http.Client{Transport: &http.Transport{
		DialTLSContext: m.dial, ResponseHeaderTimeout: headerWait, MaxIdleConnsPerHost: 4, IdleConnTimeout: headerWait,
	}}
	m.peers = &http.Client{Transport: &http.Transport{
		DialTLSContext: m.dialPeer, ResponseHeaderTimeout: headerWait, IdleConnTimeout: headerWait,
	}}
	return m
}

func (m *Mirror) dial(ctx context.Context, network, address string) (net.Conn, error) {
	h, err := m.hub()
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: headerWait}, Config: h.TLS}
	return d.DialContext(ctx, network, address)
}

// Run serves the mirror at a loopback address until ctx ends.
func (m *Mirror) Run(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil { // the device runs on with the images that it has
		m.log.Warn("images of the hub cannot be pulled: free the port, or choose another with --image-mirror", "err", err)
		<-ctx.Done()
		return nil
	}
	s := &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the hub's images on %s: %w", address, err)
	}
	return nil
}

func (m *Mirror) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	below := strings.HasPrefix(q.URL.Path, "/v2/") && path.Clean(q.URL.Path) == strings.TrimSuffix(q.URL.Path, "/")
	if q.Method != http.MethodGet && q.Method != http.MethodHead || !below {
		refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED",
			"the mirror only serves images of the hub; push them to the hub")
		return
	}
	var to io.Writer = w
	name, digest, blob := strings.Cut(q.URL.Path, "/blobs/")
	if blob {
		to = passing{w, m, strings.TrimPrefix(name, "/v2/")}
	}
	if blob && q.Method == http.MethodGet && digestPattern.MatchString(digest) && m.sharing() != nil &&
		m.serveShared(w, to, q, digest) {
		return
	}
	answer, err := m.ask(q, 0)
	if err != nil {
		refuse(w, http.StatusBadGateway, "UNKNOWN", err.Error())
		return
	}
	for _, name := range []string{"Content-Type", "Content-Length", "Content-Range", "Docker-Content-Digest", "Etag",
		"Link",
		"Docker-Distribution-Api-Version", "Accept-Ranges", "Oci-Filters-Applied"} {
		if v := answer.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(answer.StatusCode)
	whole := answer.StatusCode == http.StatusOK && answer.ContentLength >= 0 && strings.Contains(q.URL.Path, "/blobs/")
	if answer.StatusCode >= http.StatusMultipleChoices {
		to = w
	}
	if err := m.copy(to, q, answer, whole); err != nil {
		m.log.Warn("an image of the hub did not arrive whole", "path", q.URL.Path, "err", err)
		panic(http.ErrAbortHandler) // the engine tries again
	}
}

// Passed returns the bytes of blobs of a repository that the engine has received since the start.
func (m *Mirror) Passed(name string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.passed[name]
}

// passing counts what passes.
type passing struct {
	io.Writer
	m    *Mirror
	name string
}

func (p passing) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	p.m.mu.Lock()
	p.m.passed[p.name] += int64(n)
	p.m.mu.Unlock()
	return n, err
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}

// ask sends a request to the first hub that answers; offset is where a broken download goes on.
func (m *Mirror) ask(q *http.Request, offset int64) (*http.Response, error) {
	h, err := m.hub()
	if err != nil {
		return nil, err
	}
	var failed error
	for _, address := range h.Addresses {
		at := url.URL{Scheme: "https", Host: address, Path: q.URL.Path, RawQuery: q.URL.RawQuery}
		r, err := http.NewRequestWithContext(q.Context(), q.Method, at.String(), nil)
		if err != nil {
			return nil, err
		}
		r.Header["Accept"] = q.Header["Accept"]
		r.Header.Set("Accept-Encoding", "identity")
		for _, name := range []string{wire.HeaderPeerPort, wire.HeaderNotFrom} {
			if v := q.Header.Get(name); v != "" {
				r.Header.Set(name, v)
			}
		}
		if offset > 0 {
			r.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
		} else if v := q.Header.Get("Range"); v != "" {
			r.Header.Set("Range", v)
		}
		answer, err := m.client.Do(r)
		if err == nil {
			return answer, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, fmt.Errorf("the hub does not answer: %w", failed)
}

// copy passes the body of an answer on. If whole is set, a broken download is continued where
// the line broke.
func (m *Mirror) copy(w io.Writer, q *http.Request, answer *http.Response, whole bool) error {
	size, arrived, progress := answer.ContentLength, int64(0), time.Now()
	for {
		n, readErr, err := pass(w, answer.Body)
		if arrived += n; n > 0 {
			progress = time.Now()
		}
		switch {
		case err != nil: // the engine is gone
			return nil
		case readErr == nil && (!whole || arrived >= size) || q.Method == http.MethodHead:
			return nil
		case !whole || time.Since(progress) > giveUp:
			return readErr
		}
		if answer, err = m.again(q, arrived, progress); err != nil {
			return errors.Join(readErr, err)
		}
	}
}

// again asks for the rest of a blob until the hub answers.
func (m *Mirror) again(q *http.Request, offset int64, since time.Time) (*http.Response, error) {
	for {
		select {
		case <-q.Context().Done():
			return nil, q.Context().Err()
		case <-time.After(retryWait):
		}
		answer, err := m.ask(q, offset)
		if err == nil && answer.StatusCode == http.StatusPartialContent {
			return answer, nil
		}
		if err == nil {
			_ = answer.Body.Close()
			err = errors.New(answer.Status)
			if answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests {
				return nil, err
			}
		}
		if time.Since(since) > giveUp {
			return nil, err
		}
	}
}

// pass copies until the body ends or no byte has come for a while, and closes the body.
func pass(w io.Writer, body io.ReadCloser) (n int64, readErr, writeErr error) {
	stalled := time.AfterFunc(headerWait, func() { _ = body.Close() })
	defer func() { stalled.Stop(); _ = body.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		k, err := body.Read(buffer)
		stalled.Reset(headerWait)
		if k > 0 {
			if _, werr := w.Write(buffer[:k]); werr != nil {
				return n, nil, werr
			}
			n += int64(k)
		}
		if errors.Is(err, io.EOF) {
			return n, nil, nil
		}
		if err != nil {
			return n, err, nil
		}
	}
}
