package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"flotilla.dev/hub/state"
)

// healthWait is how long the control loop may take to answer. A slow disk must not restart the hub.
const healthWait = 10 * time.Second

// A check is one line of /healthz.
type check struct {
	name  string
	run   func(ctx context.Context) error
	ready bool // only for /readyz, because a restart would not help
}

// health answers /healthz, /livez, /readyz and each check below them. It uses Kubernetes' format,
// and needs no authentication.
type health struct {
	checks []check
	asked  singleflight.Group // lets the control loop answer one probe at a time
}

func newHealth(f Fleet) *health {
	return &health{checks: []check{
		{name: "ping", run: func(context.Context) error { return nil }},
		{name: "control-loop", run: func(ctx context.Context) error {
			_, _ = f.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) { return nil, nil })
			return ctx.Err()
		}},
		{name: "disk", ready: true, run: func(context.Context) error {
			if f.Snapshot().DiskFull() {
				return errors.New("the hub's disk is full: it stores changes and deletions, but no new objects; free space on it")
			}
			return nil
		}},
		// Load balancers use this check to find the leading hub. Only a leading hub runs this code.
		{name: "leader", run: func(context.Context) error { return nil }},
	}}
}

func (h *health) run(c check) error {
	_, err, _ := h.asked.Do(c.name, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), healthWait)
		defer cancel()
		return nil, c.run(ctx)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", healthWait)
	}
	return err
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	setGuards(w.Header())
	what, name, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	if name != "" {
		i := slices.IndexFunc(h.checks, func(c check) bool { return c.name == name && (!c.ready || what == "readyz") })
		if i < 0 {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		if err := h.run(h.checks[i]); err != nil {
			http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "ok")
		return
	}
	var out strings.Builder
	ok := true
	for _, c := range h.checks {
		if c.ready && what != "readyz" {
			continue
		}
		if slices.Contains(q["exclude"], c.name) {
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.name)
		} else if err := h.run(c); err != nil {
			ok = false
			fmt.Fprintf(&out, "[-]%s failed: %v\n", c.name, err)
		} else {
			fmt.Fprintf(&out, "[+]%s ok\n", c.name)
		}
	}
	switch {
	case !ok:
		http.Error(w, out.String()+what+" check failed", http.StatusInternalServerError)
	case q.Has("verbose"):
		_, _ = fmt.Fprintf(w, "%s%s check passed\n", out.String(), what)
	default:
		_, _ = fmt.Fprint(w, "ok")
	}
}
