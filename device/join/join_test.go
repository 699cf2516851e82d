package join

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/loopback"
	"flotilla.dev/shared/wire"
)

// A hub simulates a hub with a root and a server. It records its requests.
type hub struct {
	*httptest.Server
	root *x509.Certificate
	key  *ecdsa.PrivateKey

	mu       sync.Mutex
	requests []string // "METHOD path"
	bodies   bytes.Buffer
	keys     map[string]int // number of requests by the hash of the CSR's key
	refuse   *refusal
	life     time.Duration
	node     string
	drop     bool // drop the response to /join
	brokers  []string
	hubs     []string
	shown    [][]byte // client certificates of renewals
}

type hubOptions struct {
	serverFrom, serverUntil time.Time
	names                   []net.IP
	showRoot                *x509.Certificate // served at /join/ca instead of the root
	date                    time.Time
}

func newHub(t *testing.T, o hubOptions) *hub {
	t.Helper()
	h := &hub{life: 365 * 24 * time.Hour, node: "pi-1", keys: map[string]int{}}
	h.key = newKey(t)
	now := time.Now()
	h.root = sign(t, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"},
		NotBefore: now.AddDate(-10, 0, 0), NotAfter: now.AddDate(30, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, &h.key.PublicKey, h.key)
	serverKey := newKey(t)
	if o.serverFrom.IsZero() {
		o.serverFrom, o.serverUntil = now.Add(-24*time.Hour), now.AddDate(1, 0, 0)
	}
	if o.names == nil {
		o.names = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	leaf := sign(t, &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: o.serverFrom, NotAfter: o.serverUntil,
		IPAddresses: o.names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, h.root, &serverKey.PublicKey, h.key)
	show := h.root
	if o.showRoot != nil {
		show = o.showRoot
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /join/ca", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(encodeCert(show)) })
	mux.HandleFunc("POST /join", func(w http.ResponseWriter, r *http.Request) {
		var q wire.JoinRequest
		_ = json.NewDecoder(r.Body).Decode(&q)
		h.answer(t, w, q.CSR)
	})
	mux.HandleFunc("POST /join/renew", func(w http.ResponseWriter, r *http.Request) {
		var q wire.RenewRequest
		_ = json.NewDecoder(r.Body).Decode(&q)
		if len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != "pi-1" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.mu.Lock()
		h.shown = append(h.shown, r.TLS.PeerCertificates[0].Raw)
		h.mu.Unlock()
		h.answer(t, w, q.CSR)
	})
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		h.requests = append(h.requests, r.Method+" "+r.URL.Path)
		h.bodies.Write(body)
		for k, v := range r.Header {
			h.bodies.WriteString(k + strings.Join(v, ""))
		}
		h.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !o.date.IsZero() {
			w.Header().Set("Date", o.date.UTC().Format(http.TimeFormat))
		}
		mux.ServeHTTP(w, r)
	}))
	h.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: serverKey}},
		ClientAuth: tls.RequestClientCert}
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, c, by *x509.Certificate, public any, key *ecdsa.PrivateKey) *x509.Certificate {
	if by == nil {
		by = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, public, key)
	if err != nil {
		t.Error(err)
		return nil
	}
	x, _ := x509.ParseCertificate(der)
	return x
}

func (h *hub) answer(t *testing.T, w http.ResponseWriter, csr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		w.WriteHeader(h.refuse.code)
		_ = json.NewEncoder(w).Encode(wire.JoinRefusal{Error: h.refuse.text})
		return
	}
	block, _ := pem.Decode([]byte(csr))
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || r.CheckSignature() != nil {
		t.Error("bad CSR", err)
		return
	}
	h.keys[string(r.RawSubjectPublicKeyInfo)]++
	if h.drop {
		panic(http.ErrAbortHandler)
	}
	now := time.Now()
	leaf := sign(t, &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: h.node},
		NotBefore: now, NotAfter: now.Add(h.life)}, h.root, r.PublicKey, h.key)
	_ = json.NewEncoder(w).Encode(wire.JoinAnswer{Node: "pi-1", Site: "oslo", Hub: "h1", MQTT: ":8883",
		Brokers: h.brokers, Hubs: h.hubs, Certificate: string(encodeCert(leaf)), CA: string(encodeCert(h.root)),
		LeaseIntervalSeconds: 10, Time: now})
}

const secret = "abcdefghijklmnopqrstuvwxyz"

