package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Files of a rotation in progress, and of former rotations.
const (
	formerRoot             = "former-root" // .crt and .key; trusted until Revoke
	crossFile              = "cross.crt"   // the intermediate, signed by the former root
	formerIntermediateFile = "former.crt"  // former intermediates; trusted until Revoke
	revokedFile            = "revoked"     // SHA-256 of public keys (SPKI), in hex, one per line
)

// ErrRotating is returned while the former root is still trusted.
var ErrRotating = errors.New("a rotation of the root is under way")

// RotateRoot creates a new root and intermediate. Until Revoke the former root is trusted too, and
// also signs the new intermediate. So a client with either root can connect. It receives the other
// root when it renews its certificate.
func (a *Authority) RotateRoot() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.sealed():
		return ErrSealed
	case a.former.cert != nil:
		return fmt.Errorf("%w: end it with `flotilla-hub ca revoke` first", ErrRotating)
	}
	now := a.now()
	root, err := a.newRoot(now)
	if err != nil {
		return err
	}
	return a.rotate(root, a.root, now)
}

// RotateIntermediate issues a new intermediate of the current root. Certificates of the former
// intermediate stay valid until Revoke.
func (a *Authority) RotateIntermediate() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed() {
		return ErrSealed
	}
	return a.rotate(a.root, a.former, a.now())
}

// rotate issues an intermediate of root, cross-signed by former, and stores all files in one step.
func (a *Authority) rotate(root, former pair, now time.Time) error {
	intermediate, cross, err := a.newIntermediate(root, former, now)
	if err != nil {
		return err
	}
	files := map[string][]byte{crossFile: nil}
	for name, p := range map[string]pair{"root": root, "intermediate": intermediate, formerRoot: former} {
		if p.cert == nil || name == "root" && root.cert == a.root.cert {
			continue
		}
		files[name+".crt"] = encodeCert(p.cert)
		if files[name+".key"], err = a.keyText(p.key); err != nil {
			return err
		}
	}
	if cross != nil {
		files[crossFile] = encodeCert(cross)
	}
	formerIntermediates := a.formerIntermediates
	if a.intermediate.cert != nil {
		formerIntermediates = append(slices.Clone(formerIntermediates), a.intermediate.cert)
		files[formerIntermediateFile] = encodeCert(formerIntermediates...)
	}
	if err := a.replace(files); err != nil {
		return err
	}
	a.root, a.intermediate, a.former = root, intermediate, former
	a.cross, a.formerIntermediates = cross, formerIntermediates
	a.generation++
	return nil
}

