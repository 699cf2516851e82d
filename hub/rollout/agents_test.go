package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// An agentFleet is a fleet whose devices do what a test says.
type agentFleet struct {
	t   *testing.T
	s   state.Snapshot
	now time.Time
}

// newAgentFleet has nodes pi-01 and so on, with agent 1.0.0, on sites of five nodes.
func newAgentFleet(t *testing.T, count int, change func(*fleet.AgentRollout)) *agentFleet {
	f := &agentFleet{t: t, now: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)}
	r := &fleet.AgentRollout{ObjectMeta: metav1.ObjectMeta{Name: "agents"}}
	r.Spec.Version, r.Spec.Selector = "2.0.0", &metav1.LabelSelector{MatchLabels: map[string]string{"os": "linux"}}
	if change != nil {
		change(r)
	}
	r.Spec.Default()
	objects := []state.Object{r, &state.Advertisement{ObjectMeta: metav1.ObjectMeta{Name: state.HubName},
		Agents: []fleet.AgentBuild{{Version: "2.0.0", Arch: "arm64", Size: 1, SHA256: strings.Repeat("a", 64)}}}}
	for i := range count {
		at := fmt.Sprintf("site-%d", i/5)
		if i%5 == 0 {
			site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: at}}
			site.Status.State = fleet.SiteNormal
			objects = append(objects, site)
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pi-%02d", i+1), Labels: map[string]string{"os": "linux", corev1.LabelTopologyZone: at}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		objects = append(objects, n, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, AgentVersion: "1.0.0",
			Upgrade: &state.FirmwareReport{Digest: "1.0.0", Candidate: "2.0.0", State: "Staged", Backend: "arm64"}})
	}
	f.s = state.Load(state.Empty("salt", f.now.Add(-time.Hour)), objects, 4)
	f.decide()
	return f
}

func (f *agentFleet) decide() {
	for range 5 {
		plan := Decider{}.Decide(f.s, Decider{}.Subjects(f.s), f.now)
		if len(plan.Changes) == 0 {
			return
		}
		f.s, _ = state.Apply(f.s, plan.Changes)
	}
	f.t.Error("the decider does not settle")
}

// after lets time pass.
func (f *agentFleet) after(d time.Duration) { f.now = f.now.Add(d); f.decide() }

// says makes a device report.
func (f *agentFleet) says(node string, report state.FirmwareReport) {
	rec := f.s.Record(node).DeepCopy()
	rec.AgentVersion, rec.Upgrade = report.Digest, &report
	report.Backend = "arm64"
	f.s, _ = state.Apply(f.s, []state.Change{state.Put(rec, "")})
	f.decide()
}

// ready sets a node's condition Ready.
func (f *agentFleet) ready(node string, is corev1.ConditionStatus) {
	n := f.s.Node(node).DeepCopy()
	n.Status.Conditions[0].Status = is
	f.s, _ = state.Apply(f.s, []state.Change{state.Put(n, "")})
	f.decide()
}

// change changes the rollout.
func (f *agentFleet) change(do func(*fleet.AgentRolloutSpec)) {
	r := f.rollout().DeepCopy()
	do(&r.Spec)
	f.s, _ = state.Apply(f.s, []state.Change{state.Put(r, "")})
	f.decide()
}

func (f *agentFleet) rollout() *fleet.AgentRollout {
	return f.s.Get(state.Key{Kind: state.AgentRollouts, Name: "agents"}).(*fleet.AgentRollout)
}

