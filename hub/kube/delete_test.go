package kube

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A second deletion of an object may change the propagation policy, as in kube-apiserver. Without a
// policy, the object's finalizers decide.
func TestASecondDeletionMayChangeThePropagation(t *testing.T) {
	policy := func(name string) string { return `{"propagationPolicy":"` + name + `"}` }
	const foreground, orphan = metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents
	web := state.Key{Kind: state.Deployments, Namespace: "default", Name: "web"}
	job := state.Key{Kind: state.Jobs, Namespace: "default", Name: "once"}
	for _, c := range []struct {
		name string
		of   state.Key
		on   []string // finalizers before the requests
		ask  []string // bodies of the requests in order
		want []string // finalizers after the requests; nil if deleted
	}{
		{"foreground, then background", web, nil, []string{policy("Foreground"), policy("Background")}, nil},
		{"foreground, then orphan", web, nil, []string{policy("Foreground"), policy("Orphan")}, []string{orphan}},
		{"orphan, then orphanDependents=false", web, nil, []string{policy("Orphan"), `{"orphanDependents":false}`}, nil},
		{"foreground, then no policy", web, nil, []string{policy("Foreground"), ""}, []string{foreground}},
		{"with another finalizer, then orphan", web, []string{"example.com/x"}, []string{policy("Background"), policy("Orphan")}, []string{"example.com/x", orphan}},
		{"with another finalizer and foreground, then background", web, []string{"example.com/x"}, []string{policy("Foreground"), policy("Background")}, []string{"example.com/x"}},
		{"its own finalizer orphan", web, []string{orphan}, []string{""}, []string{orphan}},
		{"its own finalizer orphan, then background", web, []string{orphan}, []string{policy("Background")}, nil},
		{"a job, no policy", job, nil, []string{""}, []string{orphan}},
		{"a job, foreground, then no policy", job, nil, []string{policy("Foreground"), ""}, []string{foreground}},
		{"a job, in the background", job, nil, []string{policy("Background")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := seeded()
			f.put(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once", Namespace: "default", UID: "job-once"}})
			o := f.Snapshot().Get(c.of).DeepCopyObject().(state.Object)
			o.SetFinalizers(c.on)
			f.put(o)
			s, path := newServer(f), apps+"/deployments/web"
			if c.of == job {
				path = "/apis/batch/v1/namespaces/default/jobs/once"
			}
			for _, body := range c.ask {
				send(t, s, "DELETE", path, "", body, 200, nil)
			}
			left := f.Snapshot().Get(c.of)
			switch {
			case left == nil && c.want != nil:
				t.Errorf("the object was deleted, want it kept by %q", c.want)
			case left != nil && (c.want == nil || !slices.Equal(left.GetFinalizers(), c.want) ||
				left.GetDeletionTimestamp() == nil):
				t.Errorf("finalizers %q, deleted at %v, want %q", left.GetFinalizers(), left.GetDeletionTimestamp(), c.want)
			}
		})
	}
}

// DeleteOptions may have the group of any served kind. As in Kubernetes, each group's clients send
// their own.
func TestDeleteOptionsOfAnyGroup(t *testing.T) {
	for version, code := range map[string]int{"v1": 200, "apps/v1": 200, "policy/v1": 200, "flotilla.dev/v1alpha1": 200,
		"meta.k8s.io/v1": 200, "example.org/v1": 400} {
		f := seeded()
		body := `{"kind":"DeleteOptions","apiVersion":"` + version + `","propagationPolicy":"Orphan"}`
		send(t, newServer(f), "DELETE", apps+"/deployments/web", "application/json", body, code, nil)
		left := f.Snapshot().Get(state.Key{Kind: state.Deployments, Namespace: "default", Name: "web"})
		if marked := left.GetDeletionTimestamp() != nil &&
			slices.Contains(left.GetFinalizers(), metav1.FinalizerOrphanDependents); marked != (code == 200) {
			t.Errorf("%s: finalizers %q, deleted at %v", version, left.GetFinalizers(), left.GetDeletionTimestamp())
		}
	}
}

// Two clients that delete the same collection at the same time both succeed.
func TestTwoClientsEmptyACollection(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const path = "/api/v1/namespaces/default/configmaps"
	send(t, s, "POST", path, "application/json", `{"metadata":{"name":"one"}}`, 201, nil)
	f.before = func() { send(t, s, "DELETE", path, "", "", 200, nil) }
	var list corev1.ConfigMapList
	send(t, s, "DELETE", path, "", "", 200, &list)
	if len(list.Items) > 0 {
		t.Errorf("the answer must not list another client's deletions: %v", list.Items)
	}
}

// Only a deletion with a shorter grace period changes a pod's grace period.
func TestADeletionOnlyShortensTheGracePeriod(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const pod = ns + "/pods/kiosk-1"
	grace := func() int64 {
		t.Helper()
		p := f.Snapshot().Pod("default", "kiosk-1")
		if p == nil || p.DeletionGracePeriodSeconds == nil {
			t.Fatalf("the pod must exist with a deletionTimestamp: %v", p)
		}
		return *p.DeletionGracePeriodSeconds
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		want               int64
	}{
		{"DELETE", pod, `{"gracePeriodSeconds":600}`, 200, 600},
		{"DELETE", pod, "", 200, 600},
		{"DELETE", ns + "/pods?fieldSelector=metadata.name=kiosk-1", "", 200, 600},
		{"POST", pod + "/eviction", `{"metadata":{"name":"kiosk-1"}}`, 201, 600},
		{"DELETE", pod, `{"gracePeriodSeconds":900}`, 200, 600},
		{"DELETE", pod, `{"gracePeriodSeconds":10}`, 200, 10},
	} {
		send(t, s, c.method, c.path, "application/json", c.body, c.code, nil)
		if got := grace(); got != c.want {
			t.Errorf("%s %s %s: %d s, want %d", c.method, c.path, c.body, got, c.want)
		}
	}
}
