package access

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

func joinRequest(t *testing.T, token, node string, m machine) wire.JoinRequest {
	t.Helper()
	return wire.JoinRequest{Token: token, Node: node, CSR: m.csr(t)}
}

func token(t *testing.T, g fixture, n NewJoinToken) wire.JoinToken {
	t.Helper()
	if n.Site == "" {
		n.Site = "oslo"
	}
	n.Uses, n.Life = max(n.Uses, 1), max(n.Life, time.Hour)
	k, err := g.CreateJoinToken(t.Context(), n)
	must(t, err)
	return k
}

func TestADeviceJoinsWithAToken(t *testing.T) {
	g := guard(t, t.TempDir())
	k := token(t, g, NewJoinToken{Site: "bergen", Labels: map[string]string{"rack": "a"}, By: "anna"})
	q := joinRequest(t, k.Text(), "", newMachine(t))
	q.Hostname, q.MachineID = "Pi-Kiosk", "00112233445566aa"
	a, err := g.Join(t.Context(), q, "10.0.0.2")
	must(t, err)
	if a.Node != "pi-kiosk" || a.Site != "bergen" || a.Hub != "h1" || a.MQTT != ":8883" || a.LeaseIntervalSeconds != 10 ||
		a.CA != string(g.Authority.RootPEM()) {
		t.Fatalf("the answer is %+v", a)
	}
	if len(g.hub.joined) != 1 {
		t.Fatal(g.hub.joined)
	}
	if e := g.hub.joined[0]; e.Node != "pi-kiosk" || e.Site != "bergen" || e.Labels["rack"] != "a" ||
		e.MachineID != "00112233445566aa" {
		t.Fatalf("the enrolment is %+v", e)
	}
	certs := certificates(t, a.Certificate)
	u, err := g.Authenticate(from(certs))
	if err != nil || u.Role != Device || u.Name != "pi-kiosk" {
		t.Fatalf("%+v %v", u, err)
	}
	if Allow(u.Role, "list", "nodes") || Allow(u.Role, "get", "pods") {
		t.Fatal("a device may use the API")
	}
	// Deleting the node ends the validity of its certificate at once.
	h, err := g.Authority.Verify(certs)
	must(t, err)
	must(t, g.May(h))
	g.hub.expel("pi-kiosk")
	if err := g.May(h); !errors.Is(err, ErrForbidden) {
		t.Fatal(err)
	}
	must(t, g.MayConnect(h)) // so that it can receive the dismissal notice
	// The used token does not enrol the key again, because the enrolment that it repeats has ended.
	if _, err := g.Join(t.Context(), q, "10.0.0.2"); !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(),
		"ended at") {
		t.Fatal(err)
	}
	if _, err := g.Authenticate(from(certs)); !errors.Is(err, ErrUnauthenticated) {
		t.Fatal(err)
	}
	audits, err := g.Store.Audits(t.Context(), 10)
	if err != nil || len(audits) != 3 || audits[1].Who != k.ID || audits[1].Name != "pi-kiosk" ||
		audits[1].Code != http.StatusCreated || audits[1].Source != "10.0.0.2" {
		t.Fatalf("the audit is %+v, want three records, the second about the join of pi-kiosk: %v", audits, err)
	}
}

