package store

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A quota of the server counts as a full disk: changes and deletions work. Other resource errors of
// a server are temporary.
func TestAQuotaOfTheServerIsAFullDisk(t *testing.T) {
	for _, c := range []struct {
		code, message string
		full          bool
	}{
		{"53100", `could not extend file "base/1/2": No space left on device`, true},
		{"53400", "schema's disk space quota exceeded with name: public", true},
		{"XX000", `could not extend file "base/1/2": Disk quota exceeded`, true},
		{"XX000", "cache lookup failed for relation 4711", false},
		{"53300", "too many connections", false},
		{"58030", `could not read file "base/1/2": Input/output error`, false},
	} {
		err := explainPostgres(&pgconn.PgError{Code: c.code, Message: c.message}, "the database")
		if errors.Is(err, ErrFull) != c.full || errors.Is(err, ErrUnavailable) == c.full {
			t.Errorf("%s %s: %v", c.code, c.message, err)
		}
	}
}
