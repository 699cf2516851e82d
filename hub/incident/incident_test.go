package incident_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestADarkSiteIsOneIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("bergen", 3)
	w.nodes("oslo", 2)
	w.put(deployment("kiosk", 3, 3), replicaSet("kiosk-1", "kiosk"), deployment("wall", 1, 1),
		replicaSet("wall-1", "wall"))
	for _, n := range []string{"bergen-0", "bergen-1", "bergen-2"} {
		w.put(pod("kiosk-"+n, n, owned("kiosk-1")))
	}
	w.put(pod("wall-x", "oslo-0", owned("wall-1")))
	w.shows("without a failure there is no incident")

	w.ready("bergen-0", corev1.ConditionUnknown)
	w.shows("the first silent node is an incident", "NodeDark bergen 1 1 0")
	name, since := w.open()[0].Name, w.open()[0].Since
	w.wait(2 * time.Second)
	w.ready("bergen-1", corev1.ConditionUnknown)
	w.ready("bergen-2", corev1.ConditionUnknown)
	w.put(deployment("kiosk", 3, 0))
	w.wait(2 * time.Second)
	w.shows("with its last node the site is dark", "SiteDark bergen 3 3 1")
	i := w.open()[0]
	if i.Name != name || !i.Since.Equal(&since) {
		t.Errorf("the incident is %s since %s, want it still to be %s since %s", i.Name, i.Since, name, since)
	}
	if i.NextMove == nil || i.NextMove.Sub(w.now) < 4*time.Minute || i.NextMove.Sub(w.now) > 6*time.Minute {
		t.Errorf("the first pods leave at %v, want about 5 minutes after %v", i.NextMove, w.now)
	}
	if len(i.Actions) != 2 || i.Actions[0] != fleet.ActionHold {
		t.Errorf("the actions are %v, want two, the first %s", i.Actions, fleet.ActionHold)
	}
	for _, c := range []struct {
		policy fleet.DisruptionPolicy
		first  fleet.IncidentAction
	}{{fleet.Hold, fleet.ActionRelease}, {fleet.Evict, fleet.ActionHold}} {
		site := w.s.Site("bergen").DeepCopy()
		site.Spec.DisruptionPolicy = c.policy
		w.put(site)
		w.wait(2 * time.Second)
		if i = w.open()[0]; len(i.Actions) != 2 || i.Actions[0] != c.first {
			t.Errorf("with the policy %s the actions are %v, want two, the first %s", c.policy, i.Actions, c.first)
		}
	}

	w.wait(10 * time.Minute)
	if i = w.open()[0]; i.Evicted != 3 || i.Count.Pods != 0 {
		t.Errorf("%d pods are evicted and %d remain, want 3 and 0", i.Evicted, i.Count.Pods)
	}
	for _, n := range []string{"bergen-0", "bergen-1", "bergen-2"} {
		w.ready(n, corev1.ConditionTrue)
		w.wait(2 * time.Second)
	}
	w.shows("the incident ends when the nodes are ready")
	for _, n := range []string{"bergen-0", "bergen-1", "bergen-2"} {
		w.remove(w.s.Pod("default", "kiosk-"+n))
	}
	i = w.s.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident)
	if i.Cause != diagnose.SiteDark || i.Message != "bergen is dark: no node of the site answers" {
		t.Errorf("the closed incident is %s: %s", i.Cause, i.Message)
	}
	if i.Closed == nil || i.Evicted != 3 || i.Most != (fleet.IncidentCount{Nodes: 3, Pods: 3, Workloads: 1}) ||
		i.ShortSeconds < 600 {
		t.Errorf("the closed incident has the cost %+v", i)
	}
	w.wait(23 * time.Hour)
	if w.s.Len(state.Incidents) != 1 {
		t.Error("the closed incident is removed before a day")
	}
	w.wait(time.Hour)
	if w.s.Len(state.Incidents) != 0 {
		t.Error("the closed incident is stored longer than a day")
	}
}

// A device's message may end with advice, which the card gives already.
func TestAMessageEndsBeforeADevicesAdvice(t *testing.T) {
	for _, c := range []struct {
		condition corev1.NodeConditionType
		status    corev1.ConditionStatus
		says      string
		want      string
	}{
		{fleet.ConditionPowerOK, corev1.ConditionFalse, "the voltage is too low: use a shorter cable",
			"Too little power or cooling on oslo-0: the voltage is too low"},
		{corev1.NodeDiskPressure, corev1.ConditionTrue, "nodefs.available is below 10%", "Too little disk space on oslo-0"},
		{fleet.ConditionStorageHealthy, corev1.ConditionFalse, "mmcblk0: read-only", "A disk fails on oslo-0: mmcblk0: read-only"},
	} {
		w := newWorld(t)
		w.nodes("oslo", 1)
		n := w.s.Node("oslo-0").DeepCopy()
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c.condition, Status: c.status,
			Message: c.says, LastTransitionTime: metav1.NewTime(w.now)})
		w.put(n)
		w.wait(2 * time.Second)
		if open := w.open(); len(open) != 1 || open[0].Message != c.want || open[0].Detail != c.says {
			t.Errorf("%s: %+v; want %q", c.condition, open, c.want)
		}
	}
}

