package pki

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/crypto/argon2"
)

// ErrSealed is returned while the keys are encrypted and no passphrase was given.
var ErrSealed = errors.New("the certificate authority's keys are encrypted with a passphrase")

// An encrypted key is a PEM block of this type. Its bytes are a nonce and the PKCS #8 PEM under
// AES-256-GCM. argon2id derives the key of the cipher from the passphrase, with the salt and costs
// in the headers, which are authenticated.
const (
	sealedType    = "FLOTILLA PROTECTED KEY"
	sealedVersion = "1"

	kdfTime, kdfMemory, kdfThreads = 3, 64 << 10, 1 // KiB
	minPassphrase                  = 12             // bytes
	maxPassphrase                  = 1024
)

// keyNames are the keys that a passphrase encrypts. The hub's server key is not encrypted: it is
// valid for a year, for this hub only, and the hub needs it for an unattended start.
var keyNames = []string{"root", "intermediate", formerRoot}

// ReadPassphrase reads a passphrase from the first line of a file.
func ReadPassphrase(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w; name a file with the passphrase", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*maxPassphrase))
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w", err)
	}
	text, _, _ = bytes.Cut(text, []byte("\n"))
	text = bytes.TrimSuffix(text, []byte("\r"))
	if len(text) < minPassphrase || len(text) > maxPassphrase {
		return nil, fmt.Errorf("read the passphrase: the first line of %s has %d bytes; use %d to %d", file, len(text),
			minPassphrase, maxPassphrase)
	}
	return text, nil
}

func seal(passphrase, key []byte) ([]byte, error) {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails; see crypto/rand
	b := &pem.Block{Type: sealedType, Headers: map[string]string{
		"Version": sealedVersion, "KDF": "argon2id", "Time": strconv.Itoa(kdfTime), "Memory-KiB": strconv.Itoa(kdfMemory),
		"Threads": strconv.Itoa(kdfThreads), "Salt": hex.EncodeToString(salt),
	}}
	aead, belongs, err := cipherOf(passphrase, b)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce)
	b.Bytes = aead.Seal(nonce, nonce, key, belongs)
	return pem.EncodeToMemory(b), nil
}

func unseal(passphrase []byte, b *pem.Block) ([]byte, error) {
	aead, belongs, err := cipherOf(passphrase, b)
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(b.Bytes) < n {
		return nil, errors.New("it is incomplete")
	}
	key, err := aead.Open(nil, b.Bytes[:n], b.Bytes[n:], belongs)
	if err != nil {
		return nil, errors.New("the passphrase is wrong, or the file was changed")
	}
	return key, nil
}

// cipherOf checks the costs in the headers before it derives the key.
func cipherOf(passphrase []byte, b *pem.Block) (cipher.AEAD, []byte, error) {
	h := b.Headers
	if h["Version"] != sealedVersion || h["KDF"] != "argon2id" {
		return nil, nil, fmt.Errorf("unknown encryption %q %q; update this program", h["Version"],
			h["KDF"])
	}
	time, terr := strconv.ParseUint(h["Time"], 10, 32)
	memory, merr := strconv.ParseUint(h["Memory-KiB"], 10, 32)
	threads, herr := strconv.ParseUint(h["Threads"], 10, 8)
	salt, serr := hex.DecodeString(h["Salt"])
	if errors.Join(terr, merr, herr, serr) != nil || time < 1 || time > 16 || memory < 8<<10 || memory > 512<<10 ||
		threads < 1 || threads > 8 || len(salt) < 16 || len(salt) > 64 {
		return nil, nil, errors.New("the costs in its header are out of bounds")
	}
	block, err := aes.NewCipher(argon2.IDKey(passphrase, salt, uint32(time), uint32(memory), uint8(threads), 32))
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, []byte(fmt.Sprintf("flotilla protected key %s %s %d %d %d %x", h["Version"], h["KDF"], time, memory,
		threads, salt)), err
}

// Sealed reports whether the keys must be unlocked before signing.
func (a *Authority) Sealed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sealed()
}

func (a *Authority) sealed() bool {
	return a.root.sealed != nil || a.intermediate.sealed != nil || a.former.sealed != nil
}

// Unlock decrypts the keys with their passphrase.
func (a *Authority) Unlock(passphrase []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range []*pair{&a.root, &a.intermediate, &a.former} {
		if p.sealed == nil {
			continue
		}
		text, err := unseal(passphrase, p.sealed)
		if err == nil {
			p.key, err = decodeKey(text)
		}
		if err == nil && !p.key.PublicKey.Equal(p.cert.PublicKey) {
			err = errors.New("it is not the key of the certificate beside it")
		}
		if err != nil {
			return fmt.Errorf("open %s: %w: %w; use the right passphrase, or restore the directory pki from a copy",
				a.path(keyNames[i]+".key"), ErrKey, err)
		}
		p.sealed = nil
		a.passphrase = passphrase
	}
	_, err := a.signerLocked(time.Now())
	return err
}

// Protect encrypts the keys with a new passphrase. Nil stores them unencrypted. Encrypted keys must
// be unlocked first.
func (a *Authority) Protect(passphrase []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed() {
		return ErrSealed
	}
	before := a.passphrase
	a.passphrase = passphrase
	files := map[string][]byte{}
	for i, p := range []*pair{&a.root, &a.intermediate, &a.former} {
		if p.key == nil {
			continue
		}
		text, err := a.keyText(p.key)
		if err != nil {
			a.passphrase = before
			return err
		}
		files[keyNames[i]+".key"] = text
	}
	if err := a.replace(files); err != nil {
		a.passphrase = before
		return err
	}
	return nil
}

// keyText returns a key in its stored form.
func (a *Authority) keyText(key any) ([]byte, error) {
	text, err := encodeKey(key)
	if err == nil && a.passphrase != nil {
		text, err = seal(a.passphrase, text)
	}
	return text, err
}
