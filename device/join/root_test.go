package join

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"
)

// authority is a root and a certificate of a host that it has signed.
func authority(t *testing.T, host string) (root, leaf *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(c *x509.Certificate, by *x509.Certificate) *x509.Certificate {
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(1000*24*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, by, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	r := &x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	root = sign(r, r)
	return root, sign(&x509.Certificate{Subject: pkix.Name{CommonName: "hub"}, DNSNames: []string{host}}, root)
}

func TestALiveLinkBelievesTheRootsOfThisMoment(t *testing.T) {
	before, beforeLeaf := authority(t, "gateway")
	after, afterLeaf := authority(t, "gateway")
	_, elsewhere := authority(t, "gateway")
	both := string(encodeCert(after)) + string(encodeCert(before))
	for _, tt := range []struct {
		name, roots, address string
		shown                *x509.Certificate
		want                 string // "": believed
	}{
		{"the root that it has", string(encodeCert(before)), "gateway:8883", beforeLeaf, ""},
		{"one that it does not know", string(encodeCert(before)), "gateway:8883", afterLeaf, "--keep-workloads"},
		{"both in a rotation: the former", both, "gateway:8883", beforeLeaf, ""},
		{"both in a rotation: the new one", both, "gateway:8883", afterLeaf, ""},
		{"a revoked one", string(encodeCert(after)), "gateway:8883", beforeLeaf, "flotilla-hub token create --site oslo --node pi-1"},
		{"a stranger's", both, "gateway:8883", elsewhere, "does not know"},
		{"the certificate of another host", both, "other:8883", afterLeaf, "other"},
		{"the certificate of another host, by its address", both, "192.0.2.7:8883", afterLeaf, "192.0.2.7"},
		{"an identity without an address", both, ":8883", afterLeaf, "no address"},
		{"no roots", "", "gateway:8883", afterLeaf, "no certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var live Live
			live.Store(&Identity{CA: "of before"})
			c := &tls.Config{Time: time.Now}
			live.Follow(c)
			live.Store(&Identity{Node: "pi-1", Site: "oslo", CA: tt.roots, MQTTAddress: tt.address})
			err := c.VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{tt.shown}}) // no SNI, as for an IP address
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Fatal(err)
			}
			if tt.want == "does not know" && !errors.Is(err, ErrWrongHub) {
				t.Fatal(err)
			}
		})
	}
}
