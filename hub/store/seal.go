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
)

// A sealer keeps secrets unreadable in the database and in its backups:
// AES-256-GCM under a key that is never in either. What a blob belongs to is
// authenticated with it, so one secret cannot be put in the place of another.
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
	_, _ = rand.Read(nonce) // never fails, see crypto/rand
	return s.aead.Seal(blob, nonce, plain, belongs), nil
}

func (s *sealer) open(blob, belongs []byte) ([]byte, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: only the hub itself reads secrets", ErrKey)
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

// openSealer reads the key, from systemd's credentials or the key file, and
// makes one where no secret has been sealed yet. The database remembers the
// key's id, so a wrong key is noticed here and not at the first secret.
func (s *Store) openSealer(ctx context.Context) (*sealer, error) {
	file := filepath.Join(s.dir, secretsKey)
	key, err := readKey(file)
	if errors.Is(err, os.ErrNotExist) {
		var what, giveUp string
		if what, giveUp, err = s.sealed(ctx); err != nil {
			return nil, err
		}
		if what != "" {
			return nil, fmt.Errorf("open %s: %w: it is missing, and %s in the database are sealed with it; put it back from where you keep it, or give them up with `%s`", file, ErrKey, what, giveUp)
		}
		key = make([]byte, keyBytes)
		_, _ = rand.Read(key)
		if err = owner.WriteFile(file, []byte(hex.EncodeToString(key)+"\n")); err == nil {
			err = syncDir(s.dir)
		}
	}
	if err != nil {
		return nil, err
	}
	id := keyID(key)
	known, err := s.Meta(ctx, metaKeyID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if known != id {
		what, giveUp, err := s.sealed(ctx)
		if err != nil {
			return nil, err
		}
		if known != "" && what != "" {
			return nil, fmt.Errorf("open %s: %w: its id is %s, but %s in the database are sealed with key %s; put that key back, or give them up with `%s`", file, ErrKey, id, what, known, giveUp)
		}
		if err := s.SetMeta(ctx, metaKeyID, id); err != nil {
			return nil, err
		}
	}
	return newSealer(key)
}

// keyOf is why the key is not the one of the database, nil: it is, or there is nothing that it opens. It makes
// none; that no file has it is fs.ErrNotExist, for systemd may give it to the hub alone.
func (s *Store) keyOf(ctx context.Context) error {
	file := filepath.Join(s.dir, secretsKey)
	key, err := readKey(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	known, kerr := valueOf(ctx, s.read, metaKeyID)
	if err == nil && known == keyID(key) || kerr != nil || known == "" {
		return nil
	}
	switch what, _, serr := s.sealed(ctx); {
	case serr != nil || what == "": // a new one is made
		return nil
	case err != nil:
		return fmt.Errorf("%w, and %s in the database are sealed with it", err, what)
	default:
		return fmt.Errorf("open %s: %w: its id is %s, but %s in the database are sealed with key %s", file, ErrKey, keyID(key), what, known)
	}
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
		return nil, fmt.Errorf("open %s: %w: others may read it (mode %04o); run `chmod 600 %s`", file, ErrKey, info.Mode().Perm(), file)
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
		return nil, fmt.Errorf("open %s: %w: it must hold %d hex digits; put the right file back", name, ErrKey, 2*keyBytes)
	}
	return key, nil
}

// sealed says what the database has that only the key opens, "": nothing, and how people give it up:
// secrets are lost then, and the authority is what stands in pki/.
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
		all, queries = append(all, "the keys of the authority that several hubs share"), append(queries, "DELETE"+kept)
	}
	in := "sqlite3 " + s.file
	if s.pg != nil {
		in = "psql " + s.pg.where + " -c"
	}
	return strings.Join(all, " and "), fmt.Sprintf(`%s "%s"`, in, strings.Join(queries, "; ")), nil
}

// count is the number of objects of a kind; 0 for one that has no table yet.
func (s *Store) count(ctx context.Context, kind string) (int, error) {
	var n int
	if err := s.row(ctx, []any{&n}, "SELECT count(*) FROM kinds WHERE name = ?", kind); err != nil || n == 0 {
		return 0, err
	}
	err := s.row(ctx, []any{&n}, forKind("SELECT count(*) FROM {kind}", kind))
	return n, err
}
