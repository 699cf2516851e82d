// Package remote serves the streams of exec, attach and port-forward to kubectl and browsers. It
// supports WebSockets with numbered channels (v5.channel.k8s.io, v4.channel.k8s.io and older forms,
// binary and base64), SPDY/3.1 (v4.channel.k8s.io and portforward.k8s.io), and SPDY inside of a
// WebSocket.
//
// It turns a request into streams for the caller's function; it knows no pods, devices or users. A
// session ends with its client, its function or the request's context; in the last case the client
// receives the cause. Pings keep proxies from closing a quiet session; package listen limits
// pauses. Package kube calls it.
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
	// pingEvery is the interval of pings.
	pingEvery = 20 * time.Second
	// openTimeout is how long a SPDY client may take to open its streams.
	openTimeout = 30 * time.Second
	// closeTimeout is how long a client may take to read the last data, which it may have buffered.
	closeTimeout = 2 * time.Minute
)

// errStopping ends sessions when the hub stops.
var errStopping = errors.New("the hub is shutting down")

// Streams says which streams of a command the client uses.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// A session is the client's side of a command.
type session interface {
	// io returns the command's streams.
	io() ask.IO
	// gone is closed when the client has closed the connection.
	gone() <-chan struct{}
	// end sends the command's result. It closes the connection when the client has read the result,
	// or after a while.
	end(*metav1.Status)
}

// Serve runs a command on a request's streams. It returns the answer to a request that did not
// become streams. The client receives the command's result: the exit code of an ask.ExitError, or
// the text of another error.
func Serve(w http.ResponseWriter, r *http.Request, on Streams, run func(context.Context, ask.IO) error) error {
	if on.TTY {
		on.Stderr = false // a terminal has only one output
	}
	var (
		client session
		err    error
	)
	switch {
	case websocket.IsWebSocketUpgrade(r):
		client, err = acceptChannels(w, r, on)
	case isSPDY(r):
		client, err = acceptStreams(w, r, on)
	default:
		err = notUpgraded()
	}
	if err != nil || client == nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		defer panics.Catch("stream")
		select {
		case <-client.gone():
			cancel()
		case <-ctx.Done():
		}
	}()
	err = run(ctx, client.io())
	client.end(outcome(err, stopped(r.Context())))
	return nil
}

// stopped returns why a request's context has ended, or nil if it has not.
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

// outcome returns the Status at the end of a command. If the request's context has ended, the
// reason is the context's cause.
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
		"Upgrade request required: upgrade the connection to websocket or SPDY/3.1, as kubectl does")
}

// choose returns the client's first protocol that is supported.
func choose(offered, supported []string) (string, error) {
	for _, p := range offered {
		if slices.Contains(supported, p) {
			return p, nil
		}
	}
	return "", apierrors.NewBadRequest("unable to negotiate protocol: client supports [" +
		strings.Join(offered, " ") + "], server accepts [" + strings.Join(supported, " ") + "]")
}

// hijackFailed answers a request whose connection cannot be hijacked.
func hijackFailed(err error) error {
	return apierrors.NewBadRequest("a stream needs HTTP/1.1: " + err.Error())
}
