package access

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/pki"
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

func TestATokenLetsADeviceIn(t *testing.T) {
	g := guard(t, t.TempDir())
	k := token(t, g, NewJoinToken{Site: "bergen", Labels: map[string]string{"rack": "a"}, By: "anna"})
	q := joinRequest(t, k.Text(), "", newMachine(t))
	q.Hostname, q.MachineID = "Pi-Kiosk", "00112233445566aa"
	a, err := g.Join(t.Context(), q, "10.0.0.2")
	must(t, err)
	if a.Node != "pi-kiosk" || a.Site != "bergen" || a.Hub != "h1" || a.MQTT != ":8883" || a.LeaseIntervalSeconds != 10 || a.CA != string(g.Authority.RootPEM()) {
		t.Fatalf("%+v", a)
	}
	if len(g.hub.joined) != 1 {
		t.Fatal(g.hub.joined)
	}
	if e := g.hub.joined[0]; e.Node != "pi-kiosk" || e.Site != "bergen" || e.Labels["rack"] != "a" || e.MachineID != "00112233445566aa" || e.Replaces {
		t.Fatalf("%+v", e)
	}
	certs := certificates(t, a.Certificate)
	u, err := g.Authenticate(from(certs))
	if err != nil || u.Role != Device || u.Name != "pi-kiosk" {
		t.Fatalf("%+v %v", u, err)
	}
	if Allow(u.Role, "list", "nodes") || Allow(u.Role, "get", "pods") {
		t.Fatal("a device may use the API")
	}
	// Deleting the node takes its certificate's power away at once.
	h, err := g.Authority.Verify(certs)
	must(t, err)
	must(t, g.May(t.Context(), h))
	must(t, g.Expel(t.Context(), "pi-kiosk"))
	if err := g.May(t.Context(), h); !errors.Is(err, ErrForbidden) {
		t.Fatal(err)
	}
	if _, err := g.Authenticate(from(certs)); !errors.Is(err, ErrUnauthenticated) {
		t.Fatal(err)
	}
	audits, err := g.Store.Audits(t.Context(), 10)
	if err != nil || len(audits) != 1 || audits[0].Who != k.ID || audits[0].Name != "pi-kiosk" || audits[0].Code != http.StatusCreated || audits[0].Source != "10.0.0.2" {
		t.Fatalf("%+v %v", audits, err)
	}
}

func TestWhoIsNotLetIn(t *testing.T) {
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
		}, ErrForbidden, "present certificate authority"},
		{"an ended token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { time.Sleep(time.Hour) }, ErrForbidden, "ended at"},
		{"a revoked token", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			must(t, g.RevokeJoinToken(t.Context(), k.ID))
		}, ErrForbidden, "was revoked at"},
		{"a token that is used up", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			_, err := g.Join(t.Context(), joinRequest(t, k.Text(), "other", newMachine(t)), "10.0.0.9")
			must(t, err)
		}, ErrForbidden, "is used up"},
		{"no certificate request", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.CSR = "x" }, ErrInvalid, "certificate request"},
		{"a name that is none", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.Node = "../etc" }, ErrInvalid, "--node-name"},
		{"no name at all", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) { q.Node = "" }, ErrInvalid, "--node-name"},
		{"a token for another node", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			q.Token = token(t, g, NewJoinToken{Node: "pi-9"}).Text()
		}, ErrConflict, "is for node pi-9, not for pi-1"},
		{"a name that is another machine's", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			first := joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t))
			first.MachineID, q.MachineID = "00112233445566aa", "99112233445566aa"
			_, err := g.Join(t.Context(), first, "10.0.0.9")
			must(t, err)
		}, ErrConflict, "is another machine"},
		{"a name whose machine is not known", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			_, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t)), "10.0.0.9")
			must(t, err)
		}, ErrConflict, "is another machine"},
		{"the same machine with a token of another site", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			first := joinRequest(t, token(t, g, NewJoinToken{Site: "bergen"}).Text(), "pi-1", newMachine(t))
			first.MachineID, q.MachineID = "00112233445566aa", "00112233445566aa"
			_, err := g.Join(t.Context(), first, "10.0.0.9")
			must(t, err)
		}, ErrConflict, "--site bergen --node pi-1"},
		{"whom the hub refuses", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
			g.hub.refuse = fmt.Errorf("%w: node pi-1 is being deleted", ErrRefused)
		}, ErrConflict, "is being deleted"},
		{"whom the hub cannot remember", func(t *testing.T, g fixture, k wire.JoinToken, q *wire.JoinRequest) {
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
				before, err := g.Store.Enrolments(t.Context())
				must(t, err)
				_, err = g.Join(t.Context(), q, "10.0.0.2")
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Fatal(err)
				}
				after, err := g.Store.Enrolments(t.Context())
				if err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
					t.Fatal("an enrolment changed", before, after, err)
				}
				audits, err := g.Store.Audits(t.Context(), 1)
				if err != nil || len(audits) == 0 || audits[0].Code < 400 || audits[0].Message == "" {
					t.Fatalf("%+v %v", audits, err)
				}
			})
		})
	}
}

