package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"flotilla.dev/shared/line"
)

// brokers connects to every address of --broker as a device does, and checks the certificate's
// name, authority and expiry. It sends no MQTT, because the broker answers only clients with
// certificates.
func (p Hub) brokers(ctx context.Context) (all []Finding) {
	if p.Mistakes != nil || len(p.Config.Brokers) == 0 {
		return nil
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(filepath.Join(p.Config.DataDir, "pki", "root.crt"))
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return nil // the check of certificates reports that
	}
	if text, err := os.ReadFile(filepath.Join(p.Config.DataDir, "pki", "former-root.crt")); err == nil {
		roots.AppendCertsFromPEM(text)
	}
	for _, address := range p.Config.BrokerAddresses() {
		all = append(all, p.broker(ctx, address, roots))
	}
	return all
}

func (p Hub) broker(ctx context.Context, address string, roots *x509.CertPool) Finding {
	const anew = "write a new certificate with `flotilla-hub broker-config` into a new directory, and reload " +
		"the broker"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	host, _, _ := net.SplitHostPort(address)
	began := time.Now()
	raw, err := line.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return Finding{Fail, "broker", fmt.Sprintf("%s: %v", address, err),
			"check that the broker runs, and that the firewall allows this machine and the devices"}
	}
	defer raw.Close()
	var leaf *x509.Certificate
	//nolint:gosec // VerifyConnection verifies it and keeps the certificate
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, InsecureSkipVerify: true}
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		leaf = s.PeerCertificates[0]
		intermediates := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			intermediates.AddCert(c)
		}
		_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: intermediates,
			CurrentTime: p.Now})
		return err
	}
	err = tls.Client(raw, conf).HandshakeContext(ctx)
	took := time.Since(began).Round(time.Millisecond)
	var other x509.HostnameError
	var foreign x509.UnknownAuthorityError
	switch {
	case errors.As(err, &other):
		return Finding{Fail, "broker", fmt.Sprintf("%s: its certificate is not for %s", address, host),
			"add this address with --address: " + anew}
	case errors.As(err, &foreign):
		return Finding{Fail, "broker", fmt.Sprintf("%s: its certificate was not issued by this hub's authority", address),
			anew}
	case leaf != nil && p.Now.After(leaf.NotAfter):
		return Finding{Fail, "broker",
			fmt.Sprintf("%s: its certificate expired on %s", address, leaf.NotAfter.Format(time.DateOnly)), anew}
	case leaf == nil:
		return Finding{Fail, "broker", fmt.Sprintf("%s: TLS failed: %v", address, err),
			"see the broker's log, and check that this is its port for MQTT over TLS"}
	case err != nil && leaf.NotBefore.After(p.Now):
		return Finding{Fail, "broker", fmt.Sprintf("%s: its certificate is not valid before %s", address,
			leaf.NotBefore.Format(time.DateOnly)), "set the clock of this machine, which is behind"}
	case leaf.NotAfter.Sub(p.Now) < soon:
		return Finding{Warn, "broker",
			fmt.Sprintf("%s: its certificate expires on %s", address, leaf.NotAfter.Format(time.DateOnly)), anew}
	}
	return Finding{OK, "broker", fmt.Sprintf("%s answers in %s; its certificate is valid until %s", address, took,
		leaf.NotAfter.Format(time.DateOnly)), ""}
}
