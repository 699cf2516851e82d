package incident_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// The timeline of a dark site has the facts for a post-mortem: when the site became silent, the
// consequences, the users' actions and the cost.
func TestTheTimelineOfADarkSite(t *testing.T) {
	w := newWorld(t)
	w.nodes("bergen", 2)
	w.nodes("oslo", 2)
	w.put(deployment("kiosk", 2, 2), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0", owned("kiosk-1")),
		pod("kiosk-b", "oslo-1", owned("kiosk-1")))
	w.ready("oslo-0", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	w.ready("oslo-1", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	name := w.open()[0].Name
	get := func() *fleet.Incident { return w.s.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident) }
	event := func(about, text string, at time.Time) *corev1.Event {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: about + "." + text,
			CreationTimestamp: metav1.NewTime(at)}, Message: text, InvolvedObject: corev1.ObjectReference{Kind: "Site",
			Name: about}}
		e.LastTimestamp = e.CreationTimestamp
		return e
	}
	again := event("oslo", "again", noon.Add(-time.Hour))
	again.LastTimestamp = metav1.NewTime(noon.Add(3 * time.Minute))
	w.put(event("oslo", "disrupted", noon.Add(time.Second)), event("oslo", "before", noon.Add(-time.Second)),
		event("oslo-2", "other", w.now), again)
	w.wait(time.Minute)
	i := get().DeepCopy()
	i.Acknowledged, i.Told = &fleet.IncidentAcknowledged{By: "kari", Time: metav1.NewTime(w.now)},
		[]fleet.IncidentTold{{Whom: "mail", Opened: new(metav1.NewTime(w.now.Add(-time.Second)))}}
	i.Note = "the line is down"
	unplacedSince := pod("kiosk-c", "", all(owned("kiosk-1"), unplaced,
		func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "oslo"} }))
	w.put(i, unplacedSince)
	w.wait(8 * time.Minute)
	w.ready("oslo-0", corev1.ConditionTrue)
	w.wait(time.Minute)
	w.ready("oslo-1", corev1.ConditionTrue)
	w.wait(2 * time.Second)
	if i = get(); i.Closed == nil || i.Note == "" || i.Acknowledged == nil {
		t.Fatalf("the closed incident is %+v", i)
	}
	var got []string
	for _, m := range incident.Timeline(w.s, i) {
		got = append(got, fmt.Sprintf("%s %s", m.At.Sub(noon).Round(time.Second), m.Text))
	}
	want := []string{
		"0s its first node stopped answering", "0s the hub opened the incident", "1s disrupted", "2s its last node stopped answering",
		"11s its first node was given up: its pods leave when their tolerations end", "1m3s mail was notified of its opening", "1m4s kari acknowledged it", "1m4s followed: Deployment kiosk cannot be placed", "3m0s again",
		"5m11s the first pod was told to leave", "9m4s its first node was back", "10m4s closed: lasted 10m, 2 nodes, 2 pods at most, 2 pods told to leave, 19 node-minutes, 11 pod-minutes",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAnIncidentHasNoCostWhileItsCauseIsAbsent(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 1)
	w.put(deployment("kiosk", 1, 1), replicaSet("kiosk-1", "kiosk"), pod("kiosk-a", "oslo-0",
		all(owned("kiosk-1"), waiting("CrashLoopBackOff", "x"))))
	w.wait(3 * time.Minute)
	w.put(pod("kiosk-a", "oslo-0", owned("kiosk-1")))
	w.wait(11 * time.Minute)
	i := incidents(w)[0]
	if i.Closed == nil || i.PodSeconds != 180 || i.NodeSeconds != 0 {
		t.Errorf("pod-seconds %d, node-seconds %d, closed %v", i.PodSeconds, i.NodeSeconds, i.Closed)
	}
}

// While the cause of an incident is not seen, its workload counts as short only while it lacks
// ready pods, and only that time is a cost.
func TestAQuietIncidentSaysWhetherItsWorkloadIsShort(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 1)
	crashing := pod("kiosk-a", "oslo-0", all(owned("kiosk-1"), waiting("CrashLoopBackOff", "x")))
	w.put(deployment("kiosk", 1, 0), replicaSet("kiosk-1", "kiosk"), crashing)
	w.wait(3 * time.Minute)
	w.shows("the pod crashes", "CrashLoop kiosk 0 1 1")
	w.put(pod("kiosk-a", "oslo-0", owned("kiosk-1")))
	w.wait(time.Minute)
	w.shows("the pod runs, but is not ready yet", "CrashLoop kiosk 0 1 1")
	w.put(deployment("kiosk", 1, 1))
	w.wait(time.Minute)
	w.shows("the pod is ready", "CrashLoop kiosk 0 1 0")
	w.wait(20 * time.Minute)
	if i := incidents(w)[0]; i.Closed == nil || i.ShortSeconds < 239 || i.ShortSeconds > 241 {
		t.Errorf("short for %d s, want about 240; closed %v", i.ShortSeconds, i.Closed)
	}
}

func incidents(w *world) (all []*fleet.Incident) {
	for i := range state.Each[*fleet.Incident](w.s, state.Incidents, "") {
		all = append(all, i)
	}
	return all
}

// Many incidents of one cause that follow are one line, apart from those that were open before.
func TestATimelineFoldsWhatFollows(t *testing.T) {
	w := newWorld(t)
	dark := on("oslo", "SiteDark", 1)
	dark.Opened = dark.Since
	changes := []state.Change{state.Put(dark, "")}
	add := func(n int, cause fleet.IncidentCause, after time.Duration) {
		for n := range n {
			i := partOf(on(fmt.Sprintf("x-%d-%s", n, after), cause, 1), dark)
			i.Opened = metav1.NewTime(noon.Add(after))
			changes = append(changes, state.Put(i, ""))
		}
	}
	add(200, "Flapping", time.Minute)
	add(5, "Flapping", -time.Minute)
	add(1, "DiskPressure", 2*time.Minute)
	w.s, _ = state.Apply(w.s, changes)
	var got []string
	for _, m := range incident.Timeline(w.s, dark) {
		got = append(got, fmt.Sprintf("%s %s: %s%s", m.At.Sub(noon), m.Text, m.Cause, m.Of))
	}
	want := []string{"-1m0s open before: The link comes and goes on 5 nodes of 5 sites: Flapping",
		"0s its first node stopped answering: ", "0s the hub opened the incident: ",
		"1m0s followed: The link comes and goes on 200 nodes of 200 sites: Flapping",
		"2m0s followed: DiskPressure x-0-2m0s: site-x-0-2m0s-diskpressure"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A timeline has the first 50 events of its site.
func TestATimelineIsBounded(t *testing.T) {
	w := newWorld(t)
	dark := on("oslo", "SiteDark", 1)
	changes := []state.Change{state.Put(dark, "")}
	for n := range 200 {
		changes = append(changes, state.Put(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: fmt.Sprintf("oslo.%d", n), CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(n) * time.Second))},
			Message: fmt.Sprint(n), InvolvedObject: corev1.ObjectReference{Kind: "Site", Name: "oslo"}}, ""))
	}
	w.s, _ = state.Apply(w.s, changes)
	if all := incident.Timeline(w.s, dark); len(all) != 51 || all[50].Text != "49" {
		t.Errorf("%d moments, the last is %v", len(all), all[len(all)-1])
	}
}
