package kube

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	authzv1 "k8s.io/api/authorization/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/kube/resource"
)

// Administrators can review the rights of other users. A review uses the rule that authorizes
// requests.
func TestReviewsOfOthers(t *testing.T) {
	s := newServer(seeded())
	s.RoleOf = func(_ context.Context, user string) (access.Role, error) {
		switch user {
		case "kari":
			return access.Operator, nil
		case "ola":
			return access.Viewer, nil
		case "broken":
			return "", errors.New("the disk is gone")
		}
		return "", nil
	}
	const global, local = reviews + "/subjectaccessreviews", reviews + "/namespaces/default/localsubjectaccessreviews"
	const list = `"resourceAttributes":{"verb":"list","resource":"configmaps","namespace":"default"}`
	const drop = `"resourceAttributes":{"verb":"delete","resource":"pods","namespace":"default"}`
	for _, c := range []struct {
		name, role, path, spec string
		code                   int
		allowed                bool
		want                   string
	}{
		{"a viewer may list", "", global, `"user":"ola",` + list, 201, true, "role viewer allows it"},
		{"a viewer may not delete", "", global, `"user":"ola",` + drop, 201, false, "role viewer does not allow it"},
		{"an operator may delete", "", global, `"user":"kari",` + drop, 201, true, "role operator allows it"},
		{"a group grants its role", "", global, `"groups":["system:authenticated","flotilla:operators"],` + drop, 201, true, "role operator allows it"},
		{"the group's role allows more than the user's", "", global, `"user":"ola","groups":["flotilla:admins"],"resourceAttributes":{"verb":"get","resource":"secrets"}`, 201, true, "role admin allows it"},
		{"an unknown user", "", global, `"user":"system:serviceaccount:default:e2e","groups":["system:authenticated"],` + list, 201, false, "no role is known for this user"},
		{"a path", "", global, `"user":"ola","nonResourceAttributes":{"verb":"get","path":"/healthz"}`, 201, true, "role viewer allows it"},
		{"a path that viewers may not read", "", global, `"user":"ola","nonResourceAttributes":{"verb":"get","path":"/debug/pprof"}`, 201, false, "role viewer does not allow it"},
		{"in one namespace", "", local, `"user":"ola",` + list, 201, true, "role viewer allows it"},
		{"a resource of another namespace", "", local, `"user":"ola","resourceAttributes":{"verb":"list","resource":"pods","namespace":"team"}`, 422, false, "must match metadata.namespace"},
		{"a path in a namespace", "", local, `"user":"ola","nonResourceAttributes":{"verb":"get","path":"/healthz"}`, 422, false, "disallowed on this kind of request"},
		{"without user and group", "", global, list, 422, false, "at least one of user or group must be specified"},
		{"neither a resource nor a path", "", global, `"user":"ola"`, 422, false, "exactly one of nonResourceAttributes or resourceAttributes must be specified"},
		{"the list of users cannot be read", "", global, `"user":"broken",` + list, 500, false, "the disk is gone"},
		{"an operator asks about another user", "operator", global, `"user":"ola",` + list, 403, false, "does not allow it"},
		{"a viewer asks about another user", "viewer", local, `"user":"ola",` + list, 403, false, "does not allow it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := request{role: c.role, method: "POST", path: c.path, contentType: resource.MediaJSON,
				body: `{"spec":{` + c.spec + `}}`}.do(s)
			var r authzv1.SubjectAccessReview
			_ = json.Unmarshal(w.Body.Bytes(), &r)
			if w.Code != c.code || r.Status.Allowed != c.allowed || !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("%d %s; want %d, allowed %t, with %q", w.Code, w.Body, c.code, c.allowed, c.want)
			}
		})
	}
}
