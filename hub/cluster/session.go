package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/peer"
)

// closeGrace is how long a response may take to end after its user's access has ended.
const closeGrace = 2 * time.Second

// WatchSessions cancels a request when its user's access ends. A user's forwarded and direct
// requests share one limit.
func WatchSessions(guard *access.Guard, next http.Handler) http.Handler {
	forwarded := listen.Shares{Most: listen.UserRequests} // their connections do not belong to one user
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave := func() {}
		defer func() { leave() }()
		r, end := guard.WatchSession(r, func(u access.User) error {
			if u.Role == access.Device { // devices only renew certificates here
				return nil
			}
			peer.ReturnUser(r.Context(), w, u.Name)
			if peer.ForwardedBy(r.Context()) != "" {
				mine, ok := forwarded.Enter(u.Name)
				if !ok {
					return fmt.Errorf("%w: %w", access.ErrTooMany, listen.ErrBusy)
				}
				leave = mine
				return nil
			}
			if err := listen.Authenticated(r.Context(), u.Name); err != nil {
				return fmt.Errorf("%w: %w", access.ErrTooMany, err)
			}
			return nil
		})
		ctx, served := r.Context(), make(chan struct{})
		defer end()
		defer close(served)
		defer context.AfterFunc(ctx, func() {
			defer panics.Catch("session")
			if !errors.Is(context.Cause(ctx), access.ErrEnded) {
				return
			}
			timeout := time.NewTimer(closeGrace)
			defer timeout.Stop()
			select {
			case <-served:
			case <-timeout.C: // the client does not read, or keeps the connection open
				listen.Cut(ctx)
			}
		})()
		next.ServeHTTP(w, r)
	})
}
