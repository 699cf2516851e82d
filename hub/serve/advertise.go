package serve

import (
	"context"
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
)

// advertiseEvery is the interval at which the hub checks its address and its authority for changes.
const advertiseEvery = time.Minute

// advertiseAll keeps the published address and CA of the hub up to date.
func (h *Hub) advertiseAll(ctx context.Context) error {
	tick := time.NewTicker(advertiseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := h.advertise(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("the Service kubernetes and the ConfigMaps kube-root-ca.crt may be out of date", "err", err)
			}
			if h.o.lead != nil {
				h.o.lead.UpdateAddress(ctx, h.Store)
			}
			if h.o.HTTPS == nil {
				continue
			}
			if err := h.storeURL(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("tokens and kubeconfigs that commands make may name an old address", "err", err)
			}
		}
	}
}

// advertise publishes the API's address and its CA in the fleet. It writes only objects that are
// out of date.
func (h *Hub) advertise(ctx context.Context) error {
	says := state.Advertisement{Root: string(h.authority.RootPEM()), Agents: h.depot.Builds()}
	if h.o.HTTPS != nil {
		says.Address, says.Port = listen.Advertised(h.cfg.AdvertiseAddress, h.o.HTTPS.Addr(), pki.LocalNames(""))
	}
	known := func(s state.Snapshot) bool {
		have := s.Advertisement()
		return have != nil && have.Address == says.Address && have.Port == says.Port && have.Root == says.Root &&
			apiequality.Semantic.DeepEqual(have.Agents, says.Agents)
	}
	if known(h.Loop.Snapshot()) {
		return nil
	}
	_, err := h.Loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		if known(s) {
			return nil, nil
		}
		next := says
		next.ObjectMeta = metav1.ObjectMeta{Name: state.HubName, CreationTimestamp: metav1.NewTime(now)}
		if have := s.Advertisement(); have != nil {
			have.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
		}
		return []state.Change{state.Put(&next, "")}, nil
	})
	if err != nil {
		return fmt.Errorf("advertise the hub: %w", err)
	}
	return nil
}
