package kube

import (
	"strings"
	"testing"
)

// The scheduler does not see a pod with a nodeName, so the answer warns of a node that cannot run
// it.
func TestAnUnusableNodeNameGivesAWarning(t *testing.T) {
	s := newServer(seeded())
	node := ""
	for n := range seeded().Snapshot().Nodes() {
		node = n.Name
	}
	const none, mismatch = `node \"nowhere\" does not exist`, "does not match"
	spec := func(more string) string {
		return `{"containers":[{"name":"web","image":"web:1"}]` + more + `}`
	}
	pod := func(name, more string) (string, string) {
		return "/api/v1/namespaces/default/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name +
			`"},"spec":` + spec(more) + `}`
	}
	web := func(name, more string) (string, string) {
		return "/apis/apps/v1/namespaces/default/deployments",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"` + name +
				`"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":` + spec(more) +
				`}}}`
	}
	for _, c := range []struct {
		make       func(name, more string) (path, body string)
		more, want string
	}{
		{pod, `,"nodeName":"nowhere"`, "spec.nodeName: " + none},
		{web, `,"nodeName":"nowhere"`, "spec.template.spec.nodeName: " + none},
		{pod, `,"nodeName":"` + node + `","nodeSelector":{"no":"such"}`, mismatch},
		{web, `,"nodeName":"` + node + `","nodeSelector":{"no":"such"}`, mismatch},
		{pod, `,"nodeName":"` + node + `"`, ""},
		{web, `,"nodeSelector":{"no":"such"}`, ""},
	} {
		path, body := c.make("named", c.more)
		w := request{method: "POST", path: path + "?dryRun=All", contentType: "application/json", body: body}.do(s)
		if got := strings.Join(w.Header().Values("Warning"), "\n"); w.Code != 201 || !strings.Contains(got, c.want) ||
			c.want == "" && got != "" {
			t.Errorf("%s: %d %s, warning %q, want %q", c.more, w.Code, w.Body, got, c.want)
		}
	}
	path, body := web("changed", "")
	if w := (request{method: "POST", path: path, contentType: "application/json", body: body}).do(s); w.Code != 201 {
		t.Fatal(w.Code, w.Body)
	}
	w := request{method: "PATCH", path: path + "/changed", contentType: mp,
		body: `{"spec":{"template":{"spec":{"nodeName":"nowhere"}}}}`}.do(s)
	if got := strings.Join(w.Header().Values("Warning"), "\n"); w.Code != 200 || !strings.Contains(got, none) {
		t.Errorf("change of the pod: %d, warning %q", w.Code, got)
	}
}
