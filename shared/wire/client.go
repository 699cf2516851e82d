package wire

import (
	"fmt"
	"strings"
)

// ClientID is the MQTT client id of a node on a machine. An empty machine means
// that it is not known, and the id is the node's name alone.
func ClientID(node, machine string) string {
	if machine == "" {
		return node
	}
	return node + ":" + machine
}

// ClientIDAtBroker is that of a node at a broker between it and its hub, which does not check
// it: secret is random, for some brokers let whoever knows a client id take its session over.
// Without dots, which NATS does not take.
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

// ValidMachine checks a machine id: empty (not known), or the first 16 hex
// digits of a sha256.
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
