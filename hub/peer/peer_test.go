package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/pki"
	"flotilla.dev/shared/loopback"
)

// hubs are a standby, and a leader that answers with the caller's identity.
type hubs struct {
	authority *pki.Authority
	leader    *httptest.Server // the leader's peer listener
	standby   *httptest.Server
	passer    *Forwarder
	mu        sync.Mutex
	heard     []leader.Status
	answer    http.HandlerFunc
}

func newHubs(t *testing.T) *hubs {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	a, err := pki.Open(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.NewServer(func() []string { return []string{"127.0.0.1"} }, log)
	if err != nil {
		t.Fatal(err)
	}
	h := &hubs{authority: a}
	h.answer = func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			holder, err := a.Verify(r.TLS.PeerCertificates)
			who = fmt.Sprint(holder.Role, " ", holder.Name, " ", err)
		}
		fmt.Fprintf(w, "%s by %s from %s to %s: %s", who, ForwardedBy(r.Context()), r.RemoteAddr, r.Host, r.Header)
	}
	h.leader = httptest.NewUnstartedServer(Accept(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, r)
	}), func(s leader.Status) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.heard = append(h.heard, s)
	}))
	h.leader.TLS = a.Peers(server)
	h.leader.Config.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	h.leader.StartTLS()
	t.Cleanup(h.leader.Close)
	h.passer = NewForwarder(a.NewPeerClient("hub-b").Config, func() leader.Status {
		return leader.Status{Name: "hub-x", Address: "hub-b:8444", Behind: time.Second}
	}, log)
	h.standby = httptest.NewUnstartedServer(h.passer)
	h.standby.TLS = a.HTTPS(server)
	h.standby.EnableHTTP2 = true
	h.standby.StartTLS()
	t.Cleanup(h.standby.Close)
	h.passer.SetLeader("hub-a", h.leader.Listener.Addr().String())
	return h
}

