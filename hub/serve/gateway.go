package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// newGateway returns the hub's own broker, or its connection to an external one.
func (h *Hub) newGateway(identity string) (Gateway, error) {
	cfg := h.cfg
	handler := &devices{Devices: h.Loop, ask: h.Ask, log: h.log}
	if len(cfg.Brokers) == 0 {
		b, err := broker.New(broker.Config{
			Handler: handler, Observers: observers{h.Guard, h.log}, Log: h.log, Listen: h.o.MQTT, DevListen: h.o.Dev,
			TLS: h.deviceTLS(),
		})
		if err != nil { // a nil pointer in an interface would not be nil
			return nil, err
		}
		return b, nil
	}
	if h.o.MQTT != nil || h.o.Dev != nil {
		return nil, errors.New("devices connect to the broker, but the hub listens for them too: this is a bug in the " +
			"program")
	}
	c, err := broker.NewClient(broker.ClientConfig{
		Handler: handler, Log: h.log, Servers: cfg.BrokerAddresses(), TLS: h.authority.AtBroker(), Prefix: cfg.BrokerPrefix,
		Silence: cfg.NodeMonitorGracePeriod,
		Owner:   h.owner,
		Proof:   func(node, boot string, p *wire.Proof) (string, error) { return pki.Proved(identity, node, boot, p) },
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// owner returns the device that is enrolled for a node.
func (h *Hub) owner(node string) (broker.Owner, bool) {
	s := h.Loop.Snapshot()
	rec := s.Record(node)
	if rec == nil || rec.Key == "" {
		return broker.Owner{}, false
	}
	o := broker.Owner{Key: rec.Key, Machine: rec.MachineID, Boot: rec.Boot}
	if n := s.Node(node); n != nil {
		now := h.Loop.Now()
		o.Silence = state.Timeouts{Grace: h.cfg.NodeMonitorGracePeriod, Startup: h.cfg.NodeStartupGracePeriod,
			Lease: h.cfg.LeaseInterval}.Deadline(s, n, now).Sub(now)
	}
	return o, true
}

// brokerPrefix returns the prefix of the MQTT topics. Every agent uses the default for "".
func brokerPrefix(cfg config.Config) string {
	if cfg.BrokerPrefix == wire.DefaultPrefix {
		return ""
	}
	return cfg.BrokerPrefix
}

// observers authorizes the operators' MQTT tools for the broker.
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
	o.guard.Record(context.Background(), store.Audit{
		Who: who.Name, Via: "certificate", Source: source, Verb: "connect", Resource: "mqttobservers", Name: who.Name,
		Code: code, Message: message,
	})
}

// mqttAddresses returns the broker addresses that joining devices receive.
func mqttAddresses(cfg config.Config, l net.Listener) []string {
	if len(cfg.Brokers) > 0 {
		return cfg.BrokerAddresses()
	}
	if len(cfg.MQTTAddresses) > 0 { // with several hubs, devices find the leader
		return cfg.MQTTAddresses
	}
	return []string{mqttAddress(cfg, l)}
}

// mqttAddress returns the broker address that joining devices receive. Without a host, devices use
// the host of the URL with which they joined.
func mqttAddress(cfg config.Config, l net.Listener) string {
	host, _, _ := net.SplitHostPort(cfg.MQTTListen)
	_, port, _ := net.SplitHostPort(addr(l))
	if cfg.AdvertiseAddress != "" {
		host = cfg.AdvertiseAddress
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = ""
	}
	return net.JoinHostPort(host, port)
}
