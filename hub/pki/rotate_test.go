package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// trusting returns a client that trusts the given roots.
func trusting(t *testing.T, pem []byte, with ...tls.Certificate) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("no roots")
	}
	return &tls.Config{RootCAs: pool, ServerName: "hub", Certificates: with, MaxVersion: tls.VersionTLS12}
}

func keyed(t *testing.T, a *Authority, node string) tls.Certificate {
	t.Helper()
	certs, key := device(t, a, node)
	c := tls.Certificate{PrivateKey: key}
	for _, x := range certs {
		c.Certificate = append(c.Certificate, x.Raw)
	}
	return c
}

func TestDevicesReceiveARotatedRoot(t *testing.T) {
	for _, restart := range []bool{false, true} {
		dir := t.TempDir()
		a := open(t, dir)
		log := slog.New(slog.DiscardHandler)
		names := func() []string { return []string{"hub"} }
		server := must(a.NewServer(names, log))(t)
		https := a.MQTT(server, func(Holder) error { return nil })
		again := func() {
			if restart {
				a = open(t, dir)
				server = must(a.NewServer(names, log))(t)
				https = a.MQTT(server, func(Holder) error { return nil })
			}
		}
		oldRoots, oldPin := a.RootPEM(), a.Pin()
		old := keyed(t, a, "pi-1")
		if err := a.RotateRoot(); err != nil {
			t.Fatal(err)
		}
		again()
		if a.Pin() == oldPin || !bytes.Contains(a.RootPEM(), bytes.TrimSpace(oldRoots)) {
			t.Fatal("the root is not new, or the former one is missing:", a.Pin())
		}
		if err := a.RotateRoot(); !errors.Is(err, ErrRotating) {
			t.Fatal("a second rotation before Revoke, want ErrRotating:", err)
		}
		roots := a.RootPEM()
		block := bytes.Index(roots[1:], []byte("-----BEGIN")) + 1
		onlyNew, fresh := roots[:block], keyed(t, a, "pi-1")
		in := func(name string, c *tls.Config) {
			t.Helper()
			if err := handshake(t, https, c); err != nil {
				t.Errorf("restart %v: %s is refused: %v", restart, name, err)
			}
		}
		out := func(name string, c *tls.Config) {
			t.Helper()
			if err := handshake(t, https, c); err == nil {
				t.Errorf("restart %v: %s is accepted", restart, name)
			}
		}
		in("a device with the former root", trusting(t, oldRoots, old))
		in("a device that has renewed, with both roots", trusting(t, roots, fresh))
		in("a device that has just joined", trusting(t, onlyNew, fresh))
		holder := func(c tls.Certificate) Holder {
			var shown []*x509.Certificate
			for _, der := range c.Certificate {
				shown = append(shown, must(x509.ParseCertificate(der))(t))
			}
			return must(a.Verify(shown))(t)
		}
		if a.PresentlySigned(holder(old)) || !a.PresentlySigned(holder(fresh)) {
			t.Error("PresentlySigned does not distinguish devices with the new root")
		}
		// The intermediate changes too while the root is rotated.
		if err := a.RotateIntermediate(); err != nil {
			t.Fatal(err)
		}
		again()
		in("a device from before both changes", trusting(t, oldRoots, old))
		in("a certificate of the first intermediate", trusting(t, roots, fresh))
		newest := keyed(t, a, "pi-1")
		if err := a.Revoke(); err != nil {
			t.Fatal(err)
		}
		again()
		if err := a.Revoke(); err != nil {
			t.Fatal("a second Revoke:", err)
		}
		out("a certificate of the former root", trusting(t, roots, old))
		out("a certificate of a former intermediate", trusting(t, roots, fresh))
		in("a device that has renewed", trusting(t, roots, newest))
		in("a client with the new root only", trusting(t, onlyNew, newest))
		out("a device that has missed both changes", trusting(t, oldRoots, newest)) // the client does not trust the hub
		if st := a.Status(); st.Former != nil || st.FormerIntermediates != 0 {
			t.Errorf("after Revoke a former root or intermediate is trusted: %+v", st)
		}
		if err := a.RotateRoot(); err != nil {
			t.Fatal("the next rotation after Revoke:", err)
		}
		again()
		in("a device that renewed before this rotation", trusting(t, onlyNew, newest))
	}
}

