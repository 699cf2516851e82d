package kube

import (
	"fmt"
	"strings"
	"testing"
)

func TestOnlyAnAdministratorLowersPodSecurity(t *testing.T) {
	const all = "/api/v1/namespaces"
	level := func(name string, labels ...string) string {
		var said []string
		for i := 0; i < len(labels); i += 2 {
			said = append(said, fmt.Sprintf(`"pod-security.kubernetes.io/%s":%s`, labels[i], labels[i+1]))
		}
		return `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `","labels":{` +
			strings.Join(said, ",") + `}}}`
	}
	for _, tt := range []struct {
		name                     string
		role, method, path, kind string
		body                     string
		code                     int
	}{
		{"an operator creates a privileged namespace", "operator", "POST", all, "application/json", level("new", "enforce", `"privileged"`), 403},
		{"an operator applies one", "operator", "PATCH", all + "/new?fieldManager=m", ssa, level("new", "enforce", `"privileged"`), 403},
		{"an operator lowers one", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"privileged"`), 403},
		{"an operator lowers the version", "operator", "PATCH", all + "/plain", jp, `[{"op":"add","path":"/metadata/labels/pod-security.kubernetes.io~1enforce","value":"privileged"}]`, 403},
		{"an operator replaces one", "operator", "PUT", all + "/plain", "application/json", level("plain", "enforce", `"privileged"`), 403},
		{"an operator sets an old version of the checks", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"baseline"`, "enforce-version", `"v1.0"`), 403},
		{"an administrator creates one", "admin", "POST", all, "application/json", level("new", "enforce", `"privileged"`), 201},
		{"an administrator lowers one", "admin", "PATCH", all + "/plain", mp, level("plain", "enforce", `"privileged"`), 200},
		{"an operator creates one at the default", "operator", "POST", all, "application/json", level("new"), 201},
		{"an operator names the default", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"baseline"`), 200},
		{"an operator makes it stricter", "operator", "PATCH", all + "/plain", mp, level("plain", "enforce", `"restricted"`), 200},
		{"an operator sets the default again", "operator", "PATCH", all + "/strict", mp, level("strict", "enforce", "null"), 200},
		{"an operator goes below the default again", "operator", "PATCH", all + "/strict", mp, level("strict", "enforce", `"privileged"`), 403},
		{"an operator keeps a low one", "operator", "PATCH", all + "/low", mp, `{"metadata":{"labels":{"team":"shop"}}}`, 200},
		{"raises it", "operator", "PATCH", all + "/low", mp, level("low", "enforce", "null"), 200},
		{"an operator lowers the warning", "operator", "PATCH", all + "/plain", mp, level("plain", "warn", `"privileged"`), 200},
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
