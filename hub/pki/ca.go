// Package pki is the hub's certificate authority: a root that join tokens pin, an intermediate that
// signs, and the certificates of the hub, its devices and its users.
//
// It signs and verifies. It never decides whether a device may join or still owns its node: package
// access does. It never receives the private key of a device. It sends its own keys only to the
// hubs that share its database. Packages access, serve and cli call it.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/owner"
	"flotilla.dev/shared/clock"
)

// Lifetimes of certificates. An intermediate is replaced before a certificate that it signs would
// outlive it.
const (
	rootLife         = 10 * 365 * 24 * time.Hour
	intermediateLife = 2 * 365 * 24 * time.Hour
	backdated        = 24 * time.Hour // NotBefore is this far in the past, because a device's clock may be slow

	// LeafLife is the lifetime of a certificate of a device, a user or a server.
	LeafLife = 365 * 24 * time.Hour
	// RenewalGrace is how long after its expiry a device's certificate may still be renewed.
	RenewalGrace = 90 * 24 * time.Hour
)

// ErrKey is returned for an unusable key or certificate of the authority.
var ErrKey = errors.New("certificate authority unusable")

// fromCopy is the next step for a damaged file.
const fromCopy = "restore the directory pki from a copy"

// An Authority is the hub's CA. Its methods may be called concurrently.
type Authority struct {
	// Now is the hub's time. Nil: the machine's. Set it before the first use.
	Now func() time.Time
	// Keep stores the new files of a shared authority before they change on disk. An error prevents
	// the change. Nil: the authority is not shared.
	Keep func(all map[string][]byte) error

	dir       string
	signsOnly bool // a command opened the authority, so it issues no intermediate

	mu                  sync.Mutex
	root                pair
	intermediate        pair // the current intermediate
	former              pair // the former root while it is trusted
	cross               *x509.Certificate
	formerIntermediates []*x509.Certificate // the former intermediates that are trusted
	revoked             []string            // hashes of the keys; see KeyHash
	generation          int                 // number of changes of the fields above
	passphrase          []byte              // nil: keys are stored unencrypted
}

// A pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	sealed *pem.Block // the encrypted key, before Unlock
}

// Open reads the authority of a directory, or creates one if there is none. It refuses a
// certificate whose key is missing, unreadable or wrong, because a new root would lock out every
// device.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w; make the data directory writable", dir, err)
	}
	a := &Authority{dir: dir}
	return a, a.locked(a.open)
}

// BeginAnew is the name of a file that allows Open to replace a lost authority.
const BeginAnew = "begin-anew"

// Made reports whether a data directory has files of an authority, or BeginAnew.
func Made(dataDir string) bool {
	return slices.ContainsFunc([]string{"root.crt", "intermediate.crt", nextDir, BeginAnew}, func(name string) bool {
		_, err := os.Lstat(filepath.Join(dataDir, "pki", name))
		return err == nil
	})
}

