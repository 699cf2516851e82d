package peer

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
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/line"
)

// StandbyHeader names the leader in a response that a standby has made or forwarded.
const StandbyHeader = "Flotilla-Standby-Of"

// dialTimeout is the timeout for connecting to the leader.
const dialTimeout = 3 * time.Second

// A Forwarder forwards requests to the leader.
type Forwarder struct {
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	stands    func() leader.Status
	log       *slog.Logger

	mu      sync.Mutex
	name    string
	address string // address of the leader's peer listener; "": no hub leads
	ends    context.Context
	end     context.CancelFunc
}

// errReach: the leader was not reached, so the request was not done.
var errReach = errors.New("the leader cannot be reached")

type lead struct {
	name, address string
	ends          context.Context
}

type leadKey struct{}

// NewForwarder returns a Forwarder without a leader. config returns the TLS configuration for the
// leader's host, and stands returns this hub's announcement.
func NewForwarder(config func(host string) *tls.Config, stands func() leader.Status, log *slog.Logger) *Forwarder {
	p := &Forwarder{stands: stands, log: log}
	p.ends, p.end = context.WithCancel(context.Background())
	p.transport = &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			raw, err := line.Dialer().DialContext(ctx, network, address)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errReach, err)
			}
			host, _, _ := net.SplitHostPort(address)
			c := tls.Client(raw, config(host))
			if err := c.HandshakeContext(ctx); err != nil {
				_ = raw.Close()
				return nil, fmt.Errorf("%w: %w", errReach, err)
			}
			return c, nil
		},
		MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}
	p.proxy = &httputil.ReverseProxy{
		Transport: p.transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			to, _ := r.In.Context().Value(leadKey{}).(lead)
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", to.address, r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // unchanged, because the leader checks it
			Strip(r.Out.Header)
			source, _, err := net.SplitHostPort(r.In.RemoteAddr)
			if err != nil {
				source = r.In.RemoteAddr
			}
			source, _, _ = strings.Cut(source, "%")
			r.Out.Header.Set(sourceHeader, source)
			p.addHubHeaders(r.Out.Header)
			if r.In.TLS == nil {
				return
			}
			var rest []string
			for i, c := range r.In.TLS.PeerCertificates {
				if i == 0 {
					r.Out.Header.Set(certHeader, encode(c))
				} else if i < maxChain {
					rest = append(rest, encode(c))
				}
			}
			if len(rest) > 0 {
				r.Out.Header.Set(chainHeader, strings.Join(rest, ", "))
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if user := r.Header.Get(callerHeader); user != "" {
				_ = listen.Authenticated(r.Request.Context(), user) // the leader limits a user's requests
				r.Header.Del(callerHeader)
			}
			return nil
		},
		ErrorHandler: p.refuseFailed,
	}
	return p
}

// SetLeader sets the leader and its address. It cancels the requests to the former leader, which
// may never answer.
func (p *Forwarder) SetLeader(name, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.name == name && p.address == address {
		return
	}
	p.end()
	p.name, p.address = name, address
	p.ends, p.end = context.WithCancel(context.Background())
}

// Leader returns the leader; "": no hub leads.
func (p *Forwarder) Leader() (name, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.name, p.address
}

// ServeHTTP implements http.Handler.
func (p *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	to := lead{p.name, p.address, p.ends}
	p.mu.Unlock()
	if to.address == "" {
		Unavailable(w, r, "no hub leads at the moment: a standby takes over in a few seconds")
		return
	}
	ctx := r.Context()
	if mayChange(r) {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, leadKey{}, to))
	defer cancel()
	defer context.AfterFunc(to.ends, func() {
		defer panics.Catch("peer")
		cancel()
	})()
	w.Header().Set(StandbyHeader, to.name)
	p.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// mayChange reports whether a request may change something, so that its client needs the result.
// Such a request goes on when this hub stops or the client leaves. A read can be repeated, and a
// stream ends with this hub.
func mayChange(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get("Upgrade") == ""
}

// addHubHeaders adds this hub's announcement.
func (p *Forwarder) addHubHeaders(h http.Header) {
	if text, err := json.Marshal(p.stands()); err == nil {
		h.Set(standHeader, string(text))
	}
}

// Announce sends this hub's announcement to the leader.
func (p *Forwarder) Announce(ctx context.Context) error {
	_, address := p.Leader()
	if address == "" {
		return nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/livez", nil)
	if err != nil {
		return err
	}
	r.Header.Set(sourceHeader, "127.0.0.1")
	p.addHubHeaders(r.Header)
	answer, err := p.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 4<<10))
	return answer.Body.Close()
}

// refuseFailed answers a request that could not be forwarded.
func (p *Forwarder) refuseFailed(w http.ResponseWriter, r *http.Request, err error) {
	to, _ := r.Context().Value(leadKey{}).(lead)
	p.log.Debug("cannot forward a request", "leader", to.name, "address", to.address, "err", err)
	switch {
	case errors.Is(err, errReach), r.Method == http.MethodGet, r.Method == http.MethodHead:
		Unavailable(w, r, fmt.Sprintf("leader %s does not answer at %s: a standby takes over in a few seconds",
			to.name, to.address))
	default: // a repetition might make the change twice
		refuse(w, r, http.StatusBadGateway, metav1.StatusReasonInternalError, fmt.Sprintf(
			"leader %s was lost during its response: check whether the request was done before you repeat it", to.name))
	}
}

// Unavailable responds that nothing was done, and that a retry will work soon.
func Unavailable(w http.ResponseWriter, r *http.Request, why string) {
	w.Header().Set("Retry-After", "1")
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") { // browsers ignore Retry-After
		w.Header().Set("Refresh", "2")
	}
	refuse(w, r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, why)
}

// refuse responds with a Status to API clients, and with plain text to other clients.
func refuse(w http.ResponseWriter, r *http.Request, code int, reason metav1.StatusReason, why string) {
	w.Header().Set("Cache-Control", "no-store")
	path, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if path != "api" && path != "apis" {
		http.Error(w, why, code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code),
		Reason: reason, Message: why,
	})
}
