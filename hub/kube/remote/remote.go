// Package remote speaks what kubectl and browsers speak when they run a command in a container,
// join one, or forward a port: WebSockets with numbered channels (v5.channel.k8s.io,
// v4.channel.k8s.io and the older forms, binary and base64), SPDY/3.1 (v4.channel.k8s.io and
// portforward.k8s.io), and SPDY inside a WebSocket.
//
// It turns an HTTP request into streams and runs on them what it is given; it knows
// no pods, no devices and no people. A session stays open as long as its client and
// what it runs: pings keep proxies from closing one that is silent, and nothing
// here has a write timeout, for a client may pause: how long is the listener's rule.
// A client that has gone ends the session, and so does the end of the request's context,
// which is the server's, or that of the right to have it; its cause is told.
package remote

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/panics"
)

const (
	// beatEvery is how often a silent connection says that it lives.
	beatEvery = 20 * time.Second
	// opening is how long a SPDY client may take to open its streams.
	opening = 30 * time.Second
	// parting is how long a client may take to read what came last: one that pauses
	// has it in its buffers still.
	parting = 2 * time.Minute
)

// errStopping is what ends a session with its server.
var errStopping = errors.New("the hub is shutting down")

// A Wish is what a client wants of a command's streams.
type Wish struct{ Stdin, Stdout, Stderr, TTY bool }

// A line is a client's side of a command.
type line interface {
	// io is where the command reads and writes.
	io() ask.IO
	// gone is closed when the client has closed the connection.
	gone() <-chan struct{}
	// end tells how it ended, and closes the connection when the client has read
	// that or after a while.
	end(*metav1.Status)
}

// Serve runs a command on the streams of a request. What it returns is the answer
// to a request that has not become streams. The end of the command goes to the
// client: an ask.ExitError as its exit code, another error in its own words.
func Serve(w http.ResponseWriter, r *http.Request, wish Wish, run func(ctx context.Context, s ask.IO) error) error {
	if wish.TTY {
		wish.Stderr = false // a terminal has one output
	}
	var (
		l   line
		err error
	)
	switch {
	case websocket.IsWebSocketUpgrade(r):
		l, err = acceptChannels(w, r, wish)
	case isSPDY(r):
		l, err = acceptStreams(w, r, wish)
	default:
		err = notUpgraded()
	}
	if err != nil || l == nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		defer panics.Catch("stream")
		select {
		case <-l.gone():
			cancel()
		case <-ctx.Done():
		}
	}()
	err = run(ctx, l.io())
	l.end(outcome(err, stopped(r.Context())))
	return nil
}

// stopped is why a request's context has ended; nil: it has not.
func stopped(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case ctx.Err() == nil:
		return nil
	case errors.Is(cause, context.Canceled):
		return errStopping
	default:
		return cause
	}
}

// outcome is the Status that tells how a command ended. What else ends with the
// request has no other reason.
func outcome(err, stopped error) *metav1.Status {
	st := &metav1.Status{Status: metav1.StatusSuccess}
	if err == nil {
		return st
	}
	var exit *ask.ExitError
	var known apierrors.APIStatus
	if stopped != nil && !errors.As(err, &exit) {
		err = stopped
	}
	st.Status, st.Message = metav1.StatusFailure, err.Error()
	switch {
	case errors.As(err, &exit):
		st.Reason = remotecommand.NonZeroExitCodeReason
		st.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType,
			Message: strconv.Itoa(exit.Code)}}}
	case errors.As(err, &known):
		*st = known.Status()
	default:
		st.Reason, st.Code = metav1.StatusReasonInternalError, http.StatusInternalServerError
	}
	return st
}

func notUpgraded() error {
	return apierrors.NewBadRequest(
		"this is a stream and no document: upgrade the connection to websocket or SPDY/3.1, as kubectl does")
}

// choose returns the first protocol of the client that is spoken here.
func choose(offered, spoken []string) (string, error) {
	for _, p := range offered {
		if slices.Contains(spoken, p) {
			return p, nil
		}
	}
	return "", apierrors.NewBadRequest("none of the protocols of this stream is spoken here: offered are [" +
		strings.Join(offered, " ") + "], use one of [" + strings.Join(spoken, " ") + "]")
}

// hijackFailed is the answer when a connection cannot be taken over.
func hijackFailed(err error) error {
	return apierrors.NewBadRequest("a stream needs a connection of its own, with HTTP/1.1: " + err.Error())
}
