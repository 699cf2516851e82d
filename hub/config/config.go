// Package config is the whole configuration of `flotilla-hub serve`: what can be
// set, what it is when nobody sets it, where it is read from (flag, environment,
// file), and what is refused.
//
// It only reads: package main gives the values to the rooms that they concern.
// Every mistake is found before anything starts, and all of them are told at
// once, each with what to write instead.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/policy"
)

// A Config is every setting. Load returns one that is valid.
type Config struct {
	DataDir string
	// where the database is, see package store: postgres://…, with a password perhaps; a file that
	// says so; sqlite; "": as the data directory has it
	Database       string
	HTTPSListen    string // host:port; no host: every address
	MQTTListen     string
	MQTTDevListen  string   // without TLS, loopback only; "": off
	PeerListen     string   // for the other hubs of its database; "": it knows of none
	PeerAddress    string   // host:port at which they reach this one; "": found by itself
	MQTTAddresses  []string // host:port of every hub for devices; none: this one's
	HTTPSAddresses []string // host:port of every hub for renewals; none: where a device has joined
	// mqtts URLs of somebody else's broker, that devices connect to instead of this hub; none: they
	// connect to it
	Brokers          []string
	BrokerPrefix     string // of all topics there
	AgentsDir        string // what is handed out to devices that join
	AdvertiseAddress string // host or IP that devices and people reach the hub under; "": found by itself
	LogLevel         slog.Level
	LogFormat        string // text or json

	RegisterNode    bool // a device that reports for the first time becomes a node
	RequireApproval bool // a device that joins waits until an administrator approves of it
	LeaseInterval   time.Duration

	AllocateNodeCIDRs bool         // each node gets a block of addresses for its pods
	ClusterCIDR       netip.Prefix // the range of all blocks
	NodeCIDRMaskSize  int          // leading bits of a block
	Inventory         string       // file or https URL that lists the machines that there are; "": none

	NodeMonitorPeriod         time.Duration
	NodeMonitorGracePeriod    time.Duration
	NodeStartupGracePeriod    time.Duration
	NodeEvictionRate          float64 // nodes per second and site
	SecondaryNodeEvictionRate float64
	UnhealthyZoneThreshold    float64 // 0..1
	LargeClusterSizeThreshold int
	SiteDisruptionPolicy      fleet.DisruptionPolicy

	DefaultNotReadyTolerationSeconds    int64
	DefaultUnreachableTolerationSeconds int64
	TerminatedPodGCThreshold            int

	// Who outside is told of incidents; see package notify.
	IncidentWebhook           string   // URL; "": none
	IncidentWebhookSecretFile string   // whose first line signs what the webhook is sent; "": it is not signed
	IncidentMailServer        string   // smtp:// or smtps:// URL; "": no mail
	IncidentMailFrom          string   // address
	IncidentMailTo            []string // addresses
	IncidentMailUser          string   // "": the mail server wants no login
	IncidentMailPasswordFile  string   // whose first line is the user's password

	CAPassphraseFile string        // whose first line opens the authority's keys; "": they are not protected
	AuditRetention   time.Duration // how long it is remembered who did what
	History          time.Duration // how long it is remembered how nodes fared; 0: not at all

	// What workloads may do on devices, beside each device's own policy; see Policy.
	PolicyFile          string // says it instead of the five that follow; "": they do
	AllowPrivileged     bool
	AllowHostNetwork    bool
	AllowHostPID        bool
	AllowedCapabilities []string
	HostPathPrefixes    []string
	PodSecurityDefault  string // the level of namespaces without a label of their own

	policy  *policy.Document // of PolicyFile
	sources map[string]Source
}

// A setting is one thing that can be set, under one name everywhere.
type setting struct {
	name     string
	usage    string
	kind     string // of value, for the help: duration, number, ...
	fallback string // the default
	// set parses a value; its error says only what would be right.
	set func(c *Config, value string) error
	get func(c *Config) string
}