func TestRefusedJoins(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest)
		want error
		says string
	}{
		{"a wrong secret", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			k.Secret = newSecret()
			q.Token = k.Text()
		}, ErrUnauthenticated, "the join token is wrong"},
		{"an unknown token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			k.ID = newID()
			q.Token = k.Text()
		}, ErrUnauthenticated, "the join token is wrong"},
		{"no token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.Token = "" }, ErrInvalid, "FLT1"},
		{"a token of an earlier authority", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			k.Pin = strings.Repeat("0", 32)
			q.Token = k.Text()
		}, ErrForbidden, "current certificate authority"},
		{"an expired token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { time.Sleep(time.Hour) }, ErrForbidden, "expired at"},
		{"a revoked token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			must(t, g.RevokeJoinToken(t.Context(), k.ID))
		}, ErrForbidden, "was revoked at"},
		{"a used token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			_, err := g.Join(t.Context(), joinRequest(t, k.Text(), "other", newMachine(t)), "10.0.0.9")
			must(t, err)
		}, ErrForbidden, "is used up"},
		{"no certificate request", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.CSR = "x" }, ErrInvalid, "certificate request"},
		{"an invalid name", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.Node = "../etc" }, ErrInvalid, "--node-name"},
		{"no name at all", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.Node = "" }, ErrInvalid, "--node-name"},
		{"a token for another node", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			q.Token = token(t, g, NewJoinToken{Node: "pi-9"}).Text()
		}, ErrConflict, "is for node pi-9, not for pi-1"},
		{"the name of another machine's node", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			first := joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t))
			first.MachineID, q.MachineID = "00112233445566aa", "99112233445566aa"
			_, err := g.Join(t.Context(), first, "10.0.0.9")
			must(t, err)
		}, ErrConflict, "belongs to"},
		{"a host name that another machine has, too", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			first := joinRequest(t, token(t, g, NewJoinToken{}).Text(), "", newMachine(t))
			first.Hostname, q.Hostname, first.MachineID = "raspberrypi", "RaspberryPi", "00112233445566aa"
			q.Node, q.MachineID = "", "99112233445566aa"
			_, err := g.Join(t.Context(), first, "10.0.0.9")
			must(t, err)
		}, ErrConflict, "the device with the machine ID 00112233445566aa of site oslo has joined as node raspberrypi; choose another name for this device, such as --node-name raspberrypi-9911"},
		{"a name with an unknown machine", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			_, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t)), "10.0.0.9")
			must(t, err)
		}, ErrConflict, "belongs to"},
		{"the same machine with a token of another site", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			first := joinRequest(t, token(t, g, NewJoinToken{Site: "bergen"}).Text(), "pi-1", newMachine(t))
			first.MachineID, q.MachineID = "00112233445566aa", "00112233445566aa"
			_, err := g.Join(t.Context(), first, "10.0.0.9")
			must(t, err)
		}, ErrConflict, "--site bergen --node pi-1"},
		{"the same machine and key with a token of another site", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			m := newMachine(t)
			q.CSR = m.csr(t)
			_, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{Site: "bergen"}).Text(), "pi-1", m),
				"10.0.0.9")
			must(t, err)
		}, ErrConflict, "--site bergen --node pi-1"},
		{"a device that the hub refuses", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			g.hub.refuse = fmt.Errorf("%w: node pi-1 is being deleted", ErrRefused)
		}, ErrConflict, "is being deleted"},
		{"a device that the hub cannot store", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			g.hub.refuse = errors.New("disk on fire")
		}, errUnavailable, "disk on fire"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				g := guard(t, dir)
				k := token(t, g, NewJoinToken{})
				q := joinRequest(t, k.Text(), "pi-1", newMachine(t))
				c.do(t, g, k, &q)
				before := g.hub.all()
				_, err := g.Join(t.Context(), q, "10.0.0.2")
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Fatal(err)
				}
				if after := g.hub.all(); fmt.Sprint(after) != fmt.Sprint(before) {
					t.Fatal("a refusal has changed an enrolment", before, after)
				}
				audits, err := g.Store.Audits(t.Context(), 1)
				if err != nil || len(audits) == 0 || audits[0].Code < 400 || audits[0].Message == "" {
					t.Fatalf("the audit is %+v, want a refusal with its reason: %v", audits, err)
				}
			})
		})
	}
}

func TestReplacedHardwareTakesOverItsNode(t *testing.T) {
	g := guard(t, t.TempDir())
	join := func(k wire.JoinToken, node, machineID string, m machine) wire.JoinAnswer {
		t.Helper()
		q := joinRequest(t, k.Text(), node, m)
		q.MachineID = machineID
		a, err := g.Join(t.Context(), q, "10.0.0.2")
		must(t, err)
		return a
	}
	may := func(a wire.JoinAnswer) error {
		t.Helper()
		h, err := g.Authority.Verify(certificates(t, a.Certificate))
		must(t, err)
		return g.May(h)
	}
	broken := join(token(t, g, NewJoinToken{}), "pi-1", "00112233445566aa", newMachine(t))
	// A machine id is not secret. With it and a token of the site, another device or a reinstalled
	// one still cannot take over the node.
	thief := joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t))
	thief.MachineID = "00112233445566aa"
	if _, err := g.Join(t.Context(), thief, "10.0.0.2"); !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(),
		"`flotilla-hub token create --site oslo --node pi-1`") {
		t.Fatal(err)
	}
	must(t, may(broken))
	anew := join(token(t, g, NewJoinToken{Node: "pi-1"}), "pi-1", "00112233445566aa", newMachine(t))
	if err := may(broken); !errors.Is(err, ErrForbidden) {
		t.Fatal("the former installation is accepted", err)
	}
	// A new board takes over the node with a token for the node, also one of another site.
	other := join(token(t, g, NewJoinToken{Node: "pi-1", Site: "bergen"}), "", "99112233445566aa", newMachine(t))
	if err := may(anew); !errors.Is(err, ErrForbidden) {
		t.Fatal("the replaced hardware is accepted", err)
	}
	must(t, may(other))
	if n := len(g.hub.joined); n != 3 || other.Site != "bergen" {
		t.Fatalf("the enrolments are %+v", g.hub.joined)
	}
}

