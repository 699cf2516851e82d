package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

func TestTheLinkShowsItsCertificateAndChecksTheHubs(t *testing.T) {
	now := time.Now()
	newKey := func() *ecdsa.PrivateKey { k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader); return k }
	caKey := newKey()
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, _ = x509.ParseCertificate(caDER)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	issue := func(name string) tls.Certificate {
		key := newKey()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}, ca, key.Public(), caKey)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	listener, err := tls.Listen(
		"tcp",
		"127.0.0.1:0",
		&tls.Config{
			Certificates: []tls.Certificate{issue("hub.test")},
			ClientCAs:    pool,
			ClientAuth:   tls.RequireAndVerifyClientCert,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	h := &hub{t: t}
	names := make(chan string, 16)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				if c.(*tls.Conn).Handshake() == nil {
					names <- c.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
					h.serve(c)
				}
				c.Close()
			}()
		}
	}()
	run := func(server string, cfg *tls.Config) (*Link, func()) {
		a := &agent{load: "x", pod: "x"}
		l, err := New(Config{
			Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1", Server: server, TLS: cfg, Source: a, Sink: a,
			Log:  slog.New(slog.NewTextHandler(io.Discard, nil)),
			Dial: func(context.Context) (net.Conn, error) { return net.Dial("tcp", listener.Addr().String()) },
		})
		if err != nil {
			t.Fatal(err)
		}
		a.link = l
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		return l, func() { cancel(); <-done }
	}
	t.Run("the right hub", func(t *testing.T) {
		l, stop := run("mqtts://hub.test:8883", &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{issue("pi-1")}})
		defer stop()
		await(t, "the connection", func() bool { online, _ := l.Online(); return online })
		if name := <-names; name != "pi-1" {
			t.Errorf("the hub saw the certificate of %q, want pi-1", name)
		}
	})
	for name, c := range map[string]struct {
		server, want string
		cfg          *tls.Config
	}{
		"a hub with another name":                {"mqtts://other.test:8883", "other.test", &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{issue("pi-1")}}},
		"a hub with a certificate of another CA": {"mqtts://hub.test:8883", "unknown authority", &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{issue("pi-1")}}},
	} {
		t.Run(name, func(t *testing.T) {
			l, stop := run(c.server, c.cfg)
			defer stop()
			await(t, "the refusal", func() bool { _, err := l.Online(); return err != nil })
			if _, err := l.Online(); !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "TLS handshake") {
				t.Errorf("Online's error is %v", err)
			}
		})
	}
}