func TestNodesThatFailAtDifferentTimesAreDifferentIncidents(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 5)
	w.ready("oslo-0", corev1.ConditionUnknown)
	w.wait(2 * time.Minute)
	w.ready("oslo-1", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	w.shows("two nodes that fail together are one incident", "NodeDark oslo 2 0 0")
	w.wait(time.Hour)
	w.ready("oslo-2", corev1.ConditionFalse)
	w.wait(2 * time.Second)
	if w.shows("a node that fails later is another incident", "NodeDark oslo 2 0 0",
		"NodeNotReady oslo 1 0 0"); len(w.open()) != 2 {
		t.FailNow()
	}
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(2 * time.Second)
	w.shows("each incident continues without ready nodes", "NodeDark oslo 1 0 0", "NodeNotReady oslo 1 0 0")
}

// A site stays dark when the node that failed last is deleted, or when a node that failed long ago
// joins.
func TestASiteIsDarkWhicheverOfItsNodesStays(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.nodes("bergen", 2)
	w.ready("bergen-0", corev1.ConditionUnknown)
	w.wait(time.Hour)
	w.ready("oslo-0", corev1.ConditionUnknown)
	w.wait(time.Hour)
	w.ready("oslo-1", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	w.shows("the last node makes the site dark", "NodeDark bergen 1 0 0", "NodeDark oslo 1 0 0", "SiteDark oslo 1 0 0")
	moved := w.s.Node("bergen-0").DeepCopy()
	moved.Labels[corev1.LabelTopologyZone] = "oslo"
	w.put(moved)
	w.wait(2 * time.Second)
	w.shows("also after a node that failed earlier joins", "NodeDark oslo 1 0 0", "NodeDark oslo 1 0 0",
		"SiteDark oslo 1 0 0")
	w.remove(w.s.Node("bergen-0"))
	w.remove(w.s.Node("oslo-1"))
	w.wait(2 * time.Second)
	w.shows("after the last node's deletion the node before makes the site dark", "SiteDark oslo 1 0 0")
}

func TestAllSitesAtOnceAreOneIncidentOfTheFleet(t *testing.T) {
	w := newWorld(t)
	w.nodes("bergen", 2)
	w.nodes("oslo", 2)
	for _, n := range []string{"bergen-0", "bergen-1", "oslo-0", "oslo-1"} {
		w.ready(n, corev1.ConditionUnknown)
	}
	w.wait(3 * time.Second)
	w.shows("every site is part of the fleet's incident", "SiteDark bergen 2 0 0 part", "FleetDark  4 0 0",
		"SiteDark oslo 2 0 0 part")
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(3 * time.Second)
	w.shows("most of the fleet is still dark", "SiteDark bergen 2 0 0 part", "FleetMostlyDark  3 0 0",
		"NodeDark oslo 1 0 0 part")
	w.ready("oslo-1", corev1.ConditionTrue)
	w.wait(3 * time.Second)
	w.shows("the site that is still dark has its own incident", "SiteDark bergen 2 0 0")
	if i := w.open()[0]; i.NotifyAfter.Sub(w.now) < 50*time.Second {
		t.Errorf("now is %s, the incident is notified at %s, want later: its nodes may return in a moment", w.now,
			i.NotifyAfter)
	}
}

// When most of the fleet becomes silent at once, the fleet has one incident before the sites'
// incidents are notified.
func TestMostOfTheFleetAtOnceIsOneIncident(t *testing.T) {
	w := newWorld(t)
	for _, site := range []string{"bergen", "oslo", "tromso"} {
		w.nodes(site, 4)
	}
	w.ready("tromso-3", corev1.ConditionUnknown)
	w.wait(time.Hour)
	silent := func(names ...string) {
		t.Helper()
		for _, name := range names {
			w.ready(name, corev1.ConditionUnknown)
		}
		w.wait(2 * time.Second)
	}
	silent("bergen-0", "bergen-1", "bergen-2", "oslo-0", "oslo-1")
	w.shows("five of twelve nodes are not an outage, and an earlier failure does not count", "NodeDark bergen 3 0 0",
		"NodeDark oslo 2 0 0", "NodeDark tromso 1 0 0")
	silent("oslo-2")
	w.shows("half of the nodes are not an outage", "NodeDark bergen 3 0 0", "NodeDark oslo 3 0 0", "NodeDark tromso 1 0 0")
	silent("bergen-3")
	w.shows("more than half of the nodes on two of three sites are an outage", "SiteDark bergen 4 0 0 part",
		"FleetMostlyDark  7 0 0", "NodeDark oslo 3 0 0 part", "NodeDark tromso 1 0 0")
	var all *fleet.Incident
	for _, i := range w.open() {
		if i.Cause == diagnose.FleetMostlyDark {
			all = i
		}
		if i.Site != "tromso" && w.now.After(i.NotifyAfter.Time) {
			t.Errorf("%s is notified before it becomes part of the outage", i.Name)
		}
	}
	if !strings.HasSuffix(all.Message, "at once: 7 of 12 nodes within 5 s") || len(all.Examples) != 2 {
		t.Errorf("the message is %q with the examples %q, want 7 of 12 nodes and two examples", all.Message, all.Examples)
	}
	card := incident.Cards(slices.Values(w.open()))[0]
	if card.Key != all.Name || len(card.Follows) != 2 || !card.Provisional(w.now) ||
		card.Provisional(w.now.Add(time.Minute)) {
		t.Errorf("the first card is %s with %d consequences", card, len(card.Follows))
	}
	silent("oslo-3", "tromso-0", "tromso-1", "tromso-2")
	w.shows("with the last node the whole fleet is dark", "SiteDark bergen 4 0 0 part", "FleetDark  12 0 0",
		"SiteDark oslo 4 0 0 part", "SiteDark tromso 3 0 0 part", "NodeDark tromso 1 0 0")
	if now := w.s.Get(state.KeyOf(all)).(*fleet.Incident); now.Cause != diagnose.FleetDark ||
		!now.Since.Equal(&all.Since) || now.Held == "" {
		t.Errorf("the fleet's incident is %+v", now)
	}
}

// A site with most of the fleet's nodes still has an incident of the site.
func TestOneLargeSiteIsNotTheFleet(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 9)
	w.nodes("bergen", 1)
	w.nodes("tromso", 1)
	for n := range 9 {
		w.ready(fmt.Sprint("oslo-", n), corev1.ConditionUnknown)
	}
	w.wait(2 * time.Second)
	w.shows("nine of eleven nodes are on one site", "SiteDark oslo 9 0 0")
}

