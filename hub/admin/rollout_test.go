package admin

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

const bootDiff = "cmdline.txt\n- console=serial0,115200 root=PARTUUID=1234-02\n+ console=serial0,115200 root=PARTUUID=1234-02 cgroup_enable=memory cgroup_memory=1"

// rolloutSample is a fleet with a rollout in each phase.
func rolloutSample() []state.Object {
	all := admintest.Sample()
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "raspberrypi-4", UID: "p4"}, Spec: fleet.BoardProfileSpec{
		Title: "Raspberry Pi 4", Boot: &fleet.BoardBoot{Backend: fleet.BootConfigTxt, Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory", "cgroup_memory=1"}, Remove: []string{"quiet"}}}}}
	document, err := (&fleet.BootConfig{Profile: "raspberrypi-4", Backend: fleet.BootConfigTxt, Config: fleet.BootSettings{All: map[string]string{"gpu_mem": "16"}, DTParam: []string{"i2c_arm=on"}}, Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory", "cgroup_memory=1"}, Remove: []string{"quiet"}}}).Encode()
	if err != nil {
		panic(err)
	}
	digest := wire.FirmwareDigest(document)
	rollout := func(name string, st fleet.FirmwareRolloutStatus, change func(*fleet.FirmwareRolloutSpec)) *fleet.FirmwareRollout {
		r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: admintest.Ago(3 * time.Hour)}, Spec: fleet.FirmwareRolloutSpec{
			Profile: "raspberrypi-4"}, Status: st}
		r.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelOSStable: "linux"}}
		r.Spec.Default()
		if change != nil {
			change(&r.Spec)
		}
		r.Status.Digest, r.Status.Document = digest, string(document)
		return r
	}
	since, ended := admintest.Ago(3*time.Minute), admintest.Ago(40*time.Minute)
	states := []fleet.FirmwareNode{
		{Name: "pi-2", Site: "oslo", State: fleet.FirmwareBad, Message: "network: the hub was not heard after 10m0s; engine-ping did not hold"},
		{Name: "bone-1", Site: "bergen", State: fleet.FirmwareUnsupported, Message: "the boot partition has an autoboot.txt: something else chooses what is booted"},
		{Name: "pi-3", Site: "oslo", State: fleet.FirmwareStaged}, {Name: "bone-2", Site: "bergen", State: fleet.FirmwareStaged},
		{Name: "bone-3", Site: "bergen", State: fleet.FirmwareWaiting, Message: "its device does not report a boot configuration: its agent may be too old"},
		{Name: "pi-1", Site: "oslo", State: fleet.FirmwareKept},
	}
	going := append([]fleet.FirmwareNode{{Name: "pi-3", Site: "oslo", State: fleet.FirmwareTrying, Since: &since}}, states[3:]...)
	changes := []fleet.FirmwareChange{{Diff: bootDiff, Nodes: 2, First: "bone-2"}}
	batches := []fleet.FirmwareBatch{{Number: 1, Site: "oslo", Nodes: []string{"pi-1"}, Began: admintest.Ago(time.Hour), Ended: &ended, Kept: 1}, {Number: 2, Site: "oslo", Nodes: []string{"pi-2", "pi-3"}, Began: admintest.Ago(30 * time.Minute), Ended: &since, Bad: 1}}
	open := []fleet.FirmwareBatch{batches[0], {Number: 2, Site: "oslo", Nodes: []string{"pi-3"}, Began: since}}
	all = append(
		all, profile,
		rollout("cgroup-going", fleet.FirmwareRolloutStatus{Phase: fleet.RolloutProgressing, Sentence: "1 node has its turn on site oslo, first pi-3: Trying", Nodes: 4, Kept: 1, Trying: 1, Staged: 1, Waiting: 1, NodeStates: going, Changes: changes, Batches: open}, nil),
		rollout("cgroup-new", fleet.FirmwareRolloutStatus{Phase: fleet.RolloutPaused, Sentence: "paused: nothing begins until spec.paused is false", Nodes: 4, Staged: 2, Waiting: 2, NodeStates: states[2:5], Changes: changes}, func(s *fleet.FirmwareRolloutSpec) {
			s.Paused, s.Canary, s.Window = true, "pi-3", &fleet.FirmwareWindow{From: "01:00", To: "04:30", Days: []string{"Mon", "Tue"}}
		}),
		rollout("cgroup-stopped", fleet.FirmwareRolloutStatus{
			Phase: fleet.RolloutStopped, Sentence: "1 node did not keep the configuration: pi-2 (network: the hub was not heard after 10m0s; engine-ping did not hold); fix the profile, or raise spec.retry, or set spec.pauseOnFailure to false",
			Nodes: 6, Kept: 1, Bad: 1, Unsupported: 1, Staged: 2, Waiting: 1, NodeStates: states, Changes: changes, Batches: batches,
		}, nil),
		rollout("cgroup-undone", fleet.FirmwareRolloutStatus{Phase: fleet.RolloutComplete, Sentence: "undone: 2 of 2 nodes have what they had before", Undoing: true, Nodes: 2, Undone: 2, NodeStates: []fleet.FirmwareNode{{Name: "pi-1", Site: "oslo", State: fleet.FirmwareUndone}}, Batches: batches[:1]}, func(s *fleet.FirmwareRolloutSpec) { s.Undo = true }),
		rollout("cgroup-waiting", fleet.FirmwareRolloutStatus{Phase: fleet.RolloutWaiting, Sentence: "the window on site oslo opens Tue 2026-06-02 01:00 CEST", Nodes: 4, Kept: 1, Staged: 3, NodeStates: states[2:4], Changes: changes, Batches: batches[:1]}, func(s *fleet.FirmwareRolloutSpec) {
			h := (admintest.Now.UTC().Hour() + 5) % 24
			s.Window = &fleet.FirmwareWindow{From: fmt.Sprintf("%02d:00", h), To: fmt.Sprintf("%02d:30", h)}
		}),
		&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "cgroup-stopped-boot-1"}, State: fleet.IncidentOpen, Cause: "FirmwareRolloutStopped", Severity: fleet.SeverityWarning, About: fleet.IncidentObject{Kind: "FirmwareRollout", Name: "cgroup-stopped"}, Since: since, Opened: since,
			Message: "Rollout cgroup-stopped of a boot configuration has stopped: 1 node did not keep the configuration: pi-2 (engine-ping did not hold); fix the profile, or raise spec.retry, or set spec.pauseOnFailure to false", Count: fleet.IncidentCount{Nodes: 1}, Examples: []string{"pi-2"}},
	)
	have := false
	for _, o := range all {
		if rec, ok := o.(*state.Record); ok && rec.Name == "pi-2" {
			rec.Firmware, have = &state.FirmwareReport{State: "RolledBack", Candidate: digest, Backend: fleet.BootConfigTxt, Trial: "tryboot", Message: "network: the hub was not heard after 10m0s; engine-ping did not hold", Diff: bootDiff, Bad: []string{digest, "sha256:" + strings.Repeat("ab", 32)}}, true
			rec.Assigned = &state.FirmwareAssignment{Rollout: "cgroup-stopped", Digest: digest}
		}
	}
	if !have {
		all = append(all, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-2"}, Firmware: &state.FirmwareReport{State: "RolledBack", Candidate: digest, Backend: fleet.BootConfigTxt, Trial: "tryboot", Message: "network: the hub was not heard after 10m0s; engine-ping did not hold", Diff: bootDiff, Bad: []string{digest, "sha256:" + strings.Repeat("ab", 32)}},
			Assigned: &state.FirmwareAssignment{Rollout: "cgroup-stopped", Digest: digest}})
	}
	return all
}

