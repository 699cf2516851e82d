// Package join brings a device into a fleet: it makes sure that the hub is the
// one that made the token, and only then says the token's secret; it keeps the
// identity that it gets, and renews it in time.
//
// It never sends a private key and never touches a workload: when a certificate
// cannot be renewed, the device runs on. Package link connects with the
// identity. What both sides say to each other is package wire's.
package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// Sentinels, by what the caller has to do about them.
var (
	ErrUsage       = errors.New("cannot join")         // an argument is wrong
	ErrWrongHub    = errors.New("wrong hub")           // it is not the one that made the token
	ErrRefused     = errors.New("refused by the hub")  // asking again changes nothing
	ErrUnreachable = errors.New("hub did not answer")  // asking again may help
	ErrWaits       = errors.New("not approved yet")    // the same join, later, goes on with it
	ErrClock       = errors.New("clock of the device") // has to be set
)

// Options say who joins which hub.
type Options struct {
	// of the hub, such as https://gateway:8443; of several hubs of one database each, with commas between them
	URL          string
	Token        string
	Node         string // the name asked for; "": the token's, or the host name
	MachineID    string // 16 hex digits; "": not known
	Serial       string // of the board, for whoever is to approve; "": none
	StateDir     string // where the key is kept, so that a second try is the same join
	AgentVersion string
	Hub          string    // identity that the hub must have; "": any
	LastKnown    time.Time // the newest time that the device has reason to believe in
	// Key is the key of an identity of the same hub, which proves that this device is
	// the node already; empty: a new one.
	Key string
	// Waits hears once that the join waits until an administrator approves of the
	// request of that name; until then it goes on asking, whatever becomes of the link.
	Waits func(request string)
	// Asked asks Run for a renewal now; nil: nobody does.
	Asked <-chan struct{}
	// Dismissed hears, instead of a renewal, that the device's enrolment has ended.
	Dismissed func(wire.Dismissed)
	Log       *slog.Logger
	// Dial opens connections; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	timeout   = 15 * time.Second // of one exchange with the hub
	maxAnswer = wire.MaxJoin
)

