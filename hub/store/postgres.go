package store

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"flotilla.dev/hub/store/deadline"
)

// A postgres is what a store has in addition that is kept in PostgreSQL. The rest of the
// package works on it as on SQLite.
//
// One hub writes: it holds an advisory lock as long as its connection lives, and each of
// its transactions first updates the one row of the table leader, if the token in it is
// still its own. So a transaction of a hub that was overtaken cannot commit, transactions
// are one after the other (commands lock the row, too), and the number of the newest one
// stands in the row: after a connection that broke in the middle of COMMIT the hub reads
// there whether it was carried out.
type postgres struct {
	config *pgx.ConnConfig
	where  string // as people see it: without the password
	waits  waits
	log    *slog.Logger
	told   atomic.Int64 // when the log last said that the server is away, in Unix seconds; 0: it is there

	// What follows is guarded by the store's mu.
	empty   bool  // there are no tables yet
	token   int64 // in the leader's row; 0: shared, we are not the leader
	tx      int64 // number of the newest transaction that was acknowledged
	doubt   *doubt
	pid     int32 // of the server's process for the writer's connection, and of no pooler's
	rest    time.Time
	why     error         // why there is no connection
	over    error         // why this store writes nothing any more
	overing chan struct{} // closed with it
	once    sync.Once
	member  *Member // nil: this hub knows of no others
	standby bool    // nothing may be written
}

const (
	// oldestServer is the first release with all that is used here, and that is still maintained
	// anywhere.
	oldestServer = 13
	dialTimeout  = 5 * time.Second
	// between two tries to reach a server that is away: who comes meanwhile is told at once.
	restBetween = 500 * time.Millisecond
	// conflicts is how often one transaction is tried again that the server gave up for another's
	// sake.
	conflicts = 5
	lockClass = 0x666c6f74 // "flot", the class of our advisory locks
	readers   = 4
)

// waits are how long a store waits for a server.
type waits struct {
	stalled  time.Duration // for a word of an answer; then the connection is given up
	patience time.Duration // for a connection that was there a moment ago
	doubt    time.Duration // for what became of a plan: the hub's belief must not differ from the database
}

var usualWaits = waits{stalled: 10 * time.Second, patience: 5 * time.Second, doubt: 2 * time.Minute}

// Ended returns when this store can write nothing any more although it is open: another
// hub has taken the database over, or it is not what this hub has left. What the hub
// believes then has to be read anew. It returns nil when ctx ends.
func (s *Store) Ended(ctx context.Context) error {
	if s.pg == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.pg.overing:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pg.over
	}
}

// setUp is what every connection is told. A user's or a server's defaults may be others:
// commits are durable here and on the synchronous standbys, if there are any; nobody but
// us gives up on a statement; and a connection whose hub has vanished ends by itself.
const setUp = `
SELECT set_config('synchronous_commit', ` + durable + `, false),
	set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),
	set_config('idle_in_transaction_session_timeout', '` + idle + `', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false);
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')` // not every release has them

// idle is how long a transaction may wait for its hub, in milliseconds.
const idle = "60000"

// durable is what synchronous_commit has to be: on, or more where it is that.
const durable = "CASE WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END"

// parsePostgres reads where the server is, and with what name and password.
func parsePostgres(address string, w waits, log *slog.Logger) (*postgres, error) {
	if w == (waits{}) {
		w = usualWaits
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("read the address of the database: %s; write postgres://USER@HOST:5432/NAME",
			unread(address, err))
	}
	if strings.Contains(config.Host, "@") { // the end of a password
		return nil, fmt.Errorf("read the address of the database: %s; write postgres://USER@HOST:5432/NAME",
			unread(address, nil))
	}
	config.ConnectTimeout = dialTimeout
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &deadline.Conn{Conn: c, Timeout: w.stalled}, nil
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "flotilla-hub"
	}
	if config.ValidateConnect == nil { // of several servers, the one that takes writes
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		_, err := c.Exec(ctx, setUp).ReadAll()
		return err
	}
	return &postgres{config: config, where: shown(config), waits: w, log: log, overing: make(chan struct{})}, nil
}

