package workloads

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

const (
	revisionOf   = "deployment.kubernetes.io/revision"
	templateHash = "pod-template-hash"
)

// A version is one of a workload's pod templates: a Deployment's ReplicaSet, or a DaemonSet's or
// StatefulSet's ControllerRevision.
type version struct {
	Number      int
	Name        string
	Created     time.Time
	Pods, Ready int32
	Template    corev1.PodTemplateSpec
}

// versionsOf returns a workload's versions, newest first.
func versionsOf(s state.Snapshot, o state.Object) (list []version) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		for owned := range s.Owned(o.UID, state.ReplicaSets) {
			rs := owned.(*appsv1.ReplicaSet)
			if n, err := strconv.Atoi(rs.Annotations[revisionOf]); err == nil {
				v := version{n, rs.Name, rs.CreationTimestamp.Time, rs.Status.Replicas, rs.Status.ReadyReplicas,
					*rs.Spec.Template.DeepCopy()}
				delete(v.Template.Labels, templateHash)
				list = append(list, v)
			}
		}
	case *appsv1.DaemonSet, *appsv1.StatefulSet:
		all, ready := map[string]int32{}, map[string]int32{}
		for _, p := range podsOf(s, o) {
			hash := p.Labels[appsv1.ControllerRevisionHashLabelKey]
			all[hash]++
			if c := state.PodCondition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
				ready[hash]++
			}
		}
		for owned := range s.Owned(o.GetUID(), state.ControllerRevisions) {
			r := owned.(*appsv1.ControllerRevision)
			var patch struct {
				Spec struct {
					Template corev1.PodTemplateSpec `json:"template"`
				} `json:"spec"`
			}
			if json.Unmarshal(r.Data.Raw, &patch) == nil {
				hash := r.Labels[appsv1.ControllerRevisionHashLabelKey]
				if _, stateful := o.(*appsv1.StatefulSet); stateful {
					hash = r.Name // its pods have this value as a label
				}
				list = append(list, version{int(r.Revision), r.Name, r.CreationTimestamp.Time, all[hash], ready[hash],
					patch.Spec.Template})
			}
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Number > list[j].Number })
	return list
}

func revisionFields(s state.Snapshot, with []state.Object) []frame.Field {
	f := frame.Field{Name: "revision", Label: "Version", Type: "select",
		Options: []frame.Option{{Value: "0", Text: "The version before", Chosen: true}}}
	if len(with) == 1 {
		for i, v := range versionsOf(s, with[0]) {
			if i > 0 {
				f.Options = append(f.Options,
					frame.Option{Value: strconv.Itoa(v.Number),
						Text: fmt.Sprintf("%d: %s", v.Number, images(&v.Template.Spec)), Chosen: false})
			}
		}
	}
	return []frame.Field{f, frame.SeenField(with)}
}

// A goBack has the number of the version to return to; 0 is the version before the one that the user
// saw.
type goBack struct {
	to int
	frame.Seen
}

func parseRevision(form url.Values) (any, error) {
	n, err := strconv.Atoi(form.Get("revision"))
	if err != nil || n < 0 {
		return nil, fmt.Errorf("%q is not a version; use its number, or 0 for the version before", form.Get("revision"))
	}
	return goBack{n, frame.ParseSeen(form)}, nil
}

// rollBack restores an earlier template, as `kubectl rollout undo` does.
func rollBack(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	given := w.Given.(goBack)
	want := given.to
	if d, ok := o.(*appsv1.Deployment); ok && d.Spec.Paused {
		return nil, fmt.Errorf("it is paused: resume it first")
	}
	if err := given.Changed(o); want == 0 && err != nil {
		return nil, err // otherwise 0 might mean the version that another user has just left
	}
	versions := versionsOf(w.Fleet.Snapshot(), o)
	at := 1
	if want > 0 {
		at = slices.IndexFunc(versions, func(v version) bool { return v.Number == want })
	}
	switch {
	case want > 0 && at < 0:
		return nil, fmt.Errorf("it has no version %d any more", want)
	case at >= len(versions):
		return nil, fmt.Errorf("it has no earlier version")
	}
	set := func(ctx context.Context, w *frame.Worker, template any) (now frame.JSON, err error) {
		path := frame.ObjectURL(state.KindOf(o), o.GetNamespace(), o.GetName())
		a, err := w.Answer(ctx, frame.APICall{Method: http.MethodPatch, Path: path,
			Media: "application/json-patch+json"}, []frame.JSON{
			{"op": "test", "path": "/metadata/uid", "value": o.GetUID()},
			{"op": "replace", "path": "/spec/template", "value": template}})
		if err != nil {
			return nil, err
		}
		err = json.Unmarshal(a.Body, &now)
		return now, err
	}
	template := frame.JSON{"template": nil}
	before, err := frame.SpecOf(o, template)
	if err != nil {
		return nil, err
	}
	now, err := set(ctx, w, versions[at].Template)
	if err != nil {
		return nil, err
	}
	after := frame.SpecFields(now, template)
	return func(ctx context.Context, w *frame.Worker) error {
		left, err := w.AsLeft(o, before, after)
		if left {
			_, err = set(ctx, w, before["template"])
		}
		return err
	}, nil
}