// Join enrols this device. It fetches the hub's root certificate without trust,
// compares its hash with the token's, and sends nothing about itself before
// they are the same and the hub has proved that it holds a key of that root.
// The identity is in the state directory when it returns.
func Join(ctx context.Context, o Options) (Identity, error) {
	hubs, err := parseURLs(o.URL)
	if err != nil {
		return Identity{}, err
	}
	token, err := wire.ParseJoinToken(o.Token)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if o.Node != "" {
		if err := wire.ValidNode(o.Node); err != nil {
			return Identity{}, fmt.Errorf("%w: %w; correct --node-name", ErrUsage, err)
		}
	}
	root, hubTime, first, err := fetchRootOf(ctx, o, hubs, token)
	if err != nil {
		return Identity{}, err
	}
	key := []byte(o.Key)
	csr, err := request(key)
	if o.Key == "" {
		key, csr, err = pendingKey(o.StateDir)
	}
	if err != nil {
		return Identity{}, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	// of each hub by its own name
	c := client(o, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, later(o.LastKnown, hubTime))
	defer c.CloseIdleConnections()
	answer, base, err := askAgain(ctx, c, append(hubs[first:len(hubs):len(hubs)], hubs[:first]...), wire.JoinRequest{
		Token: token.Text(), Node: o.Node, Hostname: host, MachineID: o.MachineID, AgentVersion: o.AgentVersion,
		CSR:    string(csr),
		Serial: strings.ToValidUTF8(o.Serial[:min(len(o.Serial), wire.MaxSerial)], ""),
	}, o.Waits)
	if err != nil {
		return Identity{}, fmt.Errorf("join %s: %w", base, explain(err, base, hubTime))
	}
	id, err := identity(answer, base, key, encodeCert(root))
	if err != nil {
		return Identity{}, fmt.Errorf("join %s: %w", base, err)
	}
	if o.Hub != "" && id.Hub != o.Hub {
		return Identity{}, fmt.Errorf(
			"join %s: %w: it is another hub than the one that this device belongs to; nothing was changed", base, ErrWrongHub)
	}
	id.MachineID = o.MachineID
	if o.StateDir != "" {
		if err := Save(o.StateDir, id); err != nil {
			return Identity{}, err
		}
	}
	return id, nil
}

// parseURLs reads one address or several.
func parseURLs(list string) (all []*url.URL, err error) {
	for text := range strings.SplitSeq(list, ",") {
		u, err := parseURL(text)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	if len(all) > wire.MaxBrokers {
		return nil, fmt.Errorf("%w: there are %d addresses; write %d at most", ErrUsage, len(all), wire.MaxBrokers)
	}
	return all, nil
}

// fetchRootOf is fetchRoot at the first of the hubs that has what the token names.
func fetchRootOf(ctx context.Context, o Options, hubs []*url.URL,
	token wire.JoinToken) (root *x509.Certificate, hubTime time.Time, at int, err error) {
	for at, base := range hubs {
		root, hubTime, rerr := fetchRoot(ctx, o, base, token)
		if rerr == nil {
			return root, hubTime, at, nil
		}
		err = errors.Join(err, fmt.Errorf("join %s: %w", base, rerr))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, hubTime, 0, err
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return nil, fmt.Errorf("%w: %q is no address of a hub; write one such as https://gateway:8443", ErrUsage, text)
	case u.Scheme != "https":
		return nil, fmt.Errorf("%w: %q is not an https address; a hub is joined over TLS only, such as https://%s", ErrUsage,
			text, u.Host)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return nil, fmt.Errorf("%w: %q has more than host and port; write https://%s", ErrUsage, u.Redacted(), u.Host)
	}
	return &url.URL{Scheme: "https", Host: u.Host}, nil
}

// fetchRoot gets the hub's root certificate and the hub's time. Nothing of it is
// believed but by the token: the root must have the token's hash, and the very
// connection must have been opened with a key that this root vouches for. Only
// time is left out of that: the device's clock may be wrong, and the hub's
// answer is what says by how much.
func fetchRoot(ctx context.Context, o Options, base *url.URL,
	token wire.JoinToken) (*x509.Certificate, time.Time, error) {
	c := client(o, &tls.Config{InsecureSkipVerify: true, ServerName: base.Hostname(), MinVersion: tls.VersionTLS12},
		time.Time{})
	defer c.CloseIdleConnections()
	var none time.Time
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(wire.PathCA).String(), nil)
	if err != nil {
		return nil, none, err
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, none, explain(err, base, none)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, none, explain(err, base, none)
	}
	roots, err := parseRoots(body) // more than one while the hub's authority changes
	if block, _ := pem.Decode(body); resp.StatusCode != http.StatusOK || block == nil || block.Type != "CERTIFICATE" {
		return nil, none, fmt.Errorf(
			"%w: there is a web server at %s, but it is no Flotilla hub (it answered %s to %s); correct the address",
			ErrWrongHub, base, resp.Status, wire.PathCA)
	}
	if err != nil {
		return nil, none, fmt.Errorf("%w: its certificate cannot be read: %w", ErrWrongHub, err)
	}
	root := rootOf(roots, token)
	if root == nil {
		return nil, none, fmt.Errorf("%w: this is not the hub that made the token (its certificate has the hash %s, the "+
			"token says %s); correct the address or get a new token from this hub: those from before a rotation of its "+
			"root are no longer good. The secret was not sent", ErrWrongHub, pin(roots[0]), token.Pin)
	}
	if err := vouchedFor(resp.TLS, root, base.Hostname()); err != nil {
		return nil, none, err
	}
	hubTime, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return nil, none, fmt.Errorf("%w: its answer has no date", ErrWrongHub)
	}
	return root, hubTime, nil
}

// vouchedFor checks the hub's certificate against the root, at a moment of its own life.
func vouchedFor(s *tls.ConnectionState, root *x509.Certificate, host string) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	leaf := s.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between,
		CurrentTime: leaf.NotAfter})
	var name x509.HostnameError
	switch {
	case errors.As(err, &name):
		return wrongName(name, host)
	case err != nil:
		return fmt.Errorf("%w: somebody else answers in the place of the hub: %w. The secret was not sent", ErrWrongHub, err)
	}
	return nil
}

func wrongName(err x509.HostnameError, host string) error {
	names := err.Certificate.DNSNames
	for _, ip := range err.Certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return fmt.Errorf(
		"%w: the hub answers to %s, not to %s; use one of those, or start the hub with --advertise-address %s", ErrUsage,
		strings.Join(names, ", "), host, host)
}

// client asks hubs whose certificates are of the roots of a configuration, by the time that moment
// says.
func client(o Options, t *tls.Config, lastKnown time.Time) *http.Client {
	dial := o.Dial
	if dial == nil {
		dialer := line.Dialer()
		dialer.Timeout = timeout
		dial = dialer.DialContext
	}
	transport := &http.Transport{DialContext: dial, TLSClientConfig: t, TLSHandshakeTimeout: timeout,
		DisableKeepAlives: true}
	if t.RootCAs != nil {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			raw, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			its := t.Clone()
			its.ServerName = host
			its.InsecureSkipVerify = true // VerifyConnection does the same by another clock
			its.VerifyConnection = func(s tls.ConnectionState) error {
				return check(s.PeerCertificates, t.RootCAs, host, lastKnown)
			}
			c := tls.Client(raw, its)
			if err := c.HandshakeContext(ctx); err != nil {
				_ = raw.Close()
				return nil, err
			}
			return c, nil
		}
	}
	return &http.Client{
		Timeout: timeout,
		// the hub never sends one elsewhere
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
}
