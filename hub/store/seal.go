package store

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"flotilla.dev/hub/owner"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fsync"
)

// A sealer encrypts secrets in the database and its backups: AES-256-GCM under a key that is stored
// elsewhere. It authenticates each secret with the identity of its object, so that no secret can
// replace another.
type sealer struct{ aead cipher.AEAD }

const (
	sealVersion  = 1
	credential   = "flotilla-secrets-key" // name of the systemd credential
	secretsKey   = "secrets.key"
	keyBytes     = 32
	keyIDPurpose = "flotilla secrets key id\x00"
)

func newSealer(key []byte) (*sealer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &sealer{aead}, err
}

func identity(r Row) []byte {
	return []byte(strings.Join([]string{r.Kind, r.Namespace, r.Name, r.UID}, "\x00"))
}

func (s *sealer) seal(plain, belongs []byte) ([]byte, error) {
	if s == nil {
		return nil, ErrKey
	}
	blob := make([]byte, 1+s.aead.NonceSize(), 1+s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	blob[0] = sealVersion
	nonce := blob[1:]
	_, _ = rand.Read(nonce)
	return s.aead.Seal(blob, nonce, plain, belongs), nil
}

func (s *sealer) open(blob, belongs []byte) ([]byte, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: only the hub reads secrets", ErrKey)
	}
	n := 1 + s.aead.NonceSize()
	if len(blob) < n || blob[0] != sealVersion {
		return nil, fmt.Errorf("%w: the sealed secret has an unknown form", ErrKey)
	}
	plain, err := s.aead.Open(nil, blob[1:n], blob[n:], belongs)
	if err != nil {
		return nil, fmt.Errorf("%w: the sealed secret was changed or belongs to another object", ErrKey)
	}
	return plain, nil
}

// openSealer reads the key from systemd's credentials or the key file. It creates a key only if no
// value is sealed yet. The database stores the key's ID, so that a wrong key fails at the start.
func (s *Store) openSealer(ctx context.Context) (*sealer, error) {
	key, known, err := s.keyOf(ctx)
	if err == nil && key == nil {
		key = make([]byte, keyBytes)
		_, _ = rand.Read(key)
		if err = owner.WriteFile(s.keyFile(), []byte(hex.EncodeToString(key)+"\n")); err == nil {
			err = fsync.Dir(s.dir)
		}
	}
	if err != nil {
		return nil, err
	}
	if id := keyID(key); known != id {
		if err := s.SetMeta(ctx, metaKeyID, id); err != nil {
			return nil, err
		}
	}
	return newSealer(key)
}

func (s *Store) keyFile() string { return filepath.Join(s.dir, secretsKey) }

// keyOf returns the key, and the ID that the database stores. A key that does not decrypt the
// sealed values is an error. Without a key and without sealed values it returns nil.
func (s *Store) keyOf(ctx context.Context) (key []byte, known string, err error) {
	key, err = readKey(s.keyFile())
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return nil, "", err
	}
	if known, err = s.Meta(ctx, metaKeyID); err != nil && !errors.Is(err, ErrNotFound) {
		return nil, "", err
	}
	if !missing && (known == "" || known == keyID(key)) {
		return key, known, nil
	}
	what, giveUp, err := s.sealed(ctx)
	switch {
	case err != nil || what == "":
		return key, known, err
	case missing:
		return nil, "", fmt.Errorf("open %s: %w: it is missing (%w), but %s in the database are sealed with it; put your "+
			"copy back, or delete them with `%s`", s.keyFile(), ErrKey, os.ErrNotExist, what, giveUp)
	}
	return nil, "", fmt.Errorf("open %s: %w: its id is %s, but %s in the database are sealed with key %s; put that key "+
		"back, or delete them with `%s`", s.keyFile(), ErrKey, keyID(key), what, known, giveUp)
}

func readKey(file string) ([]byte, error) {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		if text, err := os.ReadFile(filepath.Join(dir, credential)); err == nil {
			return parseKey(credential, text)
		}
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("open %s: %w: other users may read it (mode %04o); run `chmod 600 %s`", file, ErrKey,
			info.Mode().Perm(), file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w: %w; run the hub as the file's owner", file, ErrKey, err)
	}
	return parseKey(file, text)
}

func parseKey(name string, text []byte) ([]byte, error) {
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keyBytes {
		return nil, fmt.Errorf("open %s: %w: it does not have %d hex digits; put the right file "+
			"back", name, ErrKey, 2*keyBytes)
	}
	return key, nil
}

// sealed names the sealed values in the database ("": there are none), and returns the command that
// deletes them. After that command the secrets are lost, and the hub uses the authority in pki/
// instead of the shared one.
func (s *Store) sealed(ctx context.Context) (what, giveUp string, err error) {
	var all, queries []string
	for _, k := range state.Kinds() {
		if !sealedKind(string(k)) {
			continue
		}
		n, err := s.count(ctx, string(k))
		if err != nil {
			return "", "", err
		}
		if n > 0 {
			all, queries = append(all, fmt.Sprintf("%d %s", n, k)), append(queries, "DELETE FROM "+string(k))
		}
	}
	const kept = " FROM meta WHERE key LIKE '" + metaKept + "%'"
	n := 0
	if err := s.row(ctx, []any{&n}, "SELECT count(*)"+kept); err != nil {
		return "", "", err
	}
	if n > 0 {
		all, queries = append(all, "the keys of the hubs' shared authority"), append(queries, "DELETE"+kept)
	}
	in := "sqlite3 " + s.file
	if s.pg != nil {
		in = "psql " + s.pg.where + " -c"
	}
	return strings.Join(all, " and "), fmt.Sprintf(`%s "%s"`, in, strings.Join(queries, "; ")), nil
}

// count returns the number of objects of a kind; 0 if the kind has no table.
func (s *Store) count(ctx context.Context, kind string) (int, error) {
	var n int
	if err := s.row(ctx, []any{&n}, "SELECT count(*) FROM kinds WHERE name = ?", kind); err != nil || n == 0 {
		return 0, err
	}
	err := s.row(ctx, []any{&n}, forKind("SELECT count(*) FROM {kind}", kind))
	return n, err
}
