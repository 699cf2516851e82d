package kube

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/state"
)

// A step that takes longer than loopShare is made outside of the control loop. If its objects
// change during that, it is made again, at most maxRemakes times.
const (
	loopShare  = 20 * time.Millisecond
	maxRemakes = 10
)

// errChanged means that the step's objects have changed, and that the step is too slow for the
// control loop.
var errChanged = errors.New(
	"the object has been modified; please apply your changes to the latest version and try again")

// commit carries out a step. It first calls make outside of the control loop, so that decoding,
// patching and validation do not delay the loop. If the objects have changed and make was fast, the
// loop calls make again.
func (c *call) commit(dry bool, make func(s state.Snapshot, now time.Time) (write.Step, error)) (write.Step, error) {
	st, err := c.attempt(dry, make)
	for range maxRemakes {
		if !errors.Is(err, errChanged) {
			break
		}
		st, err = c.attempt(dry, make)
	}
	if errors.Is(err, errChanged) {
		err = apierrors.NewConflict(c.res.GroupResource(), c.name, errChanged)
	}
	if err != nil {
		err = c.writeError(err)
	}
	c.auditWrite(dry, st, err)
	if err != nil {
		return write.Step{}, err
	}
	c.warn(st.Warnings...)
	return st, nil
}

// writeTimeout limits how long a request waits until its change is stored. Otherwise the request
// would wait for the end of a database outage.
const writeTimeout = 20 * time.Second

// attempt makes a step once, and passes it to the control loop.
func (c *call) attempt(dry bool, make func(s state.Snapshot, now time.Time) (write.Step, error)) (write.Step, error) {
	began := time.Now()
	st, err := make(c.Fleet.Snapshot(), c.Now())
	took := time.Since(began)
	if err == nil && dry && st.Created {
		st.Result.SetUID(uuid.NewUUID()) // the object of a dry run also gets a UID
	}
	if err == nil && !dry && len(st.Changes) > 0 {
		var applied []state.Applied
		ctx, cancel := context.WithTimeout(c.r.Context(), writeTimeout)
		defer cancel()
		applied, err = c.Fleet.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			var err error
			switch {
			case st.ValidOn(s):
			case took > loopShare && st.Stable():
				return nil, errChanged
			default:
				st, err = make(s, now)
			}
			for i := range st.Changes {
				st.Changes[i].By = c.user.Name
			}
			return st.Changes, err
		})
		if err == nil && len(applied) > 0 {
			key := state.KeyOf(st.Result)
			for _, a := range applied {
				switch {
				case a.Key != key:
				case a.New != nil:
					st.Result = a.New
				case c.verb == "delete":
					st.Result = a.Old
				default: // the object's last finalizer was removed: answer the object's last state
					st.Result = resource.Shallow(st.Result)
					st.Result.SetResourceVersion(resource.FormatRev(a.Rev))
				}
			}
		}
	}
	return st, err
}

// writeError converts the loop's errors to answers. The errors of a step are already answers.
func (c *call) writeError(err error) error {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, control.ErrFull):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
			Message: "the hub's disk is full: free space on it or delete objects, and try again",
		}}
	case errors.Is(err, control.ErrUnavailable):
		return c.unavailable()
	case errors.Is(err, control.ErrStopped):
		return c.stopping()
	case c.r.Context().Err() != nil, errors.Is(err, context.DeadlineExceeded):
		// A client that repeats the request could get a conflict with its own success.
		return apierrors.NewTimeoutError(
			"request did not complete in time, and may have changed the object: read the object to check", 0)
	}
	c.Log.Error("carry out a request", "err", err)
	return apierrors.NewInternalError(err)
}