// settings are all of them, in the order in which they are shown.
var settings = []setting{
	text("data-dir", "directory", "/var/lib/flotilla/hub",
		"directory that holds the database, the certificates and the backups", func(c *Config) *string {
			return &c.DataDir
		}),
	{
		name: "database", kind: "URL", usage: "where the database is: postgres://USER@HOST:5432/NAME, a file whose " +
			"first line is that, or sqlite for hub.db in the data directory (default what it was last, at first sqlite)",
		set: func(c *Config, v string) error { c.Database = v; return nil },
		get: func(c *Config) string { return withoutPassword(c.Database) },
	},
	text("https-listen", "address", ":8443", "address of the page, of the Kubernetes-compatible API and of joining",
		func(c *Config) *string {
			return &c.HTTPSListen
		}),
	text("mqtt-listen", "address", ":8883", "address of MQTT over TLS, for devices", func(c *Config) *string {
		return &c.MQTTListen
	}),
	text("mqtt-dev-listen", "address", "",
		"loopback address of MQTT without TLS and without passwords, for development and simulation (default off)",
		func(c *Config) *string {
			return &c.MQTTDevListen
		}),
	text("peer-listen", "address", "", "address for the other hubs of this PostgreSQL database, over mutual TLS: "+
		"with it this hub stands by until it leads (default off: this hub is alone)", func(c *Config) *string {
		return &c.PeerListen
	}),
	text("peer-address", "address", "", "host:port at which the other hubs reach peer-listen (default this hub's "+
		"advertise-address, or its first address)", func(c *Config) *string {
		return &c.PeerAddress
	}),
	list("mqtt-addresses", "addresses", "", "host:port of every hub at which devices reach mqtt-listen, this one's "+
		"too: they go to another one when theirs does not let them in (default this hub's)", func(c *Config) *[]string {
		return &c.MQTTAddresses
	}),
	list("https-addresses", "addresses", "", "host:port of every hub at which devices reach https-listen, this one's "+
		"too: they renew their certificates at another one where theirs does not answer (default where they joined)",
		func(c *Config) *[]string {
			return &c.HTTPSAddresses
		}),
	list("broker", "URLs", "", "MQTT broker, or the nodes of a cluster, that this hub and its devices connect to "+
		"instead of devices to this hub: mqtts://a.example:8883,mqtts://b.example:8883, set up by "+
		"flotilla-hub broker-config (default none)", func(c *Config) *[]string {
		return &c.Brokers
	}),
	text("broker-prefix", "topic", "fleet/v1", "what all topics begin with at a broker that others use too",
		func(c *Config) *string {
			return &c.BrokerPrefix
		}),
	text("advertise-address", "host", "",
		"host name or IP address that devices and people reach this hub under (default this machine's addresses)",
		func(c *Config) *string {
			return &c.AdvertiseAddress
		}),
	text("agents-dir", "directory", "/usr/local/lib/flotilla/agents", "directory with the agents (flotilla-device) "+
		"that the hub hands out to devices that join, one for each kind of processor", func(c *Config) *string {
		return &c.AgentsDir
	}),
	{
		name: "log-level", kind: "level", fallback: "info", usage: "least level that is logged: debug, info, warn or error",
		set: func(c *Config, v string) error { return oneOf(v, levels, &c.LogLevel) },
		get: func(c *Config) string { return nameOf(c.LogLevel, levels) },
	},
	{
		name: "log-format", kind: "format", fallback: "text", usage: "format of the log: text or json",
		set: func(c *Config, v string) error {
			return oneOf(v, []choice[string]{{"text", "text"}, {"json", "json"}}, &c.LogFormat)
		},
		get: func(c *Config) string { return c.LogFormat },
	},
	boolean("register-node", "true", "a device that reports for the first time becomes a node by itself",
		func(c *Config) *bool {
			return &c.RegisterNode
		}),
	boolean("require-approval", "false",
		"a device that joins waits until an administrator approves of it, whatever its token says", func(c *Config) *bool {
			return &c.RequireApproval
		}),
	duration("lease-interval", "10s", "how often a device says that it lives", func(c *Config) *time.Duration {
		return &c.LeaseInterval
	}),
	boolean("allocate-node-cidrs", "true", "each node gets a block of addresses for its pods", func(c *Config) *bool {
		return &c.AllocateNodeCIDRs
	}),
	{
		name: "cluster-cidr", kind: "range", fallback: "10.64.0.0/12",
		usage: "range of addresses that the blocks are taken from, IPv4 or IPv6",
		set:   func(c *Config, v string) error { return setRange(v, &c.ClusterCIDR) },
		get:   func(c *Config) string { return c.ClusterCIDR.String() },
	},
	integer("node-cidr-mask-size", "24", "leading bits of a block, which decide how many addresses it has",
		func(c *Config) *int {
			return &c.NodeCIDRMaskSize
		}),
	{
		name: "inventory", kind: "file", usage: "file or https URL with a list of the machines that there are: names, " +
			"sites, and whether each is present, shutdown or gone (default none)",
		set: func(c *Config, v string) error { c.Inventory = v; return nil },
		get: func(c *Config) string {
			if !strings.Contains(c.Inventory, "://") {
				return c.Inventory
			}
			return withoutPath(c.Inventory)
		},
	},
	duration("node-monitor-grace-period", "40s", "silence after which a node's Ready becomes Unknown",
		func(c *Config) *time.Duration {
			return &c.NodeMonitorGracePeriod
		}),
	duration("node-monitor-period", "5s", "how long a node is not ready at least before its pods have to leave "+
		"(never less than a lease interval): time to see that its whole site is cut", func(c *Config) *time.Duration {
		return &c.NodeMonitorPeriod
	}),
	duration("node-startup-grace-period", "60s", "silence after which the Ready of a node that has never reported "+
		"becomes Unknown",
		func(c *Config) *time.Duration {
			return &c.NodeStartupGracePeriod
		}),
	number("node-eviction-rate", "0.1", "nodes per second and site whose pods are moved away in a healthy site",
		func(c *Config) *float64 {
			return &c.NodeEvictionRate
		}),
	number("secondary-node-eviction-rate", "0.01", "nodes per second whose pods are moved away in a large site "+
		"that is partially disrupted",
		func(c *Config) *float64 {
			return &c.SecondaryNodeEvictionRate
		}),
	number("unhealthy-zone-threshold", "0.55",
		"fraction of not-ready nodes, at least 3, from which a site is partially disrupted", func(c *Config) *float64 {
			return &c.UnhealthyZoneThreshold
		}),
	integer("large-cluster-size-threshold", "50",
		"a site with at most so many nodes evicts nothing while it is partially disrupted", func(c *Config) *int {
			return &c.LargeClusterSizeThreshold
		}),
	{
		name: "site-disruption-policy", kind: "policy", fallback: "Evict",
		usage: "what a site without any ready node does while another lives: Evict or Hold",
		set: func(c *Config, v string) error {
			return oneOf(v, []choice[fleet.DisruptionPolicy]{{"Evict", fleet.Evict}, {"Hold", fleet.Hold}},
				&c.SiteDisruptionPolicy)
		},
		get: func(c *Config) string { return string(c.SiteDisruptionPolicy) },
	},
	integer("default-not-ready-toleration-seconds", "300",
		"seconds for which a pod that says nothing tolerates a node that is not ready", func(c *Config) *int64 {
			return &c.DefaultNotReadyTolerationSeconds
		}),
	integer("default-unreachable-toleration-seconds", "300", "seconds for which a pod that says nothing tolerates "+
		"a node that is unreachable",
		func(c *Config) *int64 {
			return &c.DefaultUnreachableTolerationSeconds
		}),
	integer("terminated-pod-gc-threshold", "1000", "finished pods that are kept", func(c *Config) *int {
		return &c.TerminatedPodGCThreshold
	}),
	text("ca-passphrase-file", "file", "", "file whose first line is the passphrase of the certificate authority's "+
		"keys, see flotilla-hub ca protect (default the systemd credential flotilla-ca-passphrase, or none)",
		func(c *Config) *string {
			return &c.CAPassphraseFile
		}),
	{
		name: "incident-webhook", kind: "URL", usage: "http or https URL that is told of the opening and closing of " +
			"incidents, as JSON by POST (default none)",
		set: func(c *Config, v string) error { c.IncidentWebhook = v; return nil },
		get: func(c *Config) string { return withoutPath(c.IncidentWebhook) },
	},
	text("incident-webhook-secret-file", "file", "", "file whose first line signs what the webhook is sent, "+
		"HMAC-SHA256 in the header Flotilla-Signature (default not signed)", func(c *Config) *string {
		return &c.IncidentWebhookSecretFile
	}),
	text("incident-mail-server", "URL", "", "mail server through which people are told of incidents, such as "+
		"smtp://mail.example.org:587 or smtps://mail.example.org:465 (default none)", func(c *Config) *string {
		return &c.IncidentMailServer
	}),
	text("incident-mail-from", "address", "", "sender of mail about incidents", func(c *Config) *string {
		return &c.IncidentMailFrom
	}),
	list("incident-mail-to", "addresses", "", "recipients of mail about incidents", func(c *Config) *[]string {
		return &c.IncidentMailTo
	}),
	text("incident-mail-user", "name", "", "login at the mail server of --incident-mail-server (default none)",
		func(c *Config) *string {
			return &c.IncidentMailUser
		}),
	text("incident-mail-password-file", "file", "", "file whose first line is the password of --incident-mail-user",
		func(c *Config) *string {
			return &c.IncidentMailPasswordFile
		}),
	text("policy", "file", "", "YAML file about what workloads may do on devices, in the form of a device's "+
		"policy; it replaces the allow- flags, allowed-capabilities and host-path-prefixes (default none)",
		func(c *Config) *string {
			return &c.PolicyFile
		}),
	duration("audit-retention", "2160h", "how long audit records are kept, at most 200,000 records and 64 MiB",
		func(c *Config) *time.Duration {
			return &c.AuditRetention
		}),
	{
		name: "history", kind: "duration", fallback: "168h", usage: "how long it is remembered how nodes fared " +
			"(processors, memory, temperature, link ...), in 20 kB of memory a node at most; false or 0: not at all",
		set: func(c *Config, v string) error {
			switch v {
			case "false", "0":
				c.History = 0
				return nil
			case "true":
				c.History = maxHistory
				return nil
			}
			d, err := time.ParseDuration(v)
			if err != nil {
				return errors.New("write a number with its unit, such as 24h or 168h, or false")
			}
			c.History = d
			return nil
		},
		get: func(c *Config) string { return c.History.String() },
	},
	boolean("allow-privileged", "false",
		"workloads may be privileged, gain rights, and mount any host path, where the device's own policy lets them",
		func(c *Config) *bool {
			return &c.AllowPrivileged
		}),
	boolean("allow-host-network", "false", "workloads may use the device's own network", func(c *Config) *bool {
		return &c.AllowHostNetwork
	}),
	boolean("allow-host-pid", "false", "workloads may see the device's processes", func(c *Config) *bool {
		return &c.AllowHostPID
	}),
	list("allowed-capabilities", "capabilities", "",
		"Linux capabilities that workloads may add beyond the engine's default set, such as NET_ADMIN,SYS_TIME",
		func(c *Config) *[]string {
			return &c.AllowedCapabilities
		}),
	list("host-path-prefixes", "paths", policy.VolumesRoot,
		"directories of the device below which workloads may mount host paths", func(c *Config) *[]string {
			return &c.HostPathPrefixes
		}),
	{
		name: "pod-security-default", kind: "level", fallback: "baseline", usage: "Pod Security Standard of namespaces " +
			"without the label pod-security.kubernetes.io/enforce: privileged, baseline or restricted",
		set: func(c *Config, v string) error {
			return oneOf(v, []choice[string]{{"privileged", "privileged"}, {"baseline", "baseline"},
				{"restricted", "restricted"}}, &c.PodSecurityDefault)
		},
		get: func(c *Config) string { return c.PodSecurityDefault },
	},
}

// maxHistory is the longest time for which there is room in a node's samples.
const maxHistory = 7 * 24 * time.Hour

// podEvictionTimeout is the older name under which both default tolerations are set.
const podEvictionTimeout = "pod-eviction-timeout"

var aliased = []string{"default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds"}

// absent are names that people know from Kubernetes and will try, with the reason why they do
// nothing here.
var absent = map[string]string{
	"enable-taint-manager":      "NoExecute taints always evict, so remove it",
	"node-cidr-mask-size-ipv4":  "there is one range, so there is one node-cidr-mask-size",
	"node-cidr-mask-size-ipv6":  "there is one range, so there is one node-cidr-mask-size",
	"cloud-provider":            "name the machines that there are with inventory",
	"node-status-update-period": "it is called lease-interval here",
}

// Default is the configuration when nobody sets anything.
func Default() Config {
	c := Config{sources: map[string]Source{}}
	for _, s := range settings {
		if err := s.set(&c, s.fallback); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", s.name, err))
		}
	}
	return c
}

func find(name string) (setting, bool) {
	for _, s := range settings {
		if s.name == name {
			return s, true
		}
	}
	return setting{}, false
}