// turns are the nodes that may try now.
func (f *agentFleet) turns() (nodes []string) {
	for n := range f.s.Nodes() {
		if u := f.s.Record(n.Name).Upgrading; u != nil && u.Step != "" {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes
}

var (
	tries = state.FirmwareReport{Digest: "2.0.0", Candidate: "2.0.0", State: "Verifying"}
	keeps = state.FirmwareReport{Digest: "2.0.0", State: "UpToDate"}
	fails = state.FirmwareReport{Digest: "1.0.0", Candidate: "2.0.0", State: "RolledBack", Bad: []string{"2.0.0"}, Message: "it ended twice"}
	stays = state.FirmwareReport{Digest: "1.0.0", Candidate: "2.0.0", State: "Staged"}
)

// The function does simulates the device in its turn.
func TestTurnsOfAgents(t *testing.T) {
	for _, c := range []struct {
		rule   string
		change func(*fleet.AgentRollout)
		does   func(*agentFleet)
		turns  []string
		phase  fleet.RolloutPhase
		words  string // of the sentence
	}{
		{"one node goes first, without a drain", nil, func(f *agentFleet) {
			if n := f.s.Node("pi-01"); n.Spec.Unschedulable || state.HasDrainAnnotation(n) {
				f.t.Error("the node is drained")
			}
		}, []string{"pi-01"}, fleet.RolloutProgressing, "pi-01: Trying"},
		{"the canary goes first", func(r *fleet.AgentRollout) { r.Spec.Canary = "pi-07" }, func(*agentFleet) {}, []string{"pi-07"}, fleet.RolloutProgressing, "pi-07"},
		{"a node that runs it on trial keeps its turn", nil, func(f *agentFleet) { f.says("pi-01", tries) }, []string{"pi-01"}, fleet.RolloutProgressing, ""},
		{"the next one begins when it is kept", nil, func(f *agentFleet) { f.says("pi-01", keeps) }, []string{"pi-02"}, fleet.RolloutProgressing, ""},
		{"as many as may at a time", func(r *fleet.AgentRollout) { r.Spec.MaxUnavailablePerSite = 3 }, func(f *agentFleet) { f.says("pi-01", keeps) }, []string{"pi-02", "pi-03", "pi-04"}, fleet.RolloutProgressing, ""},
		{"another node of the site that is off does not count", nil, func(f *agentFleet) {
			f.ready("pi-02", corev1.ConditionUnknown)
			f.says("pi-01", keeps)
		}, []string{"pi-03"}, fleet.RolloutProgressing, ""},
		{"a node that goes back stops it", nil, func(f *agentFleet) { f.says("pi-01", fails) }, nil, fleet.RolloutStopped, "it ended twice"},
		{"a retry lets it go on", nil, func(f *agentFleet) {
			f.says("pi-01", fails)
			f.change(func(s *fleet.AgentRolloutSpec) { s.Retry = 1 })
			f.says("pi-01", stays)
		}, []string{"pi-01"}, fleet.RolloutProgressing, ""},
		{"an unsigned version stops it", nil, func(f *agentFleet) {
			f.says("pi-01", state.FirmwareReport{Digest: "1.0.0", Candidate: "2.0.0", State: "Failed", Message: "agent 2.0.0 is not signed"})
		}, nil, fleet.RolloutStopped, "is not signed"},
		{"paused, nobody begins", nil, func(f *agentFleet) {
			f.change(func(s *fleet.AgentRolloutSpec) { s.Paused = true })
			f.says("pi-01", keeps)
		}, nil, fleet.RolloutPaused, ""},
		{"a first node that falls silent stops it: the version may be why", nil, func(f *agentFleet) {
			f.ready("pi-01", corev1.ConditionUnknown)
			f.after(agentTrial)
		}, nil, fleet.RolloutStopped, "1 node went silent after the turn, first pi-01"},
		{"a later one does not, and the turn ends at its deadline", nil, func(f *agentFleet) {
			for _, n := range []string{"pi-01", "pi-02", "pi-03", "pi-04"} {
				f.says(n, keeps)
			}
			f.ready("pi-05", corev1.ConditionUnknown)
			f.after(agentTrial)
		}, []string{"pi-06"}, fleet.RolloutProgressing, ""},
		{"a silent one gets another turn when it answers", nil, func(f *agentFleet) {
			for _, n := range []string{"pi-01", "pi-02", "pi-03", "pi-04"} {
				f.says(n, keeps)
			}
			f.ready("pi-05", corev1.ConditionUnknown)
			f.after(agentTrial)
			for _, n := range []string{"pi-06", "pi-07", "pi-08", "pi-09", "pi-10"} {
				f.says(n, keeps)
			}
			f.ready("pi-05", corev1.ConditionTrue)
		}, []string{"pi-05"}, fleet.RolloutProgressing, ""},
		{"too many silent ones stop it", nil, func(f *agentFleet) {
			f.says("pi-01", keeps)
			f.ready("pi-02", corev1.ConditionUnknown)
			f.after(agentTrial)
			for _, n := range []string{"pi-03", "pi-04", "pi-05"} {
				f.ready(n, corev1.ConditionUnknown)
				f.after(agentTrial)
			}
		}, nil, fleet.RolloutStopped, "lower spec.successThreshold"},
		{"one that answers and never began has failed", nil, func(f *agentFleet) { f.after(agentTrial) }, nil, fleet.RolloutStopped, "answers, and has not reported"},
		{"an older agent is skipped with a sentence", nil, func(f *agentFleet) {
			f.says("pi-01", keeps)
			rec := f.s.Record("pi-02").DeepCopy()
			rec.Upgrade = nil
			f.s, _ = state.Apply(f.s, []state.Change{state.Put(rec, "")})
			f.decide()
			if i := slices.IndexFunc(f.rollout().Status.NodeStates, func(n fleet.FirmwareNode) bool {
				return n.State == fleet.FirmwareUnsupported && strings.Contains(n.Message, "its agent 1.0.0 is too old")
			}); i < 0 {
				f.t.Errorf("%+v", f.rollout().Status.NodeStates)
			}
		}, []string{"pi-03"}, fleet.RolloutProgressing, ""},
		{"one for whose processor the hub has no agent is skipped with a sentence", nil, func(f *agentFleet) {
			f.says("pi-01", keeps)
			rec := f.s.Record("pi-02").DeepCopy()
			rec.Upgrade.Backend = "armv6"
			f.s, _ = state.Apply(f.s, []state.Change{state.Put(rec, "")})
			f.decide()
			if i := slices.IndexFunc(f.rollout().Status.NodeStates, func(n fleet.FirmwareNode) bool {
				return n.State == fleet.FirmwareUnsupported && strings.Contains(n.Message, "no agent 2.0.0 for its processor, armv6")
			}); i < 0 {
				f.t.Errorf("%+v", f.rollout().Status.NodeStates)
			}
		}, []string{"pi-03"}, fleet.RolloutProgressing, ""},
		{"a boot configuration on trial comes first", nil, func(f *agentFleet) {
			rec := f.s.Record("pi-02").DeepCopy()
			rec.Assigned = &state.FirmwareAssignment{Rollout: "gone", Step: fleet.FirmwareTrying}
			s, _ := state.Apply(f.s, []state.Change{state.Put(rec, "")})
			p := &pass{s: s, now: f.now, load: agents{}, words: agents{}.words()}
			r := fleet.RolloutOf(f.rollout()).DeepCopy()
			if p.ready(&work{r: r}, "pi-02") {
				f.t.Error("it may begin")
			}
		}, []string{"pi-01"}, fleet.RolloutProgressing, ""},
		{"a version that the hub does not have", func(r *fleet.AgentRollout) { r.Spec.Version = "3.0.0" }, func(*agentFleet) {}, nil, fleet.RolloutPending, "the hub has no agent of version 3.0.0: put it into its --agents-dir, which has 2.0.0 for arm64"},
		{"undone, those that run it go back in turns", nil, func(f *agentFleet) {
			f.says("pi-01", keeps)
			f.says("pi-02", keeps)
			f.change(func(s *fleet.AgentRolloutSpec) { s.Undo = true })
			f.says("pi-03", stays) // its turn ends
			f.after(agentTrial)
		}, []string{"pi-01"}, fleet.RolloutProgressing, ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			f := newAgentFleet(t, 10, c.change)
			c.does(f)
			st := f.rollout().Status
			if got := f.turns(); !slices.Equal(got, c.turns) || st.Phase != c.phase || !strings.Contains(st.Sentence, c.words) {
				t.Errorf("turns %v, want %v; %s: %s, want %s: %s", got, c.turns, st.Phase, st.Sentence, c.phase, c.words)
			}
		})
	}
}

// A rollout goes on with the builds that it began with when the hub has another version.
func TestARolloutKeepsItsBuilds(t *testing.T) {
	f := newAgentFleet(t, 2, nil)
	f.says("pi-01", keeps)
	document := f.rollout().Status.Document
	hub := f.s.Advertisement().DeepCopyObject().(*state.Advertisement)
	hub.Agents[0].Version = "3.0.0"
	f.s, _ = state.Apply(f.s, []state.Change{state.Put(hub, "")})
	f.decide()
	f.says("pi-02", keeps)
	if st := f.rollout().Status; st.Phase != fleet.RolloutComplete || st.Document != document || document == "" {
		t.Errorf("%s: %s: %s", st.Phase, st.Sentence, st.Document)
	}
}
