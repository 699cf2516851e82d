package state_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

func TestEveryRowIsComplete(t *testing.T) {
	names := map[string]bool{}
	for _, k := range state.Kinds() {
		r := k.Row()
		if r.Kind != k || r.New == nil {
			t.Fatalf("%s: the row is of %s, or has no New", k, r.Kind)
		}
		o := r.New()
		if r.Group == nil {
			if r.Name != "" || len(r.Verbs)+len(r.Subs) > 0 {
				t.Errorf("%s is internal, but has fields for the API", k)
			}
			continue
		}
		if r.Name == "" || names[r.Name] || len(r.Verbs) == 0 {
			t.Errorf("%s: the name %q is used twice, or the kind has no verbs", k, r.Name)
		}
		names[r.Name] = true
		if state.KindNamed(r.Name) != k {
			t.Errorf("KindNamed(%q) is not %s", r.Name, k)
		}
		if (r.Group.AddToScheme == nil) != (r.List != nil) {
			t.Errorf("%s: exactly one of the group's AddToScheme and the row's List must be set", k)
		}
		hasStatus := slices.ContainsFunc(r.Subs, func(s state.Sub) bool { return s.Name == "status" })
		if hasStatus != (r.Status != nil) {
			t.Errorf("%s: has a status subresource: %v, but a Status function: %v", k, hasStatus, r.Status != nil)
		}
		if r.Status != nil {
			r.Status(o, nil)
			r.Status(o, r.New())
		}
		if r.Spec != nil && r.Spec(o) == nil {
			t.Errorf("%s: Spec returns nil", k)
		}
		if c, ok := o.(*corev1.ReplicationController); ok {
			c.Spec.Template = new(corev1.PodTemplateSpec) // only a ReplicationController may lack a template
		}
		if r.Template != nil && (r.Template(o) == nil || state.PodSpecOf(o) == nil) ||
			r.Pod != nil && r.Pod(o) != state.PodSpecOf(o) {
			t.Errorf("%s: PodSpecOf does not return the pod spec", k)
		}
		for name, field := range r.Fields {
			if field(o) != "" && name != "spec.unschedulable" && name != "spec.hostNetwork" && name != "status.successful" &&
				name != "status.replicas" {
				t.Errorf("%s: %s of an empty object is %q", k, name, field(o))
			}
		}
	}
}

func TestTheAPIServesEveryVerbOfARole(t *testing.T) {
	for _, r := range state.Served() {
		for _, v := range slices.Concat(r.Viewer, r.Operator) {
			if !slices.Contains(r.Verbs, v) && !(r.Kind == state.Namespaces && v == "deletecollection") {
				t.Errorf("%s: a role has the verb %s, which is not served", r.Kind, v)
			}
		}
		for _, s := range r.Subs {
			for _, v := range slices.Concat(s.Viewer, s.Operator) {
				if !slices.Contains(s.Verbs, v) {
					t.Errorf("%s/%s: a role has the verb %s, which is not served", r.Kind, s.Name, v)
				}
			}
		}
	}
}
