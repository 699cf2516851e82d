// Package pki is the hub's own certificate authority: a root that the join
// tokens pin, an intermediate that signs, and the certificates of the hub, of
// its devices and of people's kubectl.
//
// It signs and it verifies; whether a device may join, or still speaks for its
// node, is package access's work. Private keys of devices never come here, and
// the hub's own never leave the data directory.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"
)

// Lives of certificates. An intermediate is replaced while it still outlives
// every certificate that it signs.
const (
	rootLife         = 10 * 365 * 24 * time.Hour
	intermediateLife = 2 * 365 * 24 * time.Hour
	leafLife         = 365 * 24 * time.Hour
	backdated        = 24 * time.Hour // NotBefore lies back: a device's clock may be behind

	// RenewalGrace is how long after its end a device's certificate may still renew.
	RenewalGrace = 90 * 24 * time.Hour
)

// ErrKey: a key or certificate of the authority cannot be used as it is.
var ErrKey = errors.New("certificate authority unusable")

// An Authority is the hub's CA. Its methods may be called from any goroutine.
type Authority struct {
	dir  string
	root pair

	mu     sync.Mutex
	middle pair // the intermediate that signs now
}

// A pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Open reads the authority of a directory and makes one where there is none.
// A key that is missing beside its certificate, unreadable or not the
// certificate's is refused: a new root would lock every device out.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w; make the data directory writable", dir, err)
	}
	a := &Authority{dir: dir}
	var err error
	if a.root, err = a.read("root"); errors.Is(err, os.ErrNotExist) {
		if _, serr := os.Stat(a.path("intermediate.crt")); serr == nil {
			return nil, fmt.Errorf("read %s: %w: it is missing although intermediate.crt is there, and a new root would lock every device out; restore the directory pki from a copy, or remove all of it to begin anew", a.path("root.crt"), ErrKey)
		}
		a.root, err = a.newRoot(time.Now())
	}
	if err != nil {
		return nil, err
	}
	if a.middle, err = a.read("intermediate"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if a.middle.cert != nil {
		if err := a.middle.cert.CheckSignatureFrom(a.root.cert); err != nil {
			return nil, fmt.Errorf("read %s: %w: it was not signed by root.crt beside it (%w); restore both from one backup, or remove intermediate.crt and intermediate.key to have a new one made", a.path("intermediate.crt"), ErrKey, err)
		}
	}
	_, err = a.signer(time.Now())
	return a, err
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// newKey is ECDSA P-256: small, and verified fast by the smallest boards.
func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func (a *Authority) newRoot(now time.Time) (pair, error) {
	return a.make("root", &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"Flotilla"}, CommonName: "Flotilla root " + now.UTC().Format("2006-01-02")},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(rootLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLen: 1,
	}, nil, now)
}

// signer is the intermediate, replaced in time.
func (a *Authority) signer(now time.Time) (pair, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.middle.cert != nil && now.Add(leafLife+30*24*time.Hour).Before(a.middle.cert.NotAfter) {
		return a.middle, nil
	}
	end := now.Add(intermediateLife)
	if end.After(a.root.cert.NotAfter) {
		end = a.root.cert.NotAfter
	}
	p, err := a.make("intermediate", &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"Flotilla"}, CommonName: "Flotilla intermediate " + now.UTC().Format("2006-01-02")},
		NotBefore: now.Add(-backdated), NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, &a.root, now)
	if err == nil {
		a.middle = p
	}
	return p, err
}

// make signs a CA certificate, by itself where signer is nil, and writes key and certificate.
func (a *Authority) make(name string, t *x509.Certificate, signer *pair, now time.Time) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	p := pair{key: key}
	t.SerialNumber = serial(now)
	by := pair{cert: t, key: key}
	if signer != nil {
		by = *signer
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.cert, key.Public(), by.key)
	if err != nil {
		return pair{}, fmt.Errorf("sign %s certificate: %w", name, err)
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return pair{}, err
	}
	return p, a.write(name, p.cert, key)
}

// write stores the key first: a certificate without its key is refused at the
// next start, a key without its certificate is made anew.
func (a *Authority) write(name string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	text, err := encodeKey(key)
	if err != nil {
		return err
	}
	// Both files change together for the reader: the certificate's is the one that counts.
	if err := os.Remove(a.path(name + ".crt")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write %s: %w", a.path(name+".crt"), err)
	}
	if err := renameio.WriteFile(a.path(name+".key"), text, 0o600, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("write %s: %w", a.path(name+".key"), err)
	}
	if err := renameio.WriteFile(a.path(name+".crt"), encodeCert(cert), 0o600, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("write %s: %w", a.path(name+".crt"), err)
	}
	return nil
}

// read returns a stored pair; os.ErrNotExist where there is no certificate.
func (a *Authority) read(name string) (pair, error) {
	certFile, keyFile := a.path(name+".crt"), a.path(name+".key")
	text, err := os.ReadFile(certFile)
	if errors.Is(err, os.ErrNotExist) {
		return pair{}, err
	}
	if err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", certFile, ErrKey, err)
	}
	const restore = "restore the directory pki from a copy"
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return pair{}, fmt.Errorf("read %s: %w: it holds no PEM certificate; %s", certFile, ErrKey, restore)
	}
	p := pair{}
	if p.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; %s", certFile, ErrKey, err, restore)
	}
	info, err := os.Stat(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		return pair{}, fmt.Errorf("read %s: %w: it is missing although %s.crt is there; %s", keyFile, ErrKey, name, restore)
	}
	if err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", keyFile, ErrKey, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return pair{}, fmt.Errorf("read %s: %w: others may read it (mode %04o); run `chmod 600 %s`", keyFile, ErrKey, info.Mode().Perm(), keyFile)
	}
	if text, err = os.ReadFile(keyFile); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", keyFile, ErrKey, err)
	}
	if p.key, err = decodeKey(text); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; %s", keyFile, ErrKey, err, restore)
	}
	if !p.key.PublicKey.Equal(p.cert.PublicKey) {
		return pair{}, fmt.Errorf("read %s: %w: it is not the key of %s.crt; %s", keyFile, ErrKey, name, restore)
	}
	return p, nil
}

func decodeKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it holds no PEM key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it holds no PKCS #8 key: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, fmt.Errorf("it holds a key of type %T, not ECDSA P-256", key)
	}
	return ec, nil
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

func encodeCert(certs ...*x509.Certificate) []byte {
	var all []byte
	for _, c := range certs {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return all
}

// RootPEM is what devices and people trust.
func (a *Authority) RootPEM() []byte { return encodeCert(a.root.cert) }

// Pin is how a join token names the root: the first 16 bytes of the sha256 over
// its public key (SPKI), in hex.
func (a *Authority) Pin() string { return KeyHash(a.root.cert)[:32] }

// KeyHash is the sha256 over a certificate's public key (SPKI), in hex.
func KeyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// serial is the moment of issue in milliseconds (48 bits) and 72 random bits:
// NotBefore lies back, so this is what tells when a certificate was issued.
func serial(now time.Time) *big.Int {
	n := new(big.Int).Lsh(big.NewInt(now.UnixMilli()), 72)
	var random [9]byte
	_, _ = rand.Read(random[:]) // never fails, see crypto/rand
	return n.Or(n, new(big.Int).SetBytes(random[:]))
}

// IssuedAt is when the hub signed a certificate, by the hub's clock.
func IssuedAt(cert *x509.Certificate) time.Time {
	return time.UnixMilli(new(big.Int).Rsh(cert.SerialNumber, 72).Int64())
}
