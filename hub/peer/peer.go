// Package peer is how hubs that share a database speak with each other: a standby passes on
// what only the leader can answer, and the leader believes who a standby says that it is from.
//
// Requests come on a listener of their own, whose TLS lets in nobody but hubs of the fleet
// (package pki): the public one never looks at what is said here in headers, so there is
// nothing to forge there. A standby hands on the caller's credential and judges nobody: a
// token or a session stands in the request anyway, and a client certificate, of which it has
// seen the proof, goes along in the headers of RFC 9440. So the leader verifies every caller
// itself, as if he had come to it, and what is revoked is revoked at every hub.
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

// The headers between hubs.
const (
	certHeader   = "Client-Cert"       // RFC 9440
	chainHeader  = "Client-Cert-Chain" // RFC 9440
	sourceHeader = "X-Forwarded-For"   // the caller's address; one
	standHeader  = "Flotilla-Standing" // what the standby says of itself, as JSON
	callerHeader = "Flotilla-Caller"   // of the answer: who the leader found the caller to be
	maxChain     = 8                   // certificates that a caller shows
	maxStanding  = 2 << 10             // bytes of what a standby says of itself
)

// told are the headers by which proxies say who sends a request: nobody but a hub may, and
// of those none but the first four are believed.
var told = []string{certHeader, chainHeader, sourceHeader, standHeader, "X-Forwarded-Host", "X-Forwarded-Proto",
	"X-Real-Ip", "Forwarded", "X-Remote-User", "X-Remote-Group", "X-Remote-Uid"}

func wantsStatus(header string) bool {
	if strings.HasPrefix(header, "X-Remote-Extra-") {
		return true
	}
	for _, h := range told {
		if h == header {
			return true
		}
	}
	return false
}

// Strip removes what only a hub may say from a request.
func Strip(h http.Header) {
	for name := range h {
		if wantsStatus(http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))) {
			delete(h, name)
		}
	}
}

type passedKey struct{}

// Passed is the name of the hub that a request was passed on by; "": it came by itself.
func Passed(ctx context.Context) string { return By(ctx).Name }

// By is what the hub that has passed a request on says of itself; one of an older version says no
// more than its name.
func By(ctx context.Context) leader.Status {
	s, _ := ctx.Value(passedKey{}).(leader.Status)
	return s
}

// Known tells the hub that has passed a request on who its sender is, so that it knows its
// users from strangers, too.
func Known(ctx context.Context, w http.ResponseWriter, user string) {
	if Passed(ctx) != "" {
		w.Header().Set(callerHeader, user)
	}
}

// Accept serves what peers pass on, as if it had come from its sender. The TLS of its listener
// lets in peers only, and heard is told what they say of themselves.
func Accept(next http.Handler, heard func(leader.Status)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "this listener is for hubs of the fleet", http.StatusForbidden)
			return
		}
		by := r.TLS.PeerCertificates[0].Subject.CommonName
		said := r.Header.Clone()
		Strip(r.Header)
		chain, err := certificates(said)
		source := said.Values(sourceHeader)
		var from netip.Addr
		if err == nil && len(source) != 1 {
			err = errors.New("it does not say where it comes from")
		}
		if err == nil {
			from, err = netip.ParseAddr(source[0])
		}
		stands := leader.Status{Name: by}
		if text := said.Get(standHeader); err == nil && text != "" {
			if stands, err = standing(text); err == nil {
				stands.Name = by // as its certificate says
				heard(stands)
			}
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("hub %.100q has passed on what cannot be understood: %v", by, err), http.StatusBadRequest)
			return
		}
		own := tls.ConnectionState{Version: r.TLS.Version, HandshakeComplete: true, ServerName: r.TLS.ServerName,
			PeerCertificates: chain}
		r = r.WithContext(context.WithValue(r.Context(), passedKey{}, stands))
		r.TLS, r.RemoteAddr = &own, net.JoinHostPort(from.String(), "0")
		next.ServeHTTP(w, r)
	})
}

// standing reads what a standby says of itself.
func standing(text string) (s leader.Status, err error) {
	if len(text) > maxStanding {
		return s, fmt.Errorf("it says %d bytes of itself, and may %d", len(text), maxStanding)
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("what it says of itself: %w", err)
	}
	return s, nil
}

// certificates reads what the caller has shown; none: he has shown none.
func certificates(h http.Header) (chain []*x509.Certificate, err error) {
	leaf, rest := h.Values(certHeader), h.Values(chainHeader)
	if len(leaf) > 1 || len(rest) > 1 || len(leaf) == 0 && len(rest) > 0 {
		return nil, errors.New("its client certificate stands there twice")
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

// decode reads a byte sequence of RFC 8941.
func decode(item string) (*x509.Certificate, error) {
	if len(item) < 2 || item[0] != ':' || item[len(item)-1] != ':' {
		return nil, errors.New("it is no byte sequence of RFC 8941")
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
