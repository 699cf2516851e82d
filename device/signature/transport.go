package signature

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// certificateDirs are where engines look for the authorities of private registries:
// whoever has told the engine need not tell us.
var certificateDirs = []string{"/etc/docker/certs.d", "/etc/containers/certs.d"}

// transportTo is how to reach a registry: by the system's authorities and those that
// the engines know for it.
func transportTo(host string) http.RoundTripper {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableKeepAlives:   true,
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, dir := range certificateDirs {
		files, err := filepath.Glob(filepath.Join(dir, host, "*.crt"))
		if err != nil {
			continue // host is a valid registry's name and no pattern
		}
		for _, file := range files {
			if body, err := os.ReadFile(file); err == nil { // what the engine cannot read either is its story to tell
				pool.AppendCertsFromPEM(body)
			}
		}
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return bounded{t}
}

// bounded takes no answer that is larger than any that is asked for here. The library
// reads a manifest of up to 100 MiB, which is more than an agent may have.
type bounded struct{ http.RoundTripper }

// maxAnswer is what registries themselves take of a manifest at most.
const maxAnswer = 4 << 20

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

var errLarge = fmt.Errorf("the registry's answer has more than %d bytes", maxAnswer)

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		return n, errLarge
	}
	return n, err
}
