// Package pki is the hub's own certificate authority: a root that the join
// tokens pin, an intermediate that signs, and the certificates of the hub, of
// its devices and of people's kubectl.
//
// It signs and it verifies; whether a device may join, or still speaks for its
// node, is package access's work. Private keys of devices never come here, and
// the hub's own never leave the data directory.
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

// Lives of certificates. An intermediate is replaced while it still outlives
// every certificate that it signs.
const (
	rootLife         = 10 * 365 * 24 * time.Hour
	intermediateLife = 2 * 365 * 24 * time.Hour
	backdated        = 24 * time.Hour // NotBefore lies back: a device's clock may be behind

	// LeafLife is that of a certificate of a device, a person or a server.
	LeafLife = 365 * 24 * time.Hour
	// RenewalGrace is how long after its end a device's certificate may still renew.
	RenewalGrace = 90 * 24 * time.Hour
)

// ErrKey: a key or certificate of the authority cannot be used as it is.
var ErrKey = errors.New("certificate authority unusable")

// fromCopy is what to do about a file of it that is damaged.
const fromCopy = "restore the directory pki from a copy"

// An Authority is the hub's CA. Its methods may be called from any goroutine.
type Authority struct {
	// Now is the hub's time; nil: the machine's. Set it before others use the authority.
	Now func() time.Time
	// Keep remembers, before a change of the authority is made, what it is going to be: where
	// several hubs share one. What it refuses is not done. nil: the directory is all there is.
	Keep func(all map[string][]byte) error

	dir       string
	signsOnly bool // it is a command's

	mu         sync.Mutex
	root       pair
	middle     pair // the intermediate that signs now
	former     pair // the root before, while it is trusted
	cross      *x509.Certificate
	olds       []*x509.Certificate // intermediates before, while they are trusted
	revoked    []string            // KeyHash
	turn       int                 // how often the above have changed
	passphrase []byte              // nil: keys are stored as they are
}

// A pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	sealed *pem.Block // its key, before Unlock
}

// Open reads the authority of a directory and makes one where there is none.
// A key that is missing beside its certificate, unreadable or not the
// certificate's is refused: a new root would lock every device out.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w; make the data directory writable", dir, err)
	}
	a := &Authority{dir: dir}
	return a, a.locked(a.open)
}

// BeginAnew is a file of the directory by which somebody says that its authority is lost for good.
const BeginAnew = "begin-anew"

// Made tells whether a data directory has an authority, or some of it, or is to get a new one.
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
			return fmt.Errorf("read %s: %w: it is missing although intermediate.crt is there, and a new root would lock "+
				"every device out; restore the directory pki from a copy, or remove all of it to begin anew", a.path("root.crt"),
				ErrKey)
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
		return nil // Unlock goes on
	}
	now := time.Now()
	if a.fresh(now) {
		return nil
	}
	return a.begin(now)
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// newKey is ECDSA P-256: small, and verified fast by the smallest boards.
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

// fresh tells whether the intermediate is good already, and still outlives what it signs, or
// ends with its root: another one would not end later.
func (a *Authority) fresh(now time.Time) bool {
	c := a.middle.cert
	return c != nil && !early(c) &&
		(now.Add(LeafLife+30*24*time.Hour).Before(c.NotAfter) || !c.NotAfter.Before(a.root.cert.NotAfter))
}

// early tells whether a certificate is not good yet by a clock that is kept right, as those of
// devices are: it was made while the machine's stood in the future.
func early(c *x509.Certificate) bool { return time.Now().Before(c.NotBefore) && kept() }

var kept = func() bool {
	is, _ := clock.Kept()
	return is
}

// begin makes the first intermediate, or replaces one whose time has come, while
// the directory is locked.
func (a *Authority) begin(now time.Time) error {
	if a.middle.cert != nil {
		return nil // the first signature renews it
	}
	middle, cross, err := a.newMiddle(a.root, a.former, now)
	if err != nil {
		return err
	}
	a.middle, a.cross = middle, cross
	return a.write("intermediate", middle.cert, middle.key)
}

// now is the hub's time, by which certificates that are shown are judged.
func (a *Authority) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// span is from when to when something of this life is valid. A machine without a
// clock of its own may have a time in the past when it starts, be set right while the
// hub keeps the time that it began with, and the other side has a clock of its own:
// valid is what is valid by the hub's and by the machine's. They are compared as they read:
// what has passed by the monotonic clock, which Before would go by, is the same for both.
func (a *Authority) span(life time.Duration) (from, until time.Time) {
	first, last := a.now().Round(0), time.Now().Round(0)
	if last.Before(first) {
		first, last = last, first
	}
	return first.Add(-backdated), last.Add(life)
}

// signer is the intermediate, replaced in time.
func (a *Authority) signer(now time.Time) (pair, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.signerLocked(now)
}

func (a *Authority) signerLocked(now time.Time) (pair, error) {
	if a.sealed() {
		return pair{}, fmt.Errorf("sign a certificate: %w; give its file with --ca-passphrase-file", ErrSealed)
	}
	if a.fresh(now) {
		return a.middle, nil
	}
	if a.signsOnly && a.middle.cert != nil {
		if now.Before(a.middle.cert.NotAfter) {
			return a.middle, nil
		}
		return pair{}, fmt.Errorf(
			"sign a certificate: the intermediate ended on %s: start the hub, which makes another one, and run this again",
			a.middle.cert.NotAfter.UTC().Format(time.DateOnly))
	}
	err := a.rotate(a.root, a.former, now)
	if err != nil && a.middle.cert != nil && now.Before(a.middle.cert.NotAfter) {
		return a.middle, nil // a full disk must not keep a device out whose certificate is still to be had
	}
	return a.middle, err
}

// write stores the key first: a certificate without its key is refused at the
// next start, a key without its certificate is made anew.
func (a *Authority) write(name string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	text, err := encodeKey(key)
	if name != "server" {
		text, err = a.keyText(key)
	}
	if err != nil {
		return err
	}
	// Both files change together for the reader: the certificate's is the one that counts.
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
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return pair{}, fmt.Errorf("read %s: %w: it holds no PEM certificate; %s", certFile, ErrKey, fromCopy)
	}
	p := pair{}
	if p.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; %s", certFile, ErrKey, err, fromCopy)
	}
	info, err := os.Stat(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		return pair{}, fmt.Errorf("read %s: %w: it is missing although %s.crt is there; %s", keyFile, ErrKey, name, fromCopy)
	}
	if err != nil {
		return pair{}, fmt.Errorf("read %s: %w: %w; run the hub as the owner of its data directory", keyFile, ErrKey, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return pair{}, fmt.Errorf("read %s: %w: others may read it (mode %04o); run `chmod 600 %s`", keyFile, ErrKey,
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

// Look is what the next start would refuse of the authority of a data directory, and changes
// nothing. What is being changed at this moment, or is finished by that start, says nothing.
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

// readRest reads what there is beside the root.
func (a *Authority) readRest() (err error) {
	if err := a.readRotation(); err != nil {
		return err
	}
	if a.middle, err = a.read("intermediate"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if a.middle.cert != nil {
		if err := a.middle.cert.CheckSignatureFrom(a.root.cert); err != nil {
			return fmt.Errorf("read %s: %w: it was not signed by root.crt beside it (%w); restore both from one backup, or "+
				"remove intermediate.crt and intermediate.key to have a new one made", a.path("intermediate.crt"), ErrKey, err)
		}
	}
	return nil
}