func TestHardwareIsReplaced(t *testing.T) {
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
		return g.May(t.Context(), h)
	}
	broken := join(token(t, g, NewJoinToken{}), "pi-1", "00112233445566aa", newMachine(t))
	// Installed anew, same board, same site: any token of the site does.
	anew := join(token(t, g, NewJoinToken{}), "pi-1", "00112233445566aa", newMachine(t))
	if err := may(broken); !errors.Is(err, ErrForbidden) {
		t.Fatal("the lost installation is still let in", err)
	}
	// Another board: with a token for this very node, even one that gives it another site.
	other := join(token(t, g, NewJoinToken{Node: "pi-1", Site: "bergen"}), "", "99112233445566aa", newMachine(t))
	if err := may(anew); !errors.Is(err, ErrForbidden) {
		t.Fatal("the broken hardware is still let in", err)
	}
	must(t, may(other))
	if n := len(g.hub.joined); n != 3 || !g.hub.joined[1].Replaces || !g.hub.joined[2].Replaces || other.Site != "bergen" {
		t.Fatalf("%+v", g.hub.joined)
	}
}

func TestAJoinWhoseAnswerGotLostIsTheSameJoin(t *testing.T) {
	g := guard(t, t.TempDir())
	k, m := token(t, g, NewJoinToken{}), newMachine(t)
	for range 3 {
		if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-1", m), "10.0.0.2"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-2", m), "10.0.0.2"); !errors.Is(err, ErrForbidden) {
		t.Fatal("one use, two nodes:", err)
	}
	row, err := g.Store.JoinToken(t.Context(), k.ID)
	if err != nil || row.Used != 1 {
		t.Fatal(row, err)
	}
}

func TestATokenIsNeverUsedMoreOftenThanItMay(t *testing.T) {
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
		t.Fatalf("%d joined, the hub knows %d", in, len(g.hub.joined))
	}
}

func TestGuessingTokensLocksOut(t *testing.T) {
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
		for i := range maxStrikes { // from everywhere: the token itself is guarded
			wrong.Secret = newSecret()
			if err := try(wrong, fmt.Sprintf("10.0.1.%d", i)); !errors.Is(err, ErrUnauthenticated) {
				t.Fatal(err)
			}
		}
		if err := try(k, "10.0.0.2"); !errors.Is(err, ErrTooMany) {
			t.Fatal("the guessed token:", err)
		}
		for range maxStrikes {
			wrong.ID = newID()
			_ = try(wrong, "10.0.0.66")
		}
		good := token(t, g, NewJoinToken{Life: 2 * time.Hour})
		if err := try(good, "10.0.0.66"); !errors.Is(err, ErrTooMany) {
			t.Fatal("the guesser, with a good one:", err)
		}
		if err := try(good, "10.0.0.2"); err != nil {
			t.Fatal("somebody else:", err)
		}
		audits, err := g.Store.Audits(t.Context(), 100)
		if err != nil || len(audits) != 2*maxStrikes+1 {
			t.Fatalf("%d audit records %v", len(audits), err)
		}
		time.Sleep(strikeWindow)
		if err := try(k, "10.0.0.66"); !errors.Is(err, nil) {
			t.Fatal("a quarter of an hour later:", err)
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
		time.Sleep(400 * 24 * time.Hour) // a year and a month in a box
		if _, err := g.Authenticate(from(certs)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("an ended certificate does more than renew", err)
		}
		if _, err := renew(thief); !errors.Is(err, ErrInvalid) {
			t.Fatal("another key:", err)
		}
		if _, err := g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, nil); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("no certificate:", err)
		}
		fresh, err := renew(m)
		must(t, err)
		if fresh.Node != "pi-1" || fresh.Site != "oslo" || fresh.MQTT != ":8883" {
			t.Fatalf("%+v", fresh)
		}
		if _, err := g.Authenticate(from(certificates(t, fresh.Certificate))); err != nil {
			t.Fatal(err)
		}
		person, _, err := g.Authority.IssueClient(pki.Admin, "pi-1", time.Hour)
		must(t, err)
		if _, err := g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, certificates(t, string(person))); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("a person renews:", err)
		}
		must(t, g.Expel(t.Context(), "pi-1"))
		if _, err := renew(m); !errors.Is(err, ErrForbidden) {
			t.Fatal("a removed node:", err)
		}
		time.Sleep(pki.RenewalGrace)
		if _, err := renew(m); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("too late:", err)
		}
	})
}

