package cli

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/join"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
)

// A reset removes all containers of the device, also those that a user added to a pod's network.
func TestResetRemovesAllContainersAndNetworks(t *testing.T) {
	fake := enginetest.New()
	fake.AddImage(enginetest.ToolImage, 1, enginetest.ToolProgram)
	ids := map[string]string{}
	for _, c := range []struct{ pod, name, kind, owner string }{
		{"alone", "app", podspec.KindApp, ""}, {"alone", "look", podspec.KindEphemeral, "alone app"},
		{"many", "", podspec.KindSandbox, ""}, {"many", "init", podspec.KindInit, "many "}, {"many", "app", podspec.KindApp, "many "}, {"many", "look", podspec.KindEphemeral, "many "},
	} {
		shown := c.name
		if shown == "" {
			shown = "POD"
		}
		id, err := fake.Create(t.Context(), engine.Spec{
			Name: "flotilla_" + shown + "_" + c.pod + "_default_uid-" + c.pod + "_0", Image: enginetest.ToolImage,
			Args: []string{"wait"}, NetworkOf: ids[c.owner],
			Labels: map[string]string{
				plan.LabelAgent: "pi-1", plan.LabelStateDir: "here", plan.LabelPodUID: "uid-" + c.pod,
				plan.LabelPodName:   c.pod,
				plan.LabelNamespace: "default", plan.LabelContainer: c.name, plan.LabelKind: c.kind,
				plan.LabelRestarts: "0",
			},
		})
		if err == nil {
			err = fake.Start(t.Context(), id)
		}
		if err != nil {
			t.Fatal(err)
		}
		ids[c.pod+" "+c.name] = id
	}
	// a network of the node's earlier name, and one of its present name
	for node, block := range map[string]string{"pi-1": "10.9.0.0/24", "pi-2": "10.9.1.0/24"} {
		if err := fake.EnsureNetwork(t.Context(), agent.Network(node, "here", block)); err != nil {
			t.Fatal(err)
		}
	}
	fake.Record()
	if err := (oldWorkloads{fake, t.TempDir(), "here", "pi-2"}).remove(t.Context()); err != nil {
		t.Error(err)
	}
	for _, node := range []string{"pi-1", "pi-2"} {
		if !slices.ContainsFunc(fake.Calls(), func(call string) bool {
			return call == "RemoveNetwork "+
				agent.Network(node, "here", "").Name
		}) {
			t.Errorf("the network of %s is not removed: %q", node, fake.Calls())
		}
	}
	list, err := fake.Containers(t.Context(), plan.LabelStateDir+"=here")
	if err != nil || len(list) != 0 {
		t.Errorf("%d containers are left, want 0: %v", len(list), err)
	}
	for _, c := range list {
		t.Log(c.Name, c.State)
	}
}

// If a reset is killed after any file, the next reset still recognizes the state directory.
func TestResetRecognizesAPartlyRemovedStateDirectory(t *testing.T) {
	for _, name := range []string{join.IdentityFile, join.IdentityCopy, registrationFile, dismissedFile, engineFile,
		localSocket, logSocket} {
		dir := t.TempDir()
		for _, name := range []string{name, "notes"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := memory.Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		_ = m.Close()
	}
}
