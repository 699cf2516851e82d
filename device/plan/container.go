package plan

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// A ContainerRecord is the agent's knowledge about one container of a pod. Its times are on the
// agent's monotonic clock, from when the agent noticed the event, unless a field's comment says
// otherwise.
type ContainerRecord struct {
	ID            string // id of the newest instance; empty: unknown
	State         engine.State
	Attempt       int // restart count of the newest instance
	Hash          string
	Boot          string
	IP            string
	Network       string // container whose network it shares; empty: none, or unknown
	ImageID       string
	Image         string
	Limits        engine.Limits // limits from the first list and later updates
	LimitsUnknown bool          // Limits may be outdated
	Pulling       string        // progress of the pull of its image; empty: none is known
	Refused       *Refusal

	StartedAt time.Time // by the engine's clock, only for the status
	Since     time.Time // time since which it runs
	Ended     *corev1.ContainerStateTerminated
	Last      *corev1.ContainerStateTerminated // end of the previous instance

	NextBackOff time.Duration // back-off of the next crash
	BackOff     time.Duration // back-off of the last crash
	RestartAt   time.Time     // earliest time of the restart
	Crashing    bool          // the restart waits because of a crash

	Failure  *Verdict // failure of the last run
	Failures int
	RetryAt  time.Time

	Probe      [podspec.ProbeKinds]ProbeRecord
	KillReason string // why a desired container is being stopped

	PostStarted bool   // the postStart hook has ended
	HookError   string // error of the postStart hook
}

// Running reports whether the newest instance runs or is paused.
func (c *ContainerRecord) Running() bool {
	return c.State == engine.Running || c.State == engine.Paused
}

// see updates the record from the newest instance.
func (c *ContainerRecord) see(in Instance, now time.Time) {
	if in.IP != "" || in.ID != c.ID { // engines drop the address when the container ends; the pod keeps it
		c.IP = in.IP
	}
	if in.ID != c.ID {
		if c.Ended != nil {
			c.Last = c.Ended
		}
		if c.Hash != "" && c.Hash != in.Hash {
			c.NextBackOff = 0 // a changed definition resets the back-off
		}
		c.Limits, c.LimitsUnknown, c.Refused = in.Limits, false, nil
		c.ID, c.Ended, c.Since, c.KillReason = in.ID, nil, time.Time{}, ""
		c.Crashing, c.PostStarted, c.HookError = false, false, ""
		c.Probe = [podspec.ProbeKinds]ProbeRecord{}
		if in.State != engine.Created {
			c.Failure, c.Failures = nil, 0
		}
	}
	c.Attempt, c.Hash, c.Boot = in.Attempt, in.Hash, in.Boot
	c.ImageID, c.Image, c.StartedAt = in.ImageID, in.Image, in.StartedAt
	c.Network, _, _ = strings.Cut(in.Labels[LabelShares], " ")
	c.State = in.State
	switch in.State {
	case engine.Running, engine.Paused:
		if c.Ended != nil { // another client started the container again
			c.Last, c.Ended, c.Since = c.Ended, nil, now
		}
		if c.Since.IsZero() {
			c.Since = now.Add(-min(max(now.Sub(in.StartedAt), 0), time.Hour))
		}
	case engine.Exited, engine.Dead:
		if c.Ended == nil {
			c.end(terminated(in), now)
		}
	}
}

// end records the end of the newest instance and sets the back-off.
func (c *ContainerRecord) end(t *corev1.ContainerStateTerminated, now time.Time) {
	c.Ended = t
	if t.FinishedAt.IsZero() { // the time of the end is unknown
		t.FinishedAt = metav1.NewTime(now)
	}
	if !c.Since.IsZero() && now.Sub(c.Since) >= fleet.ForgiveAfter {
		c.NextBackOff = 0
	}
	c.RestartAt, c.Crashing, c.BackOff = now.Add(c.NextBackOff), c.NextBackOff > 0, c.NextBackOff
	c.NextBackOff = fleet.NextBackOff(c.NextBackOff)
}

// gone records that another client removed the newest instance.
func (c *ContainerRecord) gone(now time.Time) {
	if c.Running() && c.Ended == nil {
		c.end(&corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown",
			Message:   "The container could not be located: it was removed from outside.",
			StartedAt: metav1.NewTime(c.StartedAt), FinishedAt: metav1.NewTime(now), ContainerID: c.ID,
		}, now)
	}
	c.State, c.IP = engine.Exited, ""
	if c.Ended == nil { // the instance never started
		c.State = ""
	}
	c.ID = ""
}

// terminated returns the terminated state of an ended instance, with the kubelet's reasons.
func terminated(in Instance) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: int32(in.ExitCode), Message: in.Error, ContainerID: in.ID,
		StartedAt: metav1.NewTime(in.StartedAt), FinishedAt: metav1.NewTime(in.FinishedAt),
	}
	switch {
	case in.OOMKilled:
		t.Reason = "OOMKilled"
	case in.ExitCode == 0:
		t.Reason = "Completed"
	default:
		t.Reason = "Error"
	}
	if n := in.ExitCode - 128; n > 0 && n < 65 {
		t.Signal = int32(n)
	}
	return t
}