func TestARepeatedJoinNeedsNoSecondUse(t *testing.T) {
	g := guard(t, t.TempDir())
	k, m := token(t, g, NewJoinToken{}), newMachine(t)
	for range 3 {
		if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-1", m), "10.0.0.2"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-2", m), "10.0.0.2"); !errors.Is(err, ErrForbidden) {
		t.Fatal("a token with one use for a second node, want ErrForbidden:", err)
	}
	row, err := g.Store.JoinToken(t.Context(), k.ID)
	if err != nil || row.Used != 1 {
		t.Fatal(row, err)
	}
}

func TestTheUsesOfATokenAreLimited(t *testing.T) {
	g := guard(t, t.TempDir())
	k := token(t, g, NewJoinToken{Uses: 3})
	requests := make([]wire.JoinRequest, 12)
	for i := range requests {
		requests[i] = joinRequest(t, k.Text(), fmt.Sprintf("pi-%d", i), newMachine(t))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for _, q := range requests {
		wg.Go(func() {
			_, err := g.Join(t.Context(), q, "10.0.0.2")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				in++
			} else if !errors.Is(err, ErrForbidden) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if in != 3 || len(g.hub.joined) != 3 {
		t.Fatalf("%d joins succeed, and the hub has %d enrolments; want 3", in, len(g.hub.joined))
	}
}

func TestRecordsOfGuessedTokensAreLimited(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		k := token(t, g, NewJoinToken{Uses: 2})
		wrong := k
		m := newMachine(t)
		try := func(k wire.JoinToken, source string) error {
			_, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-1", m), source)
			return err
		}
		for i := range maxAttempts { // from many addresses: the limit of the token
			wrong.Secret = newSecret()
			if err := try(wrong, fmt.Sprintf("10.0.1.%d", i)); !errors.Is(err, ErrUnauthenticated) {
				t.Fatal(err)
			}
		}
		wrong.Secret = newSecret()
		if err := try(wrong, "10.0.0.2"); !errors.Is(err, ErrTooMany) {
			t.Fatal("a guess beyond the token's limit, want ErrTooMany:", err)
		}
		for range maxAttempts {
			wrong.ID = newID()
			_ = try(wrong, "10.0.0.66")
		}
		wrong.ID = newID()
		if err := try(wrong, "10.0.0.66"); !errors.Is(err, ErrTooMany) {
			t.Fatal("a guess beyond the address's limit, want ErrTooMany:", err)
		}
		if err := try(token(t, g, NewJoinToken{}), "10.0.0.66"); err != nil {
			t.Fatal("a good token from that address:", err)
		}
		audits, err := g.Store.Audits(t.Context(), 100)
		// Wrong secrets and unknown tokens, a refusal of each, the good join, and the audit's first record.
		if err != nil || len(audits) != 2*maxAttempts+4 {
			t.Fatalf("%d audit records, want %d: %v", len(audits), 2*maxAttempts+4, err)
		}
		time.Sleep(attemptWindow)
		if err := try(k, "10.0.0.66"); !errors.Is(err, nil) {
			t.Fatal("a guess a quarter of an hour later:", err)
		}
	})
}

func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		m, thief := newMachine(t), newMachine(t)
		a, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", m), "10.0.0.2")
		must(t, err)
		certs := certificates(t, a.Certificate)
		renew := func(m machine) (wire.JoinAnswer, error) {
			return g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, certs)
		}
		time.Sleep(400 * 24 * time.Hour) // the device is switched off for a year and a month
		if _, err := g.Authenticate(from(certs)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("an expired certificate authenticates a request", err)
		}
		if _, err := renew(thief); !errors.Is(err, ErrInvalid) {
			t.Fatal("a renewal with another key, want ErrInvalid:", err)
		}
		if _, err := g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, nil); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("a renewal without a certificate, want ErrUnauthenticated:", err)
		}
		fresh, err := renew(m)
		must(t, err)
		if fresh.Node != "pi-1" || fresh.Site != "oslo" || fresh.MQTT != ":8883" {
			t.Fatalf("the renewed answer is %+v", fresh)
		}
		if _, err := g.Authenticate(from(certificates(t, fresh.Certificate))); err != nil {
			t.Fatal(err)
		}
		person, _, err := g.Authority.IssueClient(pki.Admin, "pi-1", time.Hour)
		must(t, err)
		if _, err := g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, certificates(t, string(person))); !errors.Is(err,
			ErrUnauthenticated) {
			t.Fatal("a renewal with a user's certificate:", err)
		}
		g.hub.expel("pi-1")
		var refusal *dismissal
		if _, err := renew(m); !errors.Is(err, ErrForbidden) || !errors.As(err, &refusal) || refusal.notice.By != "anna" {
			t.Fatal("a renewal for a removed node:", err)
		}
		time.Sleep(pki.RenewalGrace)
		if _, err := renew(m); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("a renewal after the grace period, want ErrUnauthenticated:", err)
		}
	})
}

