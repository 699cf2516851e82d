package lifecycle_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A site whose last node is deleted and recreated keeps its rate. Without nodes the site is stored
// only as long as that needs.
func TestARecreatedSiteKeepsItsRate(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("other", "bergen", up), node("pi", "oslo", up))
	w.put(node("pi", "oslo", corev1.ConditionFalse))
	if state.NoExecuteOf(w.s.Node("pi")) == nil {
		t.Fatal("the first node of a quiet site is not tainted at once")
	}
	w.wait(time.Second, "other")
	w.apply([]state.Change{state.Remove(w.s.Node("pi"), "")})
	w.put(node("pi", "oslo", corev1.ConditionFalse))
	if state.NoExecuteOf(w.s.Node("pi")) != nil {
		t.Error("the next node is tainted after one second, want ten")
	}
	w.wait(8*time.Second, "other", "pi")
	if len(w.expel()) > 0 {
		t.Error("the next node is tainted too early")
	}
	w.wait(time.Second, "other", "pi")
	if len(w.expel()) != 1 {
		t.Error("the next node is not tainted in time")
	}
	w.apply([]state.Change{state.Remove(w.s.Node("pi"), "")})
	if w.s.Site("oslo") == nil {
		t.Fatal("the site is removed too early")
	}
	w.wait(10*time.Second, "other")
	if w.s.Site("oslo") != nil {
		t.Error("the empty site is not removed")
	}
}

// A site that a user has written stays without nodes. Its time zone is an annotation, and a
// replaced device may be the only one of its site.
func TestAnEmptySiteWithAUsersSettingsStays(t *testing.T) {
	for what, write := range map[string]func(*fleet.Site){
		"an annotation": func(s *fleet.Site) { s.Annotations = map[string]string{fleet.AnnotationTimeZone: "Europe/Oslo"} },
		"a label":       func(s *fleet.Site) { s.Labels = map[string]string{"country": "no"} },
		"a spec":        func(s *fleet.Site) { s.Spec.Description = "the lighthouse" },
		"a finalizer":   func(s *fleet.Site) { s.Finalizers = []string{"example.com/kept"} },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.put(node("other", "bergen", up), node("pi", "oslo", up))
			site := w.s.Site("oslo").DeepCopy()
			write(site)
			w.put(site)
			w.apply([]state.Change{state.Remove(w.s.Node("pi"), "")})
			w.wait(time.Minute, "other")
			w.put(node("pi", "oslo", up))
			have := w.s.Site("oslo").DeepCopy()
			have.ResourceVersion = site.ResourceVersion
			if have.Spec != site.Spec || !equality.Semantic.DeepEqual(have.ObjectMeta, site.ObjectMeta) {
				t.Errorf("the site with a node again is %+v, want %+v", have.ObjectMeta, site.ObjectMeta)
			}
		})
	}
	w := newWorld(t, lifecycle.Defaults)
	early := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo",
		Annotations: map[string]string{fleet.AnnotationTimeZone: "Europe/Oslo"}}}
	w.put(early)
	if w.s.Site("oslo") == nil {
		t.Error("a site that a user wrote before its first node is removed")
	}
}

// One node in three hundred years is a valid rate.
func TestATinyRateIsBounded(t *testing.T) {
	for _, rate := range []float64{1e-9, 1e-10, 1e-300, 5e-324} {
		set := lifecycle.Defaults
		set.Rate = rate
		w := newWorld(t, set)
		w.put(node("up-1", "oslo", up), node("up-2", "oslo", up), node("pi-1", "oslo", up), node("pi-2", "oslo", up))
		w.put(node("pi-1", "oslo", corev1.ConditionFalse), node("pi-2", "oslo", corev1.ConditionFalse))
		w.wait(time.Hour, "up-1", "up-2", "pi-1", "pi-2")
		given := 0
		for _, name := range []string{"pi-1", "pi-2"} {
			if state.NoExecuteOf(w.s.Node(name)) != nil {
				given++
			}
		}
		if given != 1 {
			t.Errorf("at a rate of %g nodes per second %d of two nodes are tainted in an hour, want one", rate, given)
		}
	}
}
