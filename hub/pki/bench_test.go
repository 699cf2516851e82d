package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"testing"
)

// BenchmarkHandshake measures both sides of a device's handshake. A profile shows serverHandshake
// and clientHandshake.
func BenchmarkHandshake(b *testing.B) {
	a, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	server, err := a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	key, err := newKey()
	if err != nil {
		b.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		b.Fatal(err)
	}
	cert, err := a.SignDevice(Request{key.Public(), spki}, "pi-1")
	if err != nil {
		b.Fatal(err)
	}
	shown := tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode(cert.ChainPEM); block != nil; block, rest = pem.Decode(rest) {
		shown.Certificate = append(shown.Certificate, block.Bytes)
	}
	mqtt := a.MQTT(server, func(h Holder) error {
		if !a.PresentlySigned(h) {
			b.Error("the chain has another issuer")
		}
		return nil
	})
	client := &tls.Config{RootCAs: a.rootPool(), ServerName: "hub", Certificates: []tls.Certificate{shown}}
	b.ReportAllocs()
	for b.Loop() {
		c, s := net.Pipe()
		done := make(chan error)
		go func() {
			conn := tls.Server(s, mqtt)
			_, err := io.ReadFull(conn, make([]byte, 1))
			done <- err
		}()
		conn := tls.Client(c, client)
		if _, err := conn.Write([]byte{0}); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		_, _ = c.Close(), s.Close()
	}
}
