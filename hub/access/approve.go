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

// An Applicant is a device with a right token that may not join before somebody approves.
type Applicant struct {
	Node, Key         string
	MachineID, Serial string // what it says of itself; "": nothing
	Site, Token       string
	Source            string // address
	CSR               []byte // PEM, signed by the key
	Left              int    // uses of its token
	Until             time.Time
	Waiting           string // the request that it says to wait with already; "": it begins
	Begin             bool   // a new request may be made
}

// A Verdict is what was decided about an applicant.
type Verdict struct {
	Request  string // its name
	Approved bool
	Denied   string // why; "": it was not
	Begun    bool   // it was asked for just now
	Waiting  int    // devices that wait, this one with them
}

// ErrNoRequest means that an applicant has no request, and may not begin one.
var ErrNoRequest = errors.New("no request")

// waiting is neither a no nor a yes: somebody has to approve first.
type waiting struct {
	request string
	after   time.Duration // to ask again in
	begun   bool
	text    string
}

func (w *waiting) Error() string { return w.text }

// approval returns the request by which a device may join now, "" where it needs none: no
// one asks for approval, or the key speaks for the node already.
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
		return "", fmt.Errorf("%w: request %q, with which this device waited, has ended: it was deleted, or nobody "+
			"approved of it in time; run the same line again to ask anew", ErrForbidden, a.Waiting)
	case errors.Is(err, ErrBusy):
		return "", &busy{"as many devices wait for approval as the hub keeps; try again when some of them are decided on",
			time.Minute}
	case errors.Is(err, ErrRefused), errors.Is(err, ErrInvalid):
		return "", fmt.Errorf("%w: %w", ErrForbidden, err)
	case err != nil:
		return "", fmt.Errorf("%w: %w", errUnavailable, err)
	case v.Denied != "":
		return "", fmt.Errorf("%w: request %s of node %s was denied: %s", ErrForbidden, v.Request, a.Node, v.Denied)
	case !v.Approved:
		return "", &waiting{request: v.Request, after: pollEvery(v.Waiting), begun: v.Begun, text: fmt.Sprintf(
			"node %s waits until an administrator approves of it, with `kubectl certificate approve %s` or on the hub's page",
			a.Node, v.Request)}
	}
	return v.Request, nil
}

// pollEvery is how long a device that waits leaves the hub alone: the longer the more of
// them there are, so that all together ask ten times a second at most.
func pollEvery(waiting int) time.Duration {
	return max(5*time.Second, time.Duration(waiting)*100*time.Millisecond).Round(time.Second)
}

// withdraw ends the request of a device that is refused for good, so that nobody approves
// of what can come to nothing.
func (g *Guard) withdraw(ctx context.Context, r wire.JoinRequest, token string, why error) {
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return
	}
	if err := g.Fleet.Withdraw(ctx, request.KeyHash(), token, plain(why)); err != nil {
		g.Log.Warn("cannot end the request of a device that may not join", "token", token, "err", err)
	}
}
