package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"flotilla.dev/shared/fleet"
)

func load(t *testing.T, args, env []string) (Config, []string, error) {
	t.Helper()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	Bind(flags)
	if err := flags.Parse(args); err != nil {
		return Config{}, nil, FlagError(err)
	}
	return Load(flags, env)
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "hub.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDefaultsAreKubernetes(t *testing.T) {
	c, _, err := load(t, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeMonitorGracePeriod != 40*time.Second || c.NodeStartupGracePeriod != time.Minute ||
		c.NodeEvictionRate != 0.1 ||
		c.SecondaryNodeEvictionRate != 0.01 || c.UnhealthyZoneThreshold != 0.55 || c.LargeClusterSizeThreshold != 50 ||
		c.DefaultNotReadyTolerationSeconds != 300 || c.DefaultUnreachableTolerationSeconds != 300 ||
		c.TerminatedPodGCThreshold != 1000 ||
		c.SiteDisruptionPolicy != fleet.Evict || c.LeaseInterval != 10*time.Second || !c.RegisterNode ||
		c.HTTPSListen != ":8443" || c.MQTTListen != ":8883" || c.MQTTDevListen != "" || c.DataDir != "/var/lib/flotilla/hub" {
		t.Fatalf("the defaults differ from Kubernetes': %+v", c)
	}
}

func TestFlagsOverrideEnvironmentFileAndDefaults(t *testing.T) {
	f := file(t, "lease-interval: 5s\nnode-monitor-grace-period: 50s\nnode-eviction-rate: 0.5\nregister-node: false\n")
	c, _, err := load(t, []string{"--config", f, "--lease-interval=7s", "--register-node"},
		[]string{"FLOTILLA_LEASE_INTERVAL=6s", "FLOTILLA_NODE_MONITOR_GRACE_PERIOD=55s", "PATH=/bin"})
	if err != nil {
		t.Fatal(err)
	}
	if c.LeaseInterval != 7*time.Second || c.NodeMonitorGracePeriod != 55*time.Second || c.NodeEvictionRate != 0.5 ||
		c.NodeStartupGracePeriod != time.Minute || !c.RegisterNode {
		t.Fatalf("the wrong source applies: %+v", c)
	}
	var b strings.Builder
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"lease-interval: 7s # flag --lease-interval",
		"node-monitor-grace-period: 55s # FLOTILLA_NODE_MONITOR_GRACE_PERIOD",
		"node-eviction-rate: 0.5 # " + f + ":3",
		"node-startup-grace-period: 1m0s # default",
		"mqtt-dev-listen: \"\" # default",
	} {
		if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	// The output is a configuration file with equal values.
	again, _, err := load(t, nil, []string{"FLOTILLA_CONFIG=" + file(t, b.String())})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if s.get(&again) != s.get(&c) {
			t.Errorf("%s is %s after reading the printed %s", s.name, s.get(&again), s.get(&c))
		}
	}
}

func TestPodEvictionTimeoutSetsBothTolerations(t *testing.T) {
	c, _, err := load(t, []string{"--pod-eviction-timeout=2m"},
		[]string{"FLOTILLA_DEFAULT_NOT_READY_TOLERATION_SECONDS=30"})
	if err != nil || c.DefaultNotReadyTolerationSeconds != 120 || c.DefaultUnreachableTolerationSeconds != 120 {
		t.Fatalf("error %v; want both tolerations at 120 s: %+v", err, c)
	}
	c, _, err = load(t, []string{"--default-unreachable-toleration-seconds=30"},
		[]string{"FLOTILLA_POD_EVICTION_TIMEOUT=2m"})
	if err != nil || c.DefaultNotReadyTolerationSeconds != 120 || c.DefaultUnreachableTolerationSeconds != 30 {
		t.Fatalf("error %v; want tolerations of 120 s and 30 s: %+v", err, c)
	}
}

