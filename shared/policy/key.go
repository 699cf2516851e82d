package policy

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// A Key is a public key that verifies image signatures.
type Key struct {
	ID     string // SHA-256 of the key's SubjectPublicKeyInfo, in hex
	public any
}

// keys parses the keys of a rule.
func (s Signature) keys() (keys []Key, err error) {
	for _, text := range s.Keys {
		more, err := ParseKeys(text)
		if err != nil {
			return nil, err
		}
		keys = append(keys, more...)
	}
	return keys, nil
}

// ParseKeys parses public keys in PEM, such as cosign's cosign.pub: ECDSA on P-256 or Ed25519.
func ParseKeys(text string) (keys []Key, err error) {
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("a PEM block is of type %s: write the PUBLIC KEY, such as the content of cosign.pub",
				block.Type)
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read a public key: %w", err)
		}
		switch k := public.(type) {
		case *ecdsa.PublicKey:
			if k.Curve != elliptic.P256() {
				return nil, fmt.Errorf("a key is ECDSA on %s: use P-256 or Ed25519", k.Curve.Params().Name)
			}
		case ed25519.PublicKey:
		default:
			return nil, fmt.Errorf("a key is of type %T: use ECDSA on P-256 or Ed25519", public)
		}
		sum := sha256.Sum256(block.Bytes)
		keys = append(keys, Key{ID: hex.EncodeToString(sum[:]), public: public})
	}
	// Decode skips invalid blocks.
	if len(keys) == 0 || strings.TrimSpace(string(rest)) != "" || strings.Count(text, "-----BEGIN") != len(keys) {
		return nil, errors.New("the text is not a public key in PEM (-----BEGIN PUBLIC KEY-----)")
	}
	return keys, nil
}

// Signed reports whether the key has signed a message: the message's SHA-256 with ECDSA, the
// message itself with Ed25519.
func (k Key) Signed(message, signature []byte) bool {
	switch public := k.public.(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(public, sum[:], signature)
	case ed25519.PublicKey:
		return ed25519.Verify(public, message, signature)
	}
	return false
}
