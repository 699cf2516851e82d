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

// brokers looks at every address of --broker as a device does that connects there: it answers,
// and shows a certificate for that name, of this hub's authority, that does not end soon.
// Nothing is said to it: who is not known by a certificate hears no more anyway.
func (p Patient) brokers(ctx context.Context) (all []Finding) {
	if p.Mistakes != nil || len(p.Config.Brokers) == 0 {
		return nil
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(filepath.Join(p.Config.DataDir, "pki", "root.crt"))
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return nil // which is said of the certificates
	}
	if text, err := os.ReadFile(filepath.Join(p.Config.DataDir, "pki", "former-root.crt")); err == nil {
		roots.AppendCertsFromPEM(text)
	}
	for _, address := range p.Config.BrokerAddresses() {
		all = append(all, p.broker(ctx, address, roots))
	}
	return all
}

func (p Patient) broker(ctx context.Context, address string, roots *x509.CertPool) Finding {
	const anew = "write a certificate anew with `flotilla-hub broker-config` into a new directory, and have the " +
		"broker read it"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	host, _, _ := net.SplitHostPort(address)
	began := time.Now()
	raw, err := line.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return Finding{Fail, "broker", fmt.Sprintf("%s: %v", address, err),
			"see that the broker runs, and that a firewall lets this machine and the devices through"}
	}
	defer raw.Close()
	var leaf *x509.Certificate
	//nolint:gosec // VerifyConnection does it, and keeps what was shown
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, InsecureSkipVerify: true}
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		leaf = s.PeerCertificates[0]
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between, CurrentTime: p.Now})
		return err
	}
	err = tls.Client(raw, conf).HandshakeContext(ctx)
	took := time.Since(began).Round(time.Millisecond)
	var other x509.HostnameError
	var strange x509.UnknownAuthorityError
	switch {
	case errors.As(err, &other):
		return Finding{Fail, "broker", fmt.Sprintf("%s: its certificate is not for %s", address, host),
			"name this address with --address: " + anew}
	case errors.As(err, &strange):
		return Finding{Fail, "broker", fmt.Sprintf("%s: its certificate is not of this hub's authority", address), anew}
	case leaf != nil && p.Now.After(leaf.NotAfter):
		return Finding{Fail, "broker",
			fmt.Sprintf("%s: its certificate ended on %s", address, leaf.NotAfter.Format(time.DateOnly)), anew}
	case leaf == nil:
		return Finding{Fail, "broker", fmt.Sprintf("%s: no TLS: %v", address, err),
			"see the broker's log, and that this is its port for MQTT over TLS"}
	case err != nil && leaf.NotBefore.After(p.Now):
		return Finding{Fail, "broker", fmt.Sprintf("%s: its certificate is good only from %s on", address,
			leaf.NotBefore.Format(time.DateOnly)), "the clock of this machine is behind: set it"}
	case leaf.NotAfter.Sub(p.Now) < soon:
		return Finding{Warn, "broker",
			fmt.Sprintf("%s: its certificate ends on %s", address, leaf.NotAfter.Format(time.DateOnly)), anew}
	}
	return Finding{OK, "broker", fmt.Sprintf("%s answers in %s, its certificate is good until %s", address, took,
		leaf.NotAfter.Format(time.DateOnly)), ""}
}