func (h *hub) token() string {
	return wire.JoinToken{Pin: pin(h.root), ID: "tok1", Secret: secret}.Text()
}

func (h *hub) seen() (requests string, everything string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.requests, ", "), h.bodies.String()
}

func TestADeviceKeepsAllAddressesOfItsHub(t *testing.T) {
	h := newHub(t, hubOptions{})
	h.brokers = []string{"a.example:8883", ":8884", "[2001:db8::1]:8883"}
	dir := filepath.Join(t.TempDir(), "state")
	if _, err := Join(t.Context(), Options{URL: h.URL, Token: h.token(), StateDir: dir}); err != nil {
		t.Fatal(err)
	}
	id, err := Load(dir)
	if want := "mqtts://a.example:8883,mqtts://127.0.0.1:8884,mqtts://[2001:db8::1]:8883"; err != nil ||
		id.Server() != want {
		t.Errorf("the addresses are %s, %v, want %s", id.Server(), err, want)
	}
	h.brokers = nil
	if id, err = Renew(t.Context(), id, Options{StateDir: dir}); err != nil || id.Server() != "mqtts://127.0.0.1:8883" {
		t.Errorf("after a renewal by a hub with one address the addresses are %s, %v", id.Server(), err)
	}
	for _, bad := range []string{"a.example", "a.example:", "a:1,mqtts://evil:1", "a b:1"} {
		h.brokers = []string{"a.example:8883", bad}
		if _, err := Renew(t.Context(), id, Options{StateDir: dir}); err == nil ||
			!strings.Contains(err.Error(), "no MQTT address") {
			t.Errorf("address %q: the error is %v, want that it is not an MQTT address", bad, err)
		}
	}
	h.brokers = make([]string, wire.MaxBrokers+1)
	if _, err := Renew(t.Context(), id, Options{StateDir: dir}); err == nil ||
		!strings.Contains(err.Error(), "at most 16") {
		t.Error(err)
	}
	if stored, err := Load(dir); err != nil || !reflect.DeepEqual(stored, id) {
		t.Errorf("%v: a refused response changed the identity: %+v", err, stored)
	}
}

