package admin

import (
	"net/http"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
)

// A StatefulSet has a page with facts, versions, pods and actions.
func TestAStatefulSetHasAPage(t *testing.T) {
	srv := acting(t, admintest.Work(t))
	_, list := srv.ask(t, "admin", "GET", "/workloads", nil)
	for _, want := range []string{`href="/workloads/statefulsets/default/db"`, `href="/actions/statefulsets/restart"`} {
		if !strings.Contains(list, want) {
			t.Errorf("the list of workloads lacks %s", want)
		}
	}
	res, body := srv.ask(t, "admin", "GET", "/workloads/statefulsets/default/db", nil)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%d: %.300s", res.StatusCode, body)
	}
	for _, want := range []string{"Stateful set", "one after the other", "data 1Gi", "registry.example/db:2", "registry.example/db:1", ">db-0<", `/actions/statefulsets/scale`, `/actions/statefulsets/delete`} {
		if !strings.Contains(body, want) {
			t.Errorf("its page lacks %q: %.3000s", want, mainOf(body))
		}
	}
	_, asked := srv.ask(t, "admin", "GET", "/actions/statefulsets/delete?item=default%2Fdb", nil)
	if !strings.Contains(asked, "1 claim and what is in their volumes stay.") {
		t.Errorf("the confirmation of its deletion does not mention its claims: %.1500s", mainOf(asked))
	}
	if _, seen := srv.ask(t, "viewer", "GET", "/workloads/statefulsets/default/db", nil); strings.Contains(seen, "/actions/statefulsets/") {
		t.Error("a viewer is offered an action")
	}
	if res, _ := srv.ask(t, "admin", "GET", "/workloads/statefulsets/default/none", nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("a missing StatefulSet: %d", res.StatusCode)
	}
}