// If a node's link flapped before its site became silent, that belongs to the site's incident.
func TestAFlappingLinkIsPartOfItsSitesOutage(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 3)
	w.nodes("bergen", 1)
	for range 3 {
		w.ready("oslo-0", corev1.ConditionUnknown)
		w.wait(20 * time.Second)
		w.ready("oslo-0", corev1.ConditionTrue)
		w.wait(20 * time.Second)
	}
	w.shows("the link flaps", "Flapping oslo 1 0 0")
	for _, n := range []string{"oslo-0", "oslo-1", "oslo-2"} {
		w.ready(n, corev1.ConditionUnknown)
	}
	w.wait(3 * time.Second)
	w.shows("the flapping node is silent with its site", "SiteDark oslo 2 0 0", "Flapping oslo 1 0 0 part")
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(3 * time.Second)
	w.shows("the flapping node is ready again", "NodeDark oslo 2 0 0", "Flapping oslo 1 0 0")
}

func TestCausesOnNodes(t *testing.T) {
	for _, c := range []struct {
		rule       string
		conditions []corev1.NodeConditionType
		status     corev1.ConditionStatus
		want       string
	}{
		{"memory pressure is an incident", []corev1.NodeConditionType{corev1.NodeMemoryPressure}, "True", "MemoryPressure oslo 1 0 0"},
		{"a full disk with disk pressure is disk pressure", []corev1.NodeConditionType{corev1.NodeDiskPressure, fleet.ConditionOutOfDisk}, "True", "DiskPressure oslo 1 0 0"},
		{"a full disk alone is an incident", []corev1.NodeConditionType{fleet.ConditionOutOfDisk}, "True", "OutOfDisk oslo 1 0 0"},
		{"too little power is an incident", []corev1.NodeConditionType{fleet.ConditionPowerOK}, "False", "PowerTooLow oslo 1 0 0"},
		{"a copy of a device is an incident", []corev1.NodeConditionType{fleet.ConditionIdentityConflict}, "True", "IdentityConflict oslo 1 0 0"},
		{"a permanent lack of a board is not an incident", []corev1.NodeConditionType{fleet.ConditionMemoryLimits}, "False", ""},
		{"an unknown condition is not an incident", []corev1.NodeConditionType{corev1.NodeDiskPressure}, "Unknown", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(t)
			w.nodes("oslo", 3)
			for _, cond := range c.conditions {
				w.condition("oslo-1", cond, c.status)
			}
			w.wait(2 * time.Second)
			var want []string
			if c.want != "" {
				want = append(want, c.want)
			}
			w.shows(c.rule, want...)
			w.ready("oslo-1", corev1.ConditionUnknown)
			w.wait(2 * time.Second)
			w.shows("the condition of a dark node is not known", "NodeDark oslo 1 0 0")
		})
	}
}

func TestAFlappingLinkIsOneIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 3)
	for range 3 {
		w.ready("oslo-1", corev1.ConditionUnknown)
		w.wait(20 * time.Second)
		w.ready("oslo-1", corev1.ConditionTrue)
		w.wait(20 * time.Second)
	}
	w.shows("flapping while the node is ready", "Flapping oslo 1 0 0")
	w.ready("oslo-1", corev1.ConditionUnknown)
	w.wait(20 * time.Second)
	w.shows("flapping while the node is silent", "Flapping oslo 1 0 0")
}

// The pods of a large workload are counted at most once a second.
func TestALargeWorkloadIsCountedOnceASecond(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	large := deployment("kiosk", 1200, 1198)
	large.Status.Replicas = 1200
	w.put(large, replicaSet("kiosk-1", "kiosk"))
	w.wait(2 * time.Second)
	w.shows("without a failure there is no incident")
	w.now = w.now.Truncate(time.Second).Add(100 * time.Millisecond)
	crashing := all(owned("kiosk-1"), waiting("CrashLoopBackOff", "back-off 10s"))
	w.put(pod("kiosk-a", "oslo-0", crashing))
	w.wait(500 * time.Millisecond)
	w.put(pod("kiosk-b", "oslo-1", crashing))
	w.shows("not yet")
	w.wait(time.Second)
	w.shows("both pods are counted", "CrashLoop kiosk 0 2 1")
	for _, p := range []string{"kiosk-a", "kiosk-b"} {
		w.put(pod(p, "oslo-0", owned("kiosk-1")))
	}
	w.wait(time.Hour)
	w.shows("they run")
}