func TestADeviceJoinsTheHubOfItsToken(t *testing.T) {
	h := newHub(t, hubOptions{})
	dir := filepath.Join(t.TempDir(), "state")
	id, err := Join(t.Context(), Options{URL: h.URL, Token: " " + h.token() + "\n", MachineID: "00112233445566aa",
		StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if id.Node != "pi-1" || id.Site != "oslo" || id.Hub != "h1" || id.MQTTAddress != "127.0.0.1:8883" ||
		id.HubURL != h.URL || id.LeaseIntervalSeconds != 10 || id.MachineID != "00112233445566aa" {
		t.Fatalf("the identity is %+v", id)
	}
	requests, everything := h.seen()
	if requests != "GET /join/ca, POST /join" || !strings.Contains(everything, secret) {
		t.Fatal(requests)
	}
	if strings.Contains(everything, "PRIVATE") {
		t.Fatal("the private key was sent")
	}
	again, err := Load(dir)
	if err != nil || !reflect.DeepEqual(again, id) {
		t.Fatalf("load the identity: error %v, got %+v", err, again)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Fatalf("the state directory has %v, want two files", entries)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatal(e.Name(), info.Mode(), err)
		}
	}
	if _, err := id.TLS(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyTheTokensHubGetsTheSecret(t *testing.T) {
	right := newHub(t, hubOptions{})
	for _, c := range []struct {
		name    string
		hub     func() *hub
		wantErr string
	}{
		{"a hub with another root", func() *hub { return newHub(t, hubOptions{}) }, "this is not the hub of the token"},
		{"a hub that shows the right root without its key", func() *hub { return newHub(t, hubOptions{showRoot: right.root}) }, "another server answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rogue := c.hub()
			dir := t.TempDir()
			_, err := Join(t.Context(), Options{URL: rogue.URL, Token: right.token(), StateDir: dir,
				MachineID: "00112233445566aa"})
			if !errors.Is(err, ErrWrongHub) || !strings.Contains(err.Error(), c.wantErr) {
				t.Fatal(err)
			}
			requests, everything := rogue.seen()
			if requests != "GET /join/ca" {
				t.Fatal(requests)
			}
			for _, hidden := range []string{secret, "tok1", "00112233445566aa", "CERTIFICATE REQUEST"} {
				if strings.Contains(everything, hidden) {
					t.Errorf("the secret was sent in %q", hidden)
				}
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 0 {
				t.Fatalf("a refused join leaves the files %v", entries)
			}
		})
	}
}

// An attacker intercepts the second request. The first one has returned the right root.
func TestALaterAttackerGetsNoSecret(t *testing.T) {
	right, rogue := newHub(t, hubOptions{}), newHub(t, hubOptions{})
	n := 0
	_, err := Join(t.Context(), Options{URL: right.URL, Token: right.token(),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if n++; n > 1 {
				address = rogue.Listener.Addr().String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}})
	if !errors.Is(err, ErrWrongHub) {
		t.Fatal(err)
	}
	if requests, everything := rogue.seen(); requests != "" || everything != "" {
		t.Fatal(requests)
	}
}

func TestTheErrorNamesTheWrongArgument(t *testing.T) {
	h := newHub(t, hubOptions{})
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	elsewhere := newHub(t, hubOptions{names: []net.IP{net.IPv4(10, 0, 0, 1)}})
	closed, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, url, token, node string
		want                   error
		wantErr                string
	}{
		{"no address", "", h.token(), "", ErrUsage, "https://gateway:8443"},
		{"a host alone", "gateway:8443", h.token(), "", ErrUsage, "https://gateway:8443"},
		{"plain http", plain.URL, h.token(), "", ErrUsage, "is not an https address"},
		{"a path", h.URL + "/join", h.token(), "", ErrUsage, "more than host and port"},
		{"an incomplete token", h.URL, h.token()[:30], "", ErrUsage, "copy all of what"},
		{"a token with a short hash", h.URL, "FLT1.abcd.x.y", "", ErrUsage, "32 hex digits"},
		{"a node name with capitals", h.URL, h.token(), "Pi 1", ErrUsage, "--node-name"},
		{"a server without TLS", "https" + strings.TrimPrefix(plain.URL, "http"), h.token(), "", ErrWrongHub, "--https-listen"},
		{"another web server", other.URL, h.token(), "", ErrWrongHub, "not a Flotilla hub"},
		{"a name that the hub's certificate lacks", elsewhere.URL, elsewhere.token(), "", ErrUsage, "is for 10.0.0.1, not for 127.0.0.1"},
		{"a closed port", "https://" + closed, h.token(), "", ErrUnreachable, "is it running"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Join(t.Context(), Options{URL: c.url, Token: c.token, Node: c.node})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.wantErr) {
				t.Fatal(err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Fatal("the error contains the secret")
			}
		})
	}
}

func TestTheErrorHasTheHubsRefusal(t *testing.T) {
	h := newHub(t, hubOptions{})
	for _, c := range []struct {
		code int
		text string
		want error
	}{
		{http.StatusForbidden, "token tok1 ended at 2026-11-01", ErrRefused},
		{http.StatusConflict, "node pi-1 belongs to another machine", ErrRefused},
		{http.StatusUnauthorized, "the join token is wrong", ErrRefused},
		{http.StatusTooManyRequests, "too many failed attempts", ErrUnreachable},
		{http.StatusServiceUnavailable, "the hub cannot answer now", ErrUnreachable},
		{http.StatusBadGateway, "", ErrUnreachable},
	} {
		h.refuse = &refusal{code: c.code, text: c.text}
		_, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("status %d: the error is %v, want %v: %s", c.code, err, c.want, c.text)
		}
	}
	h.refuse, h.node = nil, "somebody-else"
	if _, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()}); err == nil ||
		!strings.Contains(err.Error(), "somebody-else") {
		t.Fatal("a certificate for another node was stored", err)
	}
}

func TestARepeatedJoinHasTheSameKey(t *testing.T) {
	h := newHub(t, hubOptions{})
	o := Options{URL: h.URL, Token: h.token(), StateDir: t.TempDir()}
	h.drop = true
	if _, err := Join(t.Context(), o); !errors.Is(err, ErrUnreachable) {
		t.Fatal(err)
	}
	if _, err := Load(o.StateDir); !errors.Is(err, ErrNotJoined) {
		t.Fatal(err)
	}
	h.drop = false
	if _, err := Join(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if len(h.keys) != 1 {
		t.Fatalf("one join sent %d keys, want 1", len(h.keys))
	}
}

func TestADeviceJoinsWithAClockThatIsBehind(t *testing.T) {
	// By this device's clock, in 1970, the hub's certificate is valid only in the far future.
	future := time.Now().AddDate(5, 0, 0)
	h := newHub(t, hubOptions{serverFrom: future.Add(-time.Hour), serverUntil: future.AddDate(1, 0, 0), date: future})
	if _, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()}); err != nil {
		t.Fatal(err)
	}
}

