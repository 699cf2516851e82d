package node

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A device verifies its boot configuration: it must be for this node, board and generation, and may
// be tried only during the node's turn.
func TestADeviceCanVerifyItsBootConfiguration(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	document, err := (&fleet.BootConfig{Profile: "pi", Backend: fleet.BootConfigTxt,
		Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory"}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	named := metav1.ObjectMeta{Name: "pi-1"}
	digest := wire.FirmwareDigest(document)
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
	profile.Spec.Match.Compatible = []string{"brcm,bcm2711"}
	rollout := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec:   fleet.FirmwareRolloutSpec{Profile: "pi", RolloutStrategy: fleet.RolloutStrategy{Retry: 2}},
		Status: fleet.FirmwareRolloutStatus{Digest: digest, Document: string(document)}}
	rec := &state.Record{ObjectMeta: named, Boot: "b", FirmwareGeneration: 7,
		Assigned: &state.FirmwareAssignment{Rollout: "r", Digest: digest}}
	report := &fleet.DeviceReport{ObjectMeta: named, Hardware: runtime.RawExtension{Raw: []byte(`{"board":{"compatible":["raspberrypi,4-model-b","brcm,bcm2711"]}}`)}}
	s := state.Load(state.Empty("x", time.Unix(1e9, 0)),
		[]state.Object{&corev1.Node{ObjectMeta: named}, rec, rollout, profile, report}, 0)
	told := func(change func(*state.Record, *fleet.FirmwareRollout)) *wire.Firmware {
		rec, rollout := rec.DeepCopy(), rollout.DeepCopy()
		change(rec, rollout)
		s, _ := state.Apply(s, []state.Change{state.Put(rec, ""), state.Put(rollout, "")})
		d := Deliver{signing: key}.wantedOf(s, "pi-1", profiles{})
		if !bytes.Equal(d.FirmwareKey, public) {
			t.Error("the device does not receive the key")
		}
		return d.Firmware
	}
	f := told(func(*state.Record, *fleet.FirmwareRollout) {})
	if f == nil || f.Try || f.Retry != 2 || f.Generation != 7 {
		t.Fatalf("the device receives %+v", f)
	}
	config, err := f.Verify(public, "pi-1", []string{"raspberrypi,4-model-b", "brcm,bcm2711"})
	if err != nil || config.Cmdline.Add[0] != "cgroup_enable=memory" {
		t.Errorf("verified: %+v, %v", config, err)
	}
	if _, err := f.Verify(public, "pi-2", []string{"brcm,bcm2711"}); err == nil {
		t.Error("another node accepts it")
	}
	if _, err := f.Verify(public, "pi-1", []string{"raspberrypi,5-model-b", "brcm,bcm2712"}); err == nil {
		t.Error("another board accepts it")
	}
	for step, want := range map[fleet.FirmwareNodeState]bool{"": false, fleet.FirmwareDraining: false,
		fleet.FirmwareTrying: true, fleet.FirmwareOverdue: false} {
		if f := told(func(r *state.Record, _ *fleet.FirmwareRollout) { r.Assigned.Step = step }); f.Try != want {
			t.Errorf("in the step %q the device may try: %v", step, f.Try)
		}
		undo := func(r *state.Record, ro *fleet.FirmwareRollout) { r.Assigned.Step, ro.Status.Undoing = step, true }
		if f := told(undo); f.Try || f.Undo != want {
			t.Errorf("undone, in the step %q the device may try: %v, and go back: %v", step, f.Try, f.Undo)
		}
	}
	evil := []byte(`{"profile":"pi","revision":0,"backend":"rpi-config-txt","cmdline":{"add":["init=/bin/sh"]}}`)
	for name, change := range map[string]func(*state.Record, *fleet.FirmwareRollout){
		"belongs to no rollout":         func(r *state.Record, _ *fleet.FirmwareRollout) { r.Assigned = nil },
		"belongs to a deleted rollout":  func(r *state.Record, _ *fleet.FirmwareRollout) { r.Assigned.Rollout = "gone" },
		"has received no configuration": func(r *state.Record, _ *fleet.FirmwareRollout) { r.FirmwareGeneration = 0 },
		"is to get another configuration": func(r *state.Record,
			_ *fleet.FirmwareRollout) {
			r.Assigned.Digest = "sha256:0"
		},
		"has a document with a changed text": func(_ *state.Record, ro *fleet.FirmwareRollout) { ro.Status.Document += " " },
		"has an invalid document": func(r *state.Record, ro *fleet.FirmwareRollout) {
			ro.Status.Document, ro.Status.Digest = string(evil), wire.FirmwareDigest(evil)
			r.Assigned.Digest = ro.Status.Digest
		},
	} {
		if f := told(change); f != nil {
			t.Errorf("a node that %s receives %s", name, f.Document)
		}
	}
}

// If another machine takes the node's place, or its card moves to another board, the configuration
// is bound to the new board, even under the same profile.
func TestABootConfigurationFollowsItsDevicesBoard(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	document, err := (&fleet.BootConfig{Profile: "pi", Backend: fleet.BootConfigTxt,
		Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory"}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	named, digest := metav1.ObjectMeta{Name: "pi-1"}, wire.FirmwareDigest(document)
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
	profile.Spec.Match.Compatible = []string{"raspberrypi,3-model-b", "raspberrypi,3-model-b-plus"}
	report := func(board string, temperature int) *fleet.DeviceReport {
		return &fleet.DeviceReport{ObjectMeta: named, Hardware: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"board":{"compatible":["%s","brcm,bcm2837"]},"temperature":%d}`, board, temperature)}}
	}
	s := state.Load(state.Empty("x", time.Unix(1e9, 0)), []state.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", Labels: map[string]string{fleet.LabelProfile: "pi"}}},
		profile, report("raspberrypi,3-model-b", 40),
		&fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: fleet.FirmwareRolloutSpec{Profile: "pi"},
			Status: fleet.FirmwareRolloutStatus{Digest: digest, Document: string(document)}},
		&state.Record{ObjectMeta: named, Boot: "b", FirmwareGeneration: 7,
			Assigned: &state.FirmwareAssignment{Rollout: "r", Digest: digest}},
	}, 0)
	d := Deliver{signing: key}
	s, _ = state.Apply(s, d.Decide(s, d.Subjects(s), s.Started).Changes)
	for _, said := range []struct {
		board       string
		temperature int
		told        bool
	}{{"raspberrypi,3-model-b", 41, false}, {"raspberrypi,3-model-b-plus", 41, true}} {
		var log []state.Applied
		s, log = state.Apply(s, []state.Change{state.Put(report(said.board, said.temperature), "")})
		changes := d.Decide(s, state.Touched(d.Touches, log), s.Started).Changes
		if told := len(changes) > 0; told != said.told {
			t.Errorf("with the board %s the device receives: %v", said.board, told)
		}
		s, _ = state.Apply(s, changes)
		if again := d.Decide(s, d.Subjects(s), s.Started).Changes; len(again) > 0 {
			t.Errorf("with the board %s the device receives another state than after a start", said.board)
		}
		if _, err := d.wantedOf(s, "pi-1", profiles{}).Firmware.Verify(public, "pi-1",
			[]string{said.board, "brcm,bcm2837"}); err != nil {
			t.Error(err)
		}
	}
}

// A card in another board does not keep the rollout's results of the previous board.
func TestAnotherMachineStartsTheRolloutAnew(t *testing.T) {
	now := time.Unix(1e9, 0)
	began := state.FirmwareAssignment{Rollout: "r", Digest: "sha256:1", Step: fleet.FirmwareTrying,
		Since: metav1.NewTime(now)}
	for _, c := range []struct {
		machine   string
		was, want state.FirmwareAssignment
	}{
		{"m", state.FirmwareAssignment{Rollout: "r", Done: true, Retry: 2}, state.FirmwareAssignment{Rollout: "r", Done: true, Retry: 2}},
		{"other", state.FirmwareAssignment{Rollout: "r", Done: true, Retry: 2}, state.FirmwareAssignment{Rollout: "r"}},
		{"other", state.FirmwareAssignment{Rollout: "r", NotBefore: metav1.NewTime(now), Why: "the node is not ready"}, state.FirmwareAssignment{Rollout: "r"}},
		{"other", began, began},
	} {
		named := metav1.ObjectMeta{Name: "pi-1"}
		s := state.Load(state.Empty("x", now), []state.Object{&corev1.Node{ObjectMeta: named},
			&state.Record{ObjectMeta: named, MachineID: "m", Boot: "b", Assigned: &c.was}}, 0)
		d := New(Config{Grace: time.Minute, LeaseInterval: 10 * time.Second},
			control.Config{Start: s.ResetSeen(now.Add(-time.Hour))})
		changes, err := d.status(s.ResetSeen(now.Add(-time.Hour)), Caller{Node: "pi-1"},
			wire.Status{Boot: "c", Seq: 1, MachineID: c.machine}, now)
		if err != nil {
			t.Fatal(err)
		}
		s, _ = state.Apply(s, changes)
		if got := *s.Record("pi-1").Assigned; got != c.want {
			t.Errorf("machine %s: the report %+v became %+v, want %+v", c.machine, c.was, got, c.want)
		}
	}
}

// A raised retry changes no record, but is published.
func TestARaisedRetryIsPublished(t *testing.T) {
	named := metav1.ObjectMeta{Name: "pi-1"}
	ro := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	s := state.Load(state.Empty("x", time.Unix(1e9, 0)), []state.Object{
		&corev1.Node{ObjectMeta: named}, &state.Record{ObjectMeta: named, Assigned: &state.FirmwareAssignment{Rollout: "r"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-2"}}, ro}, 0)
	raised := ro.DeepCopy()
	raised.Spec.Retry = 1
	s, done := state.Apply(s, []state.Change{state.Put(raised, "")})
	if got := concerned(s, Deliver{}.Touches(done[0])); len(got) != 1 || got[0] != "pi-1" {
		t.Errorf("the subjects are %v", got)
	}
	paused := raised.DeepCopy()
	paused.Spec.Paused = true
	if _, done = state.Apply(s, []state.Change{state.Put(paused, "")}); len(Deliver{}.Touches(done[0])) != 0 {
		t.Error("a pause creates new desired states")
	}
}

func TestAReportOfTheBootConfigurationIsACondition(t *testing.T) {
	for said, want := range map[string]corev1.ConditionStatus{
		wire.FirmwareUpToDate: corev1.ConditionTrue, wire.FirmwareStaged: corev1.ConditionUnknown,
		wire.FirmwareVerifying:  corev1.ConditionUnknown,
		wire.FirmwareRolledBack: corev1.ConditionFalse, wire.FirmwareFailed: corev1.ConditionFalse,
		wire.FirmwareUnsupported: corev1.ConditionFalse,
	} {
		st := wire.Status{Firmware: &wire.FirmwareStatus{State: said, Message: "m", Bad: []string{"x"}}}
		st.Status.Conditions = []corev1.NodeCondition{{Type: fleet.ConditionFirmwareReady, Status: corev1.ConditionTrue,
			Message: "a FirmwareReady of the device"}}
		rec := new(state.Record)
		firmwareChange(rec, &st)
		if c := st.Status.Conditions; len(c) != 1 || c[0].Status != want || c[0].Reason != said || c[0].Message != "m" ||
			reasonOf(said) != "Firmware"+said {
			t.Errorf("%s: %+v", said, c)
		}
		st.Firmware = nil
		if firmwareChange(rec, &st); rec.Firmware != nil || len(st.Status.Conditions) != 0 {
			t.Errorf("a status without a report: %+v, %v", rec.Firmware, st.Status.Conditions)
		}
	}
}
