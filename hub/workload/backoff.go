package workload

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	backoffWindow = 30 * time.Minute // failures older than this are forgotten
	backoffFirst  = 10 * time.Second
	backoffMost   = 5 * time.Minute
)

// allowance returns how many of the missing pods may be created now, and when to
// ask again for the rest (zero: no need).
//
// Kubernetes replaces a finished pod at once, always: a device that rejects its
// pods makes it create thousands. Ours: the first failures, as many as there are
// replicas, are replaced at once; from then on a trial has to wait 10 s, doubling
// to 5 min, counted from the newest failed pod, and is no bigger than the number
// of pods that have proven ready, at least one. Failures count for 30 min. Only
// creation times are used, which the hub has set: a device's clock decides nothing.
func (p *pass) allowance(missing, replicas int, finished, live []*corev1.Pod) (int, time.Time) {
	var recent []time.Time
	for _, pod := range finished {
		if t := pod.CreationTimestamp.Time; t.Add(backoffWindow).After(p.now) {
			recent = append(recent, t)
		}
	}
	over := len(recent) - max(replicas, 1)
	if missing <= 0 || over <= 0 {
		return max(missing, 0), time.Time{}
	}
	slices.SortFunc(recent, time.Time.Compare)
	forgotten := recent[0].Add(backoffWindow)
	delay := backoffMost
	if over < 6 {
		delay = min(backoffFirst<<(over-1), backoffMost)
	}
	if at := recent[len(recent)-1].Add(delay); at.After(p.now) {
		if forgotten.Before(at) {
			at = forgotten
		}
		return 0, at
	}
	proven := 0
	for _, pod := range live {
		if ready(pod) {
			proven++
		}
	}
	trial := max(1, proven) - (len(live) - proven)
	if trial < missing {
		return max(trial, 0), forgotten
	}
	return missing, time.Time{}
}