// unread says why an address cannot be read, without any password of it: pgx shows some of
// them, and where a password is not escaped nobody knows where it ends.
func unread(address string, err error) string {
	u, parsed := url.Parse(address)
	if parsed != nil || err == nil {
		return "it is no URL (it is not shown, for the password); in a password write %25, %2F, %3F, %23, %40 and %3A for " +
			"% / ? # @ and :"
	}
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:] // before that is the address
	text = inLine{errors.New(strings.TrimPrefix(text, ": "))}.Error()
	password, _ := u.User.Password()
	for name, values := range u.Query() {
		if !strings.Contains(name, "pass") {
			values = nil
		}
		for _, secret := range append(values, password) {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "…")
			}
		}
	}
	return text
}

// exposed says what others on the way to a server could do; "": nothing.
func exposed(c *pgx.ConnConfig) string {
	says := ""
	look := func(host string, secure *tls.Config) {
		ip := net.ParseIP(host)
		switch {
		case strings.HasPrefix(host, "/"), host == "localhost", ip != nil && ip.IsLoopback():
		case secure == nil:
			says = "the connection is not encrypted, or somebody on the way can have it so"
		case secure.InsecureSkipVerify && secure.VerifyPeerCertificate == nil && secure.VerifyConnection == nil && says == "":
			says = "the connection is encrypted, but nobody looks at the server's certificate, whether it is the right one"
		}
	}
	look(c.Host, c.TLSConfig)
	for _, f := range c.Fallbacks {
		look(f.Host, f.TLSConfig)
	}
	return says
}

// shown is an address as people may see it.
func shown(c *pgx.ConnConfig) string {
	hosts := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	if strings.HasPrefix(c.Host, "/") {
		hosts[0] = c.Host
	}
	for _, f := range c.Fallbacks {
		if at := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !strings.HasPrefix(f.Host, "/") &&
			at != hosts[len(hosts)-1] {
			hosts = append(hosts, at)
		}
	}
	return fmt.Sprintf("postgres://%s@%s/%s", c.User, strings.Join(hosts, ","), c.Database)
}

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
		// a quota of the file system
		state == stateInternal && strings.Contains(strings.ToLower(err.Error()), unix.EDQUOT.Error()):
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
		return unavailable(
			"has no such database: make it, with `createdb --encoding=UTF8 --template=template0 --owner=USER NAME`")
	case state == statePassword, state == stateUser:
		return unavailable("does not let this user in: see user and password in --database, and the server's pg_hba.conf")
	case state == stateNoStatement, state == stateStatement: // prepared on another connection of the server's
		return pooled(where)
	case state == stateDenied:
		return fmt.Errorf("%s does not let this role do that: let it own the database, with "+
			"`ALTER DATABASE NAME OWNER TO USER`, or `GRANT ALL ON SCHEMA public TO USER` in it: %w", where, err)
	case state != "" && !errors.As(err, &connecting):
		return err
	case errors.As(err, &connecting) && strings.Contains(err.Error(), "read only connection"):
		return unavailable("takes no writes: it is a standby, or was made read-only")
	case errors.As(err, &connecting):
		return unavailable("cannot be reached")
	case errors.Is(err, deadline.ErrExceeded), errors.As(err, &network), isLost(err):
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
	return errors.Is(err, deadline.ErrExceeded) || errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err) ||
		strings.Contains(text, "conn closed") ||
		strings.Contains(text, "unexpected EOF") || strings.Contains(text, "bad connection") ||
		strings.HasPrefix(sqlState(err), "57P") || strings.HasPrefix(sqlState(err), "08")
}

// pooled is the error of a server behind such a pooler.
func pooled(where string) error {
	return fmt.Errorf("%w: between here and %s is a pooler that gives each transaction another connection: name the "+
		"server itself in --database, or set `pool_mode = session` for this database in PgBouncer", ErrUnavailable, where)
}
