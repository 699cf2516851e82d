package finding

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A Crash is how a container that should keep running ended.
type Crash struct {
	Key       string
	Container string
	How, Next string
	When      *format.Moment
	Lasted    string         // its run time; "": not known
	Restarts  string         // restarts in words; "": none
	Again     *format.Moment // the latest moment of its restart; nil: not known, or it runs
	Tail      string         // address of its last lines; "": the role may not read them, or the device does not answer
	Logs      string         // page of its whole log; "": the role may not read it
	Words     string         // its termination message, stored by the hub
	Silent    bool           // its device does not answer
}

const (
	// mostCrashes bounds the containers on a pod's page.
	mostCrashes = 4
	// maxWords bounds a shown termination message, in bytes.
	maxWords = 2 << 10
)

// backOff returns the longest wait before the next restart after a number of restarts.
func backOff(restarts int32) time.Duration {
	wait := time.Duration(0)
	for range min(restarts, 10) {
		wait = fleet.NextBackOff(wait)
	}
	return wait
}

// LastEndOf returns a container's last end, if it is worth showing; running: a new instance has
// started since.
func LastEndOf(c *corev1.ContainerStatus, now time.Time) (t *corev1.ContainerStateTerminated, running bool) {
	last := c.LastTerminationState.Terminated
	switch {
	case c.State.Terminated != nil:
		if c.State.Terminated.ExitCode != 0 {
			return c.State.Terminated, false
		}
	case last == nil:
	case c.State.Waiting != nil:
		if last.ExitCode != 0 || c.State.Waiting.Reason == "CrashLoopBackOff" {
			return last, false
		}
	case last.ExitCode != 0 && c.State.Running != nil && now.Sub(c.State.Running.StartedAt.Time) < fleet.ForgiveAfter:
		return last, true
	}
	return nil, false
}

// CrashMark identifies one end of a container by how and when it ended.
func CrashMark(t *corev1.ContainerStateTerminated) string {
	return fmt.Sprintf("%d.%d", t.FinishedAt.Unix(), t.ExitCode)
}

// CrashesOf returns how those containers of a pod ended that should keep running.
func CrashesOf(a *frame.Request, p *corev1.Pod) (all []Crash) {
	if p.Spec.NodeName == "" {
		return nil
	}
	silent := !Reachable(a, p)
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		t, running := LastEndOf(&c, a.Now)
		if t == nil || len(all) == mostCrashes {
			continue
		}
		e := exitOf(t, memoryLimit(p, c.Name))
		d := Crash{Key: c.Name + "/" + CrashMark(t), Container: c.Name, How: e.How, Next: e.Next,
			Words: strings.ToValidUTF8(t.Message[:min(len(t.Message), maxWords)], ""), Silent: silent}
		if !t.FinishedAt.IsZero() {
			d.When = format.Time(t.FinishedAt.Time, a.Now)
			if ran := t.FinishedAt.Sub(t.StartedAt.Time); !t.StartedAt.IsZero() && ran >= 0 {
				d.Lasted = duration.HumanDuration(ran)
			}
		}
		if c.RestartCount > 0 {
			d.Restarts = "started again " + format.Times(c.RestartCount)
		}
		if w := c.State.Waiting; w != nil && w.Reason == "CrashLoopBackOff" && !t.FinishedAt.IsZero() && !silent {
			if again := t.FinishedAt.Add(backOff(c.RestartCount)); again.After(a.Now) {
				d.Again = format.Time(again, a.Now)
			}
		}
		if a.May("get", "pods/log") {
			q := url.Values{"container": {c.Name}}
			if !silent {
				d.Tail = frame.PodHref(p) + "/logs/end?" +
					url.Values{"container": {c.Name}, "of": {CrashMark(t)}}.Encode()
			}
			if running {
				q.Set("previous", "1")
			}
			d.Logs = frame.PodHref(p) + "/logs?" + q.Encode()
		}
		all = append(all, d)
	}
	return all
}

// memoryLimit returns a container's memory limit as Kubernetes writes it; "": it has none.
func memoryLimit(p *corev1.Pod, container string) string {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if q, ok := list[i].Resources.Limits[corev1.ResourceMemory]; ok && list[i].Name == container {
				return q.String()
			}
		}
	}
	return ""
}

// Reachable tells whether a pod's device answers, so that a terminal can open there.
func Reachable(a *frame.Request, p *corev1.Pod) bool {
	n := a.Node(p.Spec.NodeName)
	return n != nil && state.ReadyOf(n) != corev1.ConditionUnknown
}
