package wire

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultPrefix is the first part of every topic unless the fleet shares its
// broker with others.
const DefaultPrefix = "fleet/v1"

// A Channel is the last part of a topic: what a message is about.
type Channel string

// The channels. Those of the first group are published by devices, those of the
// second by the hub. Reply and Request are followed by "/<id>" in the topic.
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

// Limits of the names in a topic, in bytes.
const (
	MaxNode   = 253 // a DNS-1123 subdomain
	MaxID     = 64  // a request id
	MaxPrefix = 128
)

// FromDevice says whether devices publish on the channel.
func (c Channel) FromDevice() bool {
	switch c {
	case ChannelLease, ChannelStatus, ChannelPods, ChannelEvent, ChannelPresence, ChannelReply:
		return true
	}
	return false
}

// FromHub says whether the hub publishes on the channel.
func (c Channel) FromHub() bool { return c == ChannelDesired || c == ChannelRequest }

// numbered says whether the channel's topic ends with a request id.
func (c Channel) numbered() bool { return c == ChannelReply || c == ChannelRequest }

// NodePrefix is what all topics of a node begin with, the last slash included.
func NodePrefix(prefix, node string) string { return prefix + "/nodes/" + node + "/" }

// Topic returns the topic of a channel of a node. Channels with a request id
// have their own function: RequestTopic, ReplyTopic.
func Topic(prefix, node string, c Channel) string { return NodePrefix(prefix, node) + string(c) }

// RequestTopic is where the hub publishes request id to a node.
func RequestTopic(prefix, node, id string) string {
	return Topic(prefix, node, ChannelRequest) + "/" + id
}

// ReplyTopic is where a node publishes what answers request id.
func ReplyTopic(prefix, node, id string) string { return Topic(prefix, node, ChannelReply) + "/" + id }

// Filters are the two subscriptions of a node, and the only ones it may have.
func Filters(prefix, node string) [2]string {
	return [2]string{Topic(prefix, node, ChannelDesired), Topic(prefix, node, ChannelRequest) + "/+"}
}

// An Address is a topic taken apart.
type Address struct {
	Node    string
	Channel Channel
	ID      string // of a request or reply, else empty
}

// ParseTopic is the inverse of Topic, RequestTopic and ReplyTopic.
func ParseTopic(prefix, topic string) (Address, error) {
	rest, ours := strings.CutPrefix(topic, prefix+"/nodes/")
	node, tail, whole := strings.Cut(rest, "/")
	if !ours || !whole {
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

// ParseChannel takes apart what follows NodePrefix in a topic.
func ParseChannel(tail string) (Channel, string, error) {
	name, id, more := strings.Cut(tail, "/")
	c := Channel(name)
	switch {
	case !c.FromDevice() && !c.FromHub():
		return "", "", fmt.Errorf("%.40q is no channel of this protocol", name)
	case c.numbered() != more:
		return "", "", fmt.Errorf("channel %s: a request id must follow reply and request, and nothing the others", c)
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

// ValidPrefix checks the part of the topics that can be configured: levels
// without wildcards, control characters or a leading '$'.
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

// plain says whether s is made of letters, digits, '-' and '_' only.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