func TestRenewalsAreInTheAudit(t *testing.T) {
	g := guard(t, t.TempDir())
	m := newMachine(t)
	a, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", m), "10.0.0.2")
	must(t, err)
	renew := func(body string) {
		r := httptest.NewRequest(http.MethodPost, "https://hub"+wire.PathRenew, strings.NewReader(body))
		r.RemoteAddr, r.TLS = "10.0.0.2:4711", from(certificates(t, a.Certificate)).TLS
		g.Handler().ServeHTTP(httptest.NewRecorder(), r)
	}
	csr, err := json.Marshal(wire.RenewRequest{CSR: m.csr(t)})
	must(t, err)
	renew(string(csr))
	renew("{}")
	renew("no JSON")
	g.hub.expel("pi-1")
	renew(string(csr))
	for _, want := range []struct {
		who  string
		code int
	}{{"pi-1", http.StatusCreated}, {"pi-1", http.StatusBadRequest}, {"", http.StatusBadRequest},
		{"pi-1", http.StatusForbidden}} {
		found, err := g.Store.FindAudits(t.Context(), store.AuditQuery{Verbs: []string{"renew"}, Limit: 9})
		must(t, err)
		if !slices.ContainsFunc(found, func(a store.Audit) bool {
			return a.Who == want.who && a.Code == want.code && a.Source == "10.0.0.2" && a.Resource == "enrolments" &&
				(a.Message == "") == (a.Code < 400)
		}) {
			t.Errorf("no record of %+v in %+v", want, found)
		}
	}
}

