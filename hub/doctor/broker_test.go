package doctor

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/shared/loopback"
)

func TestEveryAddressOfABrokerIsChecked(t *testing.T) {
	p, _ := made(t)
	own, err := pki.OpenWith(p.Config.DataDir, "")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	serve := func(a *pki.Authority, names ...string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if a != nil {
			chain, key, err := a.IssueServer(names)
			if err != nil {
				t.Fatal(err)
			}
			pair, err := tls.X509KeyPair(chain, key)
			if err != nil {
				t.Fatal(err)
			}
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert})
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if s, ok := c.(*tls.Conn); ok {
						_ = s.Handshake()
						return
					}
					_, _ = c.Write([]byte("no TLS here\r\n"))
				}()
			}
		}()
		return "mqtts://" + l.Addr().String()
	}
	nobody, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	away := "mqtts://" + nobody

	good := serve(own, "127.0.0.1")
	for name, c := range map[string]struct {
		address string
		later   time.Duration
		level   Level
		words   string
	}{
		"a valid certificate":             {good, 0, OK, "answers in"},
		"a certificate that expires soon": {good, 345 * 24 * time.Hour, Warn, "its certificate expires on"},
		"an expired certificate":          {good, 370 * 24 * time.Hour, Fail, "its certificate expired on"},
		"a certificate from the future":   {good, -20 * 24 * time.Hour, Fail, "is not valid before"},
		"another name":                    {serve(own, "b.example"), 0, Fail, "is not for 127.0.0.1"},
		"another authority":               {serve(other, "127.0.0.1"), 0, Fail, "not issued by this hub's authority"},
		"TLS failed":                      {serve(nil), 0, Fail, "TLS failed"},
		"nobody there":                    {away, 0, Fail, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			p := p
			p.Config.Brokers, p.Now = []string{c.address}, time.Now().Add(c.later)
			says(t, p.brokers(t.Context()), c.level, "broker", c.words)
		})
	}
	p.Config.Brokers = []string{good, away}
	all := Examine(t.Context(), p)
	says(t, all, OK, "broker", "answers in")
	says(t, all, Fail, "broker", "refused")
	for _, f := range all {
		if f.What == "ports" && strings.HasPrefix(f.Seen, "--mqtt-listen") {
			t.Error("doctor must not check a port that a hub with an external broker does not use")
		}
	}
}