var rolloutViews = []struct {
	name, path string
	says       []string
}{
	{"rollouts", "/rollouts", []string{"cgroup-stopped", "Stopped", "1 of 6 kept it", "fix the profile", "2 of 2 went back"}},
	{"rollout-going", "/rollouts/cgroup-going", []string{"1 node has its turn on site oslo", "First, alone, on oslo", "Batch 2 on oslo", "In progress", "one site at a time"}},
	{"rollout-new", "/rollouts/cgroup-new", []string{"Paused", "Resume", "First, alone: pi-3", "What would change", "cgroup_enable=memory", "on 2 nodes, first bone-2", "2 nodes have not said", "gpu_mem=16", "Mon Tue 01:00 to 04:30, by the site's clock"}},
	{"rollout-stopped", "/rollouts/cgroup-stopped", []string{"pi-2 (network: the hub was not heard after 10m0s", "Went back", "Cannot do it", "Try again", "What it means, and what to do"}},
	{"rollout-undone", "/rollouts/cgroup-undone", []string{"undone: 2 of 2 nodes have what they had before", "Roll out again"}},
	{"rollout-waiting", "/rollouts/cgroup-waiting", []string{"The next window opens on site oslo in", "Left"}},
	{"rollout-start", "/rollouts/_new", []string{"Roll out a boot configuration", "Leave it paused"}},
	{"rollout-yaml", "/rollouts/_new?name=cgroup&profile=raspberrypi-4&site=oslo&canary=pi-1&from=01:00&to=04:30&batch=5&unavailable=1&paused=yes&condition=MemoryLimits", []string{"As YAML", "Check"}},
	{"rollout-undo", "/actions/firmwarerollouts/undo?item=%2Fcgroup-going", []string{"2 nodes kept it or try it now; they reboot into what they had before."}},
	{"rollout-node", "/nodes/pi-2", []string{"Boot configuration", "RolledBack", "it may be tried again when the rollout's retry is raised", "it is not tried again automatically"}},
	{"rollout-incident", "/", []string{"Rollout cgroup-stopped of a boot configuration has stopped"}},
}

