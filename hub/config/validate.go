package config

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/shared/policy"
)

// Validate returns an error that names every invalid value, and how to correct it.
func (c *Config) Validate() error {
	v := verdict{c: c}
	if c.DataDir == "" {
		v.wrong("data-dir", "write the path of a directory, such as /var/lib/flotilla/hub")
	}
	v.database()
	v.addresses()
	v.periods()

	v.min("node-eviction-rate", c.NodeEvictionRate, 0, "write 0 or more nodes per second, such as 0.1")
	v.min("secondary-node-eviction-rate", c.SecondaryNodeEvictionRate, 0, "write 0 or more nodes per second, such as 0.01")
	if c.UnhealthyZoneThreshold < 0 || c.UnhealthyZoneThreshold > 1 {
		v.wrong("unhealthy-zone-threshold", "write a fraction between 0 and 1, such as 0.55")
	}
	v.min("large-cluster-size-threshold", float64(c.LargeClusterSizeThreshold), 0, "write 0 or more nodes, such as 50")
	v.min("default-not-ready-toleration-seconds", float64(c.DefaultNotReadyTolerationSeconds), 0,
		"write 0 or more seconds, such as 300")
	v.min("default-unreachable-toleration-seconds", float64(c.DefaultUnreachableTolerationSeconds), 0,
		"write 0 or more seconds, such as 300")
	v.min("terminated-pod-gc-threshold", float64(c.TerminatedPodGCThreshold), 0, "write 0 or more pods, such as 1000")
	for _, p := range c.HostPathPrefixes {
		if !policy.ValidPath(p) {
			v.wrong("host-path-prefixes", fmt.Sprintf("write clean absolute paths, such as %s, not %q", policy.VolumesRoot, p))
		}
	}
	for _, name := range c.AllowedCapabilities {
		if !policy.ValidCapability(name) {
			v.wrong("allowed-capabilities", fmt.Sprintf("%q is not a capability; write names such as NET_ADMIN, or ALL", name))
		}
	}
	v.mirrors()
	v.blocks()
	v.inventory()
	v.incidents()
	return errors.Join(v.mistakes...)
}

// mirrors checks the rules of mirrors, and removes /* at their end.
func (v *verdict) mirrors() {
	for i, place := range v.c.ImageMirrors {
		place = strings.TrimSuffix(place, "/*")
		v.c.ImageMirrors[i] = place
		name, _, _ := strings.Cut(place, ":")
		if err := policy.ValidMirror(place); err != nil {
			v.wrong("image-mirrors", err.Error())
		} else if name == v.c.AdvertiseAddress || name == "localhost" || strings.HasPrefix(name, "127.") {
			v.wrong("image-mirrors", fmt.Sprintf("%s is this hub itself: pods name its images hub/…", place))
		}
	}
	if n := len(v.c.ImageMirrors); n > maxMirrors {
		v.wrong("image-mirrors", fmt.Sprintf("there are %d registries; write at most %d", n, maxMirrors))
	}
	if len(v.c.ImageMirrors) > 0 && v.c.ImageQuota == 0 {
		v.wrong("image-mirrors", "this hub keeps no images: its image-quota is 0")
	}
}

// maxMirrors is how many mirrors a device accepts in the wire protocol.
const maxMirrors = 64

type verdict struct {
	c        *Config
	mistakes []error
}

// wrong adds an error about a setting.
func (v *verdict) wrong(name, instead string) {
	s, _ := find(name)
	v.mistakes = append(v.mistakes, fmt.Errorf("%s: %s is %s; %s", v.c.source(name), name, quoted(s.get(v.c)), instead))
}

func (v *verdict) min(name string, is, least float64, instead string) {
	if is < least {
		v.wrong(name, instead)
	}
}

func quoted(s string) string {
	if s == "" {
		return "empty"
	}
	return s
}

