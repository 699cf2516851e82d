package rollout

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// TestAPauseOfTheHubExtendsDeadlines: a device cannot begin or report while the hub can
// neither receive nor publish.
func TestAPauseOfTheHubExtendsDeadlines(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	long := fleet.DefaultBootDeadline + afterDeadline
	for _, c := range []struct {
		rule  string
		step  fleet.FirmwareNodeState
		undo  bool
		since time.Duration // before now
		heard time.Duration // before now, without a break
		want  fleet.FirmwareNodeState
	}{
		{"in time", fleet.FirmwareTrying, false, long - time.Second, 24 * time.Hour, fleet.FirmwareTrying},
		{"late", fleet.FirmwareTrying, false, long, 24 * time.Hour, fleet.FirmwareOverdue},
		{"the hub was away", fleet.FirmwareTrying, false, 24 * time.Hour, time.Second, fleet.FirmwareTrying},
		{"late even since the hub is back", fleet.FirmwareTrying, false, 24 * time.Hour, long, fleet.FirmwareOverdue},
		{"it did not begin to undo", fleet.FirmwareTrying, true, undoBegins, 24 * time.Hour, fleet.FirmwareOverdue},
		{"the hub was away before it could", fleet.FirmwareTrying, true, undoBegins, time.Second, fleet.FirmwareTrying},
		{"it has received that it may not begin", fleet.FirmwareOverdue, false, cancelDelay, 24 * time.Hour, ""},
		{"it cannot have received that yet", fleet.FirmwareOverdue, false, cancelDelay, time.Second, fleet.FirmwareOverdue},
	} {
		profile, r := cgroup(t)
		r.Spec.Undo, r.Status.Undoing = c.undo, c.undo
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", Labels: map[string]string{fleet.LabelProfile: "pi-4"}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}
		rec.Firmware = &state.FirmwareReport{State: "Staged", Candidate: r.Status.Digest}
		if c.undo {
			rec.Firmware = &state.FirmwareReport{State: "UpToDate", Digest: r.Status.Digest}
		}
		rec.Assigned = &state.FirmwareAssignment{Rollout: "cgroup", Digest: r.Status.Digest, Step: c.step, Since: metav1.NewTime(now.Add(-c.since))}
		s := state.Load(state.Empty("salt", now.Add(-c.heard)), []state.Object{profile, r, n, rec}, 4)
		s, _ = state.Apply(s, Decider{}.Decide(s, Decider{}.Subjects(s), now).Changes)
		if got := s.Record("pi-1").Assigned.Step; got != c.want {
			t.Errorf("%s: %q (%s), want %q", c.rule, got, s.Record("pi-1").Assigned.Failed, c.want)
		}
	}
}

// cgroup returns a profile and a rollout of it that has begun.
func cgroup(t *testing.T) (*fleet.BoardProfile, *fleet.FirmwareRollout) {
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "pi-4"}}
	profile.Spec.Match.Arch = []string{"arm64"}
	profile.Spec.Boot = &fleet.BoardBoot{Backend: fleet.BootConfigTxt, Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory"}}}
	document, _, err := firmwareconfigs.Render(profile)
	if err != nil {
		t.Fatal(err)
	}
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "cgroup"}}
	r.Spec.Profile, r.Spec.Selector = "pi-4", &metav1.LabelSelector{MatchLabels: map[string]string{fleet.LabelProfile: "pi-4"}}
	r.Status.Digest, r.Status.Document = digestOf(document), string(document)
	return profile, r
}

// TestNoTurnBeginsWhilePublishingIsPaused: for example after a restore, a drain would move pods that the
// paused device keeps.
func TestNoTurnBeginsWhilePublishingIsPaused(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		rule   string
		rec    state.Record
		begins bool
	}{
		{"its desired state is published", state.Record{}, true},
		{"the device has a newer desired state", state.Record{Paused: true}, false},
		{"the device has not reported yet", state.Record{StoredUnknown: true}, false},
	} {
		profile, r := cgroup(t)
		r.Spec.Default()
		site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}
		site.Status.State, site.Status.Ready = fleet.SiteNormal, 1
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", Labels: map[string]string{fleet.LabelProfile: "pi-4", corev1.LabelTopologyZone: "oslo"}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		rec := c.rec
		rec.Name, rec.Firmware = "pi-1", &state.FirmwareReport{State: "Staged", Candidate: r.Status.Digest}
		s := state.Load(state.Empty("salt", now.Add(-time.Hour)), []state.Object{profile, r, site, n, &rec}, 4)
		for range 3 {
			s, _ = state.Apply(s, Decider{}.Decide(s, Decider{}.Subjects(s), now).Changes)
		}
		turn := s.Record("pi-1").Assigned
		if begun := turn != nil && turn.Step != ""; begun != c.begins {
			now := s.Get(state.KeyOf(r)).(*fleet.FirmwareRollout)
			t.Errorf("%s: a turn has begun: %t, want %t (%+v)", c.rule, begun, c.begins, now.Status)
		}
	}
}

// TestARolloutStopsWhenANodeFallsSilentAfterItsTurn: a configuration that the device keeps and that
// takes it down later must not take site after site.
func TestARolloutStopsWhenANodeFallsSilentAfterItsTurn(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		rule             string
		ready            corev1.ConditionStatus
		done, goOn, excl bool
		begins           bool
	}{
		{rule: "it answers", ready: corev1.ConditionTrue, done: true, begins: true},
		{rule: "it does not answer", ready: corev1.ConditionUnknown, done: true},
		{rule: "it had no turn of this rollout", ready: corev1.ConditionUnknown, begins: true},
		{rule: "its label excludes it", ready: corev1.ConditionUnknown, done: true, excl: true, begins: true},
		{rule: "failures do not stop the rollout, and too few have kept it", ready: corev1.ConditionUnknown, done: true, goOn: true},
	} {
		profile, r := cgroup(t)
		r.Spec.PauseOnFailure = new(!c.goOn)
		r.Spec.Default()
		r.Status.Batches = []fleet.FirmwareBatch{{Number: 1, Site: "bergen", Nodes: []string{"pi-1"}, Kept: 1, Ended: &metav1.Time{Time: now}}}
		objects := []state.Object{profile, r}
		for i, at := range []string{"bergen", "oslo"} {
			site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: at}}
			site.Status.State = fleet.SiteNormal
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: []string{"pi-1", "pi-2"}[i], Labels: map[string]string{fleet.LabelProfile: "pi-4", corev1.LabelTopologyZone: at}}}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
			rec.Firmware = &state.FirmwareReport{State: "Staged", Candidate: r.Status.Digest}
			rec.Assigned = &state.FirmwareAssignment{Rollout: "cgroup", Digest: r.Status.Digest}
			if i == 0 {
				rec.Firmware, rec.Assigned.Done = &state.FirmwareReport{State: "UpToDate", Digest: r.Status.Digest}, c.done
				n.Status.Conditions[0].Status = c.ready
				if c.excl {
					n.Labels[fleet.LabelExcludeDisruption] = ""
				}
			}
			objects = append(objects, site, n, rec)
		}
		s := state.Load(state.Empty("salt", now.Add(-time.Hour)), objects, 4)
		s, _ = state.Apply(s, Decider{}.Decide(s, Decider{}.Subjects(s), now).Changes)
		st := s.Rollout("cgroup").Status
		if begun := s.Record("pi-2").Assigned.Step != ""; begun != c.begins || c.begins != (st.Phase != fleet.RolloutStopped) {
			t.Errorf("%s: a turn has begun: %t, want %t (%s: %s)", c.rule, begun, c.begins, st.Phase, st.Sentence)
		}
	}
}
