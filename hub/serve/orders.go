package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/enrolment"
	"flotilla.dev/hub/metrics"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/store"
)

// orders executes the orders that commands on this machine send to the running hub.
type orders struct {
	loop    *node.Devices
	store   *store.Store
	guard   *access.Guard
	ca      *enrolment.Renewer
	metrics http.Handler // serves the order `metrics`
	image   func(order string) (string, error)
	agents  func(ctx context.Context, order string) (string, error)
}

func (o orders) handle(ctx context.Context, by, order string) (answer string, err error) {
	did := func(verb, resource, name, message string, err error) {
		a := store.Audit{
			Who: by, Via: "command line", Verb: verb, Resource: resource, Name: name, Code: http.StatusOK, Message: message,
		}
		if err != nil {
			a.Code, a.Message = http.StatusInternalServerError, err.Error()
		}
		o.guard.Record(ctx, a)
	}
	if what, ok := strings.CutPrefix(order, "ca "); ok {
		answer, err := o.ca.Order(what)
		if verb, which, _ := strings.Cut(what, "-"); verb != "status" {
			did(verb, "authority", which, "", err)
		}
		return answer, err
	}
	if what, ok := strings.CutPrefix(order, "image "); ok {
		answer, err := o.image(what)
		if verb, name, _ := strings.Cut(what, " "); verb != "list" {
			did(verb, "images", name, "", err)
		}
		return answer, err
	}
	if what, ok := strings.CutPrefix(order, "agents "); ok {
		answer, err := o.agents(ctx, what)
		if verb, version, _ := strings.Cut(what, " "); verb != "list" {
			did(verb, "agentrollouts", version, "", err)
		}
		return answer, err
	}
	if order == "time" {
		return o.loop.Now().UTC().Format(time.RFC3339Nano), nil
	}
	if order == "metrics" {
		return metrics.Text(ctx, o.metrics)
	}
	if order != "resume" {
		return "", fmt.Errorf("unknown order %q", order)
	}
	n, err := o.loop.Resume(ctx)
	err = errors.Join(err, o.store.ClearRecovery(ctx))
	did("resume", "nodes", "", fmt.Sprintf("%d devices", n), err)
	if err != nil {
		return "", fmt.Errorf("nothing was resumed: %w", err)
	}
	return fmt.Sprintf("resumed %d devices", n), nil
}
