package serve

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/address"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/approval"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/drain"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/publish"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/volume"
	"flotilla.dev/hub/workload"
)

// newLoop makes the loop with every decider, and with the devices.
func newLoop(cfg config.Config, start state.Snapshot, st control.Store, log *slog.Logger) *node.Devices {
	return node.New(node.Config{
		LeaseInterval: cfg.LeaseInterval, Grace: cfg.NodeMonitorGracePeriod, Profile: profileOf, Manual: !cfg.RegisterNode,
	}, control.Config{Store: st, Log: log, Start: start, Deciders: Deciders(cfg)})
}

// Deciders are all that decide, in their order.
func Deciders(cfg config.Config) []control.Decider {
	settings := AdmissionSettings(cfg)
	admit := func(p *corev1.Pod) { admission.DefaultPod(p, settings) }
	complete := func(p *corev1.Pod, s state.Snapshot) error { return admission.Complete(p, s) }
	charge := func(p *corev1.Pod, s state.Snapshot, now time.Time) ([]state.Change, error) {
		return admission.Charge(p, s, now)
	}
	refuse := func(p *corev1.Pod, ns *corev1.Namespace) string { return admission.MayCreate(p, ns, settings) }
	nodes := lifecycle.Settings{
		Grace: cfg.NodeMonitorGracePeriod, StartupGrace: cfg.NodeStartupGracePeriod,
		Rate: cfg.NodeEvictionRate, SecondaryRate: cfg.SecondaryNodeEvictionRate,
		Unhealthy: cfg.UnhealthyZoneThreshold, LargeSite: cfg.LargeClusterSizeThreshold, Policy: cfg.SiteDisruptionPolicy,
		Lease: cfg.LeaseInterval, Judge: lifecycle.JudgeAfter(cfg.NodeMonitorPeriod, cfg.LeaseInterval),
	}
	return []control.Decider{
		lifecycle.Flapping{}, lifecycle.Health{Settings: nodes}, lifecycle.Sites{Settings: nodes},
		blocks(cfg),
		eviction.Decider{Grace: cfg.NodeMonitorGracePeriod},
		drain.Decider{},
		approval.Decider{},
		publish.Decider{},
		workload.Quotas{}, // before: what may be made follows from it
		workload.Decider{Admit: admit, Complete: complete, Charge: charge, Refuse: refuse, FinishedPods: cfg.TerminatedPodGCThreshold},
		volume.Decider{}, // before: what waits for a claim's class is placed in the same pass
		schedule.Decider{},
	}
}

// blocks decides on the nodes' addresses, where the hub gives them any.
func blocks(cfg config.Config) (d address.Decider) {
	if cfg.AllocateNodeCIDRs {
		d = address.Decider{Cluster: cfg.ClusterCIDR, Bits: cfg.NodeCIDRMaskSize}
	}
	return d
}

// AdmissionSettings are the rules for objects that follow from the configuration.
func AdmissionSettings(cfg config.Config) admission.Settings {
	return admission.Settings{
		NotReadySeconds: cfg.DefaultNotReadyTolerationSeconds, UnreachableSeconds: cfg.DefaultUnreachableTolerationSeconds,
		Policy: cfg.Policy(), PodSecurity: cfg.PodSecurityDefault, LeaseInterval: cfg.LeaseInterval,
	}
}

// notBefore makes the hub's time begin no earlier than the newest thing that it
// remembers: a gateway box without a clock battery starts in the past, and what
// was decided must not lie in the future.
func notBefore(s state.Snapshot) state.Snapshot {
	newest := s.Started
	seen := func(t metav1.Time) {
		if t.After(newest) {
			newest = t.Time
		}
	}
	for p := range s.Pods("") {
		seen(p.CreationTimestamp)
	}
	for e := range state.Each[*corev1.Event](s, state.Events, "") {
		if e.LastTimestamp.After(newest) {
			newest = e.LastTimestamp.Time
		}
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
		s = s.Forgive(s.Started)
	}
	return s
}
