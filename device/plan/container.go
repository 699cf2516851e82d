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

// A ContainerRecord is what the agent remembers of one container of a pod. Moments
// in it are taken when the agent noticed, so that they are on its monotonic clock.
type ContainerRecord struct {
	ID      string // newest instance; "" where none is known
	State   engine.State
	Attempt int // of the newest instance
	Hash    string
	Boot    string
	IP      string
	Network string // id of the container whose network it has; "": its own, or not known
	ImageID string
	Image   string
	Limits  engine.Limits // what the engine said at first, and what it was told since
	Unsure  bool          // whether they still are
	Refused *Refusal

	StartedAt time.Time // the engine's clock, to show
	Since     time.Time // running since
	Ended     *corev1.ContainerStateTerminated
	Last      *corev1.ContainerStateTerminated // of the instance before

	Delay     time.Duration // the next crash waits this long
	Waits     time.Duration // from the last crash to ReleaseAt
	ReleaseAt time.Time     // no restart before
	Crashing  bool          // it waits because it crashed

	Failure  *Verdict // why it could not be run
	Failures int
	RetryAt  time.Time

	Probe [podspec.ProbeKinds]ProbeRecord
	Kill  string // why it is being stopped although it is wanted

	PostStarted bool   // its hook has ended
	HookError   string // and how it failed
}

// Running tells whether the newest instance runs.
func (c *ContainerRecord) Running() bool {
	return c.State == engine.Running || c.State == engine.Paused
}

// see takes in the newest instance of a container.
func (c *ContainerRecord) see(in Instance, now time.Time) {
	if in.IP != "" || in.ID != c.ID { // engines forget it with the end, the pod keeps it
		c.IP = in.IP
	}
	if in.ID != c.ID {
		if c.Ended != nil {
			c.Last = c.Ended
		}
		if c.Hash != "" && c.Hash != in.Hash {
			c.Delay = 0 // another definition: its own crashes only
		}
		c.Limits, c.Unsure, c.Refused = in.Limits, false, nil
		c.ID, c.Ended, c.Since, c.Kill, c.Crashing, c.PostStarted, c.HookError = in.ID, nil, time.Time{}, "", false, false, ""
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
		if c.Ended != nil { // somebody has started it again
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

// end notes that the newest instance has ended, and how long its successor waits.
func (c *ContainerRecord) end(t *corev1.ContainerStateTerminated, now time.Time) {
	c.Ended = t
	if t.FinishedAt.IsZero() { // nobody has seen it
		t.FinishedAt = metav1.NewTime(now)
	}
	if !c.Since.IsZero() && now.Sub(c.Since) >= fleet.ForgiveAfter {
		c.Delay = 0
	}
	c.ReleaseAt, c.Crashing, c.Waits = now.Add(c.Delay), c.Delay > 0, c.Delay
	c.Delay = fleet.NextBackOff(c.Delay)
}

// gone notes that somebody has removed the newest instance.
func (c *ContainerRecord) gone(now time.Time) {
	if c.Running() && c.Ended == nil {
		c.end(&corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown",
			Message:   "The container could not be located: it was removed from outside.",
			StartedAt: metav1.NewTime(c.StartedAt), FinishedAt: metav1.NewTime(now), ContainerID: c.ID,
		}, now)
	}
	c.State, c.IP = engine.Exited, ""
	if c.Ended == nil { // it never started
		c.State = ""
	}
	c.ID = ""
}

// terminated is how an ended instance ended, in the kubelet's words.
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
