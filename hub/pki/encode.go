package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

func decodeKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("not a PEM key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("not a PKCS #8 key: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, fmt.Errorf("its type is %T, not ECDSA P-256", key)
	}
	return ec, nil
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

func encodeCert(certs ...*x509.Certificate) []byte {
	var all []byte
	for _, c := range certs {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return all
}

// RootPEM returns the trusted roots, the current one first.
func (a *Authority) RootPEM() []byte { return encodeCert(a.roots()...) }

// Pin identifies the root in a join token. It is the first 16 bytes of the SHA-256 of the root's
// public key (SPKI), in hex.
func (a *Authority) Pin() string { return KeyHash(a.roots()[0])[:32] }

// KeyHash is the SHA-256 of a certificate's public key (SPKI), in hex.
func KeyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// serial returns the time of issue in milliseconds (48 bits) and 72 random bits. NotBefore is
// backdated, so only the serial shows the time of issue.
func serial(now time.Time) *big.Int {
	n := new(big.Int).Lsh(big.NewInt(now.UnixMilli()), 72)
	var random [9]byte
	_, _ = rand.Read(random[:]) // never fails; see crypto/rand
	return n.Or(n, new(big.Int).SetBytes(random[:]))
}

// IssuedAt returns when the hub signed a certificate, by the hub's clock.
func IssuedAt(cert *x509.Certificate) time.Time {
	return time.UnixMilli(new(big.Int).Rsh(cert.SerialNumber, 72).Int64())
}