func TestACrashLoopIsOneIncidentForItsWorkload(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	crashing := all(owned("kiosk-1"), waiting("CrashLoopBackOff", "back-off 10s"))
	w.put(deployment("kiosk", 2, 0), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0", crashing),
		pod("kiosk-b", "oslo-1", crashing))
	w.wait(2 * time.Second)
	w.shows("the Deployment has its pods ready", "CrashLoop kiosk 0 2 1")
	i := w.open()[0]
	if !strings.Contains(i.Message, "exit code 2") {
		t.Errorf("the message lacks the exit code: %s", i.Message)
	}
	before := w.written
	for range 20 {
		for _, p := range []string{"kiosk-a", "kiosk-b"} {
			w.put(pod(p, "oslo-0", all(owned("kiosk-1"), func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })))
		}
		w.wait(5 * time.Second)
		for _, p := range []string{"kiosk-a", "kiosk-b"} {
			w.put(pod(p, "oslo-0", crashing))
		}
		w.wait(time.Minute)
	}
	w.shows("the incident continues between crashes", "CrashLoop kiosk 0 2 1")
	if again := w.open()[0]; again.Name != i.Name || !again.Since.Equal(&i.Since) {
		t.Errorf("a new incident began at %s, want the one of %s to continue", again.Since, i.Since)
	}
	if n := w.written - before; n > 100 {
		t.Errorf("20 crashes of two pods cause %d writes", n)
	}
	w.put(deployment("kiosk", 2, 2))
	for _, p := range []string{"kiosk-a", "kiosk-b"} {
		w.put(pod(p, "oslo-0", owned("kiosk-1")))
	}
	w.wait(9 * time.Minute)
	if len(w.open()) != 1 {
		t.Error("the incident ends before the containers have run for ten minutes")
	}
	w.wait(2 * time.Minute)
	w.shows("the incident ends after the containers have run for ten minutes")
	w.put(pod("kiosk-a", "oslo-0", crashing))
	w.wait(2 * time.Second)
	if again := w.open(); len(again) != 1 || again[0].Name == i.Name {
		t.Errorf("a later crash must be a new incident: %v", again)
	}
	w.remove(w.s.Get(state.Key{Kind: state.Deployments, Namespace: "default", Name: "kiosk"}))
	w.remove(w.s.Pod("default", "kiosk-a"))
	w.remove(w.s.Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "kiosk-1"}))
	w.wait(2 * time.Second)
	w.shows("a deleted workload has no incident")
}

// Incidents of the pods that a deleted workload leaves continue as the pods' own incidents.
func TestOrphanedPodsHaveTheirOwnIncidents(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.put(deployment("kiosk", 1, 0), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0",
		all(owned("kiosk-1"), waiting("CrashLoopBackOff", "back-off 10s"))))
	w.wait(2 * time.Second)
	w.shows("the pod crashes", "CrashLoop kiosk 0 1 1")
	set := w.s.Get(state.Key{Kind: state.ReplicaSets, Namespace: "default",
		Name: "kiosk-1"}).(*appsv1.ReplicaSet).DeepCopy()
	set.OwnerReferences = nil
	w.put(set)
	w.remove(w.s.Get(state.Key{Kind: state.Deployments, Namespace: "default", Name: "kiosk"}))
	w.wait(2 * time.Second)
	w.shows("only the ReplicaSet remains", "CrashLoop kiosk-1 0 1 0")
	left := w.s.Pod("default", "kiosk-a").DeepCopy()
	left.OwnerReferences = nil
	w.put(left)
	w.remove(set)
	w.wait(2 * time.Second)
	w.shows("only the pod remains", "CrashLoop kiosk-a 0 1 0")
	w.put(set)
	left = left.DeepCopy()
	owned("kiosk-1")(left)
	w.put(left)
	w.wait(11 * time.Minute)
	w.shows("a ReplicaSet adopts the pod", "CrashLoop kiosk-1 0 1 0")
}

// When a node moves to another site, the incidents of its pods move too.
func TestAPodsIncidentIsAtItsNodesSite(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.nodes("bergen", 1)
	w.put(pod("a", "oslo-0", waiting("CrashLoopBackOff", "")),
		pod("b", "oslo-0", waiting("ErrImagePull", "manifest unknown")))
	w.wait(2 * time.Second)
	moved := w.s.Node("oslo-0").DeepCopy()
	moved.Labels[corev1.LabelTopologyZone] = "bergen"
	w.put(moved)
	w.wait(2 * time.Second)
	w.shows("a crash and an image", "CrashLoop a 0 1 0", "ImageNotPulled shop/kiosk:1 0 1 0")
	for _, i := range w.open() {
		if i.Site != "bergen" {
			t.Errorf("%s is at %s", i.Name, i.Site)
		}
	}
}

