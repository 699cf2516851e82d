package workloads

import (
	"cmp"
	"fmt"
	"sort"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

// A taskRow is a Job in the list of workloads.
type taskRow struct {
	Name, Namespace, Href, YAML string
	Pick                        string
	Pill                        frame.Pill
	Done, Failed                int32
	Wanted                      string
	Started, Ended              *format.Moment
	Images, Why                 string
	Cause                       cause
	Menu                        frame.Menu
}

// A cronJobRow is a CronJob there.
type cronJobRow struct {
	Name, Namespace, YAML string
	Pick                  string
	Pill                  frame.Pill
	Schedule, Zone        string
	Active                int
	Last, Succeeded, Next *format.Moment
	Images, Why           string
	Menu                  frame.Menu
}

// newestFirstOf sorts Jobs as the page lists them.
func newestFirstOf(jobs []state.Object) {
	sort.Slice(jobs, func(i, k int) bool {
		x, y := jobs[i], jobs[k]
		return cmp.Or(y.GetCreationTimestamp().Compare(x.GetCreationTimestamp().Time), cmp.Compare(x.GetName(), y.GetName()), cmp.Compare(x.GetNamespace(), y.GetNamespace())) < 0
	})
}

func taskRowOf(j *batchv1.Job, now time.Time) taskRow {
	r := taskRow{
		Name: j.Name, Namespace: j.Namespace, Href: frame.OwnerHref(j.Namespace, "job", j.Name), YAML: "/yaml" + frame.ObjectURL(state.Jobs, j.Namespace, j.Name),
		Pill: frame.Pill{Kind: "ok", Text: "Running"}, Done: j.Status.Succeeded, Failed: j.Status.Failed, Wanted: "1", Images: images(state.PodSpecOf(j)),
	}
	if n := j.Spec.Completions; n != nil {
		r.Wanted = fmt.Sprint(*n)
	}
	if t := j.Status.StartTime; t != nil {
		r.Started = format.Time(t.Time, now)
	}
	end, wait := state.JobEnd(j), state.JobCondition(j, batchv1.JobConditionType("FailedCreate"))
	switch {
	case end != nil && end.Type == batchv1.JobFailed:
		r.Pill, r.Why, r.Ended = frame.Pill{Kind: "bad", Text: "Failed"}, cmp.Or(end.Message, end.Reason), format.Time(end.LastTransitionTime.Time, now)
	case end != nil:
		r.Pill, r.Ended = frame.Pill{Kind: "ok", Text: "Complete"}, format.Time(end.LastTransitionTime.Time, now)
	case state.JobCondition(j, batchv1.JobFailureTarget) != nil:
		r.Pill, r.Why = frame.Pill{Kind: "warn", Text: "Failing"}, state.JobCondition(j, batchv1.JobFailureTarget).Message
	case state.JobCondition(j, batchv1.JobSuspended) != nil:
		r.Pill = frame.Pill{Kind: "idle", Text: "Suspended"}
	case wait != nil:
		r.Pill, r.Why = frame.Pill{Kind: "bad", Text: "Stuck"}, wait.Message
	case j.Status.Active == 0 && j.Status.Failed > 0:
		r.Pill, r.Why = frame.Pill{Kind: "warn", Text: "Waiting"}, fmt.Sprintf("%d pods have failed; the next one comes after a while.", j.Status.Failed)
	}
	return r
}

func cronJobRowOf(c *batchv1.CronJob, now time.Time) cronJobRow {
	r := cronJobRow{
		Name: c.Name, Namespace: c.Namespace, YAML: "/yaml" + frame.ObjectURL(state.CronJobs, c.Namespace, c.Name),
		Pill: frame.Pill{Kind: "ok", Text: "Scheduled"}, Schedule: c.Spec.Schedule, Active: len(c.Status.Active), Images: images(state.PodSpecOf(c)),
	}
	if c.Spec.TimeZone != nil {
		r.Zone = *c.Spec.TimeZone
	}
	if t := c.Status.LastScheduleTime; t != nil {
		r.Last = format.Time(t.Time, now)
	}
	if t := c.Status.LastSuccessfulTime; t != nil {
		r.Succeeded = format.Time(t.Time, now)
	}
	switch schedule, err := state.Schedule(&c.Spec); {
	case c.Spec.Suspend != nil && *c.Spec.Suspend:
		r.Pill = frame.Pill{Kind: "idle", Text: "Suspended"}
	case err != nil:
		r.Pill, r.Why = frame.Pill{Kind: "bad", Text: "Stuck"}, err.Error()
	default:
		next := schedule.Next(now)
		if next.IsZero() {
			r.Pill, r.Why = frame.Pill{Kind: "warn", Text: "Never"}, "No day is like its schedule."
			break
		}
		r.Next = format.Time(next, now)
	}
	return r
}
