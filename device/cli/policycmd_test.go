package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"flotilla.dev/shared/policy"
)

func TestPolicyCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good, bad := write("policy.yaml", "hostNetwork: true\n"), write("bad.yaml", "hostnetwork: true\n")
	pods := write("pods.yaml", `apiVersion: v1
kind: Pod
metadata: {name: fine}
spec: {hostNetwork: true, containers: [{name: a, image: a}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: deep}
spec: {template: {spec: {initContainers: [{name: i, image: i, securityContext: {privileged: true}}], containers: [{name: a, image: a}]}}}
`)
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		output string
	}{
		{"a valid file", []string{good}, 0, "valid"},
		{"an unknown battery", []string{bad}, exitUsage, ""},
		{"no arguments", nil, exitUsage, ""},
		{"a forbidden pod", []string{good, pods}, exitFailed, "deep is forbidden: spec.initContainers[0].securityContext.privileged: privileged containers are not allowed (privileged: true)"},
		{"the first of two pods as JSON", []string{good, write("pods.json", `{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}} {"kind": "Pod", "metadata": {"name": "b"}, "spec": {"hostPID": true, "containers": []}}`)}, exitFailed, "a may run\n"},
		{"the second of two pods as JSON", []string{good, filepath.Join(dir, "pods.json")}, exitFailed, "b is forbidden: spec.hostPID"},
		{"YAML that begins like JSON", []string{good, write("flow.yaml", "{kind: Pod, metadata: {name: a}}")}, 0, "a may run"},
		{"words and keys of YAML 1.1", []string{good, write("old.yaml", "kind: Pod\nmetadata: {name: a, annotations: {1: on-call, day: 2026-01-02, word: \"yes\"}, generation: 010}\nspec: {hostPID: yes}\n")}, exitFailed, "a is forbidden: spec.hostPID"},
		{"an alias", []string{good, write("alias.yaml", "kind: DaemonSet\nmetadata: {name: a}\nbase: &b {hostPID: true}\nspec: {template: {spec: {<<: *b, containers: []}}}\n")}, exitFailed, "a is forbidden: spec.hostPID"},
		{"a misspelt field", []string{good, write("misspelt.yaml", "kind: Pod\nspec: {hostPid2: true}\n")}, exitUsage, ""},
		{"a field that is given twice", []string{good, write("twice.yaml", "kind: Pod\nspec: {hostPID: true, hostPID: false}\n")}, exitUsage, ""},
		{"an empty document", []string{good, write("empty.yaml", "---\n---\nkind: Pod\nmetadata: {name: a}\n")}, 0, "a may run"},
		{"a StatefulSet is checked too", []string{good, write("kinds.yaml", `kind: StatefulSet
metadata: {name: set}
spec: {template: {spec: {hostPID: true, containers: []}}}
---
kind: Job
metadata: {name: once}
spec: {template: {spec: {hostPID: true, containers: []}}}
---
kind: CronJob
metadata: {name: night}
spec: {schedule: "@daily", jobTemplate: {spec: {template: {spec: {hostPID: true, containers: []}}}}}
`)}, exitFailed, "set is forbidden: spec.hostPID"},
		{"a Job is checked too", []string{good, filepath.Join(dir, "kinds.yaml")}, exitFailed, "once is forbidden: spec.hostPID"},
		{"a CronJob is checked too", []string{good, filepath.Join(dir, "kinds.yaml")}, exitFailed, "night is forbidden: spec.hostPID"},
		{"a list, as kubectl get -o yaml writes it", []string{good, write("list.yaml", `apiVersion: v1
kind: List
items:
- {kind: Pod, metadata: {name: a}, spec: {containers: []}}
- {kind: Job, metadata: {name: b}, spec: {template: {spec: {hostPID: true}}}}
`)}, exitFailed, "a may run\n"},
		{"the second pod of a list", []string{good, filepath.Join(dir, "list.yaml")}, exitFailed, "b is forbidden: spec.hostPID"},
		{"deeply nested lists", []string{good, write("deep.yaml", strings.Repeat("{kind: List, items: [", 5000)+strings.Repeat("]}", 5000))}, exitUsage, ""},
		{"an unknown kind in a list", []string{good, write("other.yaml", "{kind: List, items: [{kind: Service}]}")}, exitUsage, ""},
		{"an unknown kind", []string{good, write("service.yaml", "kind: Service\n")}, exitUsage, ""},
	} {
		if code := Run(append([]string{"policy", "check"}, c.args...), nil); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		var out strings.Builder
		if c.output != "" {
			_ = checkPolicy(&out, c.args[0], c.args[1:])
			if !strings.Contains(out.String(), c.output) {
				t.Errorf("%s: the output is %q, want %q", c.name, out.String(), c.output)
			}
		}
	}
}

// The example file is the default policy.
func TestTheExampleIsTheDefault(t *testing.T) {
	p, err := readPolicy("../../firmware-configs/policy/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Default()
	want.Capabilities, want.UnsafeSysctls, want.Registries, want.Signatures = []string{}, []string{}, []string{},
		[]policy.Signature{}
	if !reflect.DeepEqual(p.Document, want) {
		t.Errorf("the example is %+v, want the default %+v", p.Document, want)
	}
}
