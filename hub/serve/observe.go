package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/store"
)

// observers are the operators' MQTT tools as the broker asks about them.
type observers struct {
	guard *access.Guard
	log   *slog.Logger
}

func (o observers) May(who broker.Observer) error {
	err := o.guard.MayObserve(context.Background(), who.Chain)
	if errors.Is(err, access.ErrForbidden) {
		o.note(who, http.StatusForbidden, err.Error())
	}
	return err
}

func (o observers) Observing(who broker.Observer) {
	o.log.Info("observer connected", "name", who.Name, "addr", who.Addr)
	o.note(who, http.StatusOK, "")
}

func (o observers) note(who broker.Observer, code int, message string) {
	source, _, _ := net.SplitHostPort(who.Addr)
	o.guard.Record(context.Background(), store.Audit{Who: who.Name, Via: "certificate", Source: source, Verb: "connect", Resource: "mqttobservers", Name: who.Name, Code: code, Message: message})
}
