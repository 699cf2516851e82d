package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"flotilla.dev/shared/policy"
)

func TestSingleSettingsMakeAPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want policy.Document
	}{
		"nothing said":                          {nil, policy.Default()},
		"settings without a host path":          {[]string{"--host-path-prefixes="}, policy.Document{LocalVolumes: true, PodPidsLimit: 1024}},
		"each setting alone":                    {[]string{"--allow-host-network", "--allow-host-pid", "--allowed-capabilities=NET_ADMIN", "--host-path-prefixes=/srv,/opt"}, policy.Document{HostNetwork: true, HostPID: true, Capabilities: []string{"NET_ADMIN"}, HostPaths: []string{"/srv", "/opt"}, LocalVolumes: true, PodPidsLimit: 1024}},
		"allow-privileged allows any host path": {[]string{"--allow-privileged"}, policy.Document{Privileged: true, NewPrivileges: true, HostPaths: []string{"/"}, UnsafeSysctls: []string{"*"}, LocalVolumes: true, PodPidsLimit: 1024}},
	} {
		got, _, err := load(t, c.args, nil)
		if d := got.Policy(); err != nil || !reflect.DeepEqual(d, c.want) || d.Validate() != nil {
			t.Errorf("%s: %+v, %v, %v; want %+v", name, d, err, d.Validate(), c.want)
		}
	}
}

func TestAPolicyFileReplacesTheSingleSettings(t *testing.T) {
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	c, warnings, err := load(t, []string{"--policy", write("hostNetwork: true\nregistries: [docker.io]\n")}, nil)
	want := policy.Default()
	want.HostNetwork, want.Registries = true, []string{"docker.io"}
	if err != nil || len(warnings) > 0 || !reflect.DeepEqual(c.Policy(), want) {
		t.Errorf("the policy is %+v, warnings %v, error %v; want %+v", c.Policy(), warnings, err, want)
	}
	if _, warnings, err := load(t, nil, []string{"FLOTILLA_POLICY=" + write("podPidsLimit: 64")}); err != nil ||
		len(warnings) != 1 || !strings.Contains(warnings[0], "podPidsLimit") {
		t.Errorf("warnings %v, error %v; want one warning about podPidsLimit", warnings, err)
	}
	for name, bad := range map[string]struct {
		args []string
		want string
	}{
		"both":                  {[]string{"--policy", write(""), "--allow-host-pid"}, "flag --allow-host-pid: allow-host-pid and policy are both set"},
		"a missing file":        {[]string{"--policy", "/nowhere/policy.yaml"}, "flag --policy: read the policy: open /nowhere/policy.yaml"},
		"a misspelt key":        {[]string{"--policy", write("privleged: true")}, "field privleged not found"},
		"an unknown level":      {[]string{"--pod-security-default=strict"}, "write privileged, baseline or restricted"},
		"a path that is not /…": {[]string{"--policy", write("hostPaths: [srv]")}, `hostPaths: "srv" must be a clean absolute path`},
	} {
		if _, _, err := load(t, bad.args, nil); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", name, err, bad.want)
		}
	}
}
