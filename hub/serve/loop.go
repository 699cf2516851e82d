package serve

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/address"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/approval"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/drain"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/publish"
	"flotilla.dev/hub/rollout"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/hub/volume"
	"flotilla.dev/hub/workload"
)

// newLoop returns the control loop with all deciders, and the devices.
func newLoop(
	cfg config.Config, start state.Snapshot, st control.Store, signing ed25519.PrivateKey, log *slog.Logger,
) *node.Devices {
	return node.New(node.Config{
		LeaseInterval: cfg.LeaseInterval, Grace: cfg.NodeMonitorGracePeriod, Profile: profileOf, Manual: !cfg.RegisterNode,
		Signing: signing, Mirrors: cfg.ImageMirrors,
	}, control.Config{Store: st, Log: log, Start: start, Deciders: Deciders(cfg)})
}

// Deciders returns all deciders, in their order.
func Deciders(cfg config.Config) []control.Decider {
	settings := AdmissionSettings(cfg)
	admit := func(p *corev1.Pod) { admission.DefaultPod(p, settings) }
	refuse := func(p *corev1.Pod, ns *corev1.Namespace) string { return admission.MayCreate(p, ns, settings) }
	nodes := lifecycle.Settings{
		Grace: cfg.NodeMonitorGracePeriod, StartupGrace: cfg.NodeStartupGracePeriod,
		Rate: cfg.NodeEvictionRate, SecondaryRate: cfg.SecondaryNodeEvictionRate,
		Unhealthy: cfg.UnhealthyZoneThreshold, LargeSite: cfg.LargeClusterSizeThreshold, Policy: cfg.SiteDisruptionPolicy,
		Lease: cfg.LeaseInterval, JudgeDelay: lifecycle.JudgeAfter(cfg.NodeMonitorPeriod, cfg.LeaseInterval),
	}
	silence := state.Timeouts{Grace: cfg.NodeMonitorGracePeriod, Lease: cfg.LeaseInterval}
	return []control.Decider{
		lifecycle.Flapping{}, lifecycle.Health{Settings: nodes}, lifecycle.Sites{Settings: nodes},
		blocks(cfg),
		eviction.Decider{Timeouts: silence},
		rollout.Decider{}, // before drain, which executes the drains that a rollout requests
		drain.Decider{Timeouts: silence},
		approval.Decider{},
		publish.Decider{},
		workload.Quotas{}, // before workload, because quotas limit the pods that it creates
		workload.Decider{
			Admit: admit, Complete: admission.Complete, Charge: admission.Charge, Refuse: refuse, Silence: silence,
			FinishedPods: cfg.TerminatedPodGCThreshold,
		},
		volume.Decider{}, // before schedule, so that the pod of a bound claim is placed in the same cycle
		schedule.Decider{},
		incident.Decider{LeaveBy: leaveBy}, // last, because it reports the problems that the other deciders have not solved
	}
}

// Foresight returns the hub's own rules, with which the page previews the fate of pods.
func Foresight(cfg config.Config) preview.Rules {
	r := preview.Rules{Follows: node.Ended}
	for _, d := range Deciders(cfg) {
		switch d.(type) {
		case drain.Decider, workload.Quotas, workload.Decider, volume.Decider, schedule.Decider:
			r.Deciders = append(r.Deciders, d)
		}
	}
	return r
}

// leaveBy returns when a pod must leave its node.
func leaveBy(n *corev1.Node, p *corev1.Pod) (time.Time, bool) {
	leave := eviction.LeaveBy(n, p)
	return leave.At, leave.Must
}

// blocks returns the decider of node addresses.
func blocks(cfg config.Config) (d address.Decider) {
	if cfg.AllocateNodeCIDRs {
		d = address.Decider{Cluster: cfg.ClusterCIDR, Bits: cfg.NodeCIDRMaskSize}
	}
	return d
}

// AdmissionSettings returns the admission rules that follow from the configuration.
func AdmissionSettings(cfg config.Config) admission.Settings {
	return admission.Settings{
		NotReadySeconds: cfg.DefaultNotReadyTolerationSeconds, UnreachableSeconds: cfg.DefaultUnreachableTolerationSeconds,
		Policy: cfg.Policy(), PodSecurity: cfg.PodSecurityDefault, LeaseInterval: cfg.LeaseInterval,
	}
}

// begin returns the hub's time at its start: the machine's time, or the time of the newest record
// if the machine's clock is behind it.
func (h *Hub) begin(ctx context.Context) (time.Time, error) {
	began, _, err := access.Time(ctx, h.Store)
	if clock := time.Now(); err == nil && began.Sub(clock).Abs() > time.Minute {
		h.log.Warn("this machine's clock is behind the hub's newest record, from whose time the hub continues; set the clock, and "+
			"restart the hub", "clock", clock.UTC().Format(time.RFC3339), "hub", began.UTC().Format(time.RFC3339))
	}
	return began, err
}

// notBefore starts the hub's time no earlier than its newest record, because a box without a clock
// battery starts in the past, and records must not be in the future. noted is the time of the last
// note, zero if there is none. The hub notes its time every hour, so a later time in an object
// comes from a client and is ignored.
func notBefore(s state.Snapshot, noted time.Time) state.Snapshot {
	newest := s.Started
	seen := func(t metav1.Time) {
		if t.After(newest) && (noted.IsZero() || t.Sub(noted) <= store.TimeEvery+time.Minute) {
			newest = t.Time
		}
	}
	for p := range s.Pods("") {
		seen(p.CreationTimestamp)
	}
	for e := range state.Each[*corev1.Event](s, state.Events, "") {
		seen(e.LastTimestamp)
	}
	for n := range s.Nodes() {
		seen(n.CreationTimestamp)
		for _, c := range n.Status.Conditions {
			seen(c.LastTransitionTime)
		}
		for _, t := range n.Spec.Taints {
			if t.TimeAdded != nil {
				seen(*t.TimeAdded)
			}
		}
	}
	if newest.After(s.Started) {
		s.Started = s.Started.Add(newest.Sub(s.Started))
		s = s.ResetSeen(s.Started)
	}
	return s
}
