package store

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
	"flotilla.dev/hub/owner"
)

// An issuer issues certificates for a test.
type issuer struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T, dir, name string) *issuer {
	i := &issuer{t: t, dir: dir}
	i.cert, i.key = i.issue(name, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return i
}

// issue writes NAME.crt and NAME.key.
func (i *issuer) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(i.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	by, with := c, key
	if i.cert != nil {
		by, with = i.cert, i.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, with)
	must(i.t, err)
	made, err := x509.ParseCertificate(raw)
	must(i.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(i.t, err)
	must(i.t, os.WriteFile(filepath.Join(i.dir, name+".crt"),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o644))
	must(i.t, os.WriteFile(filepath.Join(i.dir, name+".key"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return made, key
}

// TestServerAuthentication tests how hub and server authenticate each other.
func TestServerAuthentication(t *testing.T) { // not parallel: libpq's variables belong to the process
	dir, err := os.MkdirTemp("", "flotilla-tls-") // the server's user must be able to enter the directory
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	in := func(name string) string { return filepath.Join(dir, name) }
	ca := newIssuer(t, dir, "ca")
	ca.issue("server", &x509.Certificate{
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	ca.issue("certified", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	newIssuer(t, dir, "other")
	must(t, os.WriteFile(in("hba"), []byte(`
local   all all                      trust
hostssl all certified 127.0.0.1/32   cert
hostssl all certified ::1/128        cert
hostssl all scram     127.0.0.1/32   scram-sha-256
hostssl all scram     ::1/128        scram-sha-256
host    all flotilla  127.0.0.1/32   trust
`), 0o644))
	addresses := "127.0.0.1"
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = l.Close()
		addresses += ",::1"
	}
	server := postgrestest.Make(t, "", "ssl=on", "ssl_ca_file="+in("ca.crt"), "ssl_cert_file="+in("server.crt"),
		"ssl_key_file="+in("server.key"), "hba_file="+in("hba"), "password_encryption=scram-sha-256",
		"listen_addresses="+addresses)
	if info, err := os.Stat(server.Dir); err == nil && os.Geteuid() == 0 {
		must(t, os.Chown(in("server.key"), owner.Of(info), owner.Group(info)))
	}
	server.Run()
	server.Do("postgres", "CREATE ROLE certified LOGIN SUPERUSER; CREATE ROLE scram LOGIN SUPERUSER PASSWORD 'ge/hei "+
		"m?#@'")
	plain := postgrestest.Start(t)
	must(t, os.WriteFile(in("pgpass"), fmt.Appendf(nil, "localhost:%d:*:scram:ge/hei m?#@\n", server.Port), 0o600))
	must(t, os.WriteFile(in("service"), fmt.Appendf(nil,
		"[fleet]\nhost=localhost\nport=%d\nuser=scram\npassword=ge/hei m?#@\nsslmode=verify-full\nsslrootcert=%s\n",
		server.Port, in("ca.crt")), 0o600))
	t.Setenv("PGPASSFILE", in("none"))
	full := "sslmode=verify-full&sslrootcert=" + in("ca.crt")
	password := url.QueryEscape("ge/hei m?#@")
	password = strings.ReplaceAll(password, "+", "%20")
	for name, c := range map[string]struct {
		url  string // with %s for the name of the database
		env  map[string]string
		says string // text of the error; "": the hub connects
	}{
		"verify-full": {url: fmt.Sprintf("postgres://flotilla@localhost:%d/%%s?%s", server.Port,
			full)},
		"verify-full, certificate for another name": {
			url: fmt.Sprintf("postgres://flotilla@127.0.0.1:%d/%%s?%s", server.Port, full), says: "certificate",
		},
		"verify-full, certificate of another authority": {url: fmt.Sprintf("postgres://flotilla@localhost:%d/%%s?sslmode=verify-full&sslrootcert=%s", server.Port, in("other.crt")), says: "certificate"},
		"verify-full, without the root certificate":     {url: fmt.Sprintf("postgres://flotilla@localhost:%d/%%s?sslmode=verify-full&sslrootcert=%s", server.Port, in("none.crt")), says: "none.crt"},
		"verify-full, server without TLS": {
			url: fmt.Sprintf("postgres://flotilla@localhost:%d/%%s?%s", plain.Port, full), says: "TLS",
		},
		"a certificate": {url: fmt.Sprintf("postgres://certified@localhost:%d/%%s?%s&sslcert=%s&sslkey=%s", server.Port, full,
			in("certified.crt"), in("certified.key"))},
		"no certificate": {url: fmt.Sprintf("postgres://certified@localhost:%d/%%s?%s", server.Port,
			full), says: "refuses this user"},
		"another's certificate": {url: fmt.Sprintf("postgres://scram@localhost:%d/%%s?%s&sslcert=%s&sslkey=%s",
			server.Port, full, in("certified.crt"), in("certified.key")), says: "password"},
		"a password in the address": {url: fmt.Sprintf("postgres://scram:%s@localhost:%d/%%s?%s",
			strings.ReplaceAll(password, "%", "%%"), server.Port, full)},
		"a password as a parameter": {url: fmt.Sprintf("postgres://scram@localhost:%d/%%s?%s&password=%s",
			server.Port, full, strings.ReplaceAll(password, "%", "%%"))},
		"a wrong password": {url: fmt.Sprintf("postgres://scram:geheim@localhost:%d/%%s?%s", server.Port,
			full), says: "refuses this user"},
		"no password": {
			url: fmt.Sprintf("postgres://scram@localhost:%d/%%s?%s", server.Port, full), says: "password",
		},
		"PGPASSWORD": {
			url: fmt.Sprintf("postgres://scram@localhost:%d/%%s?%s", server.Port, full),
			env: map[string]string{"PGPASSWORD": "ge/hei m?#@"},
		},
		"PGPASSFILE": {
			url: fmt.Sprintf("postgres://scram@localhost:%d/%%s?%s", server.Port, full),
			env: map[string]string{"PGPASSFILE": in("pgpass")},
		},
		"a service": {url: "postgres:///%s?service=fleet&servicefile=" + in("service")},
		"PGSSLROOTCERT": {
			url: fmt.Sprintf("postgres://flotilla@localhost:%d/%%s", server.Port),
			env: map[string]string{"PGSSLMODE": "verify-full", "PGSSLROOTCERT": in("ca.crt")},
		},
		"a socket": {url: fmt.Sprintf("postgres://flotilla@/%%s?host=%s&port=%d", server.Dir,
			server.Port)},
		"two hosts, one of them reachable": {url: fmt.Sprintf("postgres://flotilla@localhost:1,localhost:%d/%%s?target_session_attrs=read-write&%s", server.Port, full)},
		"IPv6":                             {url: fmt.Sprintf("postgres://scram:%s@[::1]:%d/%%s?sslmode=verify-ca&sslrootcert=%s", strings.ReplaceAll(password, "%", "%%"), server.Port, in("ca.crt"))},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "IPv6" && !strings.Contains(addresses, "::1") {
				t.Skip("this machine has no IPv6")
			}
			o := options(t, t.TempDir())
			var log bytes.Buffer
			o.Log = logTo(&log)
			at := server
			if strings.Contains(name, "plain") {
				at = plain
			}
			o.Database = fmt.Sprintf(c.url, postgrestest.Name(at.Database()))
			for key, value := range c.env { // set after psql has run, because psql reads the variables too
				t.Setenv(key, value)
			}
			s, err := Open(t.Context(), o)
			for _, secret := range []string{"geheim", "ge/hei", "ge%2Fhei"} {
				if strings.Contains(log.String(), secret) || err != nil && strings.Contains(err.Error(), secret) {
					t.Error("the message contains the password:", err, log.String())
				}
			}
			if c.says != "" {
				if err == nil {
					_ = s.Close()
					t.Fatal("let in")
				}
				if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
					t.Fatal(err)
				}
				return
			}
			must(t, err)
			mustCommit(t, s, 1, pod("a", 1))
			must(t, s.Close())
		})
	}
}

func TestAnInvalidAddressShowsNoPassword(t *testing.T) {
	t.Setenv("PGPASSFILE", "/nowhere")
	for address, says := range map[string]string{
		"postgres://a@h/x?password=geheim&sslmode=verify-ful":                                  "sslmode is invalid",
		"postgres://a:geheim@h/x?sslmode=verify-full&sslrootcert=/nowhere.pem":                 "/nowhere.pem",
		"postgres://a@h/x?password=geheim&sslpassword=geheim&sslcert=/nowhere&sslkey=/nowhere": "/nowhere",
		"postgres://a:geheim@h/x?connect_timeout=geheim":                                       "connect_timeout",
		"postgres://a:geheim/1@h/x":                                                            "%2F",
		"postgres://a:x@geheim@h/x":                                                            "%40",
		"postgres://a:%geheim@h/x":                                                             "%25",
		"postgres://a:geheim@h:pt/x":                                                           "",
		"postgres://a@h/x?service=nowhere&servicefile=/nowhere&password=geheim":                "/nowhere",
		"postgres://a:geheim@h/x?target_session_attrs=geheim&password=geheim%20geheim":         "target_session_attrs",
	} {
		_, err := parsePostgres(address, defaultTimeouts, nil)
		if err == nil {
			t.Error("accepted: ", address)
			continue
		}
		if strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "postgres://USER@HOST") {
			t.Errorf("%s: no %q in %v", address, says, err)
		}
	}
}

func TestTheNetworkRiskOfAnAddress(t *testing.T) {
	for address, says := range map[string]string{
		"postgres://a@db/x":                                        "not encrypted",
		"postgres://a@db/x?sslmode=disable":                        "not encrypted",
		"postgres://a@db/x?sslmode=allow":                          "not encrypted",
		"postgres://a@db/x?sslmode=prefer":                         "not encrypted",
		"postgres://a@db/x?sslmode=require":                        "is not verified",
		"postgres://a@localhost,db/x?sslmode=disable":              "not encrypted",
		"postgres://a@db/x?sslmode=verify-full":                    "",
		"postgres://a@db,db2/x?sslmode=verify-full":                "",
		"postgres://a@localhost/x":                                 "",
		"postgres://a@127.0.0.1,[::1]/x?sslmode=disable":           "",
		"postgres://a@/x?host=/run/postgresql":                     "",
		"postgres://a@203.0.113.9/x?sslmode=disable":               "not encrypted",
		"postgres://a@localhost.example.org/x?sslmode=disable":     "not encrypted",
		"postgres://a@db/x?host=/run/postgresql,db&sslmode=prefer": "not encrypted",
	} {
		p, err := parsePostgres(address, defaultTimeouts, nil)
		if err != nil {
			t.Fatal(address, err)
		}
		if is := networkRisk(p.config); (is == "") != (says == "") || !strings.Contains(is, says) {
			t.Errorf("%s: %q", address, is)
		}
	}
}