// setClockAdjusted sets whether a time service adjusts the clock.
func setClockAdjusted(t *testing.T, adjusted bool) {
	old := clockAdjusted
	clockAdjusted = func() bool { return adjusted }
	t.Cleanup(func() { clockAdjusted = old })
}

func TestADeviceJoinsWithAnUnadjustedClockThatIsAhead(t *testing.T) {
	setClockAdjusted(t, false)
	past := time.Now().AddDate(-5, 0, 0)
	lastKnown := buildTime() // lastKnown is the build time
	h := newHub(t, hubOptions{serverFrom: past.Add(-time.Hour), serverUntil: lastKnown.Add(time.Hour), date: past})
	if _, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()}); err != nil {
		t.Fatal(err)
	}
	h = newHub(t, hubOptions{serverFrom: past.Add(-time.Hour), serverUntil: lastKnown.Add(-time.Hour), date: past})
	if _, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()}); !errors.Is(err, ErrClock) {
		t.Fatalf("a certificate that expired before the program was built: %v", err)
	}
}

func TestTheErrorNamesAnAdjustedClockThatIsAhead(t *testing.T) {
	setClockAdjusted(t, true)
	past := time.Now().AddDate(-5, 0, 0)
	h := newHub(t, hubOptions{serverFrom: past.Add(-time.Hour), serverUntil: past.AddDate(1, 0, 0), date: past})
	_, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()})
	if !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), past.UTC().Format("2006-01-02")) ||
		!strings.Contains(err.Error(), "set it") {
		t.Fatal(err)
	}
	if requests, _ := h.seen(); requests != "GET /join/ca" {
		t.Fatal(requests)
	}
}

func TestClockNeverReturnsATimeBeforeTheLastKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // package synctest begins in the year 2000
		if now := Clock(time.Time{})(); now.Before(buildTime()) || buildTime().Year() < 2026 {
			t.Fatal(now)
		}
		known := time.Date(2031, 5, 1, 0, 0, 0, 0, time.UTC)
		if now := Clock(known)(); !now.Equal(known) {
			t.Fatal(now)
		}
		if own := time.Now(); own.Year() != 2000 {
			t.Fatal(own)
		}
	})
}

