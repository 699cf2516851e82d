package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// SQLSTATE codes that the store tells apart.
const (
	stateSerialization = "40001"
	stateDeadlock      = "40P01"
	stateReadOnly      = "25006"
	stateCanceled      = "57014"
	stateNoDatabase    = "3D000"
	statePassword      = "28P01"
	stateUser          = "28000"
	stateDenied        = "42501"
	stateLimit         = "53400" // a quota of an extension's
	stateInternal      = "XX000"
	stateNoStatement   = "26000" // a prepared one
	stateStatement     = "42P05"
	stateProtocol      = "08P01"
)

func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// explain is explainPostgres, and tells the log while the server is away.
func (p *postgres) explain(err error) error {
	err = explainPostgres(err, p.where)
	if errors.Is(err, ErrUnavailable) {
		now := time.Now().Unix()
		if was := p.told.Load(); now-was >= 60 && p.told.CompareAndSwap(was, now) {
			p.log.Error("the database does not answer: nothing is decided, and whoever asks is told to try again", "err", err)
		}
	}
	return err
}

// Reachable tells whether the database answered when it was asked last; a file always does.
func (s *Store) Reachable() bool { return s.pg == nil || s.pg.told.Load() == 0 }

// answers tells the log that the server is back.
func (p *postgres) answers() {
	if p.told.Swap(0) != 0 {
		p.log.Info("the database answers again", "database", p.where)
	}
}

// explainPostgres gives the server's errors, and those of the way to it, the sentinel that
// says what to do about them.
func explainPostgres(err error, where string) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
		return err
	}
	unavailable := func(what string) error {
		return fmt.Errorf("%w: %s %s: %w", ErrUnavailable, where, what, inLine{err})
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "531"), state == stateLimit, // 53100: disk full
		state == stateInternal && strings.Contains(strings.ToLower(err.Error()), unix.EDQUOT.Error()): // a quota of the file system
		return fmt.Errorf("%w: %w", ErrFull, err)
	case strings.HasPrefix(state, "53"):
		return unavailable("has no room for it (connections or memory)")
	case state == stateReadOnly:
		return unavailable("takes no writes: it is a standby, or was made read-only")
	case state == stateSerialization, state == stateDeadlock, state == stateCanceled:
		return unavailable("gave a transaction up, which will be tried again")
	case strings.HasPrefix(state, "57P"), strings.HasPrefix(state, "08"), strings.HasPrefix(state, "58"):
		return unavailable("ended the connection")
	case strings.HasPrefix(state, "XX"):
		return unavailable("has an internal error, see its log")
	case state == stateNoDatabase: // of several hosts and ways to them this one has answered
		return unavailable("has no such database: make it, with `createdb --encoding=UTF8 --template=template0 --owner=USER NAME`")
	case state == statePassword, state == stateUser:
		return unavailable("does not let this user in: see user and password in --database, and the server's pg_hba.conf")
	case state == stateNoStatement, state == stateStatement: // prepared on another connection of the server's
		return pooled(where)
	case state == stateDenied:
		return fmt.Errorf("%s does not let this role do that: let it own the database, with `ALTER DATABASE NAME OWNER TO USER`, or `GRANT ALL ON SCHEMA public TO USER` in it: %w", where, err)
	case state != "" && !errors.As(err, &connecting):
		return err
	case errors.As(err, &connecting) && strings.Contains(err.Error(), "read only connection"):
		return unavailable("takes no writes: it is a standby, or was made read-only")
	case errors.As(err, &connecting):
		return unavailable("cannot be reached")
	case errors.Is(err, errStalled), errors.As(err, &network), isLost(err):
		return unavailable("has not answered")
	}
	return err
}

// inLine is an error in one line: pgx has a line for each host.
type inLine struct{ error }

func (e inLine) Error() string {
	return strings.NewReplacer(":\n\t", ": ", "\n\t", "; ", "\n", "; ").Replace(e.error.Error())
}

func (e inLine) Unwrap() error { return e.error }

// isLost tells whether a connection is no more.
func isLost(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error() // of pgx there is no other word for some of them
	return errors.Is(err, errStalled) || errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err) || strings.Contains(text, "conn closed") ||
		strings.Contains(text, "unexpected EOF") || strings.Contains(text, "bad connection") || strings.HasPrefix(sqlState(err), "57P") || strings.HasPrefix(sqlState(err), "08")
}

// pooled is the error of a server behind such a pooler.
func pooled(where string) error {
	return fmt.Errorf("%w: between here and %s is a pooler that gives each transaction another connection: name the server itself in --database, or set `pool_mode = session` for this database in PgBouncer", ErrUnavailable, where)
}
