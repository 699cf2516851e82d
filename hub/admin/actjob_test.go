package admin

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
)

// nightly is a fleet with a CronJob and a Job that it started.
func nightly(t testing.TB) *admintest.Memory {
	m := admintest.Work(t)
	spec := batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "sweep", Image: "registry.example/sweep:1"}}}}}
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "default", CreationTimestamp: metav1.Now()}, Spec: batchv1.CronJobSpec{Schedule: "0 3 * * *",
		JobTemplate: batchv1.JobTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"who": "sweep"}, Annotations: map[string]string{"note": "quiet"}}, Spec: spec}}}
	admission.Default(c, admission.Settings{})
	m.Put(t, c)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "nightly-1", Namespace: "default", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, batchv1.SchemeGroupVersion.WithKind("CronJob"))}}, Spec: spec}
	admission.Default(j, admission.Settings{})
	m.Put(t, j)
	return m
}

// byHand counts the Jobs that users started.
func byHand(m *admintest.Memory) (n int) {
	for j := range state.Each[*batchv1.Job](m.Snapshot(), state.Jobs, "default") {
		if j.Annotations[fromCronJob] != "" {
			n++
		}
	}
	return n
}

func TestACronJobRunsNowAsByKubectl(t *testing.T) {
	m := nightly(t)
	srv := acting(t, m)
	item := m.Form(state.CronJobs, "default", "nightly")
	_, body := srv.ask(t, "operator", "GET", "/actions/cronjobs/run?"+url.Values{"item": {item}}.Encode(), nil)
	if !strings.Contains(body, `value="nightly-manual-`) {
		t.Errorf("no name is offered: %s", mainOf(body))
	}
	if code, body := srv.do(t, "operator", "/actions/cronjobs/run", url.Values{"item": {item}, "name": {"Not_A_Name"}}); code != 422 || byHand(m) != 0 {
		t.Errorf("an invalid name: %d %s", code, mainOf(body))
	}
	srv.do(t, "operator", "/actions/cronjobs/run", url.Values{"item": {item}, "name": {"nightly-manual-x"}})
	o := m.Snapshot().Get(state.Key{Kind: state.Jobs, Namespace: "default", Name: "nightly-manual-x"})
	j, ok := o.(*batchv1.Job)
	if !ok {
		t.Fatal("no job was started")
	}
	c := m.Snapshot().Get(state.Key{Kind: state.CronJobs, Namespace: "default", Name: "nightly"})
	if owner := metav1.GetControllerOf(j); owner == nil || owner.UID != c.GetUID() || owner.Kind != "CronJob" || owner.BlockOwnerDeletion != nil {
		t.Errorf("its owner is %v", owner)
	}
	if j.Annotations[fromCronJob] != "manual" || j.Annotations["note"] != "quiet" || j.Labels["who"] != "sweep" || j.Spec.Template.Spec.Containers[0].Image != "registry.example/sweep:1" {
		t.Errorf("the Job is not made from the template: %v %v", j.Annotations, j.Labels)
	}
	if _, body := srv.do(t, "operator", "/actions/cronjobs/run", url.Values{"item": {item}, "name": {"nightly-manual-x"}}); !strings.Contains(body, "already exists") {
		t.Errorf("the same name twice: %s", mainOf(body))
	}
	if code, _ := srv.do(t, "viewer", "/actions/cronjobs/run", url.Values{"item": {item}}); code != 403 || byHand(m) != 1 {
		t.Errorf("a viewer started a job: %d, %d jobs", code, byHand(m))
	}
}

func TestJobsAndCronJobsAreSuspendedResumedAndDeleted(t *testing.T) {
	m := nightly(t)
	srv := acting(t, m)
	for kind, name := range map[state.Kind]string{state.CronJobs: "nightly", state.Jobs: "nightly-1"} {
		item := m.Form(kind, "default", name)
		now := func() state.Object { return m.Snapshot().Get(state.Key{Kind: kind, Namespace: "default", Name: name}) }
		_, body := srv.do(t, "operator", "/actions/"+string(kind)+"/suspend", url.Values{"item": {item}})
		if !isSuspended(now()) || !strings.Contains(body, "is suspended") || !strings.Contains(body, ">Undo<") {
			t.Errorf("%s %s is not suspended: %s", kind, name, mainOf(body))
		}
		_, body = srv.ask(t, "operator", "GET", "/workloads?q=nightly", nil)
		if !strings.Contains(body, "/actions/"+string(kind)+"/resume") {
			t.Errorf("%s: the list does not offer to resume it", kind)
		}
		if _, body = srv.ask(t, "viewer", "GET", "/workloads?q=nightly", nil); strings.Contains(body, "/actions/"+string(kind)) {
			t.Errorf("%s: the list offers actions to a viewer", kind)
		}
		srv.do(t, "operator", "/actions/"+string(kind)+"/resume", url.Values{"item": {item}})
		if isSuspended(now()) {
			t.Errorf("%s %s is not resumed", kind, name)
		}
	}
	_, body := srv.ask(t, "operator", "GET", "/actions/cronjobs/delete?"+url.Values{"item": {m.Form(state.CronJobs, "default", "nightly")}}.Encode(), nil)
	if !strings.Contains(body, "1 job of it, 1 of which has not ended, go with their pods.") {
		t.Errorf("the confirmation does not say what is deleted with it: %s", mainOf(body))
	}
	for kind, name := range map[state.Kind]string{state.Jobs: "nightly-1", state.CronJobs: "nightly"} {
		srv.do(t, "operator", "/actions/"+string(kind)+"/delete", url.Values{"item": {m.Form(kind, "default", name)}})
		if o := m.Snapshot().Get(state.Key{Kind: kind, Namespace: "default", Name: name}); o != nil && o.GetDeletionTimestamp() == nil {
			t.Errorf("%s %s is not deleted", kind, name)
		}
	}
}

