package kube

import (
	"strings"
	"testing"

	"flotilla.dev/hub/state"
)

// A namespace's pod security level applies to every request that creates pods, with Kubernetes'
// texts.
func TestThePodSecurityOfANamespace(t *testing.T) {
	f := seeded()
	s := newServer(f)
	audit := &auditing{}
	s.Audit = audit
	do := func(method, path, kind, body string) (int, string, string) {
		w := request{method: method, path: path, contentType: kind, body: body}.do(s)
		return w.Code, w.Body.String(), strings.Join(w.Header().Values("Warning"), "\n")
	}
	expect := func(name, method, path, kind, body string, code int, text, warning string) {
		t.Helper()
		if got, answer, warned := do(method, path, kind, body); got != code || !strings.Contains(answer, text) ||
			!strings.Contains(warned, warning) || warning == "" && warned != "" {
			t.Errorf("%s: %d %s, warning %q; want %d %s, %q", name, got, answer, warned, code, text, warning)
		}
	}
	const (
		ns   = "/api/v1/namespaces/shop"
		pods = ns + "/pods"
		port = `"ports":[{"containerPort":80,"hostPort":80}]`
	)
	pod := func(name, more string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name +
			`"},"spec":{"containers":[{"name":"web","image":"web:1"` + more + `}]}}`
	}
	web := func(name, more string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"` + name +
			`"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"web","image":"web:1"` + more + `}]}}}}`
	}
	create := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop","labels":{"pod-security.kubernetes.io/enforce":"`
	expect("an invalid level", "POST", "/api/v1/namespaces", "application/json", create+`strict"}}}`, 422,
		`must be one of privileged, baseline, restricted`, "")
	expect("a namespace", "POST", "/api/v1/namespaces", "application/json", create+`privileged"}}}`, 201, "", "")
	expect("a host port in a privileged namespace", "POST", pods, "application/json", pod("a", ","+port), 201, "", "")
	expect("a level that a pod violates, in a dry run", "PATCH", ns+"?dryRun=All", mp,
		`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`, 200, "",
		`existing pods in namespace \"shop\" violate the new PodSecurity enforce level \"baseline:latest\"`)
	expect("a level that a pod violates", "PATCH", ns, mp,
		`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline","pod-security.kubernetes.io/warn":"restricted","pod-security.kubernetes.io/audit":"restricted"}}}`, 200, "", "a: hostPort")
	const refused = `pods \"b\" is forbidden: violates PodSecurity \"baseline:latest\": hostPort (container \"web\" uses hostPort 80)`
	expect("a host port in a baseline namespace", "POST", pods, "application/json", pod("b", ","+port), 403, refused, "")
	expect("a host port in a baseline namespace, in a dry run", "POST", pods+"?dryRun=All", "application/json",
		pod("b", ","+port), 403, refused, "")
	expect("a host port in a baseline namespace, applied", "PATCH", pods+"/b?fieldManager=m",
		"application/apply-patch+yaml", pod("b", ","+port), 403, refused, "")
	expect("another image for an existing pod", "PATCH", pods+"/a", mp,
		`{"spec":{"containers":[{"name":"web","image":"web:2","ports":[{"containerPort":80,"hostPort":80,"protocol":"TCP"}]}]}}`, 403, `violates PodSecurity`, "")
	expect("a label for an existing pod", "PATCH", pods+"/a", mp, `{"metadata":{"labels":{"x":"y"}}}`, 200, "", "")
	expect("a pod with a warning", "POST", pods, "application/json", pod("c", ""), 201, "",
		`would violate PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false`)
	expect("a workload whose pods would be refused", "POST", "/apis/apps/v1/namespaces/shop/deployments",
		"application/json", web("w", ","+port), 201, "", `would violate PodSecurity \"restricted:latest\": hostPort`)
	if last := audit.lines[len(audit.lines)-1]; !strings.HasPrefix(last,
		`admin create deployments shop/w (would violate PodSecurity "restricted:latest": `) {
		t.Errorf("the last record in the audit is %q, want the violation", last)
	}
	expect("an invalid second label", "PATCH", ns, mp,
		`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"none"}}}`, 422, "must be one of", "")
	if f.Snapshot().Get(state.Key{Kind: state.Pods, Namespace: "shop", Name: "b"}) != nil {
		t.Error("a refused pod was created")
	}
}