// A pod of a deleted node is removed unless a finalizer blocks that. Then it has an incident
// without a site.
func TestAPodMayHaveAnIncidentAfterItsNodeIsDeleted(t *testing.T) {
	held := func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }
	leaves := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	w := newWorld(t)
	w.nodes("oslo", 3)
	w.put(pod("a", "oslo-0", all(held, leaves)), pod("c", "oslo-1", failed))
	w.ready("oslo-0", corev1.ConditionUnknown)
	w.put(pod("b", "oslo-0", waiting("CrashLoopBackOff", "")),
		pod("d", "oslo-0", waiting("ErrImagePull", "manifest unknown")))
	w.wait(3 * time.Minute)
	w.shows("the node is dark", "PodFailed c 0 1 0", "NodeDark oslo 1 2 0")
	w.remove(w.s.Node("oslo-0"))
	w.remove(w.s.Node("oslo-1"))
	w.wait(2 * time.Second)
	w.shows("the node is deleted, its pods will be removed", "PodFailed c 0 1 0")
	a := w.s.Pod("default", "a").DeepCopy()
	failed(a)
	w.put(a)
	w.wait(2 * time.Second)
	w.shows("one pod is not removed", "DoesNotStop a 0 1 0", "PodFailed c 0 1 0")
	for _, i := range w.open() {
		if i.Site != "" {
			t.Errorf("%s is still at %s, the site of the deleted node", i.Name, i.Site)
		}
	}
	w.put(node("oslo-0", "oslo", func(n *corev1.Node) {
		state.NodeCondition(n,
			corev1.NodeReady).Status = corev1.ConditionFalse
	}))
	w.wait(12 * time.Minute)
	for _, i := range w.open() {
		if i.Cause == diagnose.DoesNotStop {
			t.Errorf("%s is open, although the node is back and not ready", i.Name)
		}
	}
}

// If a Deployment releases a ReplicaSet, the incidents of the ReplicaSet's pods are no longer the
// Deployment's.
func TestAReleasedReplicaSetHasItsOwnIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.put(deployment("kiosk", 1, 0), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0",
		all(owned("kiosk-1"), waiting("CreateContainerError", "no such device"))))
	w.wait(2 * time.Second)
	w.shows("a pod of the Deployment cannot start", "CannotStart kiosk 0 1 1")
	set := w.s.Get(state.Key{Kind: state.ReplicaSets, Namespace: "default",
		Name: "kiosk-1"}).(*appsv1.ReplicaSet).DeepCopy()
	set.OwnerReferences = nil
	w.put(set)
	w.wait(2 * time.Second)
	w.shows("the released ReplicaSet has the incident", "CannotStart kiosk-1 0 1 0")
}

// The countdown is for the first pod that is evicted, wherever its node is in the queue. Pods of
// earlier nodes may tolerate everything.
func TestADarkSiteShowsWhenItsFirstPodLeaves(t *testing.T) {
	daemon := func(p *corev1.Pod) {
		for i := range p.Spec.Tolerations {
			p.Spec.Tolerations[i].TolerationSeconds = nil
		}
	}
	const nodes = 5
	for movable := range nodes + 1 { // in the last case no pod is evicted
		w := newWorld(t)
		w.nodes("bergen", nodes)
		w.nodes("oslo", 1)
		for i := range nodes {
			change := daemon
			if i == movable {
				change = nil
			}
			w.put(pod(fmt.Sprintf("p-%d", i), fmt.Sprintf("bergen-%d", i), change))
		}
		for i := range nodes {
			w.ready(fmt.Sprintf("bergen-%d", i), corev1.ConditionUnknown)
		}
		w.wait(2 * time.Second)
		next := w.open()[0].NextMove
		if movable == nodes {
			if next != nil {
				t.Errorf("no pod must leave, but NextMove is %s", next)
			}
			continue
		}
		if next == nil {
			t.Errorf("NextMove is missing, want the pod of node %d", movable)
			continue
		}
		announced := next.Time
		w.wait(announced.Add(-2 * time.Second).Sub(w.now))
		if early := w.open()[0]; early.Evicted != 0 {
			t.Errorf("the pod of node %d has left before %s", movable, announced)
		}
		w.wait(5 * time.Second)
		if i := w.open()[0]; i.Evicted != 1 {
			t.Errorf("the pod of node %d has not left at %s", movable, announced)
		}
	}
}

// The message about an image is short. The engine's text is the detail. It stays while the kubelet
// waits to retry.
func TestTheMessageOfAnImageIsShort(t *testing.T) {
	for _, c := range []struct{ reason, message, want string }{
		{"ErrImagePull", "pull image shop/kiosk:1: not found: manifest for shop/kiosk:1 not found: manifest unknown: manifest unknown", "is not in the registry"},
		{"ErrImagePull", "pull image shop/kiosk:1: dial tcp 192.0.2.2:443: connect: connection refused", "cannot be pulled: its registry does not answer"},
		{"ErrImagePull", "pull image shop/kiosk:1: unauthorized: authentication required", "may not be pulled: its registry requires credentials"},
		{"ErrImagePull", "pull image shop/kiosk:1: pull access denied", "may not be pulled: its registry denies it"},
		{"ErrImagePull", "pull image shop/denied:1: connection refused", "cannot be pulled: its registry does not answer"},
		{"ErrImagePull", "the moon is full", "cannot be pulled"},
		{"ErrImageNeverPull", "", "is not on the device, and its pull policy is Never"},
		{"InvalidImageName", "invalid reference format", "has a name that is invalid"},
	} {
		w := newWorld(t)
		w.nodes("oslo", 1)
		w.put(pod("a", "oslo-0", waiting(c.reason, c.message)))
		w.wait(2 * time.Second)
		w.put(pod("a", "oslo-0", waiting("ImagePullBackOff", "Back-off pulling image")))
		w.wait(2 * time.Second)
		if i := w.open()[0]; i.Message != "Image shop/kiosk:1 "+c.want || !strings.Contains(i.Detail, c.message) {
			t.Errorf("%s: message %q with detail %q, want %q", c.message, i.Message, i.Detail, c.want)
		}
	}
}

