package setup

import (
	"strings"
	"testing"

	"flotilla.dev/shared/wire"
)

func TestTheRulesAllowADeviceOnlyItsOwnTopics(t *testing.T) {
	o := Options{Addresses: []string{"a.example:8883", "b.example:8884"}, Path: "/etc/broker", Prefix: "our/fleet",
		Nodes: []string{"pi-1.room"}, Secret: "s3cret"}
	for kind, want := range map[string][]string{
		"mosquitto": {"pattern write our/fleet/nodes/%u/lease\n", "pattern read our/fleet/nodes/%u/request/+\n",
			"topic read our/fleet/nodes/+/status\n", "listener 8884\n"},
		"nats": {`"our.fleet.nodes.pi-1//room.lease"`, `"our.fleet.nodes.pi-1//room.request.*"`, `"our.fleet.nodes.*.reply.*"`, `"nats://flotilla:s3cret@b.example:6222"`, "CN=pi-1.room,O=flotilla:devices"},
		"emqx": {`bind = "0.0.0.0:8883"`, `bind = "0.0.0.0:8884"`, `"our/fleet/nodes/${username}/lease"`, `{eq, "our/fleet/nodes/${username}/request/+"}`, "{deny, all}."},
	} {
		files, err := Files(kind, o)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for _, f := range files {
			all += f.Text
			if f.Secret != strings.Contains(f.Text, "s3cret") {
				t.Errorf("%s: file %s is secret: %v", kind, f.Name, f.Secret)
			}
		}
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("the files of %s lack %s", kind, w)
			}
		}
		for _, bad := range []string{"fleet/v1/nodes", "<no value>", "%!"} {
			if strings.Contains(all, bad) {
				t.Errorf("the files of %s contain %s", kind, bad)
			}
		}
	}
	if _, err := Files("rabbit", o); err == nil {
		t.Error("an unknown kind of broker is accepted")
	}
	o.Addresses = []string{"a.example"}
	if _, err := Files("nats", o); err == nil {
		t.Error("an address without a port is accepted")
	}
}

// An IPv6 address with a port is written in brackets, and a broker with an IPv6 address listens on
// it.
func TestAnIPv6AddressIsWrittenInBrackets(t *testing.T) {
	o := Options{Addresses: []string{"[fd00::1]:8883", "[fd00::2]:8883", "10.0.0.3:8883"}, Path: "/etc/broker",
		Prefix: wire.DefaultPrefix, Secret: "s3cret"}
	for kind, want := range map[string][]string{
		"mosquitto": {"--broker mqtts://[fd00::1]:8883,mqtts://[fd00::2]:8883,mqtts://10.0.0.3:8883`"},
		"nats":      {"--broker mqtts://[fd00::1]:8883,mqtts://[fd00::2]:8883,mqtts://10.0.0.3:8883`", `"nats://flotilla:s3cret@[fd00::2]:6222"`, `"nats://flotilla:s3cret@10.0.0.3:6222"`, `"[::]:8883"`, `"[::]:6222"`, `"0.0.0.0:6222"`},
		"emqx":      {"--broker mqtts://[fd00::1]:8883,mqtts://[fd00::2]:8883,mqtts://10.0.0.3:8883`", `bind = "[::]:8883"`},
	} {
		files, err := Files(kind, o)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for _, f := range files {
			all += f.Text
			if strings.Contains(f.Name, ":") {
				t.Errorf("%s writes a file %s", kind, f.Name)
			}
		}
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("the files of %s lack %s", kind, w)
			}
		}
	}
}

// Values with characters that are special in any of the files are refused.
func TestValuesWithSpecialCharactersAreRefused(t *testing.T) {
	good := Options{Addresses: []string{"a.example:8883"}, Path: "/etc/our broker", Prefix: "our-fleet/v1:a@b_c"}
	for what, edit := range map[string]func(*Options){
		"an additional rule":           func(o *Options) { o.Prefix = `a/nodes/x"]}.{allow,all}.%` },
		"a name that changes the rule": func(o *Options) { o.Prefix = "a/%u" },
		"a placeholder":                func(o *Options) { o.Prefix = "a/${clientid}" },
		"a level of NATS":              func(o *Options) { o.Prefix = "a/b.c" },
		"every subject of NATS":        func(o *Options) { o.Prefix = "a/>" },
		"a command":                    func(o *Options) { o.Prefix = "a`reboot`" },
		"no level":                     func(o *Options) { o.Prefix = "a//b" },
		"no prefix":                    func(o *Options) { o.Prefix = "" },
		"a path with a quote":          func(o *Options) { o.Path = `/etc/a"b` },
		"a path of two lines":          func(o *Options) { o.Path = "/etc/a\nallow_anonymous true" },
		"a host that is a path":        func(o *Options) { o.Addresses = []string{"../../a:8883"} },
		"a host with a quote":          func(o *Options) { o.Addresses = []string{`a"b:8883`} },
		"a port and another word":      func(o *Options) { o.Addresses = []string{"a:8883 x"} },
		"port 0":                       func(o *Options) { o.Addresses = []string{"a:0"} },
	} {
		for _, kind := range Kinds {
			o := good
			if _, err := Files(kind, o); err != nil {
				t.Fatal(err)
			}
			edit(&o)
			if _, err := Files(kind, o); err == nil {
				t.Errorf("%s accepts %s", kind, what)
			}
		}
	}
}
