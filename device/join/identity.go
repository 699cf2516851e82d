package join

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"flotilla.dev/shared/wire"
)

// An Identity is a device's membership in a fleet.
type Identity struct {
	Node      string `json:"node"`
	Site      string `json:"site"`
	Hub       string `json:"hub"` // the hub's id
	MachineID string `json:"machineID,omitempty"`
	HubURL    string `json:"hubURL"`
	// host:port of every hub's HTTPS, if the fleet has several hubs
	Hubs                 []string  `json:"hubs,omitempty"`
	MQTTAddress          string    `json:"mqttAddress"`        // host:port, TLS
	Brokers              []string  `json:"brokers,omitempty"`  // all MQTT addresses, if the fleet has several
	External             bool      `json:"external,omitempty"` // the addresses belong to a broker
	Prefix               string    `json:"prefix,omitempty"`   // prefix of all topics; empty: wire.DefaultPrefix
	LeaseIntervalSeconds int32     `json:"leaseIntervalSeconds"`
	CA                   string    `json:"ca"`          // root certificates of the hub, PEM
	Certificate          string    `json:"certificate"` // certificates of the node and the intermediate, PEM
	Key                  string    `json:"key"`         // PEM, PKCS #8; the key never leaves the device
	HubTime              time.Time `json:"hubTime"`     // the hub's time when it signed the certificate
}

// Names of the files in the state directory.
const (
	IdentityFile = "identity.json"
	// second copy: without an identity a device is offline until it is repaired by hand
	IdentityCopy = "identity.copy.json"
	pendingFile  = "join.key" // key of an unfinished join
)

// ErrNotJoined means that the state directory has no identity.
var ErrNotJoined = errors.New("this device has not joined a hub")

// identity checks the hub's answer before anything is stored.
func identity(a wire.JoinAnswer, base *url.URL, key, ca []byte) (Identity, error) {
	address, err := withHost(a.MQTT, base)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{
		Node: a.Node, Site: a.Site, Hub: a.Hub, HubURL: base.String(), MQTTAddress: address, External: a.External,
		Prefix:               a.Prefix,
		LeaseIntervalSeconds: a.LeaseIntervalSeconds, CA: string(ca), Certificate: a.Certificate, Key: string(key),
		HubTime: a.Time,
	}
	for _, b := range a.Brokers {
		if address, err = withHost(b, base); err != nil {
			return Identity{}, err
		}
		id.Brokers = append(id.Brokers, address)
	}
	for _, h := range a.Hubs {
		if _, err := parseURL("https://" + h); err != nil {
			return Identity{}, fmt.Errorf("the hub's answer has an invalid hub address (%.300q)", h)
		}
		id.Hubs = append(id.Hubs, h)
	}
	leaf, err := id.Leaf()
	if err != nil {
		return Identity{}, fmt.Errorf("the hub's answer has no usable certificate: %w", err)
	}
	if leaf.Subject.CommonName != a.Node {
		return Identity{}, fmt.Errorf("the hub's certificate is for node %.80q, but its answer is for node %s",
			leaf.Subject.CommonName, a.Node)
	}
	return id, nil
}

// withHost adds the hub's host to an address without a host.
func withHost(address string, base *url.URL) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || strings.ContainsAny(address, ", ") {
		return "", fmt.Errorf("the hub's answer has no MQTT address (%.300q)", address)
	}
	if host == "" {
		host = base.Hostname()
	}
	return net.JoinHostPort(host, port), nil
}

// Server returns the MQTT addresses of the hub for link.Config, separated by commas.
func (id Identity) Server() string {
	if len(id.Brokers) == 0 {
		return "mqtts://" + id.MQTTAddress
	}
	return "mqtts://" + strings.Join(id.Brokers, ",mqtts://")
}

// Prove signs a boot id for a hub that does not see the device's certificate. It returns nil if the
// key cannot sign.
func (id Identity) Prove(boot string) *wire.Proof {
	p, err := id.pair()
	if err != nil {
		return nil
	}
	text, hash := wire.ProofText(id.Hub, id.Node, boot), crypto.Hash(0)
	if _, ed := p.PrivateKey.(ed25519.PrivateKey); !ed {
		sum := sha256.Sum256(text)
		text, hash = sum[:], crypto.SHA256
	}
	signature, err := p.PrivateKey.(crypto.Signer).Sign(rand.Reader, text, hash)
	if err != nil {
		return nil
	}
	return &wire.Proof{Key: p.Leaf.RawSubjectPublicKeyInfo, Signature: signature}
}

