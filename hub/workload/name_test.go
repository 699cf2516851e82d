package workload

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// The names of all objects that a workload creates are valid, whatever its own name is. Clients
// could not read or change an object with an invalid name.
func TestCreatedObjectsHaveValidNames(t *testing.T) {
	for name, called := range map[string]string{
		"short":                               "kiosk",
		"dots":                                "kiosk.north.example",
		"the longest name":                    strings.Repeat("k", 253),
		"a dot where the pods' names are cut": strings.Repeat("k", maxBase-2) + "." + strings.Repeat("k", 30),
		"a dot where the ReplicaSets' names are cut": strings.Repeat("k", 180) + strings.Repeat(".k", 36),
	} {
		t.Run(name, func(t *testing.T) {
			d, ds, rs := deployment(2), daemonSet(), replicaSet(called, 1)
			d.Name, ds.Name = called, called
			j := aJob(indexedJob(2, 2))
			j.Name = called
			f := newFleet(t).put(node("pi-1"), node("pi-2"), d, ds, rs, j).settle().quiet()
			made := map[state.Kind]int{}
			for _, k := range []state.Kind{state.Pods, state.ReplicaSets, state.ControllerRevisions} {
				for o := range f.s.All(k, "default") {
					made[k]++
					if errs := apivalidation.ValidateObjectMetaAccessor(o, true, apivalidation.NameIsDNSSubdomain,
						field.NewPath("metadata")); len(errs) > 0 && state.KindOf(o) != state.Pods {
						t.Error(errs.ToAggregate())
					}
					if wrong := apivalidation.NameIsDNSSubdomain(o.GetName(), false); len(wrong) > 0 {
						t.Errorf("the name of %s %q is invalid: %v", k, o.GetName(), wrong)
					}
				}
			}
			if made[state.Pods] < 2+2+1+2 || made[state.ReplicaSets] != 2 || made[state.ControllerRevisions] != 1 {
				t.Errorf("the created objects are %v", made)
			}
			for _, pod := range f.livePods() {
				if h := pod.Spec.Hostname; h != "" && len(validation.IsDNS1123Label(h)) > 0 {
					t.Errorf("%s has the invalid host name %q", pod.Name, h)
				}
				if at := pod.Annotations[batchv1.JobCompletionIndexAnnotation]; at != "" && called == "kiosk" &&
					pod.Spec.Hostname != "kiosk-"+at {
					t.Errorf("%s has the invalid host name %q", pod.Name, pod.Spec.Hostname)
				}
			}
			hash := map[string]bool{}
			for o := range f.s.All(state.ReplicaSets, "default") {
				hash[o.GetLabels()[appsv1.DefaultDeploymentUniqueLabelKey]] = true
			}
			if len(hash) != 2 {
				t.Errorf("the hashes are %v, want two", hash)
			}
		})
	}
}