func TestCausesOnPods(t *testing.T) {
	unplaced := func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/2 nodes are available: 2 Insufficient memory."}}}
	}
	gated := func(p *corev1.Pod) {
		unplaced(p)
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/paid"}}
	}
	failed := func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }
	for _, c := range []struct {
		rule  string
		pods  []*corev1.Pod
		first []string // incidents at once
		later []string // incidents five minutes later
	}{
		{"an image is one incident for all of its pods", []*corev1.Pod{pod("a", "oslo-0", all(owned("kiosk-1"), waiting("ErrImagePull", "manifest unknown"))), pod("b", "oslo-1", waiting("ImagePullBackOff", ""))},
			[]string{"ImageNotPulled shop/kiosk:1 0 2 1"}, []string{"ImageNotPulled shop/kiosk:1 0 2 1"}},
		{"unplaced pods are one incident of their workload", []*corev1.Pod{pod("a", "", all(owned("kiosk-1"), unplaced)), pod("b", "", all(owned("kiosk-1"), unplaced))},
			[]string{"CannotBePlaced kiosk 0 2 1"}, []string{"CannotBePlaced kiosk 0 2 1"}},
		{"a failed pod without an owner is an incident", []*corev1.Pod{pod("a", "oslo-0", failed)}, []string{"PodFailed a 0 1 0"}, []string{"PodFailed a 0 1 0"}},
		{"a failed pod that was replaced is not an incident", []*corev1.Pod{pod("a", "oslo-0", all(owned("kiosk-1"), failed))}, nil, nil},
		{"gated pods are a note", []*corev1.Pod{pod("a", "", all(owned("kiosk-1"), gated)), pod("b", "", gated)}, []string{"PodGated b 0 1 0", "PodGated kiosk 0 1 1"}, []string{"PodGated b 0 1 0", "PodGated kiosk 0 1 1"}},
		{"a container that failed and is not restarted is an incident", []*corev1.Pod{pod("a", "oslo-0", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}}}}
		})}, []string{"ContainerExited a 0 1 0"}, []string{"ContainerExited a 0 1 0"}},
		{"a pod that another scheduler does not place is an incident after a while", []*corev1.Pod{pod("a", "", func(p *corev1.Pod) {
			p.Spec.SchedulerName, p.CreationTimestamp = "mine", metav1.NewTime(noon)
			p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		})}, nil, []string{"CannotBePlaced a 0 1 0"}},
		{"a pod that does not become ready is an incident after a while", []*corev1.Pod{pod("a", "oslo-0", all(owned("kiosk-1"), notReady, func(p *corev1.Pod) {
			state.PodCondition(p, corev1.PodReady).LastTransitionTime = metav1.NewTime(noon)
		}))}, nil, []string{"PodNotReady kiosk 0 1 1"}},
		{"a pod that does not stop is an incident", []*corev1.Pod{pod("a", "oslo-0", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon.Add(30 * time.Second)} })}, nil, []string{"DoesNotStop a 0 1 0"}},
		{"a workload has its worst cause", []*corev1.Pod{pod("a", "oslo-0", all(owned("kiosk-1"), notReady)), pod("b", "oslo-0", all(owned("kiosk-1"), waiting("CrashLoopBackOff", "")))},
			[]string{"CrashLoop kiosk 0 2 1"}, []string{"CrashLoop kiosk 0 2 1"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(t)
			w.nodes("oslo", 2)
			w.put(deployment("kiosk", 3, 1), replicaSet("kiosk-1", "kiosk"))
			for _, p := range c.pods {
				w.put(p)
			}
			w.wait(2 * time.Second)
			w.shows("at once", c.first...)
			w.wait(5 * time.Minute)
			w.shows("later", c.later...)
		})
	}
}

func TestAConsequenceOfADarkNodeIsPartOfItsIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.put(deployment("kiosk", 1, 0), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0",
		all(owned("kiosk-1"), waiting("CrashLoopBackOff", ""))))
	w.wait(2 * time.Second)
	w.shows("the pod crashes", "CrashLoop kiosk 0 1 1")
	w.ready("oslo-0", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	w.put(pod("kiosk-b", "", all(owned("kiosk-1"), unplaced)))
	w.wait(11 * time.Minute)
	w.shows("the node is dark, and the other pod finds no node", "CannotBePlaced kiosk 0 1 1 part", "NodeDark oslo 1 0 1")
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(2 * time.Second)
	for _, i := range w.open() {
		if i.PartOf != "" {
			t.Errorf("%s is part of the closed %s", i.Name, i.PartOf)
		}
	}
}