// pair returns the certificate with its key, and checks that they match.
func (id Identity) pair() (tls.Certificate, error) {
	return tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key))
}

// Leaf returns the node's certificate.
func (id Identity) Leaf() (*x509.Certificate, error) {
	p, err := id.pair()
	return p.Leaf, err
}

// Of reports whether a token is for this identity's hub, because both have the same root.
func (id Identity) Of(token wire.JoinToken) (bool, error) {
	roots, err := parseRoots([]byte(id.CA))
	if err != nil {
		return false, fmt.Errorf("read identity of node %s: %w", id.Node, err)
	}
	return rootOf(roots, token) != nil, nil
}

// TLS returns the configuration for connections to the hub. lastKnown is the latest time that the
// device knows: a device without a clock battery starts in 1970, and must still connect.
func (id Identity) TLS(lastKnown time.Time) (*tls.Config, error) {
	p, err := id.pair()
	if err != nil {
		return nil, fmt.Errorf("read identity of node %s: %w; join again", id.Node, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(id.CA)) {
		return nil, fmt.Errorf("read identity of node %s: it has no certificate of the hub; join again", id.Node)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{p}, RootCAs: roots, MinVersion: tls.VersionTLS12,
		Time: Clock(later(lastKnown, id.HubTime)),
	}, nil
}

// Save stores an identity and its copy in a state directory, atomically and with mode 0600, and
// removes the key of the join.
func Save(dir string, id Identity) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_, err = Repair(dir, id)
	}
	if err == nil {
		if err = os.Remove(filepath.Join(dir, pendingFile)); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("store the identity of node %s: %w; make %s writable", id.Node, err, dir)
	}
	return nil
}

// Repair rewrites the identity's files that differ or are missing, and returns their names.
func Repair(dir string, id Identity) (mended []string, err error) {
	text, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return nil, err
	}
	text = append(text, '\n')
	for _, name := range []string{IdentityFile, IdentityCopy} {
		file := filepath.Join(dir, name)
		if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, text) {
			continue
		}
		if err := writeFile(file, text); err != nil {
			return mended, err
		}
		mended = append(mended, name)
	}
	return mended, nil
}

// writeFile writes a file atomically and durably. Its temporary file has the same mode, because it
// contains a key.
func writeFile(file string, text []byte) error {
	if err := renameio.WriteFile(file, text, 0o600, renameio.IgnoreUmask(),
		renameio.WithTempDir(filepath.Dir(file))); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Load reads the identity of a state directory. If the file is damaged, it uses the copy. If the
// file is missing, it returns ErrNotJoined.
func Load(dir string) (Identity, error) {
	id, err := load(filepath.Join(dir, IdentityFile))
	if err == nil || errors.Is(err, ErrNotJoined) {
		return id, err
	}
	if same, e := load(filepath.Join(dir, IdentityCopy)); e == nil {
		return same, nil
	}
	return id, err
}

func load(file string) (Identity, error) {
	var id Identity
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return id, fmt.Errorf("%w; run `flotilla-device join URL --token …` (looked in %s)", ErrNotJoined, filepath.Dir(file))
	}
	if err != nil {
		return id, fmt.Errorf("read %s: %w; run this as the owner of the state directory", file, err)
	}
	if err := json.Unmarshal(text, &id); err != nil {
		return id, fmt.Errorf("read %s: %w; join again", file, err)
	}
	_, err = id.pair()
	if err == nil && (id.Node == "" || id.MQTTAddress == "") {
		err = errors.New("the node or the hub is missing")
	}
	if err == nil {
		_, err = parseRoots([]byte(id.CA))
	}
	if err != nil {
		return id, fmt.Errorf("read %s: the file is damaged: %w; join again", file, err)
	}
	return id, nil
}

// pendingKey returns a key and a certificate request. It stores the key before the hub sees it: if
// the response is lost, the next join uses the same key and the hub recognises it.
func pendingKey(dir string) (keyPEM, csrPEM []byte, err error) {
	file := filepath.Join(dir, pendingFile)
	if dir != "" {
		if keyPEM, err = os.ReadFile(file); err == nil {
			if csrPEM, err = request(keyPEM); err == nil {
				return keyPEM, csrPEM, nil
			}
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if dir != "" {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = writeFile(file, keyPEM)
		}
		if err != nil {
			return nil, nil, fmt.Errorf(
				"store the key of this device: %w; run this as root or choose a directory with --state-dir", err)
		}
	}
	csrPEM, err = request(keyPEM)
	return keyPEM, csrPEM, err
}

// request returns a certificate request signed by a key.
func request(keyPEM []byte) ([]byte, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("the key of this device is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
