package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// An external broker acknowledges messages that the hub may never get, and does not show the hub
// certificates. So the hub itself acknowledges a status, each part of a list of pods and an event,
// by a request of type ack whose Of is AckOf(payload). A status with a new boot id must prove that
// the boot id belongs to the node's device.

// A Proof is a signature of ProofText by the key of the device's certificate: ECDSA of its SHA-256
// (ASN.1), Ed25519 of the text itself, or RSA (PKCS #1 v1.5) of its SHA-256.
type Proof struct {
	Key       []byte `json:"key"`       // the public key, DER of a SubjectPublicKeyInfo; at most MaxProof bytes
	Signature []byte `json:"signature"` // at most MaxProof bytes
}

// MaxProof limits each field of a Proof, in bytes.
const MaxProof = 1 << 10

// ProofText returns the text of a Proof: the boot id belongs to this node of this hub.
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

// AckOf returns the name of a payload in its acknowledgement: sha256- and the first 16 hex digits
// of its hash. A payload contains its boot id, so no other device waits for the same name.
func AckOf(payload []byte) string {
	sum := sha256.Sum256(payload)
	return ackPrefix + hex.EncodeToString(sum[:8])
}

// AcksPayload reports whether a request acknowledges a payload, not chunks of a reply.
func (r *Request) AcksPayload() bool {
	return r.Type == RequestAck && strings.HasPrefix(r.Of, ackPrefix)
}