func TestRenewalKeepsTheKeyAndTheName(t *testing.T) {
	h := newHub(t, hubOptions{})
	dir := t.TempDir()
	id, err := Join(t.Context(), Options{URL: h.URL, Token: h.token(), StateDir: dir, MachineID: "00112233445566aa"})
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := Renew(t.Context(), id, Options{StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if fresh.Key != id.Key || fresh.Certificate == id.Certificate || fresh.Node != id.Node ||
		fresh.MachineID != id.MachineID {
		t.Fatalf("the renewed identity is %+v, want a new certificate for the same key", fresh)
	}
	if stored, err := Load(dir); err != nil || !reflect.DeepEqual(stored, fresh) {
		t.Fatal(err)
	}
	h.refuse = &refusal{code: http.StatusForbidden, text: "node pi-1 was removed from this hub"}
	if _, err := Renew(t.Context(), fresh, Options{StateDir: dir}); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "was removed") {
		t.Fatal(err)
	}
	if stored, _ := Load(dir); !reflect.DeepEqual(stored, fresh) {
		t.Fatal("a refusal changed the stored identity")
	}
}

func TestARenewalUsesAnotherHub(t *testing.T) {
	h := newHub(t, hubOptions{})
	const down, standby = "127.0.0.1:1", "127.0.0.1:2"
	h.hubs = []string{down, standby}
	dir := t.TempDir()
	id, err := Join(t.Context(), Options{URL: h.URL, Token: h.token(), StateDir: dir})
	if err != nil || !slices.Equal(id.Hubs, h.hubs) {
		t.Fatal(id.Hubs, err)
	}
	id.HubURL = "https://" + down
	var requests []string
	isDown := true
	o := Options{StateDir: dir, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		requests = append(requests, address)
		if address == down && isDown {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return new(net.Dialer).DialContext(ctx, network, h.Listener.Addr().String())
	}}
	fresh, err := Renew(t.Context(), id, o)
	if err != nil || fresh.HubURL != "https://"+standby || !slices.Equal(requests, []string{down, standby}) {
		t.Fatal(fresh.HubURL, requests, err)
	}
	if stored, err := Load(dir); err != nil || stored.HubURL != fresh.HubURL {
		t.Error("the stored identity does not begin with the hub that answered", stored.HubURL, err)
	}
	isDown = false
	for _, c := range []struct {
		code    int
		times   int
		message string
	}{
		{http.StatusServiceUnavailable, 2, "not now"}, // a standby without a leader
		{http.StatusBadGateway, 2, "not now"},
		{http.StatusForbidden, 1, "not now"}, // a final refusal
		{http.StatusTooManyRequests, 1, "not now"},
	} {
		h.refuse, requests = &refusal{code: c.code, text: c.message}, nil
		if _, err := Renew(t.Context(), id, o); len(requests) != c.times || err == nil ||
			!strings.Contains(err.Error(), c.message) {
			t.Errorf("%d: requests to %v, want %d, error %v", c.code, requests, c.times, err)
		}
	}
	h.refuse = nil
	h.hubs = []string{"hub-a", "https://hub-b/path"}
	if _, err := Renew(t.Context(), id, o); err == nil || !strings.Contains(err.Error(), "invalid hub address") {
		t.Error("Renew accepts an invalid address", err)
	}
}

// A join command names each hub of a database. The join tries them in order: the first is down, the
// second belongs to another fleet, and the third goes down between the two requests. Only the
// token's hub receives the secret.
func TestAJoinUsesAnotherHub(t *testing.T) {
	h, rogue := newHub(t, hubOptions{}), newHub(t, hubOptions{})
	const down, foreign, one, two = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"
	var requests []string
	wentDown := false
	o := Options{Token: h.token(), URL: "https://" + strings.Join([]string{down, foreign, one, two}, ",https://"),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			requests = append(requests, address)
			to := h.Listener.Addr().String()
			switch {
			case address == down, address == one && wentDown:
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			case address == foreign:
				to = rogue.Listener.Addr().String()
			case address == one:
				wentDown = true
			}
			return new(net.Dialer).DialContext(ctx, network, to)
		}}
	id, err := Join(t.Context(), o)
	if err != nil || id.HubURL != "https://"+two || !slices.Equal(requests, []string{down, foreign, one, one, two}) {
		t.Fatal(id.HubURL, requests, err)
	}
	if requests, everything := rogue.seen(); requests != "GET /join/ca" || strings.Contains(everything, secret) {
		t.Errorf("the other fleet's hub received the requests %s and the text %s", requests, everything)
	}

	requests = nil
	h.refuse = &refusal{code: http.StatusForbidden, text: "used up"}
	if _, err := Join(t.Context(), o); !errors.Is(err, ErrRefused) || requests[len(requests)-1] != two {
		t.Error(requests, err)
	}
	for name, list := range map[string]string{"nothing": "https://a:1,", "no TLS": "https://a:1,http://b:1",
		"too many": strings.Repeat("https://a:1,", 16) + "https://b:1"} {
		requests = nil
		if _, err := Join(t.Context(), Options{URL: list, Token: h.token(), Dial: o.Dial}); !errors.Is(err, ErrUsage) ||
			len(requests) > 0 {
			t.Errorf("%s: error %v, requests to %v, want none", name, err, requests)
		}
	}
	o.URL = "https://" + down + ",https://" + foreign
	if _, err := Join(t.Context(), o); !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrWrongHub) ||
		!strings.Contains(err.Error(), down) || !strings.Contains(err.Error(), foreign) {
		t.Errorf("the error is %v, want the errors of both hubs", err)
	}
}