func TestARolloutSaysWhatItDoesAndWhyItWaits(t *testing.T) {
	t.Parallel()
	b := loggedIn(t, admintest.New(rolloutSample()...))
	for _, w := range []struct {
		pixels int64
		dark   bool
	}{{360, true}, {1280, false}, {360, false}, {768, false}, {1280, true}} {
		b.width(w.pixels, w.dark)
		for _, v := range rolloutViews {
			b.open(v.path)
			b.says(v.says...)
			name := fmt.Sprintf("%s-%d-%s", v.name, w.pixels, map[bool]string{true: "dark", false: "light"}[w.dark])
			b.fits(name)
			b.axe(name)
			b.shot(name)
		}
	}
}

// An action on a rollout changes its spec through the API, and can be undone.
func TestARolloutIsSteeredFromItsPage(t *testing.T) {
	m := admintest.New(rolloutSample()...)
	srv := acting(t, m)
	do := func(role, action, name string, want int) {
		t.Helper()
		resp, body := srv.ask(t, role, "POST", "/actions/firmwarerollouts/"+action, url.Values{"item": {"/" + name}, "csrf": {csrf}}, "Cookie", nameHeader+"="+role)
		if resp.StatusCode != want {
			t.Errorf("%s as %s: %d %.300s", action, role, resp.StatusCode, mainOf(body))
		}
	}
	spec := func(name string) fleet.FirmwareRolloutSpec { return m.Snapshot().Rollout(name).Spec }
	for _, role := range []string{"viewer", "operator"} {
		for _, action := range []string{"stop", "resume", "undo", "redo", "retry", "delete"} {
			do(role, action, "cgroup-going", 403)
		}
	}
	if s := spec("cgroup-going"); s.Paused || s.Undo || s.Retry != 0 {
		t.Fatalf("who may not has changed it: %+v", s)
	}
	do("admin", "stop", "cgroup-going", 303)
	if !spec("cgroup-going").Paused {
		t.Error("it is not paused")
	}
	do("admin", "resume", "cgroup-new", 303)
	if spec("cgroup-new").Paused {
		t.Error("it is still paused")
	}
	do("admin", "retry", "cgroup-stopped", 303)
	if spec("cgroup-stopped").Retry != 1 {
		t.Error("its nodes may not try again")
	}
	do("admin", "undo", "cgroup-going", 303)
	if s := spec("cgroup-going"); !s.Undo || s.Paused {
		t.Errorf("it is not undone: %+v", s)
	}
	do("admin", "redo", "cgroup-undone", 303)
	if spec("cgroup-undone").Undo {
		t.Error("it does not go forward again")
	}
	do("admin", "delete", "cgroup-undone", 303)
	if r := m.Snapshot().Rollout("cgroup-undone"); r != nil && r.DeletionTimestamp == nil {
		t.Error("it is still there")
	}
}