func (a *Authority) open() (err error) {
	if err := a.carryOut(); err != nil {
		return err
	}
	if a.root, err = a.read("root"); errors.Is(err, os.ErrNotExist) {
		if _, serr := os.Stat(a.path("intermediate.crt")); serr == nil {
			return fmt.Errorf("read %s: %w: it is missing, but intermediate.crt exists, and a new root would lock "+
				"every device out; restore the directory pki from a copy, or remove it to start with a new authority",
				a.path("root.crt"), ErrKey)
		}
		now := time.Now()
		if a.root, err = a.newRoot(now); err == nil {
			err = a.write("root", a.root.cert, a.root.key)
		}
		_ = os.Remove(a.path(BeginAnew))
	}
	if err != nil {
		return err
	}
	if err := a.readRest(); err != nil {
		return err
	}
	if a.sealed() {
		return nil // Unlock reads the keys later
	}
	now := time.Now()
	if a.fresh(now) {
		return nil
	}
	return a.begin(now)
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// newKey returns an ECDSA P-256 key: small, and fast to verify on small boards.
func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func (a *Authority) newRoot(now time.Time) (p pair, err error) {
	if p.key, err = newKey(); err != nil {
		return pair{}, err
	}
	from, until := a.span(rootLife)
	t := &x509.Certificate{
		Subject: pkix.Name{Organization: []string{"Flotilla"},
			CommonName: "Flotilla root " + now.UTC().Format("2006-01-02")},
		NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLen: 1,
	}
	p.cert, err = signCA(t, pair{cert: t, key: p.key}, p, now)
	return p, err
}

func middleName(now time.Time) pkix.Name {
	return pkix.Name{Organization: []string{"Flotilla"},
		CommonName: "Flotilla intermediate " + now.UTC().Format("2006-01-02")}
}

// fresh reports whether the intermediate is valid and outlives the certificates that it signs. It
// is also fresh if it expires with its root, because a new one would not last longer.
func (a *Authority) fresh(now time.Time) bool {
	c := a.intermediate.cert
	return c != nil && !early(c) &&
		(now.Add(LeafLife+30*24*time.Hour).Before(c.NotAfter) || !c.NotAfter.Before(a.root.cert.NotAfter))
}

// early reports whether a certificate is not valid yet by a synchronized clock, such as a device's.
// Then it was issued while this machine's clock was ahead.
func early(c *x509.Certificate) bool { return time.Now().Before(c.NotBefore) && kept() }

var kept = func() bool {
	is, _ := clock.Kept()
	return is
}

// begin issues the first intermediate. The caller holds the directory's lock.
func (a *Authority) begin(now time.Time) error {
	if a.intermediate.cert != nil {
		return nil // the first signature renews the intermediate
	}
	intermediate, cross, err := a.newIntermediate(a.root, a.former, now)
	if err != nil {
		return err
	}
	a.intermediate, a.cross = intermediate, cross
	return a.write("intermediate", intermediate.cert, intermediate.key)
}

// now is the hub's time. Certificates of clients are checked by it.
func (a *Authority) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// span returns NotBefore and NotAfter for a lifetime. The span contains both the hub's time and the
// machine's: a machine without a battery may start in the past and be set later, while the hub
// keeps the time of its start. Round(0) drops the monotonic clock, which is equal in both.
func (a *Authority) span(life time.Duration) (from, until time.Time) {
	first, last := a.now().Round(0), time.Now().Round(0)
	if last.Before(first) {
		first, last = last, first
	}
	return first.Add(-backdated), last.Add(life)
}

// signer returns the current intermediate, and replaces an old one first.
func (a *Authority) signer(now time.Time) (pair, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.signerLocked(now)
}

func (a *Authority) signerLocked(now time.Time) (pair, error) {
	if a.sealed() {
		return pair{}, fmt.Errorf("sign a certificate: %w; name its file with --ca-passphrase-file", ErrSealed)
	}
	if a.fresh(now) {
		return a.intermediate, nil
	}
	if a.signsOnly && a.intermediate.cert != nil {
		if now.Before(a.intermediate.cert.NotAfter) {
			return a.intermediate, nil
		}
		return pair{}, fmt.Errorf(
			"sign a certificate: the intermediate expired on %s; start the hub, which renews it, then try again",
			a.intermediate.cert.NotAfter.UTC().Format(time.DateOnly))
	}
	err := a.rotate(a.root, a.former, now)
	if err != nil && a.intermediate.cert != nil && now.Before(a.intermediate.cert.NotAfter) {
		return a.intermediate, nil // a full disk must not prevent the renewal of a device's certificate
	}
	return a.intermediate, err
}

// write stores the key before the certificate. The next start refuses a certificate without a key,
// but replaces a key without a certificate.
func (a *Authority) write(name string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	text, err := encodeKey(key)
	if name != "server" {
		text, err = a.keyText(key)
	}
	if err != nil {
		return err
	}
	// The certificate is removed first, so that a reader never sees it with the new key.
	if err := os.Remove(a.path(name + ".crt")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write %s: %w", a.path(name+".crt"), err)
	}
	if err := owner.WriteFile(a.path(name+".key"), text); err != nil {
		return fmt.Errorf("write %s: %w", a.path(name+".key"), err)
	}
	if err := owner.WriteFile(a.path(name+".crt"), encodeCert(cert)); err != nil {
		return fmt.Errorf("write %s: %w", a.path(name+".crt"), err)
	}
	return nil
}

// read returns a stored pair. Without a certificate it returns os.ErrNotExist.
func (a *Authority) read(name string) (pair, error) {
	certFile, keyFile := a.path(name+".crt"), a.path(name+".key")
	text, err := os.ReadFile(certFile)
	if errors.Is(err, os.ErrNotExist) {
		return pair{}, err
	}
	if err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", certFile, ErrKey, err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return pair{}, fmt.Errorf("read %s: %w: not a PEM certificate; %s", certFile, ErrKey, fromCopy)
	}
	p := pair{}
	if p.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; %s", certFile, ErrKey, err, fromCopy)
	}
	info, err := os.Stat(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		return pair{}, fmt.Errorf("read %s: %w: it is missing, but %s.crt exists; %s", keyFile, ErrKey, name, fromCopy)
	}
	if err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", keyFile, ErrKey, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return pair{}, fmt.Errorf("read %s: %w: other users may read it (mode %04o); run `chmod 600 %s`", keyFile, ErrKey,
			info.Mode().Perm(), keyFile)
	}
	if text, err = os.ReadFile(keyFile); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", keyFile, ErrKey, err)
	}
	if block, _ := pem.Decode(text); block != nil && block.Type == sealedType {
		p.sealed = block
		return p, nil
	}
	if p.key, err = decodeKey(text); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; %s", keyFile, ErrKey, err, fromCopy)
	}
	if !p.key.PublicKey.Equal(p.cert.PublicKey) {
		return pair{}, fmt.Errorf("read %s: %w: it is not the key of %s.crt; %s", keyFile, ErrKey, name, fromCopy)
	}
	return p, nil
}

// Look returns the error that the next start would return for the authority of a data directory. It
// changes no file. An unfinished change is not an error, because the start completes it.
func Look(dataDir string) error {
	a := &Authority{dir: filepath.Join(dataDir, "pki")}
	if lock, err := os.Open(a.path(lockFile)); err == nil {
		defer lock.Close()
		if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			return nil
		}
	}
	if _, err := os.Lstat(a.path(nextDir)); err == nil {
		return nil
	}
	var err error
	if a.root, err = a.read("root"); err == nil {
		err = a.readRest()
	}
	if err == nil {
		_, err = a.readFirmwareKey()
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// readRest reads all files except the root.
func (a *Authority) readRest() (err error) {
	if err := a.readRotation(); err != nil {
		return err
	}
	if a.intermediate, err = a.read("intermediate"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if a.intermediate.cert != nil {
		if err := a.intermediate.cert.CheckSignatureFrom(a.root.cert); err != nil {
			return fmt.Errorf("read %s: %w: it was not signed by root.crt beside it (%w); restore both from one backup, or "+
				"remove intermediate.crt and intermediate.key: the hub issues a new one", a.path("intermediate.crt"), ErrKey, err)
		}
	}
	return nil
}
