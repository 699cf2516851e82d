// Package config has the settings of `flotilla-hub serve`: their defaults, their sources (flag,
// environment, file) and their validation.
//
// It only reads. Package cli calls Load before anything starts. The error names all mistakes at
// once, each with the next step. Package main passes the settings on.
package config

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/policy"
)

// A Config has the value of every setting. Load returns only valid ones.
type Config struct {
	DataDir string
	// URL postgres://…, which may have a password; or a file with such a URL; or sqlite; or "" for
	// the database of the last start
	Database       string
	HTTPSListen    string // host:port; without a host the hub listens on every address
	MQTTListen     string
	MQTTDevListen  string   // listener without TLS, on loopback only; "" if off
	PeerListen     string   // listener for the other hubs of the database; "" for a single hub
	PeerAddress    string   // host:port at which other hubs reach this hub; "" if derived
	MQTTAddresses  []string // host:port of every hub for devices; empty: only this hub
	HTTPSAddresses []string // host:port of every hub for renewals; empty: the hub at which the device joined
	// mqtts URLs of the external broker; empty: devices connect to this hub
	Brokers          []string
	BrokerPrefix     string   // prefix of all topics at the external broker
	AgentsDir        string   // directory of the agents for devices that join
	ImageQuota       int64    // bytes of images that the hub keeps for its devices; 0 if it keeps none
	ImageMirrors     []string // registries or repositories whose images devices pull from this hub if it has them
	AdvertiseAddress string   // host or IP address of the hub for devices and users; "" if derived
	Discovery        bool     // answer devices that look for a hub on the local network
	LogLevel         slog.Level
	LogFormat        string // text or json

	RegisterNode    bool // whether a device that reports for the first time becomes a node
	RequireApproval bool // whether a device that joins waits for an administrator's approval
	LeaseInterval   time.Duration

	AllocateNodeCIDRs bool         // whether each node gets a block of addresses for its pods
	ClusterCIDR       netip.Prefix // range of all blocks
	NodeCIDRMaskSize  int          // prefix length of a block
	Inventory         string       // file or https URL of the list of machines; "" if there is none

	NodeMonitorPeriod         time.Duration
	NodeMonitorGracePeriod    time.Duration
	NodeStartupGracePeriod    time.Duration
	NodeEvictionRate          float64 // nodes per second and site
	SecondaryNodeEvictionRate float64
	UnhealthyZoneThreshold    float64 // fraction, 0 to 1
	LargeClusterSizeThreshold int
	SiteDisruptionPolicy      fleet.DisruptionPolicy

	DefaultNotReadyTolerationSeconds    int64
	DefaultUnreachableTolerationSeconds int64
	TerminatedPodGCThreshold            int

	// Webhook and mail for incidents; see package notify.
	IncidentWebhook           string   // URL; "" if there is none
	IncidentWebhookSecretFile string   // the file's first line is the key that signs requests; "": requests are not signed
	IncidentMailServer        string   // smtp:// or smtps:// URL; "" for no mail
	IncidentMailFrom          string   // sender's address
	IncidentMailTo            []string // recipients' addresses
	IncidentMailUser          string   // login at the mail server; "" for none
	IncidentMailPasswordFile  string   // the file's first line is the user's password

	CAPassphraseFile string        // the file's first line is the passphrase of the authority's keys; "" if they have none
	AuditRetention   time.Duration // how long audit records are kept
	History          time.Duration // how long samples of nodes are kept; 0 for no samples

	// The hub's policy for workloads; each device also has its own. See Policy.
	PolicyFile          string // file that replaces the five settings below; "": they are used
	AllowPrivileged     bool
	AllowHostNetwork    bool
	AllowHostPID        bool
	AllowedCapabilities []string
	HostPathPrefixes    []string
	PodSecurityDefault  string // level of namespaces without the label

	policy  *policy.Document // read from PolicyFile
	sources map[string]Source
}