// If a pod of a workload found no node before the incident of the workload's node began, its
// incident becomes part of that one, although the workload does not change.
func TestAnEarlierConsequenceBecomesPartOfTheIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.put(deployment("kiosk", 2, 0), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0",
		all(owned("kiosk-1"), notReady)))
	stopped := with(w.s.Node("oslo-0"), corev1.NodeReady, corev1.ConditionFalse, w.now)
	state.NodeCondition(stopped, corev1.NodeReady).Reason = "NodeShutdown"
	w.put(stopped)
	w.wait(2 * time.Second)
	w.put(pod("kiosk-b", "", all(owned("kiosk-1"), unplaced)))
	w.wait(2 * time.Second)
	w.shows("the node restarts", "CannotBePlaced kiosk 0 1 1")
	w.wait(2 * time.Minute)
	w.shows("the node does not return", "CannotBePlaced kiosk 0 1 1 part", "NodeDark oslo 1 1 1")
}

// Pods that only nodes of one dark site can run are part of that site's incident. Pods that another
// site can run, or that name an unknown site, are not.
func TestAPodPinnedToADarkSiteIsPartOfItsIncident(t *testing.T) {
	affinity := func(site string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{site}}}}}}}}
		}
	}
	pinned := func(site string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: site} }
	}
	const alone, part = "CannotBePlaced sweep 0 1 0", "CannotBePlaced sweep 0 1 0 part"
	for _, c := range []struct {
		rule string
		of   func(*corev1.Pod)
		want string
	}{
		{"by a selector", pinned("oslo"), part},
		{"by an affinity", affinity("oslo"), part},
		{"to a site with ready nodes", pinned("bergen"), alone},
		{"to no site", nil, alone},
		{"to a site that has no node", pinned("moss"), alone},
		{"to a site that has never reported", pinned("voss"), alone},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(t)
			w.nodes("oslo", 2)
			w.nodes("bergen", 2)
			w.put(node("voss-0", "voss", func(n *corev1.Node) {
				n.Status.Conditions[0].Status, n.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusNeverUpdated"
			}))
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sweep-1", UID: "job-1",
				OwnerReferences: []metav1.OwnerReference{{Kind: "CronJob", Name: "sweep", UID: "cron", Controller: new(true)}}}}
			w.put(&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sweep", UID: "cron"}}, job)
			run := pod("sweep-1-a", "", func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "sweep-1", UID: "job-1", Controller: new(true)}}
				if unplaced(p); c.of != nil {
					c.of(p)
				}
			})
			shows := func(when string, incidents ...string) {
				t.Helper()
				w.shows(when, append(incidents, "NodeNeverReported voss 1 0 0")...)
			}
			for _, before := range []bool{false, true} { // the pod does not change when the site becomes dark
				if before {
					w.put(run)
					w.wait(2 * time.Second)
					shows("no site is dark", alone)
				}
				for i, name := range []string{"oslo-0", "oslo-1"} {
					w.ready(name, corev1.ConditionUnknown)
					if w.wait(2 * time.Second); i == 0 && before {
						shows("a node of the site is still ready", "NodeDark oslo 1 0 0", alone)
					}
				}
				w.put(run)
				w.wait(2 * time.Second)
				shows("the site is dark", "SiteDark oslo 2 0 0", c.want)
				w.ready("oslo-1", corev1.ConditionTrue)
				w.wait(2 * time.Second)
				shows("a node is ready again", "NodeDark oslo 1 0 0", alone)
				w.ready("oslo-0", corev1.ConditionTrue)
				w.wait(2 * time.Second)
				shows("all nodes are ready again", alone)
				w.remove(run)
				w.wait(3 * time.Hour) // until the link no longer counts as flapping
			}
		})
	}
}

// The labels of the nodes decide which incident a pod waits for. When they change, so does the
// incident.
func TestTheIncidentOfAnUnplacedPodFollowsNodeLabels(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.nodes("bergen", 1)
	tier := func(node, value string) *corev1.Node {
		n := w.s.Node(node).DeepCopy()
		n.Labels["tier"] = value
		return n
	}
	w.put(tier("oslo-0", "front"), tier("bergen-0", "front"))
	w.put(pod("a", "", all(unplaced, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"tier": "front"} })))
	w.ready("oslo-0", corev1.ConditionUnknown)
	const alone, part, dark = "CannotBePlaced a 0 1 0", "CannotBePlaced a 0 1 0 part", "NodeDark oslo 1 0 0"
	for _, c := range []struct {
		what   string
		change func()
		want   string
	}{
		{"a ready node matches, but is full", func() {}, alone},
		{"the ready node has another label", func() { w.put(tier("bergen-0", "back")) }, part},
		{"the ready node matches again", func() { w.put(tier("bergen-0", "front")) }, alone},
		{"the ready node is deleted", func() { w.remove(w.s.Node("bergen-0")) }, part},
		{"another comes", func() { w.put(node("bergen-1", "bergen", func(n *corev1.Node) { n.Labels["tier"] = "front" })) }, alone},
	} {
		c.change()
		w.wait(2 * time.Second)
		w.shows(c.what, c.want, dark)
	}
}

