package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// A broker between the devices and the hub acknowledges what the hub may never get, and
// shows the hub no certificate. So the hub acknowledges a status, a list of pods (each part)
// and an event itself, by a request of type ack whose Of is AckOf the payload; and a status
// whose boot is new to the hub proves whose it is.

// A Proof is a signature over ProofText by the key of the device's certificate: ECDSA over its
// sha256 (ASN.1), Ed25519 over the text itself, or RSA (PKCS #1 v1.5) over its sha256.
type Proof struct {
	Key       []byte `json:"key"`       // public, DER of a SubjectPublicKeyInfo; at most MaxProof bytes
	Signature []byte `json:"signature"` // at most MaxProof bytes
}

// MaxProof bounds either field of a Proof.
const MaxProof = 1 << 10

// ProofText is what a Proof signs: that the boot is of this node of this hub.
func ProofText(hub, node, boot string) []byte {
	return fmt.Appendf(nil, "flotilla/v1 boot\n%s\n%s\n%s\n", hub, node, boot)
}

func (p *Proof) valid() error {
	if p != nil && (len(p.Key) > MaxProof || len(p.Signature) > MaxProof) {
		return fmt.Errorf("proof has a key of %d and a signature of %d bytes, at most %d are read", len(p.Key),
			len(p.Signature), MaxProof)
	}
	return nil
}

const ackPrefix = "sha256-"

// AckOf names a payload in its acknowledgement: sha256- and the first 16 hex digits of its
// hash. A payload says its boot, so that nobody else waits for the same one.
func AckOf(payload []byte) string {
	sum := sha256.Sum256(payload)
	return ackPrefix + hex.EncodeToString(sum[:8])
}

// AcksPayload says whether a request acknowledges a payload, and not chunks of a reply.
func (r *Request) AcksPayload() bool {
	return r.Type == RequestAck && strings.HasPrefix(r.Of, ackPrefix)
}
