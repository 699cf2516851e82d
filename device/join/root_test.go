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

// authority returns a root and a host certificate that it has signed.
func authority(t *testing.T, host string) (root, leaf *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(c *x509.Certificate, by *x509.Certificate) *x509.Certificate {
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour),
			time.Now().Add(1000*24*time.Hour)
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
	r := &x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	root = sign(r, r)
	return root, sign(&x509.Certificate{Subject: pkix.Name{CommonName: "hub"}, DNSNames: []string{host}}, root)
}

func TestALiveLinkTrustsThePresentRoots(t *testing.T) {
	before, beforeLeaf := authority(t, "gateway")
	after, afterLeaf := authority(t, "gateway")
	_, elsewhere := authority(t, "gateway")
	both := string(encodeCert(after)) + string(encodeCert(before))
	for _, tt := range []struct {
		name, roots, dialled string
		shown                *x509.Certificate
		want                 string // part of the error; empty: accepted
	}{
		{"the known root", string(encodeCert(before)), "gateway", beforeLeaf, ""},
		{"an unknown root", string(encodeCert(before)), "gateway", afterLeaf, "--keep-workloads"},
		{"both roots in a rotation: the old one", both, "gateway", beforeLeaf, ""},
		{"both roots in a rotation: the new one", both, "gateway", afterLeaf, ""},
		{"a revoked root", string(encodeCert(after)), "gateway", beforeLeaf, "flotilla-hub token create --site oslo --node pi-1"},
		{"another fleet's root", both, "gateway", elsewhere, "unknown authority"},
		{"the certificate of another host", both, "other", afterLeaf, "other"},
		{"the certificate of another host, by its address", both, "192.0.2.7", afterLeaf, "192.0.2.7"},
		{"no address", both, "", afterLeaf, "no address"},
		{"no roots", "", "gateway", afterLeaf, "no certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var live Live
			live.Store(&Identity{CA: "of the old root"})
			c := &tls.Config{Time: time.Now}
			live.Follow(c, time.Time{})
			live.Store(&Identity{Node: "pi-1", Site: "oslo", CA: tt.roots})
			err := c.VerifyConnection(tls.ConnectionState{ServerName: tt.dialled,
				PeerCertificates: []*x509.Certificate{tt.shown}})
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Fatal(err)
			}
			if tt.want == "unknown authority" && !errors.Is(err, ErrWrongHub) {
				t.Fatal(err)
			}
		})
	}
}
