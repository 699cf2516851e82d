package access

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
)

// Cost of argon2id, OWASP's first choice: 19 MiB, two passes, one lane. It takes a tenth of a
// second on a gateway.
const (
	argonMemory = 19 * 1024 // KiB
	argonTime   = 2
	argonLanes  = 1
	argonKey    = 32
	argonSalt   = 16

	minPassword = 10 // characters
	maxPassword = 256
)

// hashPassword returns the PHC string of a password.
func (g *Guard) hashPassword(ctx context.Context, password string) (string, error) {
	salt := make([]byte, argonSalt)
	_, _ = rand.Read(salt) // never fails; see crypto/rand
	key, err := g.argon(ctx, g.settled, password, salt)
	if err != nil {
		return "", err
	}
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonLanes,
		b64.EncodeToString(salt), b64.EncodeToString(key)), nil
}

// checkPassword compares a password with a PHC string. An empty PHC string, for an unknown user,
// takes as long and never matches. A client from a familiar network does not wait behind unknown
// clients.
func (g *Guard) checkPassword(ctx context.Context, password, phc string, familiar bool) (bool, error) {
	slots := g.hashing
	if familiar {
		slots = g.settled
	}
	salt, want := make([]byte, argonSalt), make([]byte, argonKey)
	if phc != "" {
		prefix := fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$", argon2.Version, argonMemory, argonTime, argonLanes)
		rest, ok := strings.CutPrefix(phc, prefix)
		s, k, found := strings.Cut(rest, "$")
		var err1, err2 error
		salt, err1 = base64.RawStdEncoding.DecodeString(s)
		want, err2 = base64.RawStdEncoding.DecodeString(k)
		if !ok || !found || err1 != nil || err2 != nil || len(want) != argonKey {
			return false, errors.New("the stored password has an unknown format; set it again with `flotilla-hub user passwd`")
		}
	}
	got, err := g.argon(ctx, slots, password, salt)
	return err == nil && phc != "" && same(got, want), err
}

// argon waits for a slot, so that a flood of logins does not use up the memory.
func (g *Guard) argon(ctx context.Context, slots chan struct{}, password string, salt []byte) ([]byte, error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-slots }()
	return argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonLanes, argonKey), nil
}

// common are passwords that satisfy only the length rule. They are compared without case and
// trailing digits.
var common = []string{"password", "passwort", "flotilla", "administrator", "qwertyuiop", "qwertzuiop", "letmein",
	"changeme", "raspberry", "welcome", "iloveyou", "abcdefghij"}

// checkStrength refuses passwords that are easy to guess.
func checkStrength(password, user string) error {
	n := utf8.RuneCountInString(password)
	lower := strings.ToLower(password)
	letters := map[rune]bool{}
	for _, r := range lower {
		letters[r] = true
	}
	stem := strings.TrimRight(lower, "0123456789!?.$*-_ ")
	switch {
	case n < minPassword:
		return fmt.Errorf("%w: the password has %d characters; use %d or more, such as four words", ErrInvalid, n,
			minPassword)
	case len(password) > maxPassword:
		return fmt.Errorf("%w: the password has more than %d bytes; use a shorter one", ErrInvalid, maxPassword)
	case !utf8.ValidString(password) || strings.ContainsRune(password, 0):
		return fmt.Errorf("%w: the password is not text; use letters, digits and punctuation", ErrInvalid)
	case len(letters) < 5:
		return fmt.Errorf("%w: the password has only %d different characters; use four words", ErrInvalid, len(letters))
	case user != "" && strings.Contains(lower, strings.ToLower(user)) && n < len(user)+minPassword:
		return fmt.Errorf("%w: the password is based on the user name; use four words", ErrInvalid)
	case strings.Contains("01234567890123456789 09876543210987654321", lower):
		return fmt.Errorf("%w: the password is a sequence of digits; use four words", ErrInvalid)
	}
	for _, c := range common {
		if stem == c || stem == c+c {
			return fmt.Errorf("%w: the password is a common one; use four words", ErrInvalid)
		}
	}
	return nil
}
