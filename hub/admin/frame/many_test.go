package frame

import (
	"net/url"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestWhatIsPickedIsSortedByWhatCanAndMayBeDone(t *testing.T) {
	var all []*Action
	does := func(kind state.Kind, one string, idle func(state.Object) string, names ...string) {
		for _, name := range names {
			verb := "patch"
			if name == "delete" {
				verb = name
			}
			a := &Action{Name: name, Kind: kind, One: one, Verb: verb, Resource: string(kind),
				Single: name == "settings"}
			if name == "resume" || name == "uncordon" {
				a.Idle = idle
			}
			all = append(all, a)
		}
	}
	always := func(why string) func(state.Object) string { return func(state.Object) string { return why } }
	does(state.Deployments, "deployment", always("is not paused"), "restart", "scale", "resume", "delete")
	does(state.DaemonSets, "daemon set", nil, "restart", "delete")
	does(state.StatefulSets, "stateful set", nil, "restart", "scale", "delete")
	does(state.CronJobs, "cron job", always("is not suspended"), "resume", "delete")
	does(state.Sites, "site", nil, "settings")
	does(state.Nodes, "node", func(o state.Object) string {
		if !o.(*corev1.Node).Spec.Unschedulable {
			return "is not cordoned"
		}
		return ""
	}, "uncordon", "delete")
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	shop, watch, db := &appsv1.Deployment{ObjectMeta: named("shop")}, &appsv1.DaemonSet{ObjectMeta: named("watch")},
		&appsv1.StatefulSet{ObjectMeta: named("db")}
	cron, oslo := &batchv1.CronJob{ObjectMeta: named("nightly-report")},
		&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}
	pi1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}
	pi3 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-3"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	anything := func(string, string) bool { return true }
	for _, c := range []struct {
		name   string
		do     string
		picked []state.Object
		may    func(verb, resource string) bool
		take   []string
		left   []string
		kinds  int
	}{
		{"things of three kinds have what all three can have done", "restart", []state.Object{shop, watch, db},
			anything, []string{"shop", "watch", "db"}, nil, 3},
		{"what cannot have it done is left out", "scale", []state.Object{shop, watch, db}, anything,
			[]string{"shop", "db"}, []string{"watch does not apply to a daemon set"}, 2},
		{"what needs it no more is left out", "uncordon", []state.Object{pi1, pi3}, anything, []string{"pi-3"},
			[]string{"pi-1 is not cordoned"}, 1},
		{"a cron job and a deployment are resumed in words of their own", "resume", []state.Object{shop, cron},
			anything, nil, []string{"shop is not paused", "nightly-report is not suspended"}, 2},
		{"what the role may not do is left out, and the rest is not", "delete", []state.Object{shop, watch},
			func(verb, resource string) bool { return resource != "daemonsets" },
			[]string{"shop"}, []string{"watch is not for your role, which may not delete daemonsets"}, 2},
		{"what is for one at a time is for none", "settings", []state.Object{oslo}, anything, nil,
			[]string{"oslo does not apply to a site"}, 0},
		{"a word that is no action is for none", "explode", []state.Object{pi1}, anything, nil,
			[]string{"pi-1 does not apply to a node"}, 0},
	} {
		got := choose(all, c.may, c.do, c.picked)
		var take, left []string
		for _, o := range got.take {
			take = append(take, o.GetName())
		}
		for _, l := range got.left {
			left = append(left, l.Name+" "+l.Why)
		}
		kinds := 0
		if got.act != nil {
			kinds = max(1, len(got.act.each))
		}
		if !reflect.DeepEqual(take, c.take) || !reflect.DeepEqual(left, c.left) || kinds != c.kinds {
			t.Errorf("%s: takes %v, leaves %v, %d kinds", c.name, take, left, kinds)
		}
	}
}

func TestTheNumberIsTyped(t *testing.T) {
	destroys, harmless := &Action{Destroy: true}, &Action{}
	for _, c := range []struct {
		act    *Action
		n      int
		number string
		ok     bool
	}{
		{destroys, 10, "", true}, {destroys, 11, "", false}, {destroys, 11, "11", true}, {destroys, 11, "12", false},
		{destroys, 11, "yes", false},
		{destroys, 4900, "4,900", true}, {destroys, 4900, " 4 900 ", true}, {destroys, 4900, "490", false},
		{destroys, 11, "+11x", false}, {harmless, 4900, "", true},
	} {
		if why := typed(c.act, url.Values{"number": {c.number}}, c.n); (why == "") != c.ok {
			t.Errorf("%d things, destroyed %v, typed %q: %q", c.n, c.act.Destroy, c.number, why)
		}
	}
}

// An object that is named often counts once.
func TestOneThingNamedOftenIsOneThing(t *testing.T) {
	if items, ok := namedIn(url.Values{"items": {strings.Repeat("/bone-1=0a ", 50)}}); !ok || len(items) != 1 {
		t.Errorf("one thing fifty times is %d", len(items))
	}
}
