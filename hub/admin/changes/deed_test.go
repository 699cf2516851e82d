package changes

import (
	"testing"

	"flotilla.dev/hub/store"
)

func TestDeeds(t *testing.T) {
	for _, tt := range []struct {
		verb, resource, namespace, name string
		refused                         bool
		want                            string
	}{
		{"patch", "deployments", "default", "kiosk", false, "changed deployment default/kiosk"},
		{"update", "deployments/scale", "default", "kiosk", false, "changed scale of deployment default/kiosk"},
		{"delete", "nodes", "", "pi-1", true, "wanted to delete node pi-1"},
		{"create", "sessions", "", "", false, "logged in"},
		{"create", "pods/exec", "default", "kiosk-1", false, "ran a command in pod default/kiosk-1"},
		{"list", "secrets", "default", "", false, "read every secret in default"},
		{"create", "enrolments", "", "pi-1", true, "wanted to join as node pi-1"},
		{"revoke", "jointokens", "", "abc", false, "revoked join token abc"},
		{"update", "account", "", "", false, "changed their own password"},
		{"drain", "nodes", "", "pi-1", false, "drain node pi-1"},
	} {
		r := store.Audit{Verb: tt.verb, Resource: tt.resource, Namespace: tt.namespace, Name: tt.name,
			Code: map[bool]int{false: 200, true: 403}[tt.refused]}
		if got := Deed(r); got != tt.want {
			t.Errorf("%+v is %q, want %q", r, got, tt.want)
		}
	}
}