// newIntermediate issues an intermediate: one key with a certificate of each root.
func (a *Authority) newIntermediate(root, former pair, now time.Time) (intermediate pair, cross *x509.Certificate,
	err error) {
	if intermediate.key, err = newKey(); err != nil {
		return pair{}, nil, err
	}
	from, end := a.span(intermediateLife)
	if end.After(root.cert.NotAfter) {
		end = root.cert.NotAfter
	}
	t := &x509.Certificate{
		Subject:   middleName(now),
		NotBefore: from, NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	if intermediate.cert, err = signCA(t, root, intermediate, now); err != nil || former.cert == nil {
		return intermediate, nil, err
	}
	cross, err = signCA(t, former, intermediate, now)
	return intermediate, cross, err
}

func signCA(t *x509.Certificate, by, p pair, now time.Time) (*x509.Certificate, error) {
	t.SerialNumber = serial(now)
	der, err := x509.CreateCertificate(rand.Reader, t, by.cert, p.key.Public(), by.key)
	if err != nil {
		return nil, fmt.Errorf("sign the intermediate certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// Revoke ends the trust in the former root and in every former intermediate. Only certificates of
// the current intermediate stay valid.
func (a *Authority) Revoke() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	former := slices.Clone(a.formerIntermediates)
	if a.former.cert != nil {
		former = append(former, a.former.cert)
	}
	if len(former) == 0 {
		return nil
	}
	revoked := slices.Clone(a.revoked)
	for _, c := range former {
		if h := KeyHash(c); !slices.Contains(revoked, h) {
			revoked = append(revoked, h)
		}
	}
	if err := a.replace(map[string][]byte{
		revokedFile: []byte(strings.Join(revoked, "\n") + "\n"), crossFile: nil, formerIntermediateFile: nil,
		formerRoot + ".crt": nil,
		formerRoot + ".key": nil,
	}); err != nil {
		return err
	}
	a.revoked, a.former, a.cross, a.formerIntermediates = revoked, pair{}, nil, nil
	a.generation++
	return nil
}

// readRotation reads the files of rotations.
func (a *Authority) readRotation() (err error) {
	if a.former, err = a.read(formerRoot); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	cross, err := a.readCerts(crossFile)
	if err == nil && len(cross) > 0 {
		a.cross = cross[0]
	}
	if err == nil {
		a.formerIntermediates, err = a.readCerts(formerIntermediateFile)
	}
	text, rerr := os.ReadFile(a.path(revokedFile))
	if rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("read %s: %w: %w", a.path(revokedFile), ErrKey, rerr))
	}
	a.revoked = strings.Fields(string(text))
	// The hub never writes an empty file. If lines were missing, revoked keys would be trusted
	// again.
	if rerr == nil && err == nil && (len(a.revoked) == 0 || slices.ContainsFunc(a.revoked, func(h string) bool {
		b, herr := hex.DecodeString(h)
		return herr != nil || len(b) != sha256.Size
	})) {
		err = fmt.Errorf("read %s: %w: it is damaged, and revoked certificates would be trusted again; %s",
			a.path(revokedFile), ErrKey, fromCopy)
	}
	return err
}

func (a *Authority) readCerts(name string) (all []*x509.Certificate, err error) {
	text, err := os.ReadFile(a.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	rest := text
	for block, after := pem.Decode(rest); err == nil && block != nil; block, after = pem.Decode(rest) {
		var c *x509.Certificate
		if c, err = x509.ParseCertificate(block.Bytes); err == nil {
			all, rest = append(all, c), after
		}
	}
	// `ca revoke` could not revoke an intermediate that is missing in this file.
	if err == nil && (len(all) == 0 || len(bytes.TrimSpace(rest)) > 0) {
		err = errors.New("it is incomplete or empty")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w; %s", a.path(name), ErrKey, err, fromCopy)
	}
	return all, nil
}

// A Status describes the authority.
type Status struct {
	Root, Intermediate  *x509.Certificate
	Former              *x509.Certificate // the former root, trusted until Revoke; nil: none
	Signed              time.Time         // when the current intermediate was issued
	Protected           bool
	FormerIntermediates int // number of former intermediates, which are trusted until Revoke
	Generation          int // changes with each rotation
	now                 time.Time
}

// Outdated reports whether a device's certificate that expires at end has a former issuer. The
// current intermediate signs for LeafLife from its first day on, or until its own expiry. A
// certificate that expires later is also outdated: the clock was ahead when its issuer signed it.
func (s Status) Outdated(end time.Time) bool {
	first := s.Signed.Add(LeafLife)
	return s.FormerIntermediates > 0 && (!end.After(first) && end.Before(s.Intermediate.NotAfter) ||
		end.After(s.now.Add(LeafLife+2*backdated)))
}

// Status returns the current state of the authority.
func (a *Authority) Status() Status {
	_, last := a.span(0)
	a.mu.Lock()
	defer a.mu.Unlock()
	return Status{a.root.cert, a.intermediate.cert, a.former.cert, IssuedAt(a.intermediate.cert),
		a.sealed() || a.passphrase != nil,
		len(a.formerIntermediates), int(a.generation), last}
}

// roots returns the trusted roots, the current one first.
func (a *Authority) roots() []*x509.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.former.cert == nil {
		return []*x509.Certificate{a.root.cert}
	}
	return []*x509.Certificate{a.root.cert, a.former.cert}
}

func (a *Authority) rootPool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range a.roots() {
		pool.AddCert(c)
	}
	return pool
}

// issuers returns the certificates that follow the hub's certificate in a handshake, and the number
// of their changes.
func (a *Authority) issuers() (chain [][]byte, by *x509.Certificate, generation int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	chain = [][]byte{a.intermediate.cert.Raw}
	if a.cross != nil {
		chain = append(chain, a.cross.Raw)
	}
	return chain, a.intermediate.cert, a.generation
}

// good reports whether one of the chains has no revoked certificate.
func (a *Authority) good(chains [][]*x509.Certificate) bool {
	a.mu.Lock()
	revoked := a.revoked
	a.mu.Unlock()
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return slices.Contains(revoked, KeyHash(c)) })
	})
}

// PresentlySigned reports whether the current intermediate issued a verified certificate. Then its
// holder knows the current root.
func (a *Authority) PresentlySigned(h Holder) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return h.by != nil && bytes.Equal(h.by.RawSubjectPublicKeyInfo, a.intermediate.cert.RawSubjectPublicKeyInfo)
}
