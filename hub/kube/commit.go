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

// What the writer makes itself when it must be made again: more than that is made
// outside, and tried so many times.
const (
	writersShare = 20 * time.Millisecond
	remakes      = 10
)

// errMoved is the writer's word that what a step was made from has changed, and that the
// step takes too long to be made by it.
var errMoved = errors.New("the object has been modified while the request was carried out; please apply your " +
	"changes to the latest version and try again")

// commit carries out what make comes to. make is called outside of the writer first, so
// that this is not kept from its work by decoding, patching and validation, and once more
// by the writer if what it was made from has changed since and it took no time.
func (c *call) commit(dry bool, make func(s state.Snapshot, now time.Time) (write.Step, error)) (write.Step, error) {
	st, err := c.attempt(dry, make)
	for range remakes {
		if !errors.Is(err, errMoved) {
			break
		}
		st, err = c.attempt(dry, make)
	}
	if errors.Is(err, errMoved) {
		err = apierrors.NewConflict(c.res.GroupResource(), c.name, errMoved)
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

// longestWrite is how long a request waits to be remembered: where the database is cut off
// in the middle of it, that can be as long as it is away.
const longestWrite = 20 * time.Second

// attempt makes a step once and has the writer carry it out.
func (c *call) attempt(dry bool, make func(s state.Snapshot, now time.Time) (write.Step, error)) (write.Step, error) {
	began := time.Now()
	st, err := make(c.Fleet.Snapshot(), c.Now())
	took := time.Since(began)
	if err == nil && dry && st.Created {
		st.Result.SetUID(uuid.NewUUID()) // as it would have had one
	}
	if err == nil && !dry && len(st.Changes) > 0 {
		var applied []state.Applied
		ctx, cancel := context.WithTimeout(c.r.Context(), longestWrite)
		defer cancel()
		applied, err = c.Fleet.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			var err error
			switch {
			case st.Stands(s):
			case took > writersShare && st.Stable():
				return nil, errMoved
			default:
				st, err = make(s, now)
			}
			for i := range st.Changes {
				st.Changes[i].By = c.who.Name
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
				default: // it gave up its last finalizer: it is answered as it was last
					st.Result = resource.Shallow(st.Result)
					st.Result.SetResourceVersion(resource.FormatRev(a.Rev))
				}
			}
		}
	}
	return st, err
}

// writeError turns the loop's own failures into answers; those of a step are
// answers already.
func (c *call) writeError(err error) error {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, control.ErrFull):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
			Message: "the hub's disk is full: it can remember nothing more; make room on it, or delete something, and try again",
		}}
	case errors.Is(err, control.ErrUnavailable):
		return c.unavailable()
	case errors.Is(err, control.ErrStopped):
		return c.stopping()
	case c.r.Context().Err() != nil, errors.Is(err, context.DeadlineExceeded):
		// sent again, it would hear of its own success
		return apierrors.NewTimeoutError(
			"the request ended before the hub had answered it: read the object to see whether it was changed", 0)
	}
	c.Log.Error("carry out a request", "err", err)
	return apierrors.NewInternalError(err)
}
