package admin

import (
	"cmp"
	"fmt"
	"sort"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"flotilla.dev/hub/state"
)

// A taskRow is a Job in the list of workloads.
type taskRow struct {
	Name, Namespace, Href, YAML string
	Pick                        string
	Pill                        pill
	Done, Failed                int32
	Wanted                      string
	Started, Ended              *moment
	Images, Why                 string
	Cause                       cause
	Menu                        menu
}

// A cronJobRow is a CronJob there.
type cronJobRow struct {
	Name, Namespace, YAML string
	Pick                  string
	Pill                  pill
	Schedule, Zone        string
	Active                int
	Last, Succeeded, Next *moment
	Images, Why           string
	Menu                  menu
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
		Name: j.Name, Namespace: j.Namespace, Href: ownerHref(j.Namespace, "job", j.Name), YAML: "/yaml" + objectURL(state.Jobs, j.Namespace, j.Name),
		Pill: pill{"ok", "Running"}, Done: j.Status.Succeeded, Failed: j.Status.Failed, Wanted: "1", Images: images(state.PodSpecOf(j)),
	}
	if n := j.Spec.Completions; n != nil {
		r.Wanted = fmt.Sprint(*n)
	}
	if t := j.Status.StartTime; t != nil {
		r.Started = at(t.Time, now)
	}
	end, wait := state.JobEnd(j), state.JobCondition(j, batchv1.JobConditionType("FailedCreate"))
	switch {
	case end != nil && end.Type == batchv1.JobFailed:
		r.Pill, r.Why, r.Ended = pill{"bad", "Failed"}, cmp.Or(end.Message, end.Reason), at(end.LastTransitionTime.Time, now)
	case end != nil:
		r.Pill, r.Ended = pill{"ok", "Complete"}, at(end.LastTransitionTime.Time, now)
	case state.JobCondition(j, batchv1.JobFailureTarget) != nil:
		r.Pill, r.Why = pill{"warn", "Failing"}, state.JobCondition(j, batchv1.JobFailureTarget).Message
	case state.JobCondition(j, batchv1.JobSuspended) != nil:
		r.Pill = pill{"idle", "Suspended"}
	case wait != nil:
		r.Pill, r.Why = pill{"bad", "Stuck"}, wait.Message
	case j.Status.Active == 0 && j.Status.Failed > 0:
		r.Pill, r.Why = pill{"warn", "Waiting"}, fmt.Sprintf("%d pods have failed; the next one comes after a while.", j.Status.Failed)
	}
	return r
}

func cronJobRowOf(c *batchv1.CronJob, now time.Time) cronJobRow {
	r := cronJobRow{
		Name: c.Name, Namespace: c.Namespace, YAML: "/yaml" + objectURL(state.CronJobs, c.Namespace, c.Name),
		Pill: pill{"ok", "Scheduled"}, Schedule: c.Spec.Schedule, Active: len(c.Status.Active), Images: images(state.PodSpecOf(c)),
	}
	if c.Spec.TimeZone != nil {
		r.Zone = *c.Spec.TimeZone
	}
	if t := c.Status.LastScheduleTime; t != nil {
		r.Last = at(t.Time, now)
	}
	if t := c.Status.LastSuccessfulTime; t != nil {
		r.Succeeded = at(t.Time, now)
	}
	switch schedule, err := state.Schedule(&c.Spec); {
	case c.Spec.Suspend != nil && *c.Spec.Suspend:
		r.Pill = pill{"idle", "Suspended"}
	case err != nil:
		r.Pill, r.Why = pill{"bad", "Stuck"}, err.Error()
	default:
		next := schedule.Next(now)
		if next.IsZero() {
			r.Pill, r.Why = pill{"warn", "Never"}, "No day is like its schedule."
			break
		}
		r.Next = at(next, now)
	}
	return r
}
