package kube

import (
	"bytes"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/rollout"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/web/manual"
)

var manualObjects = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```$")

// applied returns the state of a new hub to which the objects of a YAML text were applied once.
func applied(t *testing.T, text, how string) *fakeFleet {
	t.Helper()
	f := seeded()
	profiles, err := firmwareconfigs.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles {
		f.put(p)
	}
	s := newServer(f)
	for _, one := range strings.Split(text, "\n---\n") {
		var o struct {
			APIVersion, Kind string
			Metadata         struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(one), &o); err != nil {
			t.Fatalf("%v in\n%s", err, one)
		}
		k := state.KindNamed(o.Kind)
		if k == "" {
			t.Fatalf("the kind is missing in\n%s", one)
		}
		path := "/apis/" + o.APIVersion + "/" + string(k) + "/" + o.Metadata.Name
		if k.Row().Namespaced {
			path = "/apis/" + o.APIVersion + "/namespaces/default/" + string(k) + "/" + o.Metadata.Name
		}
		path = strings.Replace(path, "/apis/v1/", "/api/v1/", 1)
		if w := (request{method: "PATCH", path: path + "?fieldManager=kubectl&fieldValidation=Strict" + how,
			contentType: "application/apply-patch+yaml", body: one}).do(s); w.Code/100 != 2 {
			t.Errorf("%s: %d %s of\n%s", path, w.Code, w.Body, one)
		}
	}
	return f
}

// Whole objects in the manual can be copied and applied.
func TestTheManualsObjectsCanBeApplied(t *testing.T) {
	found := 0
	pages, err := fs.Glob(manual.Files, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := fs.ReadFile(manual.Files, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range manualObjects.FindAllSubmatch(text, -1) {
			found++
			t.Run(page, func(t *testing.T) { applied(t, string(bytes.TrimSpace(m[1])), "&force=true") })
		}
	}
	if found < 2 {
		t.Errorf("only %d objects were found in the manual", found)
	}
}

// The manual's example, applied once, adds the option for memory limits to a Raspberry Pi's profile
// and keeps the rest of it. Only nodes without memory limits get the rollout.
func TestOneApplyGivesMemoryLimits(t *testing.T) {
	text, err := fs.ReadFile(manual.Files, "firmware.md")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(manualObjects.FindAllSubmatch(text, -1),
		func(m [][]byte) bool { return bytes.Contains(m[1], []byte("condition: MemoryLimits")) })
	if i < 0 {
		t.Fatal("the example is missing")
	}
	example := string(bytes.TrimSpace(manualObjects.FindAllSubmatch(text, -1)[i][1]))
	loop := regexp.MustCompile(`for board in (.*); do`).FindSubmatch(text)
	if loop == nil {
		t.Fatal("the list of other boards is missing")
	}
	boards := append(strings.Fields(string(loop[1])), "raspberrypi-4")
	defaults, err := firmwareconfigs.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, shipped := range defaults {
		if shipped.Spec.Labels["family"] != "raspberrypi" {
			continue
		}
		if !slices.Contains(boards, shipped.Name) {
			t.Errorf("%s is not listed", shipped.Name)
			continue
		}
		f := applied(t, strings.ReplaceAll(example, "raspberrypi-4", shipped.Name), "")
		now := f.Snapshot().Get(state.Key{Kind: state.BoardProfiles, Name: shipped.Name}).(*fleet.BoardProfile)
		_, boot, err := firmwareconfigs.Render(now)
		if err != nil || !slices.Contains(boot.Cmdline.Add, "cgroup_enable=memory") {
			t.Errorf("%s: boot configuration %+v, %v", shipped.Name, boot, err)
		}
		without := now.DeepCopy()
		without.Spec.Boot = shipped.Spec.Boot
		if a, b := must(t, without.Spec), must(t, shipped.Spec); !bytes.Equal(a, b) {
			t.Errorf("%s: the rest of the profile has changed:\n%s\n%s", shipped.Name, a, b)
		}
		for name, has := range map[string]corev1.ConditionStatus{"lacks": corev1.ConditionFalse,
			"limits": corev1.ConditionTrue} {
			n := fakeNode(name, "oslo")
			n.Labels[fleet.LabelProfile], n.Labels[corev1.LabelOSStable] = shipped.Name, "linux"
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "MemoryLimits", Status: has})
			f.put(n)
			f.put(&state.Record{ObjectMeta: n.ObjectMeta})
		}
		s := f.Snapshot()
		plan := rollout.Decider{}.Decide(s, rollout.Decider{}.Subjects(s), time.Unix(2e9, 0))
		s, _ = state.Apply(s, plan.Changes)
		if a := s.Record("lacks").Assigned; a == nil || a.Digest == "" || a.Rollout != "memory-limits-"+shipped.Name {
			t.Errorf("%s: a node without memory limits must get the rollout: %+v", shipped.Name, a)
		}
		if a := s.Record("limits").Assigned; a != nil {
			t.Errorf("%s: a node with memory limits must not get the rollout: %+v", shipped.Name, a)
		}
	}
}

func must(t *testing.T, v any) []byte {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
