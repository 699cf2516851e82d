package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

var cronJobKind = batchv1.SchemeGroupVersion.WithKind("CronJob")

const cronJobSource = "cronjob-controller"

// cronJob starts the Jobs of a CronJob, and removes old ones.
func (p *pass) cronJob(k state.Key) {
	was, ok := p.s.Get(k).(*batchv1.CronJob)
	if !ok || was.DeletionTimestamp != nil || p.terminating(k.Namespace) || p.born[k] {
		return
	}
	c := was.DeepCopy()
	active := p.jobsOf(c)
	if !ptr.Deref(c.Spec.Suspend, false) {
		if schedule, err := state.Schedule(&c.Spec); err == nil { // admission refuses invalid schedules
			if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
				schedule = interval{lastStart(c), every.Delay}
			}
			next := schedule.Next(p.now)
			if retry := p.startJob(c, schedule, active); retry.After(p.now) {
				setEarlier(&next, retry)
			}
			p.wake(k, next)
		}
	}
	if equality.Semantic.DeepEqual(was.Status, c.Status) {
		return
	}
	changes := p.jobEvents(was, c)
	if len(changes) == 0 {
		changes = []state.Change{state.Put(c, "")}
	}
	p.do(changes...)
}

// jobEvents returns events for Jobs that have ended, and for running Jobs that the schedule did not
// start.
func (p *pass) jobEvents(was, c *batchv1.CronJob) (changes []state.Change) {
	tell := func(reason, format string, of ...any) *state.Change {
		change := state.Put(c.DeepCopy(), "").Event(reason)
		change.Message, change.Source = fmt.Sprintf(format, of...), cronJobSource
		changes = append(changes, change)
		return &changes[len(changes)-1]
	}
	has := func(list []corev1.ObjectReference, uid types.UID) bool {
		return slices.ContainsFunc(list, func(r corev1.ObjectReference) bool { return r.UID == uid })
	}
	for _, ref := range was.Status.Active {
		if has(c.Status.Active, ref.UID) {
			continue
		}
		if job, _ := p.base.ByUID(ref.UID).(*batchv1.Job); job == nil {
			tell("MissingJob", "Active job went missing: %s", ref.Name)
		} else if end := state.JobEnd(job); end != nil {
			tell("SawCompletedJob", "Saw completed job: %s, condition: %s", job.Name, end.Type)
		}
	}
	for _, ref := range c.Status.Active {
		job, _ := p.base.ByUID(ref.UID).(*batchv1.Job)
		if job != nil && job.Annotations[batchv1.CronJobScheduledTimestampAnnotation] == "" &&
			!has(was.Status.Active, ref.UID) {
			tell("UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", job.Name).Warn = true
		}
	}
	return changes
}

// jobsOf updates the CronJob's status from its Jobs, removes old Jobs, and returns the running Jobs
// that the schedule started. A Job that a user started does not block the next Job. A Job that is
// being deleted counts as running.
func (p *pass) jobsOf(c *batchv1.CronJob) (active []*batchv1.Job) {
	var succeeded, failed []*batchv1.Job
	c.Status.Active = nil
	for o := range p.s.Owned(c.UID, state.Jobs) {
		job := o.(*batchv1.Job)
		if !controlledBy(job, c) {
			continue
		}
		switch end := state.JobEnd(job); {
		case end == nil:
			active = append(active, job)
		case end.Type == batchv1.JobFailed:
			failed = append(failed, job)
		default:
			succeeded = append(succeeded, job)
			if at := job.Status.CompletionTime; at != nil &&
				(c.Status.LastSuccessfulTime == nil || at.After(c.Status.LastSuccessfulTime.Time)) {
				c.Status.LastSuccessfulTime = at.DeepCopy()
			}
		}
	}
	slices.SortFunc(active, olderJob)
	for _, job := range active {
		c.Status.Active = append(c.Status.Active, jobRef(job))
	}
	p.trimJobs(c, succeeded, c.Spec.SuccessfulJobsHistoryLimit)
	p.trimJobs(c, failed, c.Spec.FailedJobsHistoryLimit)
	return slices.DeleteFunc(active, func(job *batchv1.Job) bool {
		return job.Annotations[batchv1.CronJobScheduledTimestampAnnotation] == ""
	})
}