func TestMistakesInATokenAreNamedTogether(t *testing.T) {
	g := guard(t, t.TempDir())
	_, err := g.CreateJoinToken(t.Context(), NewJoinToken{Site: "Oslo!", Node: "a b", Uses: 0, Life: time.Second, Labels: map[string]string{"a b": "c"}})
	if !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	for _, part := range []string{`site "Oslo!"`, `"a b"`, "uses 0", "ttl 1s", "label"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
	if _, err := g.CreateJoinToken(t.Context(), NewJoinToken{Site: "oslo", Node: "pi-1", Uses: 2, Life: time.Hour}); !errors.Is(err, ErrInvalid) {
		t.Fatal("two devices for one node", err)
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
	k := token(t, g, NewJoinToken{Uses: 5})
	good, err := json.Marshal(joinRequest(t, k.Text(), "pi-1", newMachine(t)))
	must(t, err)
	code, body := post(wire.PathJoin, good)
	if a, err := wire.ParseJoinAnswer([]byte(body)); code != http.StatusOK || err != nil || a.Node != "pi-1" {
		t.Fatal(code, body, err)
	}
	g.hub.refuse = errors.New("secret detail of the hub")
	second, _ := json.Marshal(joinRequest(t, k.Text(), "pi-2", newMachine(t)))
	if code, body := post(wire.PathJoin, second); code != http.StatusServiceUnavailable || strings.Contains(body, "detail") {
		t.Fatal(code, body)
	}
	g.hub.refuse = nil
	for name, c := range map[string]struct {
		path string
		body []byte
		code int
	}{
		"too large":             {wire.PathJoin, bytes.Repeat([]byte(" "), wire.MaxJoin+1), http.StatusRequestEntityTooLarge},
		"no JSON":               {wire.PathJoin, []byte("x"), http.StatusBadRequest},
		"nested":                {wire.PathJoin, []byte(strings.Repeat(`{"a":`, 5000)), http.StatusBadRequest},
		"wrong types":           {wire.PathJoin, []byte(`{"token":1}`), http.StatusBadRequest},
		"an odd machine":        {wire.PathJoin, []byte(`{"machineID":"zz"}`), http.StatusBadRequest},
		"a renewal without TLS": {wire.PathRenew, []byte(`{}`), http.StatusUnauthorized},
	} {
		code, body := post(c.path, c.body)
		var no wire.JoinRefusal
		if code != c.code || json.Unmarshal([]byte(body), &no) != nil || no.Error == "" {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	codes := map[int]int{}
	for range 200 {
		code, _ := post(wire.PathJoin, []byte("x"))
		codes[code]++
	}
	if codes[http.StatusTooManyRequests] == 0 {
		t.Fatalf("a flood was answered in full: %v", codes)
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
			t.Fatalf("%q became %q: %v", text, k.Text(), err)
		}
		if !strings.HasSuffix(fmt.Sprint(k), ".…") {
			t.Fatal("printing a token shows its secret")
		}
	})
}
