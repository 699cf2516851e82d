package broker

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"math/big"
	"testing"
)

// A certificate yields the node's name and its key. The key distinguishes a replaced device from
// its replacement.
func TestACertificateYieldsNodeAndKey(t *testing.T) {
	key := []byte("the public key of the certificate")
	sum := sha256.Sum256(key)
	for _, tt := range []struct {
		name, node string
		orgs       []string
		ok         bool
	}{
		{"a device", "pi-1", []string{Organization}, true},
		{"a person", "anna", []string{"flotilla:admins"}, false},
		{"a device with an administrator's organization", "pi-1", []string{Organization, "flotilla:admins"}, false},
		{"nothing", "pi-1", nil, false},
		{"a name that is a path", "../pi-1", []string{Organization}, false},
		{"a wildcard", "+", []string{Organization}, false},
		{"no name", "", []string{Organization}, false},
	} {
		var p Peer
		err := identify(tls.ConnectionState{PeerCertificates: []*x509.Certificate{{
			SerialNumber: big.NewInt(255), RawSubjectPublicKeyInfo: key,
			Subject: pkix.Name{CommonName: tt.node, Organization: tt.orgs},
		}}}, &p)
		if (err == nil) != tt.ok || tt.ok && (p.Node != tt.node || p.Key != hex.EncodeToString(sum[:])) ||
			!tt.ok && p.Node != "" {
			t.Errorf("%s: %+v %v", tt.name, p, err)
		}
	}
	if err := identify(tls.ConnectionState{}, new(Peer)); err == nil {
		t.Error("a certificate without a name was accepted")
	}
}