func jobRef(job *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: jobKind.GroupVersion().String(), Kind: jobKind.Kind,
		Namespace: job.Namespace, Name: job.Name, UID: job.UID}
}

func olderJob(a, b *batchv1.Job) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// trimJobs removes the oldest Jobs beyond the history limit.
func (p *pass) trimJobs(c *batchv1.CronJob, jobs []*batchv1.Job, most *int32) {
	if most == nil || len(jobs) <= int(*most) {
		return
	}
	slices.SortFunc(jobs, olderJob)
	kept := max(int(*most), 0)
	for _, job := range jobs[:len(jobs)-kept] {
		p.endJob(c, job, fmt.Sprintf("delete job %s of %s: %d that ended like it are kept", state.Display(job), c.Name, kept))
	}
}

// endJob deletes a Job with its pods.
func (p *pass) endJob(c *batchv1.CronJob, job *batchv1.Job, why string) {
	if job.DeletionTimestamp != nil || len(job.Finalizers) > 0 {
		p.removeObject(job, why)
		return
	}
	change := state.Remove(job, why).Event("SuccessfulDelete")
	change.About, change.Message, change.Source = c, "Deleted job "+job.Name, cronJobSource
	p.do(change)
	c.Status.Active = slices.DeleteFunc(c.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == job.UID })
}

// startJob starts the due Job. After several missed starts, for example because the hub was down,
// it starts only the last one. If a quota refuses the Job, startJob returns when to retry.
func (p *pass) startJob(c *batchv1.CronJob, schedule cron.Schedule, active []*batchv1.Job) (retry time.Time) {
	at, many := p.dueAt(c, schedule)
	if at.IsZero() || c.Status.LastScheduleTime != nil && !at.After(c.Status.LastScheduleTime.Time) {
		return retry
	}
	refused := p.lossOf(c, "")
	if refused != nil {
		if retry = refused.Last.Add(jobBackoff(refused.Count)); p.now.Before(retry) {
			return retry
		}
	}
	name := fmt.Sprintf("%s-%d", c.Name, at.Unix()/60)
	if p.s.Get(state.Key{Kind: state.Jobs, Namespace: c.Namespace, Name: name}) != nil {
		stamp := metav1.NewTime(at)
		c.Status.LastScheduleTime = &stamp
		return retry
	}
	switch {
	case len(active) == 0:
	case c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent:
		p.waitEvent(c, refused, at)
		return retry // retried when the running Job ends, unless that is too late
	case c.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, job := range active {
			p.endJob(c, job, fmt.Sprintf("delete job %s of %s: the next one replaces it", state.Display(job), c.Name))
		}
	}
	t := &c.Spec.JobTemplate
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: c.Namespace, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(c, cronJobKind)},
			CreationTimestamp: p.stamp(), Generation: 1,
		},
		Spec: *t.Spec.DeepCopy(),
	}
	if job.Annotations == nil {
		job.Annotations = map[string]string{}
	}
	if zone, err := time.LoadLocation(ptr.Deref(c.Spec.TimeZone, "")); err == nil && c.Spec.TimeZone != nil {
		at = at.In(zone)
	}
	job.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.Format(time.RFC3339)
	if p.Charge != nil {
		if _, err := p.Charge(job, p.s, p.now); err != nil {
			return p.refuseJob(c, job, refused, err)
		}
	}
	if refused != nil {
		p.do(state.Remove(refused, ""))
	}
	change := state.Put(job, fmt.Sprintf("create job %s for %s", state.Display(job), c.Name)).Event("SuccessfulCreate")
	change.About, change.Message, change.Source = c, "Created job "+name, cronJobSource
	if many {
		change = change.Warning("TooManyMissedTimes")
		change.Message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
	}
	p.do(change)
	stamp := metav1.NewTime(at)
	c.Status.LastScheduleTime = &stamp
	return retry
}

