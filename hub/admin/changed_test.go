package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/store"
)

// archive is an audit with the test's records.
type archive struct {
	estate
	records []store.Audit
	err     error
}

func (a *archive) FindAudits(context.Context, store.AuditQuery) ([]store.Audit, error) {
	return a.records, a.err
}

// The pages of nodes, sites and workloads say what changed, and an incident's timeline what people
// changed before and during it; to roles that may not read the audit they say that this is missing.
func TestPagesSayWhatChanged(t *testing.T) {
	m, incident := darkBergen(t)
	m.Put(t, admintest.Work(t).Snapshot().Deployment("default", "shop"))
	since := admintest.Now
	changed := func(d time.Duration, resource, namespace, name string) store.Audit {
		return store.Audit{At: since.Add(-d), Who: "anna", Verb: "patch", Resource: resource, Namespace: namespace,
			Name: name, Code: 200}
	}
	a := &archive{records: []store.Audit{changed(5*time.Minute, "nodes", "", "brg-0003"),
		changed(20*time.Minute, "sites", "", "bergen"), changed(10*time.Hour, "deployments", "default", "shop")}}
	c := configOf(m)
	c.Archive = a
	for _, x := range []struct{ role, path, want string }{
		{"admin", "/nodes/brg-0003", "User change anna changed node brg-0003"},
		{"admin", "/nodes/brg-0003", "User change anna changed site bergen"},
		{"admin", "/sites/bergen", "User change anna changed node brg-0003"},
		{"admin", "/workloads/deployments/default/shop", "User change anna changed deployment default/shop"},
		{"admin", "/incidents/" + incident, "−18m anna changed site bergen"},
		{"viewer", "/nodes/brg-0003", "your role may not read the audit"},
		{"admin", "/nodes/oslo-1", "Nothing has changed."},
	} {
		_, body := start(t, c).ask(t, x.role, "GET", x.path, nil)
		if words := wordsOf(body); !strings.Contains(words, x.want) {
			t.Errorf("%s does not show %s %q: %s", x.path, x.role, x.want, words)
		}
	}
	a.err = errors.New("the database is away")
	if _, body := start(t, c).ask(t, "admin", "GET", "/nodes/brg-0003", nil); !strings.Contains(body, "The audit cannot be read now") {
		t.Error("an unreadable audit looks like an empty one")
	}
}
