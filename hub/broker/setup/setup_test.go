package setup

import (
	"strings"
	"testing"
)

func TestTheRulesNameOnlyWhatADeviceMay(t *testing.T) {
	o := Options{Addresses: []string{"a.example:8883", "b.example:8884"}, Path: "/etc/broker", Prefix: "our/fleet", Nodes: []string{"pi-1.room"}, Secret: "s3cret"}
	for kind, want := range map[string][]string{
		"mosquitto": {"pattern write our/fleet/nodes/%u/lease\n", "pattern read our/fleet/nodes/%u/request/+\n", "topic read our/fleet/nodes/+/status\n", "listener 8884\n"},
		"nats":      {`"our.fleet.nodes.pi-1//room.lease"`, `"our.fleet.nodes.pi-1//room.request.*"`, `"our.fleet.nodes.*.reply.*"`, `"nats://flotilla:s3cret@b.example:6222"`, "CN=pi-1.room,O=flotilla:devices"},
		"emqx":      {`"our/fleet/nodes/${username}/lease"`, `{eq, "our/fleet/nodes/${username}/request/+"}`, "{deny, all}."},
	} {
		files, err := Files(kind, o)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for _, f := range files {
			all += f.Text
			if f.Secret != strings.Contains(f.Text, "s3cret") {
				t.Errorf("%s: %s is secret: %v", kind, f.Name, f.Secret)
			}
		}
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("%s does not say %s", kind, w)
			}
		}
		for _, bad := range []string{"fleet/v1/nodes", "<no value>", "%!"} {
			if strings.Contains(all, bad) {
				t.Errorf("%s says %s", kind, bad)
			}
		}
	}
	if _, err := Files("rabbit", o); err == nil {
		t.Error("there is a configuration of a broker that nobody knows")
	}
	o.Addresses = []string{"a.example"}
	if _, err := Files("nats", o); err == nil {
		t.Error("an address without a port was taken")
	}
}
