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

// ErrSealed: the authority's keys are protected, and nobody has said the passphrase.
var ErrSealed = errors.New("the certificate authority's keys are protected by a passphrase")

// A protected key is a PEM block of this type: its bytes are a nonce and the PKCS
// #8 key's PEM under AES-256-GCM, whose key argon2id makes of the passphrase with
// the salt and the costs of the headers. The headers are authenticated with it.
const (
	sealedType    = "FLOTILLA PROTECTED KEY"
	sealedVersion = "1"

	kdfTime, kdfMemory, kdfThreads = 3, 64 << 10, 1 // KiB
	minPassphrase                  = 12             // bytes
	maxPassphrase                  = 1024
)

// keyNames are the files that protection is about. The hub's own key is not: it
// is good for a year, for nothing but this hub, and has to be there without anybody.
var keyNames = []string{"root", "intermediate", formerRoot}

// ReadPassphrase reads a passphrase from a file: its first line.
func ReadPassphrase(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w; name a file that holds it", err)
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
	_, _ = rand.Read(salt) // never fails, see crypto/rand
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
		return nil, errors.New("it is cut off")
	}
	key, err := aead.Open(nil, b.Bytes[:n], b.Bytes[n:], belongs)
	if err != nil {
		return nil, errors.New("the passphrase is wrong, or the file was changed")
	}
	return key, nil
}

// cipherOf bounds what a file may cost before anything is computed.
func cipherOf(passphrase []byte, b *pem.Block) (cipher.AEAD, []byte, error) {
	h := b.Headers
	if h["Version"] != sealedVersion || h["KDF"] != "argon2id" {
		return nil, nil, fmt.Errorf("it is protected in the form %q %q, which this version does not know", h["Version"],
			h["KDF"])
	}
	time, terr := strconv.ParseUint(h["Time"], 10, 32)
	memory, merr := strconv.ParseUint(h["Memory-KiB"], 10, 32)
	threads, herr := strconv.ParseUint(h["Threads"], 10, 8)
	salt, serr := hex.DecodeString(h["Salt"])
	if errors.Join(terr, merr, herr, serr) != nil || time < 1 || time > 16 || memory < 8<<10 || memory > 512<<10 ||
		threads < 1 || threads > 8 || len(salt) < 16 || len(salt) > 64 {
		return nil, nil, errors.New("its protection has costs that are out of bounds")
	}
	block, err := aes.NewCipher(argon2.IDKey(passphrase, salt, uint32(time), uint32(memory), uint8(threads), 32))
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, []byte(fmt.Sprintf("flotilla protected key %s %s %d %d %d %x", h["Version"], h["KDF"], time, memory,
		threads, salt)), err
}

// Sealed tells whether a passphrase is needed before anything can be signed.
func (a *Authority) Sealed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sealed()
}

func (a *Authority) sealed() bool {
	return a.root.sealed != nil || a.middle.sealed != nil || a.former.sealed != nil
}

// Unlock opens the protected keys with their passphrase.
func (a *Authority) Unlock(passphrase []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range []*pair{&a.root, &a.middle, &a.former} {
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
			return fmt.Errorf("open %s: %w: %w; give the right passphrase, or restore the directory pki from a copy",
				a.path(keyNames[i]+".key"), ErrKey, err)
		}
		p.sealed = nil
		a.passphrase = passphrase
	}
	_, err := a.signerLocked(time.Now())
	return err
}

// Protect puts the keys under a passphrase, or under another one; nil takes the
// protection away. What was protected must have been unlocked.
func (a *Authority) Protect(passphrase []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed() {
		return ErrSealed
	}
	before := a.passphrase
	a.passphrase = passphrase
	files := map[string][]byte{}
	for i, p := range []*pair{&a.root, &a.middle, &a.former} {
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

// keyText is how a key of the authority is stored.
func (a *Authority) keyText(key any) ([]byte, error) {
	text, err := encodeKey(key)
	if err == nil && a.passphrase != nil {
		text, err = seal(a.passphrase, text)
	}
	return text, err
}
