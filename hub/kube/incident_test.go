package kube

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// Operators acknowledge incidents and write notes with kubectl patch, edit or apply. The hub adds
// the operator's name. Other fields cannot be written.
func TestIncidentsAreAcknowledged(t *testing.T) {
	const path, kind = "/apis/flotilla.dev/v1alpha1/incidents/oslo-dark-1a2b3c",
		`{"apiVersion":"flotilla.dev/v1alpha1","kind":"Incident","metadata":{"name":"oslo-dark-1a2b3c"},`
	f := seeded()
	f.put(&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "oslo-dark-1a2b3c"}, State: fleet.IncidentOpen,
		Cause: "SiteDark"})
	s := newServer(f)
	for _, tt := range []struct {
		rule, role, method, at, kind, body string
		code                               int
		by, note                           string
	}{
		{"a viewer cannot acknowledge an incident", "viewer", "PATCH", path, mp, `{"acknowledged":{}}`, 403, "", ""},
		{"an acknowledgement has the operator's name", "operator", "PATCH", path, mp, `{"acknowledged":{"by":"eve"}}`, 200, "operator", ""},
		{"an operator writes a note", "operator", "PATCH", path, mp, `{"note":"the line is down"}`, 200, "operator", "the line is down"},
		{"a note can be applied", "operator", "PATCH", path + "?fieldManager=m&force=true", ssa, kind + `"note":"until 14:00"}`, 200, "operator", "until 14:00"},
		{"a note that is too long", "operator", "PATCH", path, mp, `{"note":"` + strings.Repeat("x", 2000) + `"}`, 422, "operator", "until 14:00"},
		{"other fields cannot be changed", "admin", "PATCH", path, mp, `{"severity":"Info"}`, 422, "operator", "until 14:00"},
		{"labels cannot be changed", "admin", "PATCH", path, mp, `{"metadata":{"labels":{"a":"b"}}}`, 422, "operator", "until 14:00"},
		{"an incident cannot be deleted", "admin", "DELETE", path, "", "", 405, "operator", "until 14:00"},
		{"an incident cannot be created", "admin", "POST", strings.TrimSuffix(path, "/oslo-dark-1a2b3c"), "application/json", kind + `"note":"x"}`, 405, "operator", "until 14:00"},
		{"an acknowledgement is removed", "operator", "PATCH", path, mp, `{"acknowledged":null}`, 200, "", "until 14:00"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			w := request{role: tt.role, method: tt.method, path: tt.at, contentType: tt.kind, body: tt.body}.do(s)
			if w.Code != tt.code {
				t.Fatalf("%d %s, want %d", w.Code, w.Body, tt.code)
			}
			var i fleet.Incident
			if err := json.Unmarshal(request{path: path}.do(s).Body.Bytes(), &i); err != nil {
				t.Fatal(err)
			}
			by := ""
			if i.Acknowledged != nil {
				by = i.Acknowledged.By
			}
			if by != tt.by || i.Note != tt.note || i.Cause != "SiteDark" {
				t.Errorf("acknowledged by %q, note %q; want %q, %q", by, i.Note, tt.by, tt.note)
			}
		})
	}
}
