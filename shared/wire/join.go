package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Joining happens over HTTPS, before a device has a certificate for MQTT. The
// bodies are JSON of at most MaxJoin bytes.
const (
	PathCA    = "/join/ca"    // GET: the hub's root certificate, PEM
	PathJoin  = "/join"       // POST a JoinRequest, answered by a JoinAnswer
	PathRenew = "/join/renew" // POST a RenewRequest with the client certificate, answered by a JoinAnswer

	MaxJoin   = 32 << 10 // bytes
	MaxSerial = 64       // bytes

	MaxBrokers = 16 // addresses of a JoinAnswer
)

// A JoinRequest asks for a node's certificate. A device sends it only to a hub
// whose root has the hash that stands in the token.
type JoinRequest struct {
	Token        string `json:"token"`
	Node         string `json:"node,omitempty"`      // the name that the device's owner asks for
	Hostname     string `json:"hostname,omitempty"`  // where neither the token nor the owner names one
	MachineID    string `json:"machineID,omitempty"` // 16 hex digits, see ClientID
	Serial       string `json:"serial,omitempty"`    // of the board, for whoever is to approve; at most MaxSerial bytes
	AgentVersion string `json:"agentVersion,omitempty"`
	Waiting      string `json:"waiting,omitempty"` // the request for approval that the device waits with already
	CSR          string `json:"csr"`               // PEM; its subject is ignored
}

// A RenewRequest asks for a new certificate for the same node. The same key
// signs it as the certificate that the connection shows.
type RenewRequest struct {
	CSR string `json:"csr"` // PEM
}

// A JoinAnswer is everything that a device must know of its hub.
type JoinAnswer struct {
	Node string `json:"node"`
	Site string `json:"site"`
	Hub  string `json:"hub"`  // identity of the hub, as in Desired
	MQTT string `json:"mqtt"` // host:port; without a host it is the one that the device asked
	// Brokers are all addresses, in the form of MQTT, where there is more than that one: a
	// device uses one after the other. Agents that do not know this use MQTT.
	Brokers []string `json:"brokers,omitempty"`
	// Hubs are the HTTPS addresses of all hubs, host:port, where several share a database: a
	// device renews at the next one where its own does not answer. At most MaxBrokers.
	Hubs        []string `json:"hubs,omitempty"`
	Certificate string   `json:"certificate"` // PEM: the node's, the intermediate's
	CA          string   `json:"ca"`          // PEM: the root
	// External: the addresses are those of a broker, not of the hub; see Proof.
	External             bool      `json:"external,omitempty"`
	Prefix               string    `json:"prefix,omitempty"` // of all topics; empty: DefaultPrefix
	LeaseIntervalSeconds int32     `json:"leaseIntervalSeconds"`
	Time                 time.Time `json:"time"` // the hub's clock
	// by which the hub signs boot configurations: Ed25519, public
	FirmwareKey []byte `json:"firmwareKey,omitempty"`
}

// A JoinRefusal says in one sentence why there is no JoinAnswer, and what to do.
// One whose code is 202 says that the device is to come again, as Retry-After says, until
// somebody has approved of it.
type JoinRefusal struct {
	Error     string     `json:"error"`
	Dismissed *Dismissed `json:"dismissed,omitempty"` // to a renewal: the enrolment has ended
	Waiting   string     `json:"waiting,omitempty"`   // with 202: the request by which an administrator approves
}

// ParseJoinRequest reads a JoinRequest: at most MaxJoin bytes.
func ParseJoinRequest(data []byte) (JoinRequest, error) {
	var r JoinRequest
	if err := decode(payload{"join request", data, MaxJoin}, &r); err != nil {
		return JoinRequest{}, err
	}
	err := ValidMachine(r.MachineID)
	if len(r.Serial) > MaxSerial || len(r.Waiting) > 253 {
		err = errors.Join(err, fmt.Errorf("serial has %d bytes and waiting %d, at most %d and 253 are read", len(r.Serial),
			len(r.Waiting), MaxSerial))
	}
	return r, check("join request", err)
}

// ParseRenewRequest reads a RenewRequest: at most MaxJoin bytes.
func ParseRenewRequest(data []byte) (RenewRequest, error) {
	var r RenewRequest
	err := decode(payload{"renew request", data, MaxJoin}, &r)
	return r, err
}

// ParseJoinAnswer reads a JoinAnswer: at most MaxJoin bytes.
func ParseJoinAnswer(data []byte) (JoinAnswer, error) {
	var a JoinAnswer
	if err := decode(payload{"join answer", data, MaxJoin}, &a); err != nil {
		return JoinAnswer{}, err
	}
	if a.LeaseIntervalSeconds < 1 || a.LeaseIntervalSeconds > MaxLeaseSecs {
		return JoinAnswer{}, fmt.Errorf("join answer: leaseIntervalSeconds is %d, but must be between 1 and %d",
			a.LeaseIntervalSeconds, MaxLeaseSecs)
	}
	if len(a.Brokers) > MaxBrokers {
		return JoinAnswer{}, fmt.Errorf("join answer: %d brokers, at most %d are read", len(a.Brokers), MaxBrokers)
	}
	if len(a.Hubs) > MaxBrokers {
		return JoinAnswer{}, fmt.Errorf("join answer: %d hubs, at most %d are read", len(a.Hubs), MaxBrokers)
	}
	var prefix error
	if a.Prefix != "" {
		prefix = ValidPrefix(a.Prefix)
	}
	return a, check("join answer", ValidNode(a.Node), prefix)
}

// A JoinToken is what an administrator gives to a device:
// FLT1.<pin>.<id>.<secret>. The pin is the first 16 bytes of the sha256 over the
// public key of the hub's root, in hex: by it the device knows its hub before
// it says the secret.
type JoinToken struct {
	Pin    string // 32 hex digits
	ID     string
	Secret string `json:"-"` // not even where somebody logs it as JSON
}

const (
	joinTokenVersion = "FLT1"
	pinDigits        = 32
)

// ParseJoinToken reads a token as it was copied, with blanks around it.
func ParseJoinToken(text string) (JoinToken, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != joinTokenVersion {
		return JoinToken{}, fmt.Errorf(
			"a join token has the form %s.<hash>.<id>.<secret>: copy all of what `flotilla-hub token create` printed",
			joinTokenVersion)
	}
	t := JoinToken{Pin: strings.ToLower(parts[1]), ID: parts[2], Secret: parts[3]}
	if _, err := hex.DecodeString(t.Pin); err != nil || len(t.Pin) != pinDigits {
		return JoinToken{}, fmt.Errorf(
			"the hash in the join token has not %d hex digits: copy all of what `flotilla-hub token create` printed", pinDigits)
	}
	if !alphanumeric(t.ID, 32) || !alphanumeric(t.Secret, 64) {
		return JoinToken{}, errors.New("the join token is cut or has letters that do not belong to it: copy all of what " +
			"`flotilla-hub token create` printed")
	}
	return t, nil
}

func alphanumeric(s string, most int) bool {
	for i := range len(s) {
		if c := s[i] | 0x20; (c < 'a' || c > 'z') && (s[i] < '0' || s[i] > '9') {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// Text is the token with its secret. It is for the one who joins, never for a log.
func (t JoinToken) Text() string {
	return strings.Join([]string{joinTokenVersion, t.Pin, t.ID, t.Secret}, ".")
}

// String leaves the secret out, wherever a token is printed.
func (t JoinToken) String() string {
	return strings.Join([]string{joinTokenVersion, t.Pin, t.ID, "…"}, ".")
}
