package manifest

import (
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestObjectPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/nodes/pi-1":                                 "nodes  pi-1",
		"/api/v1/namespaces/default":                         "namespaces  default",
		"/api/v1/namespaces/default/pods/a":                  "pods default a",
		"/apis/apps/v1/namespaces/default/deployments/kiosk": "deployments default kiosk",
		"/apis/flotilla.dev/v1alpha1/sites/oslo":             "sites  oslo",
		"/api/v1/namespaces/default/pods/a/log":              "",
		"/api/v1/namespaces/default/pods":                    "",
		"/api/v1/nodes":                                      "",
		"/api/v1/nodes/":                                     "",
		"/api/v1":                                            "",
		"/version":                                           "",
		"":                                                   "",
		"/apis/apps/v1/deployments/default/x/y":              "",
		"/openapi/v2":                                        "",
		"/api/v1/namespaces//pods/a":                         "",
		"/apis/apps/v1/watch/namespaces/default/deployments/all": "",
	} {
		o, ok := parseObjectPath(path)
		got := ""
		if ok {
			got = o.resource + " " + o.namespace + " " + o.name
		}
		if got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

func TestDocuments(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"one", "kind: A", "A"},
		{"several documents, with comments and empty documents", "# x\n---\nkind: A\n---\n\n---\n# nothing\n---\nkind: B\n", "A B"},
		{"a list becomes its items", "kind: List\nitems: [{kind: A}, {kind: B}]", "A B"},
		{"JSON is YAML", `{"kind":"A"}`, "A"},
		{"only a comment", "# only this\n", "error: there is nothing to apply: paste the YAML of one or more objects"},
		{"no object", "- a\n", "error: document 1: "},
		{"a duplicate key", "kind: A\nkind: B\n", "error: document 1: "},
		{"a list of numbers", "kind: List\nitems: [1]", "error: document 1: an item of the list is not an object"},
		{"too many", strings.Repeat("kind: A\n---\n", maxDocuments+1), "error: there are 101 objects"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all, err := documents(tt.text)
			var kinds []string
			for _, m := range all {
				kinds = append(kinds, m.text("kind"))
			}
			got := strings.Join(kinds, " ")
			if err != nil {
				got = "error: " + err.Error()
			}
			if !strings.HasPrefix(got, tt.want) || tt.want == "" {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// Diffs leave out kubectl's copy of an object in its annotation.
func TestDiffsLeaveOutKubectlsCopy(t *testing.T) {
	m, err := parseManifest("kind: ConfigMap\nmetadata:\n  name: a\n  annotations:\n    kubectl.kubernetes.io/last-applied-configuration: |\n      {}\n    mine: kept\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := m.compared().yaml(); strings.Contains(got, "last-applied") || !strings.Contains(got, "mine: kept") {
		t.Errorf("it is compared as %s", got)
	}
	if !strings.Contains(m.tidy().yaml(), "last-applied") {
		t.Error("comparing has changed the object")
	}
	only := manifest{"metadata": map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"}}}
	if got := only.compared().yaml(); strings.Contains(got, "annotations") {
		t.Errorf("an object with only that annotation is compared as %s", got)
	}
}

// The YAML of an object links the object's page, for every kind.
func TestTheYAMLLeadsBackToTheObjectsPage(t *testing.T) {
	m := admintest.Work(t)
	nightly := m.Snapshot().Get(state.Key{Kind: state.CronJobs, Namespace: "default", Name: "nightly-report"})
	for _, c := range []struct {
		kind            state.Kind
		namespace, name string
	}{
		{state.Nodes, "", "pi-1"}, {state.Sites, "", "oslo"}, {state.Pods, "default", "db-0"},
		{state.Deployments, "default", "shop"}, {state.DaemonSets, "default", "watch"},
		{state.StatefulSets, "default", "db"}, {state.CronJobs, "default", nightly.GetName()},
		{state.FirmwareRollouts, "", "cgroup"},
	} {
		o, ok := parseObjectPath(frame.ObjectURL(c.kind, c.namespace, c.name))
		if want := frame.ObjectHref(c.kind, frame.Item{Namespace: c.namespace, Name: c.name}); !ok || o.page() != want {
			t.Errorf("the YAML of %s %s leads back to %q, want %q", c.kind, c.name, o.page(), want)
		}
	}
	for path, want := range map[string]string{
		"/apis/metrics.k8s.io/v1beta1/nodes/pi-1": "", "/api/v1/namespaces/default/configmaps/a": "", "/apis/" +
			fleet.Group + "/" + fleet.Version + "/boardprofiles/pi": "/boards",
	} {
		if o, _ := parseObjectPath(path); o.page() != want {
			t.Errorf("%s leads back to %q, want %q", path, o.page(), want)
		}
	}
}