// A pod whose volume is on a device waits only for that device.
func TestAPodThatNeedsAVolumeIsPartOfItsDevicesIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 2)
	w.nodes("bergen", 1)
	volume := func(name, node string) {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			UID: types.UID(name)}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name}}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("v-" + name)},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name,
				UID: claim.UID},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
						Values: []string{node}}}}}}}}}
		w.put(claim, v)
	}
	uses := func(claims ...string) func(*corev1.Pod) {
		return all(unplaced, func(p *corev1.Pod) {
			for _, name := range claims {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name,
					VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
			}
		})
	}
	volume("dark", "oslo-0")
	volume("there", "bergen-0")
	w.put(pod("a", "", uses("dark")), pod("b", "", uses("there")), pod("c", "", uses("dark", "there")))
	w.wait(2 * time.Second)
	w.shows("all devices are ready", "CannotBePlaced a 0 1 0", "CannotBePlaced b 0 1 0", "CannotBePlaced c 0 1 0")
	w.ready("oslo-0", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	w.shows("one device is dark", "CannotBePlaced a 0 1 0 part", "CannotBePlaced b 0 1 0", "CannotBePlaced c 0 1 0",
		"NodeDark oslo 1 0 0")
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(2 * time.Second)
	w.shows("the device is back", "CannotBePlaced a 0 1 0", "CannotBePlaced b 0 1 0", "CannotBePlaced c 0 1 0")
}

// A device that stops its agent for an update reports that and is back in seconds. This is not an
// incident, and its pods' incidents are not part of one.
func TestARestartOfAnAgentIsNotAnIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 3)
	w.put(pod("a", "oslo-0", waiting("ErrImagePull", "manifest unknown")))
	w.wait(2 * time.Second)
	stop := func() {
		n := with(w.s.Node("oslo-0"), corev1.NodeReady, corev1.ConditionFalse, w.now)
		state.NodeCondition(n, corev1.NodeReady).Reason = "NodeShutdown"
		w.put(n)
	}
	stop()
	w.wait(30 * time.Second)
	w.shows("while the device may return", "ImageNotPulled shop/kiosk:1 0 1 0")
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(10 * time.Minute)
	w.shows("after the device has returned", "ImageNotPulled shop/kiosk:1 0 1 0")
	if n := w.s.Len(state.Incidents); n != 1 {
		t.Errorf("the incident was replaced: there are %d", n)
	}
	stop()
	since := w.now
	w.wait(61 * time.Second)
	w.shows("the device does not return", "NodeDark oslo 1 1 0")
	if i := w.open(); len(i) == 1 && !i[0].Since.Time.Equal(since) {
		t.Errorf("the incident began at %s, want %s, when the agent stopped", i[0].Since, since)
	}
}

func TestAQuietFleetCostsNothing(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 3)
	n := w.s.Node("oslo-1").DeepCopy()
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(noon)
	if got := decider.Touches(state.Applied{Key: state.KeyOf(n), Old: w.s.Node("oslo-1"), New: n}); got != nil {
		t.Errorf("a heartbeat touches %v", got)
	}
	was, is := pod("a", "oslo-1", nil), pod("a", "oslo-1", func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" })
	if got := decider.Touches(state.Applied{Key: state.KeyOf(was), Old: was, New: is}); got != nil {
		t.Errorf("a healthy pod touches %v", got)
	}
}

func TestClosedIncidentsAreBounded(t *testing.T) {
	w := newWorld(t)
	for i := range incident.MostClosed + 20 {
		closed := metav1.NewTime(noon.Add(time.Duration(i) * time.Millisecond))
		w.put(&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "x-" + closed.Format("150405.000")},
			State: fleet.IncidentClosed, Closed: &closed, About: fleet.IncidentObject{Kind: "Site", Name: "x"}})
	}
	w.nodes("oslo", 3)
	w.ready("oslo-1", corev1.ConditionUnknown)
	if got := w.s.Len(state.Incidents); got > incident.MostClosed+1 {
		t.Errorf("%d closed incidents are stored", got)
	}
}

// Thousands of incidents that end at once are stored until their end is notified, up to a limit,
// because a target may be unreachable for days.
func TestIncidentsAreStoredUntilTheirEndIsNotified(t *testing.T) {
	w := newWorld(t)
	name := func(i int) string { return fmt.Sprintf("x-%05d", i) }
	closed := metav1.NewTime(noon)
	put := func(from, to int, told ...fleet.IncidentTold) {
		var changes []state.Change
		for i := from; i < to; i++ {
			changes = append(changes, state.Put(&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: name(i)},
				State: fleet.IncidentClosed, Closed: &closed, About: fleet.IncidentObject{Kind: "Site", Name: "x"}, Told: told},
				""))
		}
		w.apply(changes)
	}
	waits := []fleet.IncidentTold{{Whom: "webhook", Opened: &closed, Closed: &closed}, {Whom: "mail", Opened: &closed}}
	knows := []fleet.IncidentTold{{Whom: "webhook", Opened: &closed, Closed: &closed}, {Whom: "mail", Opened: &closed,
		Closed: &closed}}
	n := 2 * incident.MostClosed
	put(0, n, waits...)
	put(n, n+20)
	if got := w.s.Len(state.Incidents); got != n {
		t.Errorf("of %d incidents to notify and 20 others %d are stored", n, got)
	}
	put(0, n, knows...)
	if got := w.s.Len(state.Incidents); got != incident.MostClosed {
		t.Errorf("after all are notified %d are stored", got)
	}
	put(0, incident.MostUntold+20, waits...)
	if got := w.s.Len(state.Incidents); got != incident.MostUntold {
		t.Errorf("of %d incidents to notify %d are stored", incident.MostUntold+20, got)
	}
	w.wait(incident.Kept)
	if got := w.s.Len(state.Incidents); got != 0 {
		t.Errorf("a day later %d are stored", got)
	}
}
