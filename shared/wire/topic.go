package wire

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultPrefix begins every topic by default. A fleet that shares its broker uses another prefix.
const DefaultPrefix = "fleet/v1"

// A Channel is the last part of a topic: the kind of message.
type Channel string

// Channels of devices, then channels of the hub. In the topic, "/<id>" follows Reply and Request.
const (
	ChannelLease    Channel = "lease"
	ChannelStatus   Channel = "status"
	ChannelPods     Channel = "pods"
	ChannelEvent    Channel = "event"
	ChannelPresence Channel = "presence"
	ChannelReply    Channel = "reply"

	ChannelDesired Channel = "desired"
	ChannelRequest Channel = "request"
)

// Limits of names in a topic, in bytes.
const (
	MaxNode   = 253 // a DNS-1123 subdomain
	MaxID     = 64  // a request id
	MaxPrefix = 128
)

// FromDevice reports whether devices publish on the channel.
func (c Channel) FromDevice() bool {
	switch c {
	case ChannelLease, ChannelStatus, ChannelPods, ChannelEvent, ChannelPresence, ChannelReply:
		return true
	}
	return false
}

// FromHub reports whether the hub publishes on the channel.
func (c Channel) FromHub() bool { return c == ChannelDesired || c == ChannelRequest }

// numbered reports whether the channel's topic ends with a request id.
func (c Channel) numbered() bool { return c == ChannelReply || c == ChannelRequest }

// NodePrefix begins all topics of a node, including the last slash.
func NodePrefix(prefix, node string) string { return prefix + "/nodes/" + node + "/" }

// Topic returns the topic of a node's channel. For channels with a request id see RequestTopic and
// ReplyTopic.
func Topic(prefix, node string, c Channel) string { return NodePrefix(prefix, node) + string(c) }

// RequestTopic returns the topic of a request to a node.
func RequestTopic(prefix, node, id string) string {
	return Topic(prefix, node, ChannelRequest) + "/" + id
}

// ReplyTopic returns the topic of the answer to a request.
func ReplyTopic(prefix, node, id string) string { return Topic(prefix, node, ChannelReply) + "/" + id }

// Filters returns a node's two subscriptions. A node may not have other subscriptions.
func Filters(prefix, node string) [2]string {
	return [2]string{Topic(prefix, node, ChannelDesired), Topic(prefix, node, ChannelRequest) + "/+"}
}

// An Address is a parsed topic.
type Address struct {
	Node    string
	Channel Channel
	ID      string // id of the request, or empty for other channels
}

// ParseTopic is the inverse of Topic, RequestTopic and ReplyTopic.
func ParseTopic(prefix, topic string) (Address, error) {
	rest, hasPrefix := strings.CutPrefix(topic, prefix+"/nodes/")
	node, tail, hasChannel := strings.Cut(rest, "/")
	if !hasPrefix || !hasChannel {
		return Address{}, fmt.Errorf("topic %.100q is not of the form %s/nodes/<node>/<channel>", topic, prefix)
	}
	if err := ValidNode(node); err != nil {
		return Address{}, fmt.Errorf("topic %.100q: %w", topic, err)
	}
	c, id, err := ParseChannel(tail)
	if err != nil {
		return Address{}, fmt.Errorf("topic %.100q: %w", topic, err)
	}
	return Address{Node: node, Channel: c, ID: id}, nil
}

// ParseChannel parses the part of a topic after NodePrefix.
func ParseChannel(tail string) (Channel, string, error) {
	name, id, more := strings.Cut(tail, "/")
	c := Channel(name)
	switch {
	case !c.FromDevice() && !c.FromHub():
		return "", "", fmt.Errorf("unknown channel %.40q", name)
	case c.numbered() != more:
		return "", "", fmt.Errorf("channel %s: a request id must follow reply and request, and only these", c)
	case more:
		if err := ValidID(id); err != nil {
			return "", "", err
		}
	}
	return c, id, nil
}

// ValidID checks a request id: 1 to 64 of 0-9, A-Z, a-z, '-' and '_'.
func ValidID(id string) error {
	if len(id) == 0 || len(id) > MaxID || !plain(id) {
		return fmt.Errorf("request id %.80q must be 1 to %d letters, digits, '-' or '_'", id, MaxID)
	}
	return nil
}

// ValidPrefix checks a topic prefix: levels without wildcards, control characters or a leading '$'.
func ValidPrefix(prefix string) error {
	bad := prefix == "" || len(prefix) > MaxPrefix || strings.HasPrefix(prefix, "$")
	for level := range strings.SplitSeq(prefix, "/") {
		bad = bad || level == "" || strings.ContainsFunc(level, func(r rune) bool {
			return r <= ' ' || r == '+' || r == '#' || r > '~'
		})
	}
	if bad {
		return fmt.Errorf("topic prefix %.150q must be levels of visible ASCII between single slashes, without + and #, "+
			"at most %d bytes, like %s", prefix, MaxPrefix, DefaultPrefix)
	}
	return nil
}

// ValidNode checks a node's name: a DNS-1123 subdomain, as in Kubernetes.
func ValidNode(node string) error {
	if msgs := validation.IsDNS1123Subdomain(node); len(msgs) > 0 {
		return fmt.Errorf("node name %.80q must be a DNS-1123 subdomain: lower case letters, digits, '-' and '.', at most %d", node, MaxNode)
	}
	return nil
}

// plain reports whether s has only letters, digits, '-' and '_'.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
