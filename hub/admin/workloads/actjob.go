// Package workloads shows workloads with their versions, and pods, and why they do not do what they
// should.
package workloads

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

// manually marks a Job that a user started from a CronJob, as `kubectl create job --from` does.
const manually = "cronjob.kubernetes.io/instantiate"

// JobActions are what users can do to Jobs and CronJobs.
func JobActions() []*frame.Action {
	cron := []*frame.Action{
		{Name: "run", Label: "Run now", Done: "runs now",
			Means: "Starts a job of its template at once, even if others run: the concurrency policy does not apply. " +
				"The schedule goes on as before.",
			Fields: runFields, Parse: parseRun, Notes: runNotes, Do: runNow},
		{Name: "suspend", Quick: true, Label: "Suspend", Done: "is suspended",
			Means: "Starts no more jobs until it is resumed. Running jobs continue.", Idle: idleSuspended(true),
			Do: suspend(true)},
		{Name: "resume", Quick: true, Label: "Resume", Done: "is resumed",
			Means: "Starts jobs by its schedule again; the last one that was missed starts at once, unless it is too late " +
				"for it.", Idle: idleSuspended(false), Do: suspend(false)},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true,
			Means: "Deletes the cron job with its jobs and their pods.", Notes: cronNotes, Do: frame.Remove},
	}
	for _, a := range cron {
		a.Kind, a.One, a.Verb, a.Resource = state.CronJobs, "cron job", "patch", "cronjobs"
	}
	cron[0].Verb, cron[0].Resource = "create", "jobs"
	jobs := []*frame.Action{
		{Name: "suspend", Quick: true, Label: "Suspend", Done: "is suspended",
			Means: "Ends its pods, and makes no more until it is resumed.", Idle: idleSuspended(true),
			Do: suspend(true)},
		{Name: "resume", Quick: true, Label: "Resume", Done: "is resumed",
			Means: "Makes its pods again; finished pods count.", Idle: idleSuspended(false),
			Do: suspend(false)},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true, Means: "Deletes the job with its pods.",
			Notes: jobNotes, Do: frame.Remove},
	}
	for _, a := range jobs {
		a.Kind, a.One, a.Verb, a.Resource = state.Jobs, "job", "patch", "jobs"
	}
	for _, all := range [][]*frame.Action{cron, jobs} {
		for _, a := range all {
			a.List, a.Listed = "/workloads", "Workloads"
		}
		all[len(all)-1].Verb = "delete"
	}
	return slices.Concat(cron, jobs)
}

// suspended tells whether a Job or a CronJob is suspended.
func suspended(o state.Object) bool {
	if j, ok := o.(*batchv1.Job); ok {
		return ptr.Deref(j.Spec.Suspend, false)
	}
	return ptr.Deref(o.(*batchv1.CronJob).Spec.Suspend, false)
}

func idleSuspended(is bool) func(state.Object) string {
	return func(o state.Object) string {
		j, _ := o.(*batchv1.Job)
		switch {
		case j != nil && state.JobEnd(j) != nil:
			return "has ended"
		case suspended(o) != is:
			return ""
		case is:
			return "is suspended already"
		}
		return "is not suspended"
	}
}

func suspend(is bool) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		if suspended(o) == is {
			return nil, nil
		}
		return frame.SetSpec(ctx, w, o, frame.JSON{"suspend": is})
	}
}

// manualName returns an unused name for a Job of a CronJob.
func manualName(cron string) string {
	end := "-manual-" + strings.ToLower(rand.Text()[:5])
	return strings.TrimRight(cron[:min(len(cron), validation.DNS1123LabelMaxLength-len(end))], ".-") + end
}

func runFields(_ state.Snapshot, with []state.Object) []frame.Field {
	if len(with) != 1 {
		return nil // with several CronJobs each Job gets a generated name
	}
	return []frame.Field{{Name: "name", Label: "Name of the job", Type: "text", Value: manualName(with[0].GetName()),
		Required: true}}
}

func parseRun(form url.Values) (any, error) {
	name := strings.TrimSpace(form.Get("name"))
	if errs := validation.IsDNS1123Subdomain(name); name != "" && len(errs) > 0 {
		return nil, fmt.Errorf("%q cannot be the name of a job: %s", name, errs[0])
	}
	if len(name) > validation.DNS1123LabelMaxLength {
		return nil, fmt.Errorf("%q cannot be the name of a job: its pods have the name in a label, which can have %d letters",
			name, validation.DNS1123LabelMaxLength)
	}
	if len(form["item"]) > 1 {
		name = "" // several Jobs cannot have one name
	}
	return name, nil
}

func runNotes(_ state.Snapshot, with []state.Object) (notes []string) {
	active := 0
	for _, o := range with {
		active += len(o.(*batchv1.CronJob).Status.Active)
	}
	if active > 0 {
		notes = append(notes, fmt.Sprintf("%s already.", runRuns(active)))
	}
	return notes
}

func runRuns(n int) string {
	if n == 1 {
		return "1 of its jobs runs"
	}
	return fmt.Sprintf("%d of its jobs run", n)
}

// runNow makes a Job from a CronJob's template, as `kubectl create job --from` does: the CronJob is
// its controller, and an annotation marks it as manual.
func runNow(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	c := o.(*batchv1.CronJob)
	name, _ := w.Given.(string)
	if name == "" {
		name = manualName(c.Name)
	}
	annotations := maps.Clone(c.Spec.JobTemplate.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[manually] = "manual"
	job := &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: c.Namespace, Labels: c.Spec.JobTemplate.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob",
				Name: c.Name, UID: c.UID, Controller: ptr.To(true)}},
		},
		Spec: c.Spec.JobTemplate.Spec,
	}
	return nil, w.Send(ctx, frame.APICall{Method: http.MethodPost,
		Path: strings.TrimSuffix(frame.ObjectURL(state.Jobs, c.Namespace, ""), "/"), Media: frame.PlainJSON}, job)
}

func jobNotes(s state.Snapshot, with []state.Object) []string {
	pods := 0
	for _, o := range with {
		for p := range s.Owned(o.GetUID(), state.Pods) {
			if !state.Terminated(p.(*corev1.Pod)) {
				pods++
			}
		}
	}
	if pods == 0 {
		return []string{"None of its pods runs. Their logs are deleted with them."}
	}
	return []string{fmt.Sprintf("%s to leave before they are done.", format.HasHave(pods, "pod"))}
}

func cronNotes(s state.Snapshot, with []state.Object) []string {
	jobs, running := 0, 0
	for _, o := range with {
		for j := range s.Owned(o.GetUID(), state.Jobs) {
			if jobs++; state.JobEnd(j.(*batchv1.Job)) == nil {
				running++
			}
		}
	}
	if jobs == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s of it, %d of which %s not ended, go with their pods.", format.Plural(jobs, "job"),
		running, format.Verb(running, "has", "have"))}
}

// rowMenu returns the actions on an object for its row.
func rowMenu(a *frame.Request, o state.Object) frame.Menu {
	m := frame.MenuOf(a, o)
	m.More, m.First, m.Title = slices.Concat(m.First, m.More), nil, "Do"
	return m
}