func TestMistakesAreReportedWithACorrection(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  []string
		file string
		want []string // parts of the message
	}{
		{"a grace period of fewer than four leases", []string{"--node-monitor-grace-period=15s"}, nil, "",
			[]string{"flag --node-monitor-grace-period: node-monitor-grace-period is 15s; devices renew every 10s, and a few " +
				"lost leases must not evict; use 40s or more"}},
		{"longer leases make the default grace too short", nil, []string{"FLOTILLA_LEASE_INTERVAL=20s"}, "",
			[]string{"default: node-monitor-grace-period is 40s; devices renew every 20s", "node-startup-grace-period is 1m0s",
				"use 1m20s or more"}},
		{"a lease interval of half a second", []string{"--lease-interval=500ms"}, nil, "", []string{"between 1s and 5m, such as 10s"}},
		{"a development listener on all addresses", []string{"--mqtt-dev-listen=0.0.0.0:1883"}, nil, "", []string{"mqtt-dev-listen is 0.0.0.0:1883; it has no TLS and no passwords", "127.0.0.1:1883"}},
		{"a development listener without a host", []string{"--mqtt-dev-listen=:1883"}, nil, "", []string{"write a loopback address"}},
		{"a broker without TLS", []string{"--broker=mqtt://b.example:1883"}, nil, "", []string{"broker is mqtt://b.example:1883", "mqtts://broker.example.org:8883", "not \"mqtt://b.example:1883\""}},
		{"a broker with a password", []string{"--broker=mqtts://me:you@b.example"}, nil, "", []string{"write addresses such as mqtts://"}},
		{"too many hubs", []string{"--mqtt-addresses=" + strings.TrimSuffix(strings.Repeat("b.example:8883,", 17), ","), "--https-addresses=" + strings.TrimSuffix(strings.Repeat("b.example:8443,", 17), ",")}, nil, "",
			[]string{"flag --mqtt-addresses: ", "flag --https-addresses: ", "there are 17 addresses; write at most 16"}},
		{"a hub without a port", []string{"--https-addresses=b.example"}, nil, "", []string{"hub-a.example.org:8443"}},
		{"a mirror of the hub's own images", []string{"--image-mirrors=ghcr.io,docker.io/hub"}, nil, "",
			[]string{"docker.io/hub is the hub itself: its images need no rule"}},
		{"a mirror that is the hub", []string{"--advertise-address=gw.example", "--image-mirrors=gw.example:8443/*"}, nil, "",
			[]string{"gw.example:8443 is this hub itself"}},
		{"a mirror on loopback", []string{"--image-mirrors=127.0.0.1:5443"}, nil, "", []string{"this hub itself"}},
		{"a mirror with a tag", []string{"--image-mirrors=ghcr.io/acme/app:1"}, nil, "", []string{"must be a registry"}},
		{"a mirror without images", []string{"--image-mirrors=docker.io", "--image-quota=0"}, nil, "",
			[]string{"keeps no images"}},
		{"too many brokers", []string{"--broker=" + strings.TrimSuffix(strings.Repeat("mqtts://b.example,", 17), ",")}, nil, "", []string{"write at most 16 addresses"}},
		{"a broker and a development listener", []string{"--broker=mqtts://b.example", "--mqtt-dev-listen=127.0.0.1:1883"}, nil, "", []string{"mqtt-dev-listen is 127.0.0.1:1883; devices connect to the external broker"}},
		{"a prefix with a wildcard", []string{"--broker=mqtts://b.example", "--broker-prefix=a/#"}, nil, "", []string{"broker-prefix is a/#"}},
		{"a prefix without a broker", []string{"--broker-prefix=a/b"}, nil, "", []string{"it needs broker"}},
		{"two listeners on one port", []string{"--mqtt-listen=:8443"}, nil, "", []string{"https-listen has that port"}},
		{"an address without a port", []string{"--https-listen=localhost"}, nil, "", []string{"https-listen is localhost; write host:port or :port, such as :8443"}},
		{"an invalid port", []string{"--https-listen=:99999"}, nil, "", []string{":8443"}},
		{"a name to advertise with a port", []string{"--advertise-address=gw:8443"}, nil, "", []string{"without a port"}},
		{"an invalid advertise-address", []string{"--advertise-address=300.1.1.1"}, nil, "", []string{"advertise-address is 300.1.1.1"}},
		{"a negative rate", []string{"--node-eviction-rate=-1", "--secondary-node-eviction-rate=-0.5"}, nil, "", []string{"node-eviction-rate is -1; write 0 or more nodes per second, such as 0.1", "secondary-node-eviction-rate is -0.5"}},
		{"a rate that is not a number", []string{"--node-eviction-rate=NaN"}, nil, "", []string{`node-eviction-rate is "NaN"; write a decimal number, such as 0.1`}},
		{"a threshold above one", []string{"--unhealthy-zone-threshold=55"}, nil, "", []string{"unhealthy-zone-threshold is 55; write a fraction between 0 and 1, such as 0.55"}},
		{"a duration without a unit", []string{"--node-monitor-grace-period=40"}, nil, "", []string{`node-monitor-grace-period is "40"; write a number with its unit, such as 40s`}},
		{"a number above the largest int32", []string{"--terminated-pod-gc-threshold=99999999999"}, nil, "", []string{"write a whole number, such as 1000"}},
		{"an unknown policy", []string{"--site-disruption-policy=evict"}, nil, "", []string{"write Evict or Hold"}},
		{"an unknown log level", nil, []string{"FLOTILLA_LOG_LEVEL=loud"}, "", []string{`FLOTILLA_LOG_LEVEL: log-level is "loud"; write debug, info, warn or error`}},
		{"no data directory", []string{"--data-dir="}, nil, "", []string{"data-dir is empty"}},
		{"two settings for one value", []string{"--pod-eviction-timeout=5m", "--default-not-ready-toleration-seconds=1"}, nil, "", []string{"set the same value; write one of them"}},
		{"a timeout with a fraction of a second", []string{"--pod-eviction-timeout=1500ms"}, nil, "", []string{"whole seconds"}},
		{"a misspelt name in the file", nil, nil, "\n\nnode-monitor-grace-perod: 40s\n", []string{"hub.yaml:3: unknown setting node-monitor-grace-perod; did you mean node-monitor-grace-period?"}},
		{"a name twice in the file", nil, nil, "log-level: info\nlog-level: warn\n", []string{"hub.yaml:2: log-level is also in line 1"}},
		{"a list in the file", nil, nil, "log-level: [info]\n", []string{"write a single value"}},
		{"a name without a value in the file", nil, nil, "log-level:\n", []string{"log-level has no value"}},
		{"a list as the file", nil, nil, "- a\n", []string{"hub.yaml:1", "`name: value`"}},
		{"a second document in the file", nil, nil, "---\nlog-level: warn\n---\nlog-format: json\n", []string{"hub.yaml:4: a second YAML document begins"}},
		{"a second document that is not YAML", nil, nil, "log-level: warn\n---\na: b: c\n", []string{"hub.yaml"}},
		{"an empty first document", nil, nil, "---\n---\nlog-format: json\n", []string{"hub.yaml:3: a second YAML document begins"}},
		{"a file that is not YAML", nil, nil, "a: b: c\n\t", []string{"hub.yaml"}},
		{"a missing file", []string{"--config=/nowhere/hub.yaml"}, nil, "", []string{"/nowhere/hub.yaml", "correct --config"}},
		{"a misspelt flag", []string{"--leese-interval=1s"}, nil, "", []string{"unknown setting --leese-interval; did you mean lease-interval?"}},
		{"a misspelt variable", nil, []string{"FLOTILLA_LOG_LEVLE=info"}, "", []string{"FLOTILLA_LOG_LEVLE: unknown setting log-levle; did you mean log-level?"}},
		{"a Kubernetes flag without a meaning here", []string{"--enable-taint-manager"}, nil, "", []string{"--enable-taint-manager does nothing here", "always evict"}},
		{"a Kubernetes setting without a meaning in the file", nil, nil, "enable-taint-manager: true\n", []string{"hub.yaml:1", "does nothing here"}},
		{"a monitor period that delays every eviction", []string{"--node-monitor-period=48h"}, nil, "", []string{"node-monitor-period", "up to 1h"}},
		{"several mistakes", []string{"--node-eviction-rate=-1", "--unhealthy-zone-threshold=2", "--log-format=xml"}, []string{"FLOTILLA_LEASE_INTERVAL=x"}, "",
			[]string{"node-eviction-rate", "unhealthy-zone-threshold", "write text or json", "FLOTILLA_LEASE_INTERVAL"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.file != "" {
				c.env = append(c.env, "FLOTILLA_CONFIG="+file(t, c.file))
			}
			_, _, err := load(t, c.args, c.env)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in %q", want, err)
				}
			}
		})
	}
}