// The names that the page makes for Jobs are valid for each CronJob's name.
func TestJobsOfACronJobGetValidNames(t *testing.T) {
	m := nightly(t)
	srv := acting(t, m)
	for i, name := range []string{"nightly.backup", strings.Repeat("a", 49) + ".b", strings.Repeat("a", 49) + "-b", "7"} {
		c := m.Snapshot().Get(state.Key{Kind: state.CronJobs, Namespace: "default", Name: "nightly"}).DeepCopyObject().(*batchv1.CronJob)
		c.Name, c.UID = name, ""
		m.Put(t, c)
		item := m.Form(state.CronJobs, "default", name)
		_, body := srv.ask(t, "operator", "GET", "/actions/cronjobs/run?"+url.Values{"item": {item}}.Encode(), nil)
		_, rest, _ := strings.Cut(body, `name="name" value="`)
		offered, _, _ := strings.Cut(rest, `"`)
		for n, form := range []url.Values{{"item": {item}, "name": {offered}}, {"item": {item}}} {
			if code, body := srv.do(t, "operator", "/actions/cronjobs/run", form); code != 200 || byHand(m) != 2*i+n+1 {
				t.Errorf("%s does not start a Job named %q: %d %s", name, form.Get("name"), code, mainOf(body))
			}
		}
	}
}

// The list of workloads has pages across all kinds.
func TestWorkloadsArePages(t *testing.T) {
	var objects []state.Object
	for i := range 130 {
		objects = append(objects, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-%03d", i), Namespace: "default"}})
	}
	for i := range 60 {
		at := metav1.NewTime(admintest.Now.Add(-time.Duration(i) * time.Hour))
		objects = append(objects,
			&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("everywhere-%03d", i), Namespace: "default"}},
			&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("db-%03d", i), Namespace: "default"}},
			&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bare-%03d", i), Namespace: "default"}},
			&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("nightly-%03d", i), Namespace: "default"}, Spec: batchv1.CronJobSpec{Schedule: "@daily"}},
			&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("once-%03d", i), Namespace: "default", CreationTimestamp: at}},
			&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("then-%03d", i), Namespace: "default", CreationTimestamp: at}})
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	srv := start(t, configOf(admintest.New(objects...)))
	var rows []string
	bodies := map[string]string{}
	next := "/workloads?namespace=default"
	for page := 1; next != ""; page++ {
		_, body := srv.ask(t, "operator", "GET", next, nil)
		bodies[next] = body
		n := 0
		for _, row := range regexp.MustCompile(`<tr data-key="default/([^"]+)">`).FindAllStringSubmatch(body, -1) {
			rows, n = append(rows, row[1]), n+1
		}
		if want := min(frame.PerPage, 490-(page-1)*frame.PerPage); n != want || !strings.Contains(body, "of 490:") {
			t.Fatalf("page %d at %s has %d rows, want %d", page, next, n, want)
		}
		link := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(body)
		if next = ""; link != nil {
			next = html.UnescapeString(link[1])
		}
	}
	once := map[string]bool{}
	for _, r := range rows {
		once[r] = true
	}
	if len(rows) != 490 || len(once) != 490 || rows[0] != "app-000" || rows[370] != "once-000" || rows[489] != "then-059" {
		t.Errorf("%d rows, of which %d are different, from %s to %s", len(rows), len(once), rows[0], rows[len(rows)-1])
	}
	second := bodies["/workloads?namespace=default&page=2"]
	for _, want := range []string{"<h2>Deployments</h2> <small>130</small>", "<h2>Daemon sets</h2> <small>60</small>", `Act on all 130 deployments`, `id="picks"`} {
		if !strings.Contains(second, want) {
			t.Errorf("the second page does not say %q: %.3000s", want, mainOf(second))
		}
	}
	if strings.Contains(second, "Jobs</h2>") {
		t.Error("a kind that is not on the page has a section there")
	}
}

func isSuspended(o state.Object) bool {
	switch o := o.(type) {
	case *batchv1.Job:
		return o.Spec.Suspend != nil && *o.Spec.Suspend
	case *batchv1.CronJob:
		return o.Spec.Suspend != nil && *o.Spec.Suspend
	}
	return false
}
