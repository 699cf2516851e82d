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

// StandbyHeader says of an answer that a standby gave or passed it, and who leads.
const StandbyHeader = "Flotilla-Standby-Of"

// reachTime is how long a leader may take to be reached.
const reachTime = 3 * time.Second

// A Forwarder passes requests on to the hub that leads.
type Forwarder struct {
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	stands    func() leader.Status
	log       *slog.Logger

	mu      sync.Mutex
	name    string
	address string // of the leader's peer listener; "": nobody leads
	ends    context.Context
	end     context.CancelFunc
}

// errReach: the leader was not reached, so nothing was done.
var errReach = errors.New("the hub that leads cannot be reached")

type lead struct {
	name, address string
	ends          context.Context
}

type leadKey struct{}

// NewForwarder returns one that shows itself to the leader by the TLS that config makes for its
// host, and says what stands returns of itself. Nobody leads yet.
func NewForwarder(config func(host string) *tls.Config, stands func() leader.Status, log *slog.Logger) *Forwarder {
	p := &Forwarder{stands: stands, log: log}
	p.ends, p.end = context.WithCancel(context.Background())
	p.transport = &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, reachTime)
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
			r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came: the leader judges it
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
				_ = listen.Authenticated(r.Request.Context(), user) // of too many of one user's the leader has a say
				r.Header.Del(callerHeader)
			}
			return nil
		},
		ErrorHandler: p.failed,
	}
	return p
}

// Lead says who leads from now on, and where. What was passed on to another hub ends: it
// leads no more, and may never answer.
func (p *Forwarder) Lead(name, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.name == name && p.address == address {
		return
	}
	p.end()
	p.name, p.address = name, address
	p.ends, p.end = context.WithCancel(context.Background())
}

// Leader is who leads; "": nobody does.
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
		Unavailable(w, r, "no hub leads at the moment: the others wait a few seconds before one takes over")
		return
	}
	ctx := r.Context()
	if changes(r) {
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

// changes tells whether a request is one that the leader has done or has not, and its sender is to
// know: neither that this hub ends nor that the sender leaves takes it back. A read can be asked
// again, and a stream ends with the hub that passes it on.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get("Upgrade") == ""
}

// addHubHeaders says what this hub is.
func (p *Forwarder) addHubHeaders(h http.Header) {
	if text, err := json.Marshal(p.stands()); err == nil {
		h.Set(standHeader, string(text))
	}
}

// Announce tells the hub that leads of this one, which may have nothing to pass on.
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

// failed answers for a leader that did not.
func (p *Forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	to, _ := r.Context().Value(leadKey{}).(lead)
	p.log.Debug("a request was not passed on", "leader", to.name, "address", to.address, "err", err)
	switch {
	case errors.Is(err, errReach), r.Method == http.MethodGet, r.Method == http.MethodHead:
		Unavailable(w, r, fmt.Sprintf("hub %s leads and does not answer at %s: another one takes over in a few seconds",
			to.name, to.address))
	default: // whoever sends it again may do it twice
		refuse(w, r, http.StatusBadGateway, metav1.StatusReasonInternalError, fmt.Sprintf(
			"hub %s, which leads, was lost while it answered: look whether it was done before you try again", to.name))
	}
}

// Unavailable answers that nothing was done, and that the same will work in a moment.
func Unavailable(w http.ResponseWriter, r *http.Request, why string) {
	w.Header().Set("Retry-After", "1")
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") { // browsers do not heed that
		w.Header().Set("Refresh", "2")
	}
	refuse(w, r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, why)
}

// refuse answers programs of the API as they understand it, and others in plain text.
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