// refuseJob records that a quota refuses a Job, emits one event, and returns when to retry.
func (p *pass) refuseJob(c *batchv1.CronJob, job *batchv1.Job, was *state.Backoff, why error) time.Time {
	l := p.nextLoss(c, was)
	l.Count, l.Last = l.Count+1, metav1.NewMicroTime(p.now)
	change := state.Put(l, "")
	if l.Count == 1 {
		change = state.Put(l, fmt.Sprintf("create no job for %s: %v", state.Display(c), why)).Warning(failedCreate)
		change.Message = fmt.Sprintf("Error creating job: jobs.batch %q is forbidden: %v", job.Name, why)
		change.About, change.Source = c, cronJobSource
	}
	p.do(change)
	return p.now.Add(jobBackoff(l.Count))
}

// waitEvent emits one event per start that waits for a running Job.
func (p *pass) waitEvent(c *batchv1.CronJob, was *state.Backoff, at time.Time) {
	if was != nil && was.Waits.Time.Equal(at) {
		return
	}
	l := p.nextLoss(c, was)
	l.Waits = metav1.NewTime(at)
	change := state.Put(l, "").Event("JobAlreadyActive")
	change.Message = "Not starting job because prior execution is running and concurrency policy is Forbid"
	change.About, change.Source = c, cronJobSource
	p.do(change)
}

// nextLoss returns a modifiable copy of the CronJob's stored back-off.
func (p *pass) nextLoss(c *batchv1.CronJob, was *state.Backoff) *state.Backoff {
	if was != nil {
		return was.DeepCopy()
	}
	k := lossKey(c, "")
	return &state.Backoff{ObjectMeta: metav1.ObjectMeta{
		Namespace: k.Namespace, Name: k.Name, CreationTimestamp: p.stamp(),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, cronJobKind)},
	}}
}

// An interval is a schedule such as "@every 1h". It counts from the last start, not from the time
// of the call.
type interval struct {
	from  time.Time
	every time.Duration
}

func (i interval) Next(after time.Time) time.Time {
	return i.from.Add((max(after.Sub(i.from), 0)/i.every + 1) * i.every)
}

// lastStart returns when the newest Job was due. Without a Job it returns when the schedule began.
func lastStart(c *batchv1.CronJob) time.Time {
	if last := c.Status.LastScheduleTime; last != nil {
		return last.Time
	}
	return c.CreationTimestamp.Time
}

// maxMissed is the number of missed starts that causes a warning.
const maxMissed = 100

// dueAt returns the last missed start, zero if there is none. It evaluates the schedule a few dozen
// times at most, however long the hub was down.
func (p *pass) dueAt(c *batchv1.CronJob, schedule cron.Schedule) (at time.Time, many bool) {
	since := lastStart(c)
	if s := c.Spec.StartingDeadlineSeconds; s != nil {
		if first := p.now.Add(-time.Duration(*s) * time.Second); first.After(since) {
			since = first
		}
	}
	due := func(after time.Time) time.Time {
		if t := schedule.Next(after.In(p.now.Location())); !t.After(p.now) {
			return t
		}
		return time.Time{}
	}
	first := due(since)
	if first.IsZero() {
		return first, false
	}
	early, late := first.Add(-time.Second), p.now
	for late.Sub(early) > time.Second {
		if middle := early.Add(late.Sub(early) / 2); due(middle).IsZero() {
			late = middle
		} else {
			early = middle
		}
	}
	at = due(early)
	second := schedule.Next(first)
	many = c.Spec.StartingDeadlineSeconds == nil && second.After(first) && at.Sub(first)/second.Sub(first) >= maxMissed
	return at, many
}
