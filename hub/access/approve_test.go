package access

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

func TestJoiningNeedsApprovalWhereItIsRequired(t *testing.T) {
	for _, c := range []struct {
		name    string
		waiting string // the request that the device sends
		await   func(a Applicant) (Verdict, error)
		want    error // nil: the device joins
		code    int
		says    string
	}{
		{"a waiting device", "", func(Applicant) (Verdict, error) { return Verdict{Request: "pi-1-aa", Waiting: 1}, nil }, nil, http.StatusAccepted, "`kubectl certificate approve pi-1-aa`"},
		{"a device with a new request", "", func(a Applicant) (Verdict, error) {
			if !a.Begin {
				return Verdict{}, ErrNoRequest
			}
			return Verdict{Request: "pi-1-aa", Begun: true, Waiting: 1}, nil
		}, nil, http.StatusAccepted, "pi-1-aa"},
		{"a device with an expired request", "pi-1-aa", func(a Applicant) (Verdict, error) {
			if a.Begin {
				return Verdict{Request: "pi-1-aa", Begun: true}, nil
			}
			return Verdict{}, ErrNoRequest
		}, ErrForbidden, http.StatusForbidden, "was deleted or not approved in time"},
		{"a denied device", "pi-1-aa", func(Applicant) (Verdict, error) { return Verdict{Request: "pi-1-aa", Denied: "not ours"}, nil }, ErrForbidden, http.StatusForbidden, "was denied: not ours"},
		{"a device that was denied after an approval", "pi-1-aa", func(Applicant) (Verdict, error) {
			return Verdict{Request: "pi-1-aa", Denied: "not ours", Approved: true}, nil
		}, ErrForbidden, http.StatusForbidden, "was denied"},
		{"a device beyond the limit", "", func(Applicant) (Verdict, error) { return Verdict{}, ErrBusy }, ErrBusy, http.StatusTooManyRequests, "too many devices wait"},
		{"a device that the hub refuses", "", func(Applicant) (Verdict, error) { return Verdict{}, fmt.Errorf("%w: another key waits", ErrRefused) }, ErrForbidden, http.StatusForbidden, "another key waits"},
		{"an invalid request", "", func(Applicant) (Verdict, error) { return Verdict{}, fmt.Errorf("%w: a subject", ErrInvalid) }, ErrInvalid, http.StatusBadRequest, "a subject"},
		{"the database does not answer", "", func(Applicant) (Verdict, error) { return Verdict{}, errors.New("disk on fire") }, errUnavailable, http.StatusServiceUnavailable, "cannot answer"},
	} {
		for _, by := range []string{"the hub", "the token"} {
			t.Run(c.name+", required by "+by, func(t *testing.T) {
				g := guard(t, t.TempDir())
				g.RequireApproval, g.hub.await = by == "the hub", c.await
				q := joinRequest(t, token(t, g, NewJoinToken{Approval: by == "the token"}).Text(), "pi-1", newMachine(t))
				q.Waiting = c.waiting
				_, err := g.Join(t.Context(), q, "10.0.0.2")
				w := httptest.NewRecorder()
				refuse(w, err)
				if c.want != nil && !errors.Is(err, c.want) || w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
					t.Errorf("%v: %d %s; want %v, %d, %q", err, w.Code, w.Body, c.want, c.code, c.says)
				}
				if (w.Header().Get("Retry-After") != "") != (c.code == http.StatusAccepted ||
					c.code == http.StatusTooManyRequests) {
					t.Error(w.Header())
				}
				if row, err := g.Store.JoinToken(t.Context(), strings.Split(q.Token, ".")[2]); err != nil || row.Used != 0 ||
					len(g.hub.joined) > 0 {
					t.Error("the device has joined, or has used the token:", row, err, g.hub.joined)
				}
			})
		}
	}
}

func TestAnApprovedDeviceJoinsByItsRequest(t *testing.T) {
	g := guard(t, t.TempDir())
	g.RequireApproval = true
	g.hub.await = func(Applicant) (Verdict, error) { return Verdict{Request: "pi-1-aa", Approved: true}, nil }
	k, m := token(t, g, NewJoinToken{Uses: 2}), newMachine(t)
	q := joinRequest(t, k.Text(), "pi-1", m)
	q.MachineID, q.Serial = "00112233445566aa", "S1"
	if _, err := g.Join(t.Context(), q, "10.0.0.2"); err != nil {
		t.Fatal(err)
	}
	e := g.hub.joined[0]
	if e.Request != "pi-1-aa" || len(e.Certificate) == 0 {
		t.Errorf("the enrolment is %+v", e)
	}
	if a := g.hub.applied[0]; a.Key != e.Key || a.Node != "pi-1" || a.Site != "oslo" || a.Token != k.ID ||
		a.Source != "10.0.0.2" || a.MachineID != q.MachineID || a.Serial != "S1" || a.Left != 2 || a.Begin {
		t.Errorf("the applicant is %+v", a)
	}
	// The device did not receive the response. Its enrolled key needs no second approval. Another
	// key is another device, which does.
	g.hub.await = func(Applicant) (Verdict, error) { return Verdict{Request: "other"}, nil }
	if _, err := g.Join(t.Context(), q, "10.0.0.2"); err != nil {
		t.Error(err)
	}
	var w *waiting
	if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-2", newMachine(t)), "10.0.0.2"); !errors.As(err, &w) {
		t.Error(err)
	}
}