func TestErrorsInATokenAreReportedTogether(t *testing.T) {
	g := guard(t, t.TempDir())
	_, err := g.CreateJoinToken(t.Context(), NewJoinToken{Site: "Oslo!", Node: "a b", Uses: 0, Life: time.Second,
		Labels: map[string]string{"a b": "c"}})
	if !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	for _, part := range []string{`site "Oslo!"`, `"a b"`, "uses 0", "ttl 1s", "label"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
	if _, err := g.CreateJoinToken(t.Context(), NewJoinToken{Site: "oslo", Node: "pi-1", Uses: 2,
		Life: time.Hour}); !errors.Is(err, ErrInvalid) {
		t.Fatal("a token for two devices with one node name", err)
	}
	for name, n := range map[string]NewJoinToken{
		"no use":              {Site: "oslo", Life: time.Hour},
		"too many uses":       {Site: "oslo", Uses: maxTokenUses + 1, Life: time.Hour},
		"a lifetime of zero":  {Site: "oslo", Uses: 1},
		"too long a lifetime": {Site: "oslo", Uses: 1, Life: maxTokenLife + time.Second},
		"no site":             {Uses: 1, Life: time.Hour},
	} {
		if _, err := g.CreateJoinToken(t.Context(), n); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestTheHandlers(t *testing.T) {
	g := guard(t, t.TempDir())
	server := httptest.NewServer(g.Handler())
	defer server.Close()
	post := func(path string, body []byte) (int, string) {
		t.Helper()
		resp, err := http.Post(server.URL+path, "application/json", bytes.NewReader(body))
		must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(text)
	}
	resp, err := http.Get(server.URL + wire.PathCA)
	must(t, err)
	ca, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(ca) != string(g.Authority.RootPEM()) {
		t.Fatalf("%s", ca)
	}
	hubs := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC) // the hub's time, while the machine has a wrong clock
	g.Now = func() time.Time { return hubs }
	if resp, err = http.Get(server.URL + wire.PathCA); err != nil ||
		resp.Header.Get("Date") != "Mon, 03 Feb 2031 04:05:06 GMT" {
		t.Errorf("the time of the hub is %q: %v", resp.Header.Get("Date"), err)
	}
	_ = resp.Body.Close()
	g.Now = time.Now
	k := token(t, g, NewJoinToken{Uses: 5})
	good, err := json.Marshal(joinRequest(t, k.Text(), "pi-1", newMachine(t)))
	must(t, err)
	code, body := post(wire.PathJoin, good)
	if a, err := wire.ParseJoinAnswer([]byte(body)); code != http.StatusOK || err != nil || a.Node != "pi-1" {
		t.Fatal(code, body, err)
	}
	g.hub.refuse = errors.New("secret detail of the hub")
	second, _ := json.Marshal(joinRequest(t, k.Text(), "pi-2", newMachine(t)))
	if code, body := post(wire.PathJoin, second); code != http.StatusServiceUnavailable || strings.Contains(body,
		"detail") {
		t.Fatal(code, body)
	}
	g.hub.refuse = nil
	for name, c := range map[string]struct {
		path string
		body []byte
		code int
	}{
		"too large":             {wire.PathJoin, bytes.Repeat([]byte(" "), wire.MaxJoin+1), http.StatusRequestEntityTooLarge},
		"invalid JSON":          {wire.PathJoin, []byte("x"), http.StatusBadRequest},
		"nested":                {wire.PathJoin, []byte(strings.Repeat(`{"a":`, 5000)), http.StatusBadRequest},
		"wrong types":           {wire.PathJoin, []byte(`{"token":1}`), http.StatusBadRequest},
		"an invalid machine id": {wire.PathJoin, []byte(`{"machineID":"zz"}`), http.StatusBadRequest},
		"a renewal without TLS": {wire.PathRenew, []byte(`{}`), http.StatusUnauthorized},
	} {
		code, body := post(c.path, c.body)
		var no wire.JoinRefusal
		if code != c.code || json.Unmarshal([]byte(body), &no) != nil || no.Error == "" {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
}

// The response is an error, so the device does not take it for success.
func TestAnIncompleteRequestIsRefused(t *testing.T) {
	g := guard(t, t.TempDir())
	for _, path := range []string{wire.PathJoin, wire.PathRenew} {
		r := httptest.NewRequest(http.MethodPost, path,
			iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(`{"token":"x"}`))))
		r.TLS = &tls.ConnectionState{}
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, r)
		var no wire.JoinRefusal
		if err := json.Unmarshal(w.Body.Bytes(), &no); w.Code != http.StatusServiceUnavailable || err != nil ||
			no.Error == "" {
			t.Errorf("%s: %d %q; want 503 with an error", path, w.Code, w.Body)
		}
	}
}

func FuzzParseJoinToken(f *testing.F) {
	f.Add("FLT1.00112233445566778899aabbccddeeff.abc.def")
	f.Add(" FLT1.. . ")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := wire.ParseJoinToken(text)
		if err != nil {
			return
		}
		again, err := wire.ParseJoinToken(k.Text())
		if err != nil || again != k {
			t.Fatalf("%q is parsed as %q: %v", text, k.Text(), err)
		}
		if !strings.HasSuffix(fmt.Sprint(k), ".…") {
			t.Fatal("printing a token shows its secret")
		}
	})
}
