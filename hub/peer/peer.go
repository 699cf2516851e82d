// Package peer forwards requests between hubs of one database. A standby forwards requests that
// only the leader can answer, with the caller's identity.
//
// The leader accepts forwarded requests on a separate listener, whose TLS admits only hubs. The
// public listener removes the headers of this package, so they cannot be forged there. A standby
// forwards the caller's credential without a decision: a token or cookie is in the request, and a
// client certificate goes in the headers of RFC 9440. The leader verifies every caller itself, so
// that a revocation applies at every hub. Package cluster uses it.
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"flotilla.dev/hub/leader"
)

// Headers between hubs.
const (
	certHeader   = "Client-Cert"       // RFC 9440
	chainHeader  = "Client-Cert-Chain" // RFC 9440
	sourceHeader = "X-Forwarded-For"   // the caller's address, only one
	standHeader  = "Flotilla-Standing" // the standby's announcement, as JSON
	callerHeader = "Flotilla-Caller"   // in the response: the caller's user name, verified by the leader
	maxChain     = 8                   // most certificates of a caller
	maxStanding  = 2 << 10             // most bytes of an announcement
)

// callerHeaders are the headers by which proxies name a caller. Only hubs may send them, and the
// leader uses only the first four.
var callerHeaders = []string{certHeader, chainHeader, sourceHeader, standHeader, "X-Forwarded-Host",
	"X-Forwarded-Proto", "X-Real-Ip", "Forwarded", "X-Remote-User", "X-Remote-Group", "X-Remote-Uid"}

func wantsStatus(header string) bool {
	if strings.HasPrefix(header, "X-Remote-Extra-") {
		return true
	}
	for _, h := range callerHeaders {
		if h == header {
			return true
		}
	}
	return false
}

// Strip removes the headers that only a hub may send.
func Strip(h http.Header) {
	for name := range h {
		if wantsStatus(http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))) {
			delete(h, name)
		}
	}
}

type passedKey struct{}

// ForwardedBy returns the name of the hub that forwarded a request; "": the request came directly.
func ForwardedBy(ctx context.Context) string { return Announcement(ctx).Name }

// Announcement returns the announcement of the hub that forwarded a request. An older version sends
// only its name.
func Announcement(ctx context.Context) leader.Status {
	s, _ := ctx.Value(passedKey{}).(leader.Status)
	return s
}

// ReturnUser returns the verified user name to the hub that forwarded a request, so that it can
// distinguish users from unauthenticated clients.
func ReturnUser(ctx context.Context, w http.ResponseWriter, user string) {
	if ForwardedBy(ctx) != "" {
		w.Header().Set(callerHeader, user)
	}
}

// Accept serves forwarded requests as if they came from their callers. The TLS of its listener
// admits only hubs. heard is called with each announcement.
func Accept(next http.Handler, heard func(leader.Status)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "this listener is for hubs of the fleet", http.StatusForbidden)
			return
		}
		by := r.TLS.PeerCertificates[0].Subject.CommonName
		headers := r.Header.Clone()
		Strip(r.Header)
		chain, err := certificates(headers)
		source := headers.Values(sourceHeader)
		var from netip.Addr
		if err == nil && len(source) != 1 {
			err = errors.New("it has no address of its caller")
		}
		if err == nil {
			from, err = netip.ParseAddr(source[0])
		}
		stands := leader.Status{Name: by}
		if text := headers.Get(standHeader); err == nil && text != "" {
			if stands, err = standing(text); err == nil {
				stands.Name = by // only the certificate proves the name
				heard(stands)
			}
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("hub %.100q has forwarded an invalid request: %v", by, err), http.StatusBadRequest)
			return
		}
		own := tls.ConnectionState{Version: r.TLS.Version, HandshakeComplete: true, ServerName: r.TLS.ServerName,
			PeerCertificates: chain}
		r = r.WithContext(context.WithValue(r.Context(), passedKey{}, stands))
		r.TLS, r.RemoteAddr = &own, net.JoinHostPort(from.String(), "0")
		next.ServeHTTP(w, r)
	})
}

// standing parses an announcement.
func standing(text string) (s leader.Status, err error) {
	if len(text) > maxStanding {
		return s, fmt.Errorf("its announcement has %d bytes, but at most %d are allowed", len(text), maxStanding)
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("its announcement: %w", err)
	}
	return s, nil
}

// certificates parses the caller's certificates. It returns none if the caller has shown none.
func certificates(h http.Header) (chain []*x509.Certificate, err error) {
	leaf, rest := h.Values(certHeader), h.Values(chainHeader)
	if len(leaf) > 1 || len(rest) > 1 || len(leaf) == 0 && len(rest) > 0 {
		return nil, errors.New("its client certificate is repeated")
	}
	var items []string
	if len(leaf) == 1 {
		items = append(items, leaf[0])
	}
	if len(rest) == 1 {
		items = append(items, strings.Split(rest[0], ",")...)
	}
	if len(items) > maxChain {
		return nil, errors.New("its client certificate has too long a chain")
	}
	for _, item := range items {
		c, err := decode(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("its client certificate: %w", err)
		}
		chain = append(chain, c)
	}
	return chain, nil
}

// decode parses a byte sequence of RFC 8941.
func decode(item string) (*x509.Certificate, error) {
	if len(item) < 2 || item[0] != ':' || item[len(item)-1] != ':' {
		return nil, errors.New("it is not a byte sequence of RFC 8941")
	}
	der, err := base64.StdEncoding.DecodeString(item[1 : len(item)-1])
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encode(c *x509.Certificate) string {
	return ":" + base64.StdEncoding.EncodeToString(c.Raw) + ":"
}