// client returns a client with the certificate of a role; "": without one.
func (h *hubs) client(t *testing.T, role pki.Role, http2 bool) *http.Client {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true}
	if role != "" {
		chain, key, err := h.authority.IssueClient(role, "kari", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: http2}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func ask(t *testing.T, c *http.Client, url string, header http.Header) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

// The leader receives the caller's verified certificate, address, token, cookies and host.
func TestTheLeaderKnowsTheCallerOfAForwardedRequest(t *testing.T) {
	h := newHubs(t)
	host := h.standby.Listener.Addr().String()
	for _, http2 := range []bool{false, true} {
		code, text, header := ask(t, h.client(t, pki.Operator, http2), h.standby.URL,
			http.Header{"Authorization": {"Bearer x"}, "Cookie": {"s=1"}})
		if code != 200 || !strings.HasPrefix(text, "operator kari <nil> by hub-b from 127.0.0.1:0 to "+host) ||
			!strings.Contains(text, "Authorization:[Bearer x]") || !strings.Contains(text, "Cookie:[s=1]") {
			t.Errorf("HTTP/2 %v: %d %s", http2, code, text)
		}
		if header.Get(StandbyHeader) != "hub-a" {
			t.Errorf("the response lacks the header of a standby: %v", header)
		}
	}
}

// Clients with and without a certificate cannot forge any header by which proxies name a caller, in
// upper or lower case or with underscores.
func TestOnlyHubsNameTheCallerOfARequest(t *testing.T) {
	h := newHubs(t)
	forged := forgedAdmin(t, h.authority)
	for _, role := range []pki.Role{"", pki.Viewer} {
		want := "nobody by hub-b"
		if role != "" {
			want = "viewer kari <nil> by hub-b"
		}
		for _, http2 := range []bool{false, true} {
			for _, spell := range []func(string) string{
				func(s string) string { return s }, strings.ToLower, strings.ToUpper,
				func(s string) string { return strings.ReplaceAll(s, "-", "_") },
			} {
				header := http.Header{}
				for _, name := range []string{certHeader, chainHeader} {
					header[spell(name)] = []string{forged}
				}
				for _, name := range []string{sourceHeader, standHeader, "X-Real-Ip", "Forwarded", "X-Remote-User",
					"X-Remote-Group", "X-Remote-Extra-Via", "X-Remote-Uid"} {
					header[spell(name)] = []string{"198.51.100.1"}
				}
				code, text, _ := ask(t, h.client(t, role, http2), h.standby.URL, header)
				if code != 200 || !strings.HasPrefix(text, want+" from 127.0.0.1:0") || strings.Contains(text, "198.51.100.1") ||
					strings.Contains(text, forged) {
					t.Errorf("%q over HTTP/2 %v with %v: %d %.300s", role, http2, header, code, text)
				}
			}
		}
	}
	// Only hubs reach the leader's peer listener.
	for _, role := range []pki.Role{"", pki.Viewer, pki.Admin, pki.Observer} {
		if answer, err := h.client(t, role, false).Get(h.leader.URL); err == nil {
			answer.Body.Close()
			t.Errorf("%q reached the peer listener: %s", role, answer.Status)
		}
	}
}

func forgedAdmin(t *testing.T, a *pki.Authority) string {
	t.Helper()
	chain, key, err := a.IssueClient(pki.Admin, "root", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return encode(pair.Leaf)
}

func TestAnInvalidForwardedRequestIsRefused(t *testing.T) {
	h := newHubs(t)
	tr := &http.Transport{TLSClientConfig: h.authority.NewPeerClient("hub-b").Config("127.0.0.1")}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	good := forgedAdmin(t, h.authority)
	for what, header := range map[string]http.Header{
		"no source":                {},
		"two sources":              {sourceHeader: {"192.0.2.1", "192.0.2.2"}},
		"several source addresses": {sourceHeader: {"192.0.2.1, 192.0.2.2"}},
		"no address":               {sourceHeader: {"kari"}},
		"two certificates":         {sourceHeader: {"192.0.2.1"}, certHeader: {good, good}},
		"a chain without a leaf":   {sourceHeader: {"192.0.2.1"}, chainHeader: {good}},
		"no byte sequence":         {sourceHeader: {"192.0.2.1"}, certHeader: {"x"}},
		"no certificate":           {sourceHeader: {"192.0.2.1"}, certHeader: {":AAAA:"}},
		"no standing":              {sourceHeader: {"192.0.2.1"}, standHeader: {"{"}},
		"too long an announcement": {sourceHeader: {"192.0.2.1"}, standHeader: {`{"name": "` + strings.Repeat("x", maxStanding) + `"}`}},
		"too long a chain": {sourceHeader: {"192.0.2.1"}, certHeader: {good},
			chainHeader: {strings.Repeat(good+",", maxChain) + good}},
	} {
		if code, text, _ := ask(t, c, h.leader.URL, header); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	if code, text, _ := ask(t, c, h.leader.URL,
		http.Header{sourceHeader: {"192.0.2.1"}, certHeader: {good}}); code != 200 ||
		!strings.HasPrefix(text, "admin root <nil> by hub-b from 192.0.2.1:0") {
		t.Errorf("a valid request of a hub: %d %s", code, text)
	}
}

// If no hub leads, or the leader cannot be reached, the response makes kubectl retry. If the leader
// was lost during a change, the response does not.
func TestWithoutALeaderARequestIsRefused(t *testing.T) {
	h := newHubs(t)
	c := h.client(t, "", false)
	url := h.standby.URL + "/api/v1/pods"
	send := func(method string) (int, string, metav1.Status) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var s metav1.Status
		if err := json.NewDecoder(answer.Body).Decode(&s); err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header.Get("Retry-After"), s
	}
	h.passer.SetLeader("", "")
	if code, retryAfter, s := send(http.MethodPost); code != 503 || retryAfter != "1" ||
		s.Reason != metav1.StatusReasonServiceUnavailable || s.Kind != "Status" {
		t.Errorf("no hub leads: %d %q %+v", code, retryAfter, s)
	}
	for accept, want := range map[string]string{"text/html,*/*": "2", "application/json": ""} {
		// a browser reloads the page
		if code, _, header := ask(t, c, h.standby.URL+"/nodes", http.Header{"Accept": {accept}}); code != 503 ||
			header.Get("Refresh") != want {
			t.Errorf("a client that accepts %s gets %d, %v", accept, code, header)
		}
	}
	closed, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	h.passer.SetLeader("hub-a", closed)
	if code, retryAfter, _ := send(http.MethodPost); code != 503 || retryAfter != "1" {
		t.Errorf("the leader cannot be reached: %d %q", code, retryAfter)
	}
	h.answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	h.passer.SetLeader("hub-a", h.leader.Listener.Addr().String())
	if code, retryAfter, s := send(http.MethodPost); code != 502 || retryAfter != "" {
		t.Errorf("the leader was lost during a change: %d %q %+v", code, retryAfter, s)
	}
	if code, retryAfter, _ := send(http.MethodGet); code != 503 || retryAfter != "1" {
		t.Errorf("the leader was lost during a read: %d %q", code, retryAfter)
	}
}

// Requests to a former leader are cancelled, because it may never answer.
func TestRequestsToAFormerLeaderAreCancelled(t *testing.T) {
	h := newHubs(t)
	asked := make(chan struct{})
	h.answer = func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}
	go func() {
		<-asked
		h.passer.SetLeader("hub-c", "127.0.0.1:1")
	}()
	if code, _, _ := ask(t, h.client(t, "", false), h.standby.URL, nil); code != 503 {
		t.Errorf("%d", code)
	}
}

// A hub that stops still returns the leader's response to a change. A stream ends.
func TestAStoppingHubReturnsTheLeadersResponse(t *testing.T) {
	for _, c := range []struct {
		method, upgrade string
		ends            bool
	}{
		{http.MethodPost, "", false},
		{http.MethodDelete, "", false},
		{http.MethodGet, "", true},
		{http.MethodPost, "SPDY/3.1", true},
	} {
		t.Run(c.method+c.upgrade, func(t *testing.T) {
			h := newHubs(t)
			asked, gone := make(chan bool), make(chan bool)
			h.answer = func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the client leaves
				asked <- true
				if c.ends {
					<-r.Context().Done()
					gone <- true
					return
				}
				select {
				case <-r.Context().Done():
					gone <- true
				case gone <- false:
					w.WriteHeader(http.StatusCreated)
				}
			}
			life, end := context.WithCancel(t.Context())
			standby := httptest.NewUnstartedServer(h.passer)
			standby.Config.BaseContext = func(net.Listener) context.Context { return life }
			standby.Start()
			defer standby.Close()
			code := make(chan int)
			go func() {
				r, _ := http.NewRequestWithContext(t.Context(), c.method, standby.URL+"/api/v1/pods", nil)
				if c.upgrade != "" {
					r.Header.Set("Connection", "Upgrade")
					r.Header.Set("Upgrade", c.upgrade)
				}
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					close(code)
					return
				}
				_ = answer.Body.Close()
				code <- answer.StatusCode
			}()
			<-asked
			end()
			if !c.ends {
				if <-gone {
					t.Error("the change was cancelled at the leader")
				}
				if got := <-code; got != http.StatusCreated {
					t.Errorf("the client gets %d", got)
				}
				return
			}
			if got := <-code; got < 500 {
				t.Errorf("the client gets %d", got)
			}
			select {
			case <-gone:
			case <-time.After(10 * time.Second):
				t.Fatal("the stream goes on at the leader")
			}
		})
	}
}

// The leader learns of its standbys from forwarded requests and announcements. The name comes from
// the certificate, and only hubs can announce.
func TestTheLeaderKnowsItsStandbys(t *testing.T) {
	h := newHubs(t)
	var by leader.Status
	h.answer = func(_ http.ResponseWriter, r *http.Request) { by = Announcement(r.Context()) }
	want := leader.Status{Name: "hub-b", Address: "hub-b:8444", Behind: time.Second}
	ask(t, h.client(t, "", false), h.standby.URL, http.Header{standHeader: {`{"address": "hub-z:8444"}`}})
	if by != want || len(h.heard) != 1 || h.heard[0] != want {
		t.Errorf("the request has the announcement %+v, want %+v", by, h.heard)
	}
	if err := h.passer.Announce(t.Context()); err != nil || len(h.heard) != 2 || h.heard[1] != want {
		t.Errorf("announced was %+v, %v", h.heard, err)
	}
	h.passer.SetLeader("", "")
	if err := h.passer.Announce(t.Context()); err != nil || len(h.heard) != 2 {
		t.Errorf("without a leader announced was %+v, %v", h.heard, err)
	}
}