// database refuses a mistyped URL. Otherwise it would be taken for the name of a file.
func (v *verdict) database() {
	const instead = "write postgres://USER@HOST:5432/NAME, the path of a file whose first line is that, or sqlite"
	switch is := v.c.Database; {
	case is == "" || is == "sqlite":
	case strings.Contains(is, "://"):
		u, err := url.Parse(is)
		if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
			v.wrong("database", instead)
		}
	case strings.Contains(is, "=") || !strings.Contains(is, "/"): // a libpq keyword string, or a single word
		v.wrong("database", instead)
	}
}

// incidents checks the webhook and the mail settings.
func (v *verdict) incidents() {
	c := v.c
	if u, err := url.Parse(c.IncidentWebhook); c.IncidentWebhook != "" &&
		(err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		v.wrong("incident-webhook", "write a URL such as https://alerts.example.org/hook")
	}
	if c.IncidentWebhook == "" && c.IncidentWebhookSecretFile != "" {
		v.wrong("incident-webhook-secret-file", "set incident-webhook too, or remove this")
	}
	if c.IncidentMailServer == "" {
		for name, is := range map[string]bool{"incident-mail-from": c.IncidentMailFrom != "",
			"incident-mail-to": len(c.IncidentMailTo) > 0, "incident-mail-user": c.IncidentMailUser != ""} {
			if is {
				v.wrong(name, "set incident-mail-server too, or remove this")
			}
		}
		return
	}
	if u, err := url.Parse(c.IncidentMailServer); err != nil || u.Scheme != "smtp" && u.Scheme != "smtps" ||
		u.Hostname() == "" || u.Port() == "" || u.User != nil {
		v.wrong("incident-mail-server", "write a URL with a port and without a password, such as "+
			"smtp://mail.example.org:587 or smtps://mail.example.org:465")
	}
	if _, err := mail.ParseAddress(c.IncidentMailFrom); err != nil {
		v.wrong("incident-mail-from", "write the sender address, such as flotilla@example.org")
	}
	if len(c.IncidentMailTo) == 0 {
		v.wrong("incident-mail-to", "write the recipients, such as kari@example.org")
	}
	for _, to := range c.IncidentMailTo {
		if _, err := mail.ParseAddress(to); err != nil {
			v.wrong("incident-mail-to", fmt.Sprintf("write addresses such as kari@example.org, not %q", to))
		}
	}
	if (c.IncidentMailUser == "") != (c.IncidentMailPasswordFile == "") {
		v.wrong("incident-mail-password-file", "set both incident-mail-user and incident-mail-password-file, or neither")
	}
}

const (
	maxBlockBits   = 20 // blocks are counted one by one, so at most a million
	leastBlockBits = 3  // at least 8 addresses: the network's, the bridge's and a few pods'
)

// blocks checks that the range has room for blocks, and a block for pods.
func (v *verdict) blocks() {
	c := v.c
	if !c.AllocateNodeCIDRs {
		return
	}
	of, most := c.ClusterCIDR.Bits(), c.ClusterCIDR.Addr().BitLen()-leastBlockBits
	if c.NodeCIDRMaskSize < of || c.NodeCIDRMaskSize > most {
		v.wrong("node-cidr-mask-size", fmt.Sprintf(
			"a block is inside cluster-cidr %s and has at least 8 addresses; write %d to %d", c.ClusterCIDR, of, most))
	} else if c.NodeCIDRMaskSize-of > maxBlockBits {
		v.wrong("node-cidr-mask-size", fmt.Sprintf(
			"cluster-cidr %s would have more than %d blocks; write %d or less, or a smaller range", c.ClusterCIDR,
			1<<maxBlockBits, of+maxBlockBits))
	}
	for _, no := range []struct{ name, prefix string }{
		{"the machine itself", "127.0.0.0/8"}, {"multicast", "224.0.0.0/4"}, {"single links", "169.254.0.0/16"},
		{"the machine itself", "::1/128"}, {"multicast", "ff00::/8"}, {"single links", "fe80::/10"},
	} {
		if c.ClusterCIDR.Overlaps(netip.MustParsePrefix(no.prefix)) {
			v.wrong("cluster-cidr", fmt.Sprintf(
				"%s is for %s; write a range that your network does not use, such as 10.64.0.0/12", no.prefix, no.name))
		}
	}
}

