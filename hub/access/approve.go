package access

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// An Applicant is a device with a valid token that needs approval.
type Applicant struct {
	Node, Key         string
	MachineID, Serial string // as the device reports them; may be ""
	Site, Token       string
	Source            string // address
	CSR               []byte // PEM, signed by the key
	Left              int    // remaining uses of its token
	Until             time.Time
	Waiting           string // name of the device's existing request; "": none
	Begin             bool   // the device may create a new request
}

// A Verdict is the decision on an applicant.
type Verdict struct {
	Request  string // the request's name
	Approved bool
	Denied   string // the reason, if denied
	Begun    bool   // the request is new
	Waiting  int    // number of waiting devices, including this one
}

// ErrNoRequest is returned if an applicant has no request and may not create one.
var ErrNoRequest = errors.New("no request")

// waiting is the error while a request has no decision.
type waiting struct {
	request string
	after   time.Duration // when to poll again
	begun   bool
	text    string
}

func (w *waiting) Error() string { return w.text }

// approval returns the approved request of a device, or "" if it needs none because approval is off
// or the key is already enrolled.
func (g *Guard) approval(ctx context.Context, t store.JoinToken, a Applicant) (request string, err error) {
	if !g.RequireApproval && !t.Approval {
		return "", nil
	}
	if e, ok := g.Fleet.Enrolment(a.Node); ok && e.Key == a.Key {
		return "", nil
	}
	v, err := g.Fleet.Await(ctx, a)
	if errors.Is(err, ErrNoRequest) && a.Waiting == "" {
		if !g.requests.take(t.ID) {
			return "", &busy{fmt.Sprintf("too many devices ask for approval with token %s; try again in a moment", t.ID),
				time.Duration(5+rand.IntN(15)) * time.Second}
		}
		a.Begin = true
		v, err = g.Fleet.Await(ctx, a)
	}
	switch {
	case errors.Is(err, ErrNoRequest):
		return "", fmt.Errorf("%w: request %q of this device was deleted or not approved in time; "+
			"run the same line again for a new request", ErrForbidden, a.Waiting)
	case errors.Is(err, ErrBusy):
		return "", &busy{"too many devices wait for approval; try again when some are approved or denied",
			time.Minute}
	case errors.Is(err, ErrRefused), errors.Is(err, ErrInvalid):
		return "", fmt.Errorf("%w: %w", ErrForbidden, err)
	case err != nil:
		return "", fmt.Errorf("%w: %w", errUnavailable, err)
	case v.Denied != "":
		return "", fmt.Errorf("%w: request %s of node %s was denied: %s", ErrForbidden, v.Request, a.Node, v.Denied)
	case !v.Approved:
		return "", &waiting{request: v.Request, after: pollEvery(v.Waiting), begun: v.Begun, text: fmt.Sprintf(
			"node %s waits for an administrator's approval, with `kubectl certificate approve %s` or on the hub's page",
			a.Node, v.Request)}
	}
	return v.Request, nil
}

// pollEvery is the poll interval of a waiting device. It grows with the number of waiting devices,
// so that all of them together poll at most ten times a second.
func pollEvery(waiting int) time.Duration {
	return max(5*time.Second, time.Duration(waiting)*100*time.Millisecond).Round(time.Second)
}

// withdraw ends the request of a device that is refused for good, so that no administrator approves
// it in vain.
func (g *Guard) withdraw(ctx context.Context, r wire.JoinRequest, token string, why error) {
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return
	}
	if err := g.Fleet.Withdraw(ctx, request.KeyHash(), token, plain(why)); err != nil {
		g.Log.Warn("cannot withdraw the request of a refused device", "token", token, "err", err)
	}
}
