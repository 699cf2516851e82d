package diagnose

import (
	"cmp"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"flotilla.dev/hub/state"
)

// The stages of Jobs and CronJobs, besides Complete and Stuck. Only GaveUp is a problem.
const (
	Running    Stage = "Running"
	BackingOff Stage = "Waiting" // pods have failed, and the next pod follows after a delay
	GivingUp   Stage = "Failing" // the Job has failed, but its pods have not ended
	GaveUp     Stage = "Failed"
	Suspended  Stage = "Suspended"
	Scheduled  Stage = "Scheduled"
	NeverDue   Stage = "Never" // no date matches the schedule
)

// JobProgress returns the stage of a Job, with a message if it is Stuck, GivingUp or GaveUp.
func JobProgress(j *batchv1.Job) (p Progress) {
	end, wait := state.JobEnd(j), state.JobCondition(j, batchv1.JobConditionType("FailedCreate"))
	failing := state.JobCondition(j, batchv1.JobFailureTarget)
	switch {
	case end != nil && end.Type == batchv1.JobFailed:
		p.Stage, p.Message = GaveUp, cmp.Or(end.Message, end.Reason)
	case end != nil:
		p.Stage = Complete
	case failing != nil:
		p.Stage, p.Message = GivingUp, failing.Message
	case state.JobCondition(j, batchv1.JobSuspended) != nil:
		p.Stage = Suspended
	case wait != nil:
		p.Stage, p.Message = Stuck, wait.Message
	case j.Status.Active == 0 && j.Status.Failed > 0:
		p.Stage = BackingOff
	default:
		p.Stage = Running
	}
	return p
}

// CronJobProgress returns whether a CronJob will start Jobs, and when it starts the next one.
func CronJobProgress(c *batchv1.CronJob, now time.Time) (p Progress, next time.Time) {
	schedule, err := state.Schedule(&c.Spec)
	switch {
	case c.Spec.Suspend != nil && *c.Spec.Suspend:
		p.Stage = Suspended
		return p, time.Time{}
	case err != nil:
		p.Stage, p.Message = Stuck, err.Error()
		return p, time.Time{}
	}
	if next = schedule.Next(now); next.IsZero() {
		p.Stage = NeverDue
		return p, next
	}
	p.Stage = Scheduled
	return p, next
}
