package workloads

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

// calm is how long a container must run after a crash until its workload is shown as healthy. The
// incident of the crash loop closes after the same time.
const calm = 10 * time.Minute

// quietened marks a workload whose pods run now but crashed repeatedly until recently. A crash loop
// pauses between crashes, so it is not over yet.
func quietened(r workloadRow, pods []*corev1.Pod, now time.Time) workloadRow {
	if r.Pill.Kind != "ok" {
		return r
	}
	var (
		n    int
		most int32
		last time.Time
		node = ""
		one  = true // all pods are on one node
	)
	for _, p := range pods {
		crashed := false
		for _, c := range p.Status.ContainerStatuses {
			t := c.LastTerminationState.Terminated
			if t == nil || t.ExitCode == 0 || c.RestartCount < 2 || now.Sub(t.FinishedAt.Time) >= calm {
				continue
			}
			crashed, most, last = true, max(most, c.RestartCount), format.Later(last, t.FinishedAt.Time)
		}
		if !crashed {
			continue
		}
		one = one && (n == 0 || node == p.Spec.NodeName)
		n, node = n+1, p.Spec.NodeName
	}
	if n == 0 {
		return r
	}
	r.Pill = frame.Pill{Kind: "warn", Text: "Crashed lately"}
	r.Why = fmt.Sprintf("%s restarted up to %d times, last %s ago", format.Plural(n, "pod"), most,
		format.Duration(now.Sub(last)))
	switch {
	case one && n > 1:
		r.Why += ", all on node " + node
	case one:
		r.Why += ", on node " + node
	}
	r.Why += "."
	return r
}