func TestValidValuesAreAccepted(t *testing.T) {
	for name, args := range map[string][]string{
		"loopback as a name and as an address": {"--mqtt-dev-listen=localhost:1883"},
		"IPv6 loopback":                        {"--mqtt-dev-listen=[::1]:1883"},
		"two listeners on any free port":       {"--mqtt-listen=127.0.0.1:0", "--https-listen=127.0.0.1:0", "--mqtt-dev-listen=127.0.0.1:0"},
		"one port on two addresses":            {"--mqtt-listen=10.0.0.1:8443", "--https-listen=10.0.0.2:8443"},
		"rates that never evict":               {"--node-eviction-rate=0", "--secondary-node-eviction-rate=0"},
		"a host name to advertise":             {"--advertise-address=gateway.example.org"},
		"an IPv6 address to advertise":         {"--advertise-address=fd00::1"},
		"exactly four leases of grace":         {"--lease-interval=2s", "--node-monitor-grace-period=8s", "--node-startup-grace-period=8s"},
		"an empty configuration":               nil,
		"tolerations that evict at once":       {"--pod-eviction-timeout=0s"},
		"a relative data directory":            {"--data-dir=../data"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := load(t, args, []string{"FLOTILLA_CONFIG=" + file(t, "# nothing yet\n")}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAnUnknownVariableIsAWarning(t *testing.T) {
	_, warnings, err := load(t, nil, []string{"FLOTILLA_TEST_DOCKER=unix:///x", "HOME=/"})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "FLOTILLA_TEST_DOCKER") {
		t.Fatal(warnings, err)
	}
}
