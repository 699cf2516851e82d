package serve

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/access"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/enrolment"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func TestEnrolmentsOfAnEarlierVersionAreTakenOverOnce(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	now := time.Now()
	if err := st.AddJoinToken(t.Context(), store.JoinToken{ID: "tok", Hash: []byte{1}, Site: "oslo", Uses: 9,
		Created: now, Expires: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"pi-1", "left-behind"} { // the Node left-behind was deleted, but the hub crashed before its enrolment ended
		if err := st.TakeUse(t.Context(), store.Use{Node: node, Key: "key of " + node, Token: "tok", At: now,
			Expires: now.AddDate(1, 0, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	start := state.Load(state.Empty("test", now), []state.Object{
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", ResourceVersion: "1"}, Enrolled: metav1.NewTime(now),
			Site: "oslo", Boot: "b"},
	}, 1)
	loop := newLoop(config.Default(), start, memory{st}, nil, log)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- loop.Run(ctx) }()
	defer func() { cancel(); <-over }()
	mayReport := func(name string) bool { return loop.Speaks(node.Caller{Node: name, Key: "key of " + name}) }
	if mayReport("pi-1") {
		t.Fatal("the records have enrolments before the move")
	}
	for range 2 {
		if err := enrolment.Move(t.Context(), loop, st, log); err != nil {
			t.Fatal(err)
		}
		if rec := loop.Snapshot().Record("pi-1"); !mayReport("pi-1") || rec.Token != "tok" || rec.Boot != "b" ||
			rec.Expires.IsZero() {
			t.Errorf("the moved record is %+v, want its token, boot and expiry", rec)
		}
		if d := loop.Dismissed("key of left-behind"); mayReport("left-behind") || d == nil ||
			d.Reason != "Node left-behind was deleted" {
			t.Errorf("the dismissal of the device left behind is %+v", d)
		}
	}
	// Later uses of tokens are not enrolments of an earlier version.
	if err := st.TakeUse(t.Context(), store.Use{Node: "pi-9", Key: "k9", Token: "tok", At: now,
		Expires: now}); err != nil {
		t.Fatal(err)
	}
	if err := enrolment.Move(t.Context(), loop, st, log); err != nil || loop.Dismissed("k9") != nil {
		t.Errorf("the second move: %v; a later use of a token became the dismissal %+v", err, loop.Dismissed("k9"))
	}
}

// A device that loses its state at each reboot joins again with a new key, and its Node is never
// deleted.
func TestAFleetThatOnlyJoinsAgainIsBounded(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	now := time.Now()
	var before []state.Object
	for i := range 10_000 {
		until := now.Add(time.Hour)
		if i < 100 { // the certificates of the first hundred have expired
			until = now.Add(-time.Hour)
		}
		before = append(before, &state.Dismissal{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("k%05d", i),
			ResourceVersion: "1"}, Node: "n", Time: metav1.NewTime(now.Add(time.Duration(i-20_000) * time.Second)),
			Until: metav1.NewTime(until)})
	}
	loop := newLoop(config.Default(), state.Load(state.Empty("test", now), before, 1), memory{st}, nil, log)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- loop.Run(ctx) }()
	defer func() { cancel(); <-over }()
	const joins = 120
	if err := st.AddJoinToken(t.Context(), store.JoinToken{ID: "tok", Hash: []byte{1}, Site: "oslo", Uses: joins,
		Created: now, Expires: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for i := range joins {
		key := fmt.Sprint("key ", i)
		if err := (enrolment.Enrolments{Loop: loop}).Enrol(t.Context(), access.Enrolment{Node: "pi-1", Key: key,
			MachineID: "m", Site: "oslo", Token: "tok", At: now, Expires: now.AddDate(1, 0, 0)}); err != nil {
			t.Fatal(err)
		}
		if err := loop.Status(t.Context(), node.Caller{Node: "pi-1", Key: key}, wire.Status{Boot: fmt.Sprint("boot ", i),
			Seq: 1, MachineID: "m"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := loop.Snapshot().Len(state.Dismissals); n != 10_000 {
		t.Errorf("%d devices can still get a dismissal", n)
	}
	if loop.Dismissed("k00000") != nil || loop.Dismissed("key 0") == nil ||
		loop.Dismissed(fmt.Sprint("key ", joins-2)) == nil {
		t.Error("the oldest device can still get a dismissal")
	}
	if boots := loop.Snapshot().Record("pi-1").PastBoots; len(boots) != 8 || boots[7] != fmt.Sprint("boot ", joins-2) {
		t.Errorf("the stored boots are %q", boots)
	}
}

// A replaced or reinstalled device starts again in a rollout. The former device's boot
// configuration and failures do not count.
func TestAReplacedDeviceStartsAgainInARollout(t *testing.T) {
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
	profile.Spec.Match.Arch = []string{"arm64"}
	profile.Spec.Boot = &fleet.BoardBoot{Backend: fleet.BootConfigTxt,
		Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory"}}}
	document, _, err := firmwareconfigs.Render(profile)
	if err != nil {
		t.Fatal(err)
	}
	digest, now := wire.FirmwareDigest(document), time.Now()
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	r.Spec.Profile, r.Spec.Selector = "pi", &metav1.LabelSelector{MatchLabels: map[string]string{fleet.LabelProfile: "pi"}}
	r.Status.Digest, r.Status.Document = digest, string(document)
	for _, was := range []state.FirmwareAssignment{{Done: true}, {Failed: "its device did not begin in time"}} {
		was.Rollout, was.Digest = "r", digest
		log := slog.New(slog.DiscardHandler)
		st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "test", Log: log})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		if err := st.AddJoinToken(t.Context(), store.JoinToken{ID: "tok", Hash: []byte{1}, Site: "oslo", Node: "pi-1",
			Uses: 1, Created: now, Expires: now.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		start := state.Load(state.Empty("test", now), []state.Object{
			profile, r, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1",
				Labels: map[string]string{fleet.LabelProfile: "pi"}}},
			&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: "old", MachineID: "m", Boot: "b",
				FirmwareGeneration: 1, Firmware: &state.FirmwareReport{State: "UpToDate", Digest: digest}, Assigned: &was},
		}, 1)
		loop := newLoop(config.Default(), start, memory{st}, nil, log)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- loop.Run(ctx) }()
		err = enrolment.Enrolments{Loop: loop}.Enrol(t.Context(), access.Enrolment{Node: "pi-1", Key: "new", MachineID: "m",
			Site: "oslo", Token: "tok", At: now, Expires: now.AddDate(1, 0, 0)})
		if err == nil {
			said := wire.Status{Boot: "c", Seq: 1, MachineID: "m", Firmware: &wire.FirmwareStatus{State: wire.FirmwareStaged,
				Candidate: digest}}
			said.Status.NodeInfo.Architecture = "arm64"
			err = loop.Status(t.Context(), node.Caller{Node: "pi-1", Key: "new"}, said)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := loop.Snapshot().Rollout("r").Status; got.Staged != 1 {
			t.Errorf("the rollout after %+v is %s: %s", was, got.Phase, got.Sentence)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}
