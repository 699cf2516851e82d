// Package join brings a device into a fleet. It verifies that the hub is the token's hub before it
// sends the token's secret, stores the identity, and renews it in time.
//
// It never sends a private key and never touches a workload: without a renewal the workloads keep
// running. Package cli calls it, package link connects with the identity, and package wire has the
// messages.
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

// Errors, each with what the caller must do.
var (
	ErrUsage       = errors.New("cannot join")         // correct an argument
	ErrWrongHub    = errors.New("wrong hub")           // the hub is not the token's hub: correct the address or the token
	ErrRefused     = errors.New("refused by the hub")  // repeating the request does not help
	ErrUnreachable = errors.New("hub did not answer")  // repeating the request may help
	ErrWaits       = errors.New("not approved yet")    // run the same join again to continue
	ErrClock       = errors.New("clock of the device") // set the clock
)

// Options configure Join, Renew and Run.
type Options struct {
	// address of the hub, such as https://gateway:8443, or addresses of several hubs of one
	// database, separated by commas
	URL          string
	Token        string
	Node         string // requested name; empty: the token's, or the host name
	MachineID    string // 16 hex digits; empty: unknown
	Serial       string // the board's serial number, for the administrator who approves; empty: none
	StateDir     string // stores the key, so that a repeated join has the same key
	AgentVersion string
	Hub          string    // required id of the hub; empty: any
	LastKnown    time.Time // the latest time that the device knows
	// Key is the key of an earlier identity on the same hub. It proves that this device already is
	// the node. Empty: a new key.
	Key string
	// Waits is called once with the request that an administrator must approve. Join keeps asking
	// for the approval, across outages.
	Waits func(request string)
	// Asked makes Run renew at once; may be nil.
	Asked <-chan struct{}
	// Dismissed is called if the hub answers a renewal with the end of the enrolment.
	Dismissed func(wire.Dismissed)
	Log       *slog.Logger
	// Dial opens connections; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	timeout   = 15 * time.Second // timeout of one request to the hub
	maxAnswer = wire.MaxJoin
)

// Join enrols this device. It fetches the hub's root certificate without trust and compares its
// hash with the token's. It sends no data about the device before they match and the hub has proved
// that it has a key of that root. When Join returns, the identity is stored.
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
	// each hub's certificate is checked against its own name
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
			"join %s: %w: this device belongs to another hub; nothing was changed", base, ErrWrongHub)
	}
	id.MachineID = o.MachineID
	if o.StateDir != "" {
		if err := Save(o.StateDir, id); err != nil {
			return Identity{}, err
		}
	}
	return id, nil
}

// parseURLs parses one address, or several separated by commas.
func parseURLs(list string) (all []*url.URL, err error) {
	for text := range strings.SplitSeq(list, ",") {
		u, err := parseURL(text)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	if len(all) > wire.MaxBrokers {
		return nil, fmt.Errorf("%w: there are %d addresses; give at most %d", ErrUsage, len(all), wire.MaxBrokers)
	}
	return all, nil
}

// fetchRootOf calls fetchRoot for the first hub that has the token's root.
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
		return nil, fmt.Errorf("%w: %q is not the address of a hub; give one such as https://gateway:8443", ErrUsage, text)
	case u.Scheme != "https":
		return nil, fmt.Errorf("%w: %q is not an https address; give one such as https://%s", ErrUsage,
			text, u.Host)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return nil, fmt.Errorf("%w: %q has more than host and port; give https://%s", ErrUsage, u.Redacted(), u.Host)
	}
	return &url.URL{Scheme: "https", Host: u.Host}, nil
}

// fetchRoot gets the hub's root certificate and time. It trusts only the token: the root must have
// the token's hash, and that root must have signed the connection's certificate. It does not check
// validity times, because the device's clock may be wrong and this response corrects it.
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
	roots, err := parseRoots(body) // a hub that changes its root has several
	if block, _ := pem.Decode(body); resp.StatusCode != http.StatusOK || block == nil || block.Type != "CERTIFICATE" {
		return nil, none, fmt.Errorf(
			"%w: the web server at %s is not a Flotilla hub (it answered %s to %s); correct the address",
			ErrWrongHub, base, resp.Status, wire.PathCA)
	}
	if err != nil {
		return nil, none, fmt.Errorf("%w: parse its certificate: %w", ErrWrongHub, err)
	}
	root := rootOf(roots, token)
	if root == nil {
		return nil, none, fmt.Errorf("%w: this is not the hub of the token (its certificate has the hash %s, the "+
			"token's hash is %s); correct the address or get a new token from this hub: tokens from before a rotation of its "+
			"root are no longer valid. The secret was not sent", ErrWrongHub, pin(roots[0]), token.Pin)
	}
	if err := checkChain(resp.TLS, root, base.Hostname()); err != nil {
		return nil, none, err
	}
	hubTime, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return nil, none, fmt.Errorf("%w: its answer has no date", ErrWrongHub)
	}
	return root, hubTime, nil
}

// checkChain checks the hub's certificate against the root, at a time within the certificate's
// validity.
func checkChain(s *tls.ConnectionState, root *x509.Certificate, host string) error {
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
		return fmt.Errorf("%w: another server answers at the hub's address: %w. The secret was not sent", ErrWrongHub, err)
	}
	return nil
}

func wrongName(err x509.HostnameError, host string) error {
	names := err.Certificate.DNSNames
	for _, ip := range err.Certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return fmt.Errorf(
		"%w: the hub's certificate is for %s, not for %s; use one of those, or start the hub with --advertise-address "+
			"%s", ErrUsage,
		strings.Join(names, ", "), host, host)
}

// client returns an HTTP client for hubs whose certificates t's roots have signed. checkTime
// decides at which time.
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
			its.InsecureSkipVerify = true // VerifyConnection checks the certificate at another time
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
		// the hub never redirects
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
}