func TestRequestsOfOneTokenAreLimited(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		g.RequireApproval = true
		g.hub.await = func(a Applicant) (Verdict, error) { // an administrator deletes each request at once
			if !a.Begin {
				return Verdict{}, ErrNoRequest
			}
			return Verdict{Request: "r", Begun: true}, nil
		}
		m, flooder, other := newMachine(t), token(t, g, NewJoinToken{Uses: 2}), token(t, g, NewJoinToken{})
		ask := func(k wire.JoinToken) error {
			_, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-1", m), "10.0.0.2")
			return err
		}
		for g.requests.take(flooder.ID) {
		}
		var w *waiting
		if err := ask(flooder); !errors.Is(err, ErrBusy) {
			t.Error("the token's next request, want ErrBusy:", err)
		}
		if err := ask(other); !errors.As(err, &w) {
			t.Error("a request with another token:", err)
		}
		time.Sleep(requestEvery)
		if err := ask(flooder); !errors.As(err, &w) {
			t.Error("the token's next request after a pause:", err)
		}
	})
}

// The polls of a waiting device, every few seconds for a day, cause only one audit record.
func TestWaitingIsRecordedOnce(t *testing.T) {
	g := guard(t, t.TempDir())
	g.RequireApproval = true
	begun := true
	g.hub.await = func(Applicant) (Verdict, error) { return Verdict{Request: "r", Begun: begun}, nil }
	q := joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t))
	for range 20 {
		_, _ = g.Join(t.Context(), q, "10.0.0.2")
		begun = false
	}
	found, err := g.Store.FindAudits(t.Context(), store.AuditQuery{Resources: []string{"enrolments"}, Limit: 99})
	if err != nil || len(found) != 1 || found[0].Code != http.StatusAccepted || found[0].Name != "pi-1" {
		t.Errorf("the records of the waiting device are %+[2]v, want one: %[1]v", err, found)
	}
}

func TestTheRequestOfARefusedDeviceIsWithdrawn(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, g fixture, k wire.JoinToken)
		says string
	}{
		{"the token was revoked", func(t *testing.T, g fixture, k wire.JoinToken) { must(t, g.RevokeJoinToken(t.Context(), k.ID)) }, "was revoked at"},
		{"the token has expired", func(*testing.T, fixture, wire.JoinToken) { time.Sleep(2 * time.Hour) }, "expired at"},
		{"the token is used up", func(t *testing.T, g fixture, k wire.JoinToken) {
			_, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-9", newMachine(t)), "10.0.0.9")
			must(t, err)
		}, "is used up"},
		{"another machine has the node name", func(t *testing.T, g fixture, _ wire.JoinToken) {
			_, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t)), "10.0.0.9")
			must(t, err)
		}, "belongs to another device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				g := guard(t, dir)
				g.RequireApproval = true
				g.hub.await = func(Applicant) (Verdict, error) { return Verdict{Request: "r", Approved: true}, nil }
				k := token(t, g, NewJoinToken{})
				c.do(t, g, k)
				if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-1", newMachine(t)), "10.0.0.2"); err == nil {
					t.Fatal("the refused device has joined")
				}
				if len(g.hub.withdrawn) != 1 || !strings.HasPrefix(g.hub.withdrawn[0], k.ID+": ") ||
					!strings.Contains(g.hub.withdrawn[0], c.says) {
					t.Errorf("the withdrawn requests are %q", g.hub.withdrawn)
				}
			})
		})
	}
	// A wrong secret does not end another device's request.
	g := guard(t, t.TempDir())
	k := token(t, g, NewJoinToken{})
	must(t, g.RevokeJoinToken(t.Context(), k.ID))
	k.Secret = newSecret()
	if _, err := g.Join(t.Context(), joinRequest(t, k.Text(), "pi-1", newMachine(t)), "10.0.0.2"); err == nil ||
		len(g.hub.withdrawn) > 0 {
		t.Error(err, g.hub.withdrawn)
	}
}