// A setting has the same name as a flag, as a variable and in the file.
type setting struct {
	name     string
	usage    string
	kind     string // kind of value, for the help: duration, number, ...
	fallback string // the default
	// set parses a value. Its error only says which values are valid.
	set func(c *Config, value string) error
	get func(c *Config) string
}

// settings has all settings in the order of the output.
var settings = []setting{
	text("data-dir", "directory", "/var/lib/flotilla/hub",
		"directory for the database, the certificates and the backups", func(c *Config) *string {
			return &c.DataDir
		}),
	{
		name: "database", kind: "URL", usage: "database: postgres://USER@HOST:5432/NAME, a file whose " +
			"first line is that URL, or sqlite for hub.db in data-dir (default that of the last start, at first sqlite)",
		set: func(c *Config, v string) error { c.Database = v; return nil },
		get: func(c *Config) string { return withoutPassword(c.Database) },
	},
	text("https-listen", "address", ":8443", "listen address for the page, the API and joining devices",
		func(c *Config) *string {
			return &c.HTTPSListen
		}),
	text("mqtt-listen", "address", ":8883", "listen address for devices: MQTT over TLS", func(c *Config) *string {
		return &c.MQTTListen
	}),
	text("mqtt-dev-listen", "address", "",
		"loopback listen address for MQTT without TLS and passwords, for development and simulation (default off)",
		func(c *Config) *string {
			return &c.MQTTDevListen
		}),
	text("peer-listen", "address", "", "listen address for the other hubs of this PostgreSQL database, over mutual "+
		"TLS; with it this hub is on standby until it becomes the leader (default off: a single hub)", func(c *Config) *string {
		return &c.PeerListen
	}),
	text("peer-address", "address", "", "host:port at which the other hubs reach peer-listen (default advertise-address, "+
		"or this machine's first address)", func(c *Config) *string {
		return &c.PeerAddress
	}),
	list("mqtt-addresses", "addresses", "", "host:port of mqtt-listen of every hub of the database, this hub "+
		"included; a device tries the next hub when its hub refuses it (default this hub's)", func(c *Config) *[]string {
		return &c.MQTTAddresses
	}),
	list("https-addresses", "addresses", "", "host:port of https-listen of every hub of the database, this hub "+
		"included; devices renew certificates at the first that answers (default where they joined)",
		func(c *Config) *[]string {
			return &c.HTTPSAddresses
		}),
	list("broker", "URLs", "", "external MQTT broker, or the nodes of its cluster, that this hub and its devices "+
		"connect to, such as mqtts://a.example:8883,mqtts://b.example:8883; flotilla-hub broker-config "+
		"configures it (default none: devices connect to this hub)", func(c *Config) *[]string {
		return &c.Brokers
	}),
	text("broker-prefix", "topic", "fleet/v1", "prefix of all topics at the external broker",
		func(c *Config) *string {
			return &c.BrokerPrefix
		}),
	text("advertise-address", "host", "",
		"host name or IP address at which devices and users reach this hub (default this machine's addresses)",
		func(c *Config) *string {
			return &c.AdvertiseAddress
		}),
	boolean("discovery", "true", "answer devices on the local network that run flotilla-device join --discover, by multicast "+
		"DNS on UDP port 5353", func(c *Config) *bool {
		return &c.Discovery
	}),
	text("agents-dir", "directory", "/usr/local/lib/flotilla/agents", "directory with the agents (flotilla-device) "+
		"that joining devices download, one file for each processor architecture", func(c *Config) *string {
		return &c.AgentsDir
	}),
	{
		name: "image-quota", kind: "size", fallback: "10Gi", usage: "most space that the images pushed to this hub may " +
			"take in the data directory, such as 500Mi or 20Gi; 0: the hub keeps no images",
		set: func(c *Config, v string) error {
			q, err := resource.ParseQuantity(v)
			if err != nil || q.Sign() < 0 {
				return errors.New("write a size with its unit, such as 500Mi or 20Gi, or 0")
			}
			c.ImageQuota = q.Value()
			return nil
		},
		get: func(c *Config) string { return resource.NewQuantity(c.ImageQuota, resource.BinarySI).String() },
	},
	list("image-mirrors", "registries", "", "registries, or repositories in one, whose images devices pull from this "+
		"hub if it has them, and otherwise from the registry, such as docker.io,ghcr.io/acme (default none)",
		func(c *Config) *[]string { return &c.ImageMirrors }),
	{
		name: "log-level", kind: "level", fallback: "info", usage: "lowest level that is logged: debug, info, warn or error",
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
	boolean("register-node", "true", "create a node for a device that reports for the first time",
		func(c *Config) *bool {
			return &c.RegisterNode
		}),
	boolean("require-approval", "false",
		"every device that joins waits for an administrator's approval", func(c *Config) *bool {
			return &c.RequireApproval
		}),
	duration("lease-interval", "10s", "time between two lease renewals of a device", func(c *Config) *time.Duration {
		return &c.LeaseInterval
	}),
	boolean("allocate-node-cidrs", "true", "assign each node a block of addresses for its pods", func(c *Config) *bool {
		return &c.AllocateNodeCIDRs
	}),
	{
		name: "cluster-cidr", kind: "range", fallback: "10.64.0.0/12",
		usage: "IPv4 or IPv6 range of the nodes' pod address blocks",
		set:   func(c *Config, v string) error { return setRange(v, &c.ClusterCIDR) },
		get:   func(c *Config) string { return c.ClusterCIDR.String() },
	},
	integer("node-cidr-mask-size", "24", "prefix length of a node's pod address block",
		func(c *Config) *int {
			return &c.NodeCIDRMaskSize
		}),
	{
		name: "inventory", kind: "file", usage: "file or https URL of a list of machines: name, site, and whether each " +
			"is present, shutdown or gone (default none)",
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
	duration("node-monitor-period", "5s", "shortest time that a node is not ready before its pods are evicted "+
		"(at least a lease interval), so that the hub can detect a site that is offline", func(c *Config) *time.Duration {
		return &c.NodeMonitorPeriod
	}),
	duration("node-startup-grace-period", "60s", "silence after which the Ready of a node that has never reported "+
		"becomes Unknown",
		func(c *Config) *time.Duration {
			return &c.NodeStartupGracePeriod
		}),
	number("node-eviction-rate", "0.1", "nodes per second and site whose pods are evicted in a healthy site",
		func(c *Config) *float64 {
			return &c.NodeEvictionRate
		}),
	number("secondary-node-eviction-rate", "0.01", "nodes per second whose pods are evicted in a large site "+
		"that is partially disrupted",
		func(c *Config) *float64 {
			return &c.SecondaryNodeEvictionRate
		}),
	number("unhealthy-zone-threshold", "0.55",
		"fraction of not-ready nodes, at least 3, from which a site is partially disrupted", func(c *Config) *float64 {
			return &c.UnhealthyZoneThreshold
		}),
	integer("large-cluster-size-threshold", "50",
		"a partially disrupted site with at most this number of nodes evicts nothing", func(c *Config) *int {
			return &c.LargeClusterSizeThreshold
		}),
	{
		name: "site-disruption-policy", kind: "policy", fallback: "Evict",
		usage: "action for a site without ready nodes while another site has some: Evict or Hold",
		set: func(c *Config, v string) error {
			return oneOf(v, []choice[fleet.DisruptionPolicy]{{"Evict", fleet.Evict}, {"Hold", fleet.Hold}},
				&c.SiteDisruptionPolicy)
		},
		get: func(c *Config) string { return string(c.SiteDisruptionPolicy) },
	},
	integer("default-not-ready-toleration-seconds", "300",
		"toleration of a not-ready node by pods that do not set one, in seconds", func(c *Config) *int64 {
			return &c.DefaultNotReadyTolerationSeconds
		}),
	integer("default-unreachable-toleration-seconds", "300", "toleration of an unreachable node by pods "+
		"that do not set one, in seconds",
		func(c *Config) *int64 {
			return &c.DefaultUnreachableTolerationSeconds
		}),
	integer("terminated-pod-gc-threshold", "1000", "number of finished pods that are kept", func(c *Config) *int {
		return &c.TerminatedPodGCThreshold
	}),
	text("ca-passphrase-file", "file", "", "file whose first line is the passphrase of the certificate authority's "+
		"keys, see flotilla-hub ca protect (default the systemd credential flotilla-ca-passphrase, or none)",
		func(c *Config) *string {
			return &c.CAPassphraseFile
		}),
	{
		name: "incident-webhook", kind: "URL", usage: "http or https URL that receives a POST with JSON when an " +
			"incident opens or closes (default none)",
		set: func(c *Config, v string) error { c.IncidentWebhook = v; return nil },
		get: func(c *Config) string { return withoutPath(c.IncidentWebhook) },
	},
	text("incident-webhook-secret-file", "file", "", "file whose first line is the key that signs webhook requests: "+
		"HMAC-SHA256 in the header Flotilla-Signature (default not signed)", func(c *Config) *string {
		return &c.IncidentWebhookSecretFile
	}),
	text("incident-mail-server", "URL", "", "mail server for mail about incidents, such as "+
		"smtp://mail.example.org:587 or smtps://mail.example.org:465 (default none)", func(c *Config) *string {
		return &c.IncidentMailServer
	}),
	text("incident-mail-from", "address", "", "sender address of mail about incidents", func(c *Config) *string {
		return &c.IncidentMailFrom
	}),
	list("incident-mail-to", "addresses", "", "recipient addresses of mail about incidents", func(c *Config) *[]string {
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
	text("policy", "file", "", "YAML file with the policy for workloads on all devices, in the format of a device's "+
		"policy; it replaces the allow- flags, allowed-capabilities and host-path-prefixes (default none)",
		func(c *Config) *string {
			return &c.PolicyFile
		}),
	duration("audit-retention", "2160h", "how long audit records are kept, at most 200,000 records and 64 MiB",
		func(c *Config) *time.Duration {
			return &c.AuditRetention
		}),
	{
		name: "history", kind: "duration", fallback: "168h", usage: "how long samples of nodes are kept " +
			"(processor, memory, temperature, link ...), in at most 20 kB of memory a node; false or 0: no samples",
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
		"workloads may be privileged, escalate privileges and mount any host path, if the device's policy allows it",
		func(c *Config) *bool {
			return &c.AllowPrivileged
		}),
	boolean("allow-host-network", "false", "workloads may use the device's host network", func(c *Config) *bool {
		return &c.AllowHostNetwork
	}),
	boolean("allow-host-pid", "false", "workloads may use the device's process namespace", func(c *Config) *bool {
		return &c.AllowHostPID
	}),
	list("allowed-capabilities", "capabilities", "",
		"Linux capabilities that workloads may add to the engine's default set, such as NET_ADMIN,SYS_TIME",
		func(c *Config) *[]string {
			return &c.AllowedCapabilities
		}),
	list("host-path-prefixes", "paths", policy.VolumesRoot,
		"directories of the device in which workloads may mount host paths", func(c *Config) *[]string {
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

// maxHistory is the longest time for which the hub has room for a node's samples.
const maxHistory = 7 * 24 * time.Hour

// podEvictionTimeout is the older name for both default tolerations together.
const podEvictionTimeout = "pod-eviction-timeout"

var aliased = []string{"default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds"}

// absent are Kubernetes' settings that have no effect here, each with the reason.
var absent = map[string]string{
	"enable-taint-manager":      "NoExecute taints always evict, so remove it",
	"node-cidr-mask-size-ipv4":  "there is one range, so there is one node-cidr-mask-size",
	"node-cidr-mask-size-ipv6":  "there is one range, so there is one node-cidr-mask-size",
	"cloud-provider":            "list the machines with inventory",
	"node-status-update-period": "use lease-interval",
}
