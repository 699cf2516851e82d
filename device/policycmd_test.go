package main

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
		name string
		args []string
		code int
		said string
	}{
		{"a valid file", []string{good}, 0, "valid"},
		{"one that is not", []string{bad}, exitUsage, ""},
		{"none", nil, exitUsage, ""},
		{"pods", []string{good, pods}, exitFailed, "deep is forbidden: spec.initContainers[0].securityContext.privileged: privileged containers are not allowed (privileged: true)"},
		{"something else", []string{good, write("service.yaml", "kind: Service\n")}, exitUsage, ""},
	} {
		if code := run(append([]string{"policy", "check"}, c.args...)); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		var out strings.Builder
		if c.said != "" {
			_ = checkPolicy(&out, c.args[0], c.args[1:])
			if !strings.Contains(out.String(), c.said) {
				t.Errorf("%s: said %q", c.name, out.String())
			}
		}
	}
}

// The example is the default, word by word.
func TestTheExampleIsTheDefault(t *testing.T) {
	p, err := readPolicy("../firmware-configs/policy/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Default()
	want.Capabilities, want.UnsafeSysctls, want.Registries, want.Signatures = []string{}, []string{}, []string{}, []policy.Signature{}
	if !reflect.DeepEqual(p.Document, want) {
		t.Errorf("%+v, want %+v", p.Document, want)
	}
}