// A retry concerns the failure that the user saw. A double click, or a tab older than another
// change, does not reboot a board again.
func TestARolloutIsTriedAgainAsItWasSeen(t *testing.T) {
	m := admintest.New(rolloutSample()...)
	srv := acting(t, m)
	one := url.Values{"item": {m.Form(state.FirmwareRollouts, "", "cgroup-stopped")}}
	send := func(action string, form url.Values) (body string) {
		form.Set("csrf", csrf)
		resp, body := srv.ask(t, "admin", "POST", "/actions/firmwarerollouts/"+action, form, "Cookie", nameHeader+"=admin")
		if to := resp.Header.Get("Location"); to != "" {
			_, body = srv.ask(t, "admin", "GET", to, nil)
		}
		return body
	}
	open := func() url.Values {
		_, body := srv.ask(t, "admin", "GET", "/actions/firmwarerollouts/retry?"+one.Encode(), nil)
		return fieldsOf(body)
	}
	old := open()
	send("retry", maps.Clone(old))
	send("stop", maps.Clone(one))
	body := send("retry", maps.Clone(old))
	if s := m.Snapshot().Rollout("cgroup-stopped").Spec; s.Retry != 1 || !s.Paused {
		t.Errorf("a page from before has made it retry %d, paused %v", s.Retry, s.Paused)
	}
	if !strings.Contains(body, "somebody has changed it since you looked at it") {
		t.Errorf("it is told as %s", mainOf(body))
	}
	send("retry", open())
	if s := m.Snapshot().Rollout("cgroup-stopped").Spec; s.Retry != 2 || s.Paused {
		t.Errorf("who has looked again finds it retry %d, paused %v", s.Retry, s.Paused)
	}
}

func TestWithoutARolloutThePageSaysWhatToDo(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for role, want := range map[string]string{"admin": "Roll out a boot configuration", "viewer": "kubectl apply -f rollout.yaml"} {
		if _, body := srv.ask(t, role, "GET", "/rollouts", nil); !strings.Contains(body, want) || role == "viewer" && strings.Contains(body, "/rollouts/_new") {
			t.Errorf("%s reads: %.900s", role, mainOf(body))
		}
	}
	if resp, _ := srv.ask(t, "viewer", "GET", "/rollouts/_new", nil); resp.StatusCode != 403 {
		t.Errorf("a viewer is shown the form: %d", resp.StatusCode)
	}
}

// A rollout with any valid name has a page.
func TestARolloutCalledNewHasAPage(t *testing.T) {
	m := admintest.New(rolloutSample()...)
	r := m.Snapshot().Rollout("cgroup-going").DeepCopy()
	r.Name, r.UID = "new", "uid-of-new"
	m.Put(t, r)
	srv := start(t, configOf(m))
	for _, role := range []string{"admin", "viewer"} {
		if resp, body := srv.ask(t, role, "GET", frame.RolloutHref("new"), nil); resp.StatusCode != 200 || !strings.Contains(body, "1 node has its turn on site oslo") {
			t.Errorf("%s reads: %d %.300s", role, resp.StatusCode, mainOf(body))
		}
	}
}

// An undo restores the state before its action, also from a tab that was opened before somebody did
// the same.
func TestWhatIsTakenBackIsAsItWas(t *testing.T) {
	m := admintest.New(rolloutSample()...)
	shop := admintest.Work(t).Snapshot().Deployment("default", "shop").DeepCopy()
	shop.Spec.Paused = true
	m.Put(t, shop)
	srv := acting(t, m)
	for _, c := range []struct {
		name, do     string
		undo, paused bool // before
	}{
		{"undoing a rollout that stands still", "undo", false, true}, {"undoing one that goes on", "undo", false, false},
		{"rolling out again what stands still", "redo", true, true}, {"rolling out again what goes on", "redo", true, false},
		{"stopping what is stopped already", "stop", false, true}, {"resuming what is not stopped", "resume", false, false},
		{"stopping what goes on", "stop", false, false}, {"resuming what is stopped", "resume", false, true},
	} {
		r := m.Snapshot().Rollout("cgroup-waiting").DeepCopy()
		r.Spec.Undo, r.Spec.Paused = c.undo, c.paused
		m.Put(t, r)
		_, body := srv.do(t, "admin", "/actions/firmwarerollouts/"+c.do, url.Values{"item": {m.Form(state.FirmwareRollouts, "", r.Name)}})
		if id := undoButton.FindStringSubmatch(body); strings.Contains(body, "Undo</button>") {
			srv.do(t, "admin", "/actions/"+id[1], url.Values{"action": {"undo"}})
		}
		if now := m.Snapshot().Rollout(r.Name).Spec; now.Undo != c.undo || now.Paused != c.paused {
			t.Errorf("%s, taken back: undo %v, paused %v; want %v, %v", c.name, now.Undo, now.Paused, c.undo, c.paused)
		}
	}
	_, body := srv.do(t, "admin", "/actions/deployments/pause", url.Values{"item": {m.Form(state.Deployments, "default", "shop")}})
	if srv.do(t, "admin", "/actions/"+undoButton.FindStringSubmatch(body)[1], url.Values{"action": {"undo"}}); !m.Snapshot().Deployment("default", "shop").Spec.Paused {
		t.Error("pausing a deployment that was paused already, taken back, has resumed it")
	}
}
