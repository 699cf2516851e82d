package wire

import (
	"strings"
	"testing"
)

func TestTopics(t *testing.T) {
	for _, c := range []struct {
		topic string
		want  Address
	}{
		{Topic("fleet/v1", "pi-1", ChannelLease), Address{"pi-1", ChannelLease, ""}},
		{RequestTopic("fleet/v1", "pi-1.oslo", "a_7-Z"), Address{"pi-1.oslo", ChannelRequest, "a_7-Z"}},
		{ReplyTopic("fleet/v1", "pi-1", "7"), Address{"pi-1", ChannelReply, "7"}},
	} {
		if got, err := ParseTopic("fleet/v1", c.topic); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.topic, got, err, c.want)
		}
	}
	if got := Topic("fleet/v1", "pi-1", ChannelLease); got != "fleet/v1/nodes/pi-1/lease" {
		t.Errorf("the topic changed to %s", got)
	}
	if got := Filters("fleet/v1", "pi-1"); got != [2]string{"fleet/v1/nodes/pi-1/desired",
		"fleet/v1/nodes/pi-1/request/+"} {
		t.Errorf("the subscriptions changed to %s", got)
	}
}

func TestInvalidTopicsAreRefused(t *testing.T) {
	for name, topic := range map[string]string{
		"another prefix":         "other/v1/nodes/pi-1/lease",
		"no channel":             "fleet/v1/nodes/pi-1",
		"no node":                "fleet/v1/nodes//lease",
		"a wildcard as node":     "fleet/v1/nodes/+/lease",
		"a node in upper case":   "fleet/v1/nodes/PI-1/lease",
		"a control character":    "fleet/v1/nodes/pi\x01/lease",
		"an unknown channel":     "fleet/v1/nodes/pi-1/leases",
		"an additional level":    "fleet/v1/nodes/pi-1/lease/1",
		"a reply without id":     "fleet/v1/nodes/pi-1/reply",
		"a reply with two ids":   "fleet/v1/nodes/pi-1/reply/1/2",
		"an id of 65 characters": "fleet/v1/nodes/pi-1/reply/" + strings.Repeat("1", 65),
		"30,000 levels":          strings.Repeat("/", 30_000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseTopic("fleet/v1", topic)
			sentence(t, err, "topic")
		})
	}
}

func TestClientIDs(t *testing.T) {
	for id, want := range map[string][2]string{
		"pi-1":                  {"pi-1", ""},
		"pi-1:3f2a9c0d1e4b5a67": {"pi-1", "3f2a9c0d1e4b5a67"},
	} {
		if node, machine, err := ParseClientID(id); err != nil || node != want[0] || machine != want[1] {
			t.Errorf("%s: %q, %q, %v; want %q", id, node, machine, err, want)
		}
	}
	for _, id := range []string{"", "#", "pi-1:", ":3f2a9c0d1e4b5a67", "pi-1:3F2A9C0D1E4B5A67", "pi-1:3f2a", "pi_1",
		"pi-1:3f2a9c0d1e4b5a67:x", strings.Repeat("x", 64<<10)} {
		_, _, err := ParseClientID(id)
		sentence(t, err, "client id")
	}
}

func TestPrefixes(t *testing.T) {
	for _, p := range []string{"fleet/v1", "acme", "acme/edge/fleet/v1"} {
		if err := ValidPrefix(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"", "/fleet", "fleet/", "a//b", "fleet/+", "#", "$SYS/x", "a b", "é",
		strings.Repeat("x", 129)} {
		sentence(t, ValidPrefix(p), "prefix")
	}
}
