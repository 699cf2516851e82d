package kube

import (
	"fmt"
	"strings"
	"testing"
)

func TestOnlyAnAdministratorLowersPodSecurity(t *testing.T) {
	const all = "/api/v1/namespaces"
	level := func(name string, labels ...string) string {
		var pairs []string
		for i := 0; i < len(labels); i += 2 {
			pairs = append(pairs, fmt.Sprintf(`"pod-security.kubernetes.io/%s":%s`, labels[i], labels[i+1]))
		}
		return `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `","labels":{` +
			strings.Join(pairs, ",") + `}}}`
	}
	for _, tt := range []struct {
		name                     string
		role, method, path, kind string
		body                     string
		code                     int
	}{
		{"an operator creates a privileged namespace", "operator", "POST", all, "application/json", level("new", "enforce", `"privileged"`), 403},
		{"an operator applies a privileged namespace", "operator", "PATCH", all + "/new?fieldManager=m", ssa, level("new", "enforce", `"privileged"`), 403},
		{"an operator lowers a namespace's level", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"privileged"`), 403},
		{"an operator lowers a level's version", "operator", "PATCH", all + "/plain", jp, `[{"op":"add","path":"/metadata/labels/pod-security.kubernetes.io~1enforce","value":"privileged"}]`, 403},
		{"an operator replaces a namespace with a lower level", "operator", "PUT", all + "/plain", "application/json", level("plain", "enforce", `"privileged"`), 403},
		{"an operator sets an old version of the checks", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"baseline"`, "enforce-version", `"v1.0"`), 403},
		{"an administrator creates a privileged namespace", "admin", "POST", all, "application/json", level("new", "enforce", `"privileged"`), 201},
		{"an administrator lowers a namespace's level", "admin", "PATCH", all + "/plain", mp, level("plain", "enforce", `"privileged"`), 200},
		{"an operator creates a namespace with the default level", "operator", "POST", all, "application/json", level("new"), 201},
		{"an operator sets the default level", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"baseline"`), 200},
		{"an operator raises the level", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"restricted"`), 200},
		{"an operator goes back to the default level", "operator", "PATCH", all + "/strict", mp, level("strict", "enforce", "null"), 200},
		{"an operator goes below the default level", "operator", "PATCH", all + "/strict", mp, level("strict", "enforce", `"privileged"`), 403},
		{"an operator keeps a low level", "operator", "PATCH", all + "/low", mp, `{"metadata":{"labels":{"team":"shop"}}}`, 200},
		{"raises it", "operator", "PATCH", all + "/low", mp, level("low", "enforce", "null"), 200},
		{"an operator lowers the level of warnings", "operator", "PATCH", all + "/plain", mp, level("plain", "warn", `"privileged"`), 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(seeded())
			for name, labels := range map[string][]string{"plain": {"warn", `"baseline"`}, "low": {"enforce", `"privileged"`},
				"strict": {"enforce", `"restricted"`}} {
				if w := (request{method: "POST", path: all, contentType: "application/json",
					body: level(name, labels...)}).do(s); w.Code != 201 {
					t.Fatal(w.Body)
				}
			}
			w := request{role: tt.role, method: tt.method, path: tt.path, contentType: tt.kind, body: tt.body}.do(s)
			if w.Code != tt.code || tt.code == 403 && !strings.Contains(w.Body.String(), "only an administrator may choose") {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.code)
			}
		})
	}
}
