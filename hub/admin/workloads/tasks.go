package workloads

import (
	"cmp"
	"fmt"
	"sort"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
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

// A cronJobRow is a CronJob in the list of workloads.
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

// newestFirstOf sorts Jobs, the newest first.
func newestFirstOf(jobs []state.Object) {
	sort.Slice(jobs, func(i, k int) bool {
		x, y := jobs[i], jobs[k]
		return cmp.Or(y.GetCreationTimestamp().Compare(x.GetCreationTimestamp().Time),
			cmp.Compare(x.GetName(), y.GetName()), cmp.Compare(x.GetNamespace(), y.GetNamespace())) < 0
	})
}

func taskRowOf(j *batchv1.Job, now time.Time) taskRow {
	p := diagnose.JobProgress(j)
	r := taskRow{
		Name: j.Name, Namespace: j.Namespace, Href: frame.OwnerHref(j.Namespace, "job", j.Name), YAML: "/yaml" +
			frame.ObjectURL(state.Jobs, j.Namespace, j.Name),
		Pill: StagePill(p.Stage), Why: p.Message, Done: j.Status.Succeeded, Failed: j.Status.Failed, Wanted: "1",
		Images: images(state.PodSpecOf(j)),
	}
	if n := j.Spec.Completions; n != nil {
		r.Wanted = fmt.Sprint(*n)
	}
	if t := j.Status.StartTime; t != nil {
		r.Started = format.Time(t.Time, now)
	}
	if end := state.JobEnd(j); end != nil {
		r.Ended = format.Time(end.LastTransitionTime.Time, now)
	}
	if p.Stage == diagnose.BackingOff {
		r.Why = fmt.Sprintf("%d pods have failed; the next pod starts after a back-off.", j.Status.Failed)
	}
	return r
}

func cronJobRowOf(c *batchv1.CronJob, now time.Time) cronJobRow {
	p, next := diagnose.CronJobProgress(c, now)
	r := cronJobRow{
		Name: c.Name, Namespace: c.Namespace, YAML: "/yaml" + frame.ObjectURL(state.CronJobs, c.Namespace, c.Name),
		Pill: StagePill(p.Stage), Why: p.Message, Next: format.Time(next, now), Schedule: c.Spec.Schedule,
		Active: len(c.Status.Active), Images: images(state.PodSpecOf(c)),
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
	if p.Stage == diagnose.NeverDue {
		r.Why = "Its schedule never matches a day."
	}
	return r
}
