package wire

import (
	"fmt"
	"strings"
)

// ClientID returns the MQTT client id of a node on a machine. Without a machine id it is the node's
// name.
func ClientID(node, machine string) string {
	if machine == "" {
		return node
	}
	return node + ":" + machine
}

// ClientIDAtBroker returns a node's client id at an external broker, which does not check it.
// secret is random, because some brokers let any client take over the session of a known client id.
// The id has no dots, because NATS refuses them.
func ClientIDAtBroker(node, secret string) string {
	return strings.ReplaceAll(node, ".", "_") + ":" + strings.ToLower(secret)
}

// ParseClientID is the inverse of ClientID.
func ParseClientID(id string) (node, machine string, err error) {
	node, machine, named := strings.Cut(id, ":")
	if err := ValidNode(node); err != nil {
		return "", "", fmt.Errorf("client id %.100q must be <node>:<machine>: %w", id, err)
	}
	if named && machine == "" {
		return "", "", fmt.Errorf(
			"client id %.100q must be <node>:<machine>, or <node> alone where the machine is not known", id)
	}
	if err := ValidMachine(machine); err != nil {
		return "", "", fmt.Errorf("client id %.100q: %w", id, err)
	}
	return node, machine, nil
}

// ValidMachine checks a machine id: empty (unknown), or the first 16 hex digits of a SHA-256.
func ValidMachine(machine string) error {
	if machine == "" {
		return nil
	}
	bad := len(machine) != 16
	for i := range len(machine) {
		c := machine[i]
		bad = bad || (c < '0' || c > '9') && (c < 'a' || c > 'f')
	}
	if bad {
		return fmt.Errorf("machine id %.40q must be 16 lower case hex digits", machine)
	}
	return nil
}