func TestRunRenewsAtHalfOfTheCertificatesLife(t *testing.T) {
	h := newHub(t, hubOptions{})
	h.life = 2 * time.Second
	id, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begin := time.Now()
	renewed := make(chan Identity)
	done := make(chan error)
	go func() { done <- Run(ctx, id, Options{}, func(id Identity) { renewed <- id }) }()
	for range 2 {
		if fresh := <-renewed; fresh.Certificate == id.Certificate {
			t.Fatal("the renewed certificate is the old one")
		}
	}
	if took := time.Since(begin); took > 8*time.Second {
		t.Fatalf("two renewals of 2 s certificates took %v", took)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// After a change of the hub's authority or addresses, the earlier ones are no longer used.
func TestEachRenewalUsesTheLastCertificate(t *testing.T) {
	h := newHub(t, hubOptions{})
	id, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	renew, renewed, done := make(chan struct{}), make(chan Identity), make(chan error)
	go func() { done <- Run(ctx, id, Options{Asked: renew}, func(id Identity) { renewed <- id }) }()
	for i := range 2 {
		renew <- struct{}{}
		fresh := <-renewed
		leaf, err := id.Leaf()
		if err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		if shown := h.shown[len(h.shown)-1]; !bytes.Equal(shown, leaf.Raw) {
			t.Errorf("renewal %d did not use the last certificate", i+1)
		}
		h.mu.Unlock()
		id = fresh
	}
	h.mu.Lock()
	h.refuse = &refusal{code: http.StatusServiceUnavailable, text: "not now"}
	h.mu.Unlock()
	renew <- struct{}{} // this renewal fails; the next request is still served
	renew <- struct{}{}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A device whose disk is full or read-only keeps its connection to the hub.
func TestARenewedIdentityIsUsedIfItCannotBeStored(t *testing.T) {
	h := newHub(t, hubOptions{})
	id, err := Join(t.Context(), Options{URL: h.URL, Token: h.token()})
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(full, nil, 0o600); err != nil { // not a directory
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log bytes.Buffer
	renew, renewed, done := make(chan struct{}), make(chan Identity, 1), make(chan error)
	o := Options{StateDir: full, Asked: renew, Log: slog.New(slog.NewTextHandler(&log, nil))}
	go func() { done <- Run(ctx, id, o, func(id Identity) { renewed <- id }) }()
	renew <- struct{}{}
	fresh := <-renewed
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	renew <- struct{}{}
	second := <-renewed
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if fresh.Certificate == id.Certificate || second.Certificate == fresh.Certificate {
		t.Error("the renewed certificate is the old one")
	}
	if stored, err := Load(full); err != nil || stored.Certificate != second.Certificate {
		t.Error("the second certificate is not stored:", err)
	}
	if !strings.Contains(log.String(), "writable") || strings.Count(log.String(), "\n") != 1 {
		t.Error("the log has", log.String())
	}
}

func TestTheErrorOfADamagedIdentityHasTheNextStep(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, ErrNotJoined) || !strings.Contains(err.Error(), "flotilla-device join") {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", "{}", `{"node":"pi-1","mqttAddress":"x:1","key":"nonsense"}`} {
		if err := os.WriteFile(filepath.Join(dir, IdentityFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "join again") {
			t.Errorf("identity file %q: the error is %v, want the advice to join again", text, err)
		}
	}
}

// A damaged identity file does not cut a device off from its hub. A removed file does.
func TestADamagedIdentityIsReadFromItsCopy(t *testing.T) {
	h := newHub(t, hubOptions{})
	dir := t.TempDir()
	id, err := Join(t.Context(), Options{URL: h.URL, Token: h.token(), StateDir: dir, MachineID: "00112233445566aa"})
	if err != nil {
		t.Fatal(err)
	}
	intact, err := os.ReadFile(filepath.Join(dir, IdentityFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{IdentityFile, IdentityCopy} {
		for _, text := range []string{"", string(intact[:len(intact)/2]), string(make([]byte, len(intact))),
			strings.Replace(string(intact), "BEGIN CERT", "BEGIN KERT", 1)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := Load(dir)
			if err != nil || !reflect.DeepEqual(got, id) {
				t.Fatalf("load the identity with %s of %d bytes: %v", name, len(text), err)
			}
			if repaired, err := Repair(dir, got); err != nil || !slices.Equal(repaired, []string{name}) {
				t.Fatalf("%s with %d bytes: repaired %q, %v", name, len(text), repaired, err)
			}
			if repaired, err := Repair(dir, got); err != nil || len(repaired) > 0 {
				t.Fatalf("an intact file was written again: %q, %v", repaired, err)
			}
		}
	}
	if err := os.Remove(filepath.Join(dir, IdentityFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); !errors.Is(err, ErrNotJoined) {
		t.Errorf("without the file the error is %v, want ErrNotJoined", err)
	}
}