// After a power cut at any point of a change, the authority is either the former or the new one.
func TestAPowerCutDuringAChange(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	before := a.Pin()
	old := keyed(t, a, "pi-1")
	if err := a.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	after := a.Pin()
	if before == after {
		t.Fatal("the rotation has not changed the root")
	}
	// The change is committed, and half done: some files are still in next.
	moved := []string{"root.crt", "root.key", "former-root.crt", "former-root.key", "intermediate.crt",
		"intermediate.key", "cross.crt", "former.crt"}
	for n := range len(moved) + 1 {
		again := t.TempDir()
		if err := os.CopyFS(again, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next := filepath.Join(again, nextDir)
		if err := os.Mkdir(next, 0o700); err != nil {
			t.Fatal(err)
		}
		for i, name := range moved {
			if i < n {
				continue
			}
			if err := os.Rename(filepath.Join(again, name), filepath.Join(next, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"", "intermediate", "root", "former-root"} { // CopyFS changes modes
			_ = os.Chmod(filepath.Join(again, f+".key"), 0o600)
			_ = os.Chmod(filepath.Join(next, f+".key"), 0o600)
		}
		b := open(t, again)
		if _, err := b.Verify(chain(t, encodeCert(must(x509.ParseCertificate(old.Certificate[0]))(t),
			must(x509.ParseCertificate(old.Certificate[1]))(t)))); err != nil || b.Pin() != after {
			t.Errorf("a power cut after %d files: %v, pin %s", n, err, b.Pin())
		}
		if _, err := os.Stat(next); !errors.Is(err, os.ErrNotExist) {
			t.Error("the start does not complete the change")
		}
	}
	// The next start drops a change that was not committed.
	part := filepath.Join(dir, partDir)
	if err := os.Mkdir(part, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(part, "root.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b := open(t, dir); b.Pin() != after {
		t.Fatal(b.Pin())
	}
	if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the uncommitted change is not removed")
	}
}

func TestEncryptedKeysNeedTheirPassphrase(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	pin := a.Pin()
	first, second := []byte("correct horse battery"), []byte("another good passphrase")
	plain := must(os.ReadFile(filepath.Join(dir, "root.key")))(t)
	if err := a.Protect(first); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"root.key", "intermediate.key"} {
		text := must(os.ReadFile(filepath.Join(dir, f)))(t)
		info := must(os.Stat(filepath.Join(dir, f)))(t)
		if bytes.Contains(text, []byte("BEGIN PRIVATE KEY")) || bytes.Equal(text, plain) || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is not encrypted, or has the mode %s\n%s", f, info.Mode(), text)
		}
	}
	closed := open(t, dir)
	if _, _, err := closed.IssueClient(Admin, "anna", time.Hour); !errors.Is(err, ErrSealed) ||
		!strings.Contains(err.Error(), "--ca-passphrase-file") {
		t.Fatal("signing without the passphrase, want ErrSealed:", err)
	}
	if !closed.Sealed() || closed.Pin() != pin {
		t.Fatal("reading the public files needs the passphrase")
	}
	if err := closed.RotateRoot(); !errors.Is(err, ErrSealed) {
		t.Fatal(err)
	}
	if err := closed.Protect(nil); !errors.Is(err, ErrSealed) {
		t.Fatal("removing the encryption without the passphrase, want ErrSealed:", err)
	}
	if err := closed.Unlock(second); !errors.Is(err, ErrKey) || strings.Contains(err.Error(), "\n") {
		t.Fatal("unlocking with a wrong passphrase:", err)
	}
	if err := closed.Unlock(first); err != nil || closed.Sealed() {
		t.Fatal(err)
	}
	// New keys are encrypted too, and so are the former keys that a rotation stores.
	if err := closed.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	if err := closed.Protect(second); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"root.key", "intermediate.key", "former-root.key"} {
		if text := must(os.ReadFile(filepath.Join(dir, f)))(t); !bytes.Contains(text, []byte(sealedType)) {
			t.Errorf("%s is not encrypted", f)
		}
	}
	changed := open(t, dir)
	if err := changed.Unlock(first); err == nil {
		t.Fatal("the former passphrase is still accepted")
	}
	if err := changed.Unlock(second); err != nil {
		t.Fatal(err)
	}
	if err := changed.Protect(nil); err != nil {
		t.Fatal(err)
	}
	if b := open(t, dir); b.Sealed() {
		t.Fatal("the keys are still encrypted")
	} else if _, _, err := b.IssueClient(Admin, "anna", time.Hour); err != nil {
		t.Fatal(err)
	}
}

func TestAnEncryptedKeyThatWasChangedIsRefused(t *testing.T) {
	for _, tt := range []struct{ name, from, to, want string }{
		{"unlimited costs", "Memory-KiB: 65536", "Memory-KiB: 4294967295", "out of bounds"},
		{"no cost", "Time: 3", "Time: 0", "out of bounds"},
		{"an unknown version", "Version: 1", "Version: 2", "unknown encryption"},
		{"no salt", "Salt: ", "Salty: ", "out of bounds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := open(t, dir).Protect([]byte("correct horse battery")); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "root.key")
			text := string(must(os.ReadFile(file))(t))
			if !strings.Contains(text, tt.from) {
				t.Fatal(text)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(text, tt.from, tt.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := open(t, dir).Unlock([]byte("correct horse battery")); err == nil || !strings.Contains(err.Error(),
				tt.want) {
				t.Fatal(err)
			}
		})
	}
}

// One file has the revoked keys, others have the certificates that `ca revoke` ends. If such a file
// is truncated or empty, revoked certificates would be trusted again without notice.
func TestADamagedListOfRevokedKeysIsRefused(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	for _, do := range []func() error{a.RotateRoot, a.Revoke, a.RotateIntermediate, a.RotateRoot} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir)
	for _, name := range []string{revokedFile, formerIntermediateFile, crossFile} {
		file := filepath.Join(dir, name)
		whole := must(os.ReadFile(file))(t)
		for what, text := range map[string][]byte{"empty": nil, "blank": []byte("\n"),
			"cut off": whole[:len(whole)-len(whole)/3], "zeros": make([]byte, len(whole))} {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), file) {
				t.Errorf("%s %s: %v, want ErrKey with the file", name, what, err)
			}
		}
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir)
}
