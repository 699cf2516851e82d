package admin

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	decider "flotilla.dev/hub/rollout"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// manyBoards is a rollout over n nodes; some boards went back.
func manyBoards(n int) *admintest.Memory {
	m := admintest.Many(n)
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
	profile.Spec.Boot = &fleet.BoardBoot{Backend: fleet.BootConfigTxt, Cmdline: fleet.BootCmdline{Add: []string{"quiet"}}}
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "many", CreationTimestamp: metav1.NewTime(admintest.Now)}}
	r.Spec.Selector, r.Spec.Profile = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: fleet.LabelProfile, Operator: metav1.LabelSelectorOpExists}}}, "pi"
	changes := []state.Change{state.Put(profile, ""), state.Put(r, "")}
	for node := range m.Snapshot().Nodes() {
		node = node.DeepCopy()
		metav1.SetMetaDataLabel(&node.ObjectMeta, fleet.LabelProfile, "pi")
		changes = append(changes, state.Put(node, ""), state.Put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Firmware: &state.FirmwareReport{State: "Staged", Candidate: "sha256:x"}}, ""))
	}
	m.Apply(changes)
	look := func() {
		for range 4 {
			m.Apply(decider.Decider{}.Decide(m.Snapshot(), decider.Decider{}.Subjects(m.Snapshot()), admintest.Now).Changes)
		}
	}
	look()
	digest := m.Snapshot().Rollout("many").Status.Digest
	changes = nil
	for i := range n {
		rec := m.Snapshot().Record(fmt.Sprintf("node-%04d", i)).DeepCopy()
		rec.Firmware = &state.FirmwareReport{State: "Staged", Candidate: digest, Diff: fmt.Sprint("+ quiet ", i%2)}
		if i%1000 == 999 {
			rec.Firmware.State, rec.Firmware.Bad, rec.Firmware.Message = "RolledBack", []string{digest}, "engine-ping did not hold"
		}
		changes = append(changes, state.Put(rec, ""))
	}
	m.Apply(changes)
	look()
	return m
}

// A rollout's page shows at most a hundred nodes, those with trouble first, and counts the others.
func TestARolloutOfManyNodesShowsTheWorstFirst(t *testing.T) {
	m := manyBoards(5000)
	srv := start(t, configOf(m))
	resp, body := srv.ask(t, "admin", "GET", "/rollouts/many", nil)
	text := mainOf(body)
	if resp.StatusCode != 200 || len(text) > 128<<10 {
		t.Errorf("%d, %d bytes", resp.StatusCode, len(text))
	}
	nodes := text[strings.Index(text, "<h2>Nodes</h2>"):]
	if n := strings.Count(nodes, `href="/nodes/node-`); n != fleet.MaxFirmwareNodes {
		t.Errorf("it shows %d nodes", n)
	}
	for _, worst := range []string{"node-0999", "node-1999", "node-2999", "node-3999", "node-4999"} {
		at := strings.Index(nodes, worst)
		if at < 0 || at > strings.Index(nodes, "Staged") {
			t.Errorf("%s is not among the first", worst)
		}
	}
	for _, want := range []string{"4900 nodes more", "5 nodes did not keep the configuration: node-0999", "engine-ping did not hold"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q: %.3000s", want, text)
		}
	}
}

// The card of a stopped rollout links its page and the node that stopped it.
func TestTheCardOfAStoppedRolloutLeadsToIt(t *testing.T) {
	srv := start(t, configOf(admintest.New(rolloutSample()...)))
	_, body := srv.ask(t, "viewer", "GET", "/", nil)
	at := strings.Index(body, "Rollout cgroup-stopped of a boot configuration has stopped")
	if at < 0 {
		t.Fatal("there is no card")
	}
	from := strings.LastIndex(body[:at], "data-key=")
	card := body[max(from, 0):min(len(body), at+2500)]
	for _, want := range []string{`href="/rollouts/cgroup-stopped"`, `href="/nodes/pi-2"`, `/help/incidents#FirmwareRolloutStopped`} {
		if !strings.Contains(card, want) {
			t.Errorf("it has no %s: %s", want, card)
		}
	}
}

// BenchmarkARolloutOfManyNodes is one pass of the decider over 5,000 nodes.
func BenchmarkARolloutOfManyNodes(b *testing.B) {
	m := manyBoards(5000)
	for b.Loop() {
		decider.Decider{}.Decide(m.Snapshot(), decider.Decider{}.Subjects(m.Snapshot()), admintest.Now)
	}
}
