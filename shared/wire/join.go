package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A device joins over HTTPS, before it has a certificate for MQTT. Bodies are JSON of at most
// MaxJoin bytes.
const (
	PathCA    = "/join/ca"    // GET: the hub's root certificate, PEM
	PathJoin  = "/join"       // POST a JoinRequest; the response is a JoinAnswer
	PathRenew = "/join/renew" // POST a RenewRequest with the client certificate; the response is a JoinAnswer

	MaxJoin   = 32 << 10 // bytes
	MaxSerial = 64       // bytes

	MaxBrokers = 16 // number of addresses in a JoinAnswer
)

// A JoinRequest requests a node's certificate. A device sends it only to a hub whose root matches
// the token's hash.
type JoinRequest struct {
	Token        string `json:"token"`
	Node         string `json:"node,omitempty"`      // the name that the device's owner requests
	Hostname     string `json:"hostname,omitempty"`  // used if neither the token nor the owner gives a name
	MachineID    string `json:"machineID,omitempty"` // 16 hex digits, see ClientID
	Serial       string `json:"serial,omitempty"`    // the board's serial number, for the administrator who approves; at most MaxSerial bytes
	AgentVersion string `json:"agentVersion,omitempty"`
	Waiting      string `json:"waiting,omitempty"` // name of the request for approval that the device already waits for
	CSR          string `json:"csr"`               // PEM; its subject is ignored
}

// A RenewRequest requests a new certificate for the same node. The key of the connection's
// certificate signs its CSR.
type RenewRequest struct {
	CSR string `json:"csr"` // PEM
}

// A JoinAnswer has what a device needs to know about its hub.
type JoinAnswer struct {
	Node string `json:"node"`
	Site string `json:"site"`
	Hub  string `json:"hub"`  // the hub's id, as in Desired
	MQTT string `json:"mqtt"` // host:port; without a host, the host of the request
	// Brokers are all addresses, in the form of MQTT, if there are several. A device tries them one
	// after another. Older agents use MQTT.
	Brokers []string `json:"brokers,omitempty"`
	// Hubs are the HTTPS addresses, host:port, of all hubs of a database, if there are several; at
	// most MaxBrokers. A device renews at the next one if its own hub does not respond.
	Hubs        []string `json:"hubs,omitempty"`
	Certificate string   `json:"certificate"` // PEM: the node's certificate, then the intermediate's
	CA          string   `json:"ca"`          // PEM: the root's certificate
	// External means that the addresses belong to a broker, see Proof.
	External             bool      `json:"external,omitempty"`
	Prefix               string    `json:"prefix,omitempty"` // prefix of all topics; empty: DefaultPrefix
	LeaseIntervalSeconds int32     `json:"leaseIntervalSeconds"`
	Time                 time.Time `json:"time"` // time of the hub's clock
	// public Ed25519 key; the hub signs boot configurations with its private key
	FirmwareKey []byte `json:"firmwareKey,omitempty"`
}

// A JoinRefusal says why there is no JoinAnswer and what to do. With status 202 the device repeats
// the request after Retry-After, until an administrator has approved it.
type JoinRefusal struct {
	Error     string     `json:"error"`
	Dismissed *Dismissed `json:"dismissed,omitempty"` // response to a renewal after the enrolment has ended
	Waiting   string     `json:"waiting,omitempty"`   // with 202: name of the request that an administrator must approve
}

// ParseJoinRequest parses a JoinRequest of at most MaxJoin bytes.
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

// ParseRenewRequest parses a RenewRequest of at most MaxJoin bytes.
func ParseRenewRequest(data []byte) (RenewRequest, error) {
	var r RenewRequest
	err := decode(payload{"renew request", data, MaxJoin}, &r)
	return r, err
}

// ParseJoinAnswer parses a JoinAnswer of at most MaxJoin bytes.
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

// A JoinToken is the secret that an administrator gives to a device: FLT1.<pin>.<id>.<secret>. The
// pin is the first 16 bytes of the SHA-256 of the public key of the hub's root, in hex. With it the
// device verifies the hub before it sends the secret.
type JoinToken struct {
	Pin    string // 32 hex digits
	ID     string
	Secret string `json:"-"` // never written as JSON, for example in logs
}

const (
	joinTokenVersion = "FLT1"
	pinDigits        = 32
)

// ParseJoinToken parses a copied token. It ignores surrounding blanks.
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
			"the hash in the join token does not have %d hex digits: copy all of what `flotilla-hub token create` printed", pinDigits)
	}
	if !alphanumeric(t.ID, 32) || !alphanumeric(t.Secret, 64) {
		return JoinToken{}, errors.New("the join token is incomplete or has invalid characters: copy all of what " +
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

// Text returns the token with its secret, for the device, and never for a log.
func (t JoinToken) Text() string {
	return strings.Join([]string{joinTokenVersion, t.Pin, t.ID, t.Secret}, ".")
}

// String returns the token without its secret.
func (t JoinToken) String() string {
	return strings.Join([]string{joinTokenVersion, t.Pin, t.ID, "…"}, ".")
}
