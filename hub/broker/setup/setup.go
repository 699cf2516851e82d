// Package setup writes configuration files for external MQTT brokers between devices and a hub.
//
// Their access rules allow a device what the hub's own broker allows it, and nothing else. Each
// README names what that broker cannot refuse. The package only returns text to package cli, which
// makes the certificates and writes the files. It never connects to a broker.
package setup

import (
	"bytes"
	"embed"
	"fmt"
	"net"
	"path"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"unicode"

	"flotilla.dev/shared/wire"
)

// HubUser is the name in the hub's certificate for a broker; see pki.HubName.
const HubUser = "flotilla:hub"

// Kinds are the supported brokers.
var Kinds = []string{"mosquitto", "nats", "emqx"}

// Options configure the files.
type Options struct {
	Addresses []string // addresses of the broker or of each member of its cluster, host:port
	Path      string   // directory of the files on the broker's machine
	Prefix    string   // prefix of all topics
	Nodes     []string // enrolled nodes, for a broker that needs a rule for each node
	Secret    string   // shared by the members of a cluster
}

// Values stand unquoted in files of three languages, in access rules and in shell commands. So only
// characters that have no special meaning in any of them are allowed.
var (
	prefixForm = regexp.MustCompile(`^[A-Za-z0-9_:@-]+(/[A-Za-z0-9_:@-]+)*$`)
	hostForm   = regexp.MustCompile(`^[A-Za-z0-9._:-]+$`)
)

func (o Options) check() error {
	if !prefixForm.MatchString(o.Prefix) {
		return fmt.Errorf("the topic prefix %.150q has characters with a special meaning in brokers: use levels of "+
			"letters, digits, - _ : and @ with single slashes between them, here and as --broker-prefix of the hub", o.Prefix)
	}
	if strings.ContainsFunc(o.Path, func(r rune) bool {
		return unicode.IsControl(r) || strings.ContainsRune("\"\\$`", r)
	}) {
		return fmt.Errorf(
			"the path %q has characters with a special meaning in brokers: use one without quotes, \\, $ and line breaks",
			o.Path)
	}
	return nil
}

// A File is one file to write.
type File struct {
	Name, Text string
	Secret     bool // only its owner may read it
}

//go:embed templates
var templates embed.FS

var funcs = template.FuncMap{"subject": subject, "join": strings.Join}

// Files returns the configuration for a kind of broker.
func Files(kind string, o Options) ([]File, error) {
	t, err := template.New("").Funcs(funcs).ParseFS(templates, "templates/"+kind+"/*")
	if err != nil {
		return nil, fmt.Errorf("write the configuration of %s: unknown broker; choose one of %s", kind,
			strings.Join(Kinds, ", "))
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", kind, err)
	}
	v := view{Options: o, From: []string{"lease", "status", "pods", "event", "presence", "reply/+"},
		To: []string{"desired", "request/+"}, HubUser: HubUser, MaxPacket: wire.MaxToDevice + 64<<10}
	for i, a := range o.Addresses {
		host, port, err := net.SplitHostPort(a)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || !hostForm.MatchString(host) {
			return nil, fmt.Errorf("write the configuration of %s: the address %q must be like broker.example:8883", kind, a)
		}
		v.Members = append(v.Members, member{Name: fmt.Sprintf("%s-%d", kind, i+1), Host: host, Port: port})
	}
	var all []File
	write := func(from, to string) error {
		var text bytes.Buffer
		if err := t.ExecuteTemplate(&text, from, v); err != nil {
			return fmt.Errorf("write the configuration of %s: %w", kind, err)
		}
		all = append(all, File{to, text.String(), o.Secret != "" && strings.Contains(text.String(), o.Secret)})
		return nil
	}
	for _, each := range t.Templates() {
		name, member := strings.CutPrefix(each.Name(), "each-")
		if each.Name() == "" {
			continue
		}
		if !member {
			if err := write(name, name); err != nil {
				return nil, err
			}
			continue
		}
		for _, m := range v.Members {
			v.Member = m
			to := name
			if len(v.Members) > 1 {
				to = strings.TrimSuffix(name, path.Ext(name)) + "-" + m.Host + "-" + m.Port + path.Ext(name)
			}
			if err := write(each.Name(), strings.ReplaceAll(to, ":", "_")); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

type view struct {
	Options
	From, To  []string // channels that a device publishes and receives
	HubUser   string
	MaxPacket int // bytes
	Members   []member
	Member    member // the cluster member that gets the file
}

type member struct{ Name, Host, Port string }

// At returns the member's host with a port.
func (m member) At(port string) string { return net.JoinHostPort(m.Host, port) }

// Any returns the wildcard address on which a member listens.
func (m member) Any() string {
	if strings.Contains(m.Host, ":") {
		return "[::]"
	}
	return "0.0.0.0"
}

// subject converts a topic or filter to NATS: levels are separated by dots, a dot in a level
// becomes two slashes, and + becomes *.
func subject(topic string) string {
	levels := strings.Split(topic, "/")
	for i, l := range levels {
		if levels[i] = strings.ReplaceAll(l, ".", "//"); l == "+" {
			levels[i] = "*"
		}
	}
	return strings.Join(levels, ".")
}