// inventory refuses an unauthenticated URL, because the list decides which nodes are deleted.
func (v *verdict) inventory() {
	const instead = "write the path of a file, or a URL such as https://machines.example.org/list.yaml"
	where := v.c.Inventory
	if !strings.Contains(where, "://") {
		return
	}
	u, err := url.Parse(where)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		v.wrong("inventory", instead)
	}
}

// leasesPerGrace is the least number of lease intervals in a grace period, so that a few lost
// leases do not make a node Unknown.
const leasesPerGrace = 4

func (v *verdict) periods() {
	c := v.c
	if c.AuditRetention < 24*time.Hour {
		v.wrong("audit-retention", "write a day or more, such as 2160h")
	}
	if c.History != 0 && (c.History < time.Hour || c.History > maxHistory) {
		v.wrong("history", "write 1h to 168h, such as 24h, or false")
	}
	// The wire protocol sets these limits.
	if c.LeaseInterval < time.Second || c.LeaseInterval > 5*time.Minute || c.LeaseInterval%time.Second != 0 {
		v.wrong("lease-interval", "write whole seconds between 1s and 5m, such as 10s")
		return // other settings depend on a valid interval
	}
	if c.NodeMonitorPeriod < 0 || c.NodeMonitorPeriod > time.Hour {
		v.wrong("node-monitor-period", "write a time up to 1h, such as 5s")
	}
	for _, p := range []struct {
		name string
		is   time.Duration
	}{{"node-monitor-grace-period", c.NodeMonitorGracePeriod}, {"node-startup-grace-period", c.NodeStartupGracePeriod}} {
		if least := leasesPerGrace * c.LeaseInterval; p.is < least {
			v.wrong(p.name, fmt.Sprintf("devices renew every %s, and a few lost leases must not evict; use %s or more",
				c.LeaseInterval, least))
		}
	}
}

func (v *verdict) addresses() {
	c := v.c
	https := v.listen("https-listen", c.HTTPSListen, "write host:port or :port, such as :8443")
	mqtt := v.listen("mqtt-listen", c.MQTTListen, "write host:port or :port, such as :8883")
	if mqtt != "" && mqtt == https && overlap(c.MQTTListen, c.HTTPSListen) {
		v.wrong("mqtt-listen", "https-listen has that port; use another one, such as :8883")
	}
	if c.MQTTDevListen != "" {
		const instead = "it has no TLS and no passwords; write a loopback address and a port, such as 127.0.0.1:1883"
		dev := v.listen("mqtt-dev-listen", c.MQTTDevListen, instead)
		switch host, _, _ := net.SplitHostPort(c.MQTTDevListen); {
		case dev == "":
		case !loopback(host):
			v.wrong("mqtt-dev-listen", instead)
		case dev == https && overlap(c.MQTTDevListen, c.HTTPSListen) || dev == mqtt && overlap(c.MQTTDevListen, c.MQTTListen):
			v.wrong("mqtt-dev-listen", "another listener has that port; use another one, such as 127.0.0.1:1883")
		}
	}
	if c.PeerListen != "" {
		v.listen("peer-listen", c.PeerListen, "write host:port or :port, such as :8444")
	} else if c.PeerAddress != "" {
		v.wrong("peer-address", "it needs peer-listen; set that too, or remove this")
	}
	if len(c.MQTTAddresses) > 0 && len(c.Brokers) > 0 {
		v.wrong("mqtt-addresses", "devices connect to the external broker; remove this or broker")
	}
	for _, a := range c.MQTTAddresses {
		v.reached("mqtt-addresses", a, "write host:port of every hub, such as hub-a.example.org:8883,hub-b.example.org:8883")
	}
	for _, a := range c.HTTPSAddresses {
		v.reached("https-addresses", a, "write host:port of every hub, such as hub-a.example.org:8443,hub-b.example.org:8443")
	}
	if n := len(c.MQTTAddresses); n > maxBrokers {
		v.wrong("mqtt-addresses", fmt.Sprintf("there are %d addresses; write at most %d", n,
			maxBrokers))
	}
	if n := len(c.HTTPSAddresses); n > maxBrokers {
		v.wrong("https-addresses",
			fmt.Sprintf("there are %d addresses; write at most %d", n, maxBrokers))
	}
	if c.PeerAddress != "" {
		v.reached("peer-address", c.PeerAddress, "write host:port, such as hub-a.example.org:8444")
	}
	v.brokers()
	if a := c.AdvertiseAddress; a != "" && !host(a) {
		v.wrong("advertise-address",
			"write a host name or an IP address without a port, such as gateway.example.org or 192.168.1.10")
	}
}

// reached checks an address that other programs connect to.
func (v *verdict) reached(name, address, instead string) {
	h, port, err := net.SplitHostPort(address)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || h == "" || !host(h) {
		v.wrong(name, instead)
	}
}

// maxBrokers is the largest number of addresses in the wire protocol.
const maxBrokers = 16

// brokers checks that the hub and the devices reach the external broker over TLS.
func (v *verdict) brokers() {
	c := v.c
	for _, b := range c.Brokers {
		u, err := url.Parse(b)
		port := uint64(1)
		if err == nil && u.Port() != "" {
			port, err = strconv.ParseUint(u.Port(), 10, 16)
		}
		if err != nil || port == 0 || u.Scheme != "mqtts" || !host(u.Hostname()) || u.User != nil ||
			u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
			v.wrong("broker", fmt.Sprintf(
				"write addresses such as mqtts://broker.example.org:8883, with commas between them, not %q", b))
		}
	}
	if len(c.Brokers) > maxBrokers {
		v.wrong("broker", fmt.Sprintf("write at most %d addresses", maxBrokers))
	}
	if len(c.Brokers) > 0 && c.MQTTDevListen != "" {
		v.wrong("mqtt-dev-listen", "devices connect to the external broker; remove this or broker")
	}
	bad := c.BrokerPrefix == "" || len(c.BrokerPrefix) > 128 || strings.HasPrefix(c.BrokerPrefix, "$")
	for level := range strings.SplitSeq(c.BrokerPrefix, "/") {
		bad = bad || level == "" || strings.ContainsFunc(level, func(r rune) bool {
			return r <= ' ' || strings.ContainsRune("+#*>.", r) || r > '~'
		})
	}
	if bad {
		v.wrong("broker-prefix",
			"write topic levels separated by single slashes, of visible ASCII without + # * > and dots, such as fleet/v1")
	}
	if c.BrokerPrefix != Default().BrokerPrefix && len(c.Brokers) == 0 {
		v.wrong("broker-prefix", "it needs broker; set that too, or remove this")
	}
}

// BrokerAddresses returns the host:port of each broker.
func (c *Config) BrokerAddresses() []string {
	var all []string
	for _, b := range c.Brokers {
		if u, err := url.Parse(b); err == nil {
			port := u.Port()
			if port == "" {
				port = "8883"
			}
			all = append(all, net.JoinHostPort(u.Hostname(), port))
		}
	}
	return all
}

// listen returns the port of a listen address, or "" if the address is wrong or the system chooses
// the port.
func (v *verdict) listen(name, address, instead string) string {
	h, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || h != "" && !host(h) {
		v.wrong(name, instead)
		return ""
	}
	if n == 0 {
		return "" // the system chooses the port
	}
	return port
}

// overlap reports whether two listen addresses with the same port collide.
func overlap(a, b string) bool {
	ha, _, _ := net.SplitHostPort(a)
	hb, _, _ := net.SplitHostPort(b)
	every := func(h string) bool { return h == "" || h == "0.0.0.0" || h == "::" }
	return every(ha) || every(hb) || ha == hb
}

func loopback(h string) bool {
	if h == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(h)
	return err == nil && a.IsLoopback()
}

var hostForm = regexp.MustCompile(
	`^([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.?$`)

func host(h string) bool {
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	if strings.Trim(h, "0123456789.") == "" { // refuses 300.1.1.1, for example
		return false
	}
	return len(h) <= 253 && hostForm.MatchString(h)
}
