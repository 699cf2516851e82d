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

// A postgres is the additional state of a store in PostgreSQL. The rest of the package treats both
// databases alike.
//
// One hub writes. It holds an advisory lock as long as its connection exists. Each of its
// transactions first updates the only row of the table leader, if that row still has the hub's
// token. So a hub that lost the lead cannot commit. Transactions run one after the other, since
// commands lock the row too. The row also holds the number of the newest transaction: if a
// connection broke during COMMIT, the hub reads there whether the commit succeeded.
type postgres struct {
	config       *pgx.ConnConfig
	where        string // without the password
	timeouts     timeouts
	log          *slog.Logger
	outageLogged atomic.Int64 // when the log last reported an outage, in Unix seconds; 0: reachable

	// The fields below are guarded by the store's mu.
	empty      bool  // there are no tables yet
	token      int64 // token in the leader's row; 0: not the leader, or a command
	tx         int64 // number of the newest acknowledged transaction
	unresolved *unresolved
	pid        int32 // server process of the writer's connection
	retryAt    time.Time
	lastErr    error         // why the last connection attempt failed
	stopped    error         // why this store never writes again
	stopping   chan struct{} // closed when over is set
	once       sync.Once
	member     *Member // nil: a single hub
	standby    bool    // never writes
}

const (
	// oldestServer is the first release with all features that the store uses.
	oldestServer = 13
	dialTimeout  = 5 * time.Second
	// retryEvery is the time between two connection attempts. Calls in between fail at once.
	retryEvery = 500 * time.Millisecond
	// maxRetries is how often a transaction is retried after the server has aborted it in favour of
	// another one.
	maxRetries = 5
	lockClass  = 0x666c6f74 // "flot", the class of the hub's advisory locks
	readers    = 4
)

// timeouts are the store's timeouts for a server.
type timeouts struct {
	response  time.Duration // time for each part of a response
	reconnect time.Duration // time to reconnect
	resolve   time.Duration // time to learn the result of a COMMIT, because the hub's state must match the database
}

var defaultTimeouts = timeouts{response: 10 * time.Second, reconnect: 5 * time.Second, resolve: 2 * time.Minute}

// Ended returns when this open store can never write again, because another hub has taken the lead
// or the database is not as this hub left it. The caller then has to read the fleet again. Ended
// returns nil when ctx ends.
func (s *Store) Ended(ctx context.Context) error {
	if s.pg == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.pg.stopping:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pg.stopped
	}
}

// sessionSettings configures each connection, whatever the defaults of the user or server are.
// Commits are durable here and on synchronous standbys, only the hub cancels statements, and the
// server ends the connection of a vanished hub.
const sessionSettings = `
SELECT set_config('synchronous_commit', ` + durable + `, false),
	set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),
	set_config('idle_in_transaction_session_timeout', '` + idle + `', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false);
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')` // some releases lack these settings

// idle is how long a transaction may wait for its hub, in milliseconds.
const idle = "60000"

// durable is the required value of synchronous_commit: remote_apply if that is configured,
// otherwise on.
const durable = "CASE WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END"

// parsePostgres parses the address of a server, with user and password.
func parsePostgres(address string, w timeouts, log *slog.Logger) (*postgres, error) {
	if w == (timeouts{}) {
		w = defaultTimeouts
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("read the address of the database: %s; write postgres://USER@HOST:5432/NAME",
			explainAddress(address, err))
	}
	if strings.Contains(config.Host, "@") { // the host contains a part of an unescaped password
		return nil, fmt.Errorf("read the address of the database: %s; write postgres://USER@HOST:5432/NAME",
			explainAddress(address, nil))
	}
	config.ConnectTimeout = dialTimeout
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &deadline.Conn{Conn: c, Timeout: w.response}, nil
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "flotilla-hub"
	}
	if config.ValidateConnect == nil { // of several servers, use the writable one
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		_, err := c.Exec(ctx, sessionSettings).ReadAll()
		return err
	}
	return &postgres{config: config, where: redacted(config), timeouts: w, log: log, stopping: make(chan struct{})}, nil
}

// explainAddress explains why an address cannot be parsed, without any part of a password. The text
// of pgx may show one, because the end of an unescaped password is unknown.
func explainAddress(address string, err error) string {
	u, parsed := url.Parse(address)
	if parsed != nil || err == nil {
		return "it is not a URL (it may contain a password and is not shown); in a password write %25, %2F, %3F, %23, %40 " +
			"and %3A for " +
			"% / ? # @ and :"
	}
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:] // skip the address
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

// networkRisk returns what an attacker on the network could do; "": nothing.
func networkRisk(c *pgx.ConnConfig) string {
	says := ""
	look := func(host string, secure *tls.Config) {
		ip := net.ParseIP(host)
		switch {
		case strings.HasPrefix(host, "/"), host == "localhost", ip != nil && ip.IsLoopback():
		case secure == nil:
			says = "the connection is not encrypted, or an attacker on the network can prevent encryption"
		case secure.InsecureSkipVerify && secure.VerifyPeerCertificate == nil && secure.VerifyConnection == nil && says == "":
			says = "the connection is encrypted, but the server's certificate is not verified"
		}
	}
	look(c.Host, c.TLSConfig)
	for _, f := range c.Fallbacks {
		look(f.Host, f.TLSConfig)
	}
	return says
}

// redacted returns an address without its password.
func redacted(c *pgx.ConnConfig) string {
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

// SQLSTATE codes that need their own handling.
const (
	stateSerialization = "40001"
	stateDeadlock      = "40P01"
	stateReadOnly      = "25006"
	stateCanceled      = "57014"
	stateNoDatabase    = "3D000"
	statePassword      = "28P01"
	stateUser          = "28000"
	stateDenied        = "42501"
	stateLimit         = "53400" // a quota of an extension
	stateInternal      = "XX000"
	stateNoStatement   = "26000" // unknown prepared statement
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

// explain calls explainPostgres, and logs an outage of the server.
func (p *postgres) explain(err error) error {
	err = explainPostgres(err, p.where)
	if errors.Is(err, ErrUnavailable) {
		now := time.Now().Unix()
		if was := p.outageLogged.Load(); now-was >= 60 && p.outageLogged.CompareAndSwap(was, now) {
			p.log.Error("the database does not answer: decisions wait, and requests are refused until it does", "err", err)
		}
	}
	return err
}

// Reachable reports whether the database answered the last time. SQLite is always reachable.
func (s *Store) Reachable() bool { return s.pg == nil || s.pg.outageLogged.Load() == 0 }

// logRecovery logs the end of an outage.
func (p *postgres) logRecovery() {
	if p.outageLogged.Swap(0) != 0 {
		p.log.Info("the database answers again", "database", p.where)
	}
}

// explainPostgres wraps an error of the server or the network in the sentinel that tells the caller
// what to do.
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
		return unavailable("is out of connections or memory")
	case state == stateReadOnly:
		return unavailable("refuses writes: it is a standby or read-only")
	case state == stateSerialization, state == stateDeadlock, state == stateCanceled:
		return unavailable("aborted a transaction, which will be retried")
	case strings.HasPrefix(state, "57P"), strings.HasPrefix(state, "08"), strings.HasPrefix(state, "58"):
		return unavailable("ended the connection")
	case strings.HasPrefix(state, "XX"):
		return unavailable("has an internal error; see its log")
	case state == stateNoDatabase: // of several hosts, only this one has answered
		return unavailable(
			"has no such database; create it with `createdb --encoding=UTF8 --template=template0 --owner=USER NAME`")
	case state == statePassword, state == stateUser:
		return unavailable("refuses this user; check user and password in --database, and the server's pg_hba.conf")
	case state == stateNoStatement, state == stateStatement: // a pooler has changed our connection
		return errPooler(where)
	case state == stateDenied:
		return fmt.Errorf("%s refuses this role: make it the owner with `ALTER DATABASE NAME OWNER TO USER`, or run "+
			"`GRANT ALL ON SCHEMA public TO USER` in the database: %w", where, err)
	case state != "" && !errors.As(err, &connecting):
		return err
	case errors.As(err, &connecting) && strings.Contains(err.Error(), "read only connection"):
		return unavailable("refuses writes: it is a standby or read-only")
	case errors.As(err, &connecting):
		return unavailable("cannot be reached")
	case errors.Is(err, deadline.ErrExceeded), errors.As(err, &network), isLost(err):
		return unavailable("has not answered")
	}
	return err
}

// inLine prints an error in one line. An error of pgx has a line for each host.
type inLine struct{ error }

func (e inLine) Error() string {
	return strings.NewReplacer(":\n\t", ": ", "\n\t", "; ", "\n", "; ").Replace(e.error.Error())
}

func (e inLine) Unwrap() error { return e.error }

// isLost reports whether the connection is lost.
func isLost(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error() // pgx has only a text for some lost connections
	return errors.Is(err, deadline.ErrExceeded) || errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err) ||
		strings.Contains(text, "conn closed") ||
		strings.Contains(text, "unexpected EOF") || strings.Contains(text, "bad connection") ||
		strings.HasPrefix(sqlState(err), "57P") || strings.HasPrefix(sqlState(err), "08")
}

// errPooler returns the error about a transaction pooler.
func errPooler(where string) error {
	return fmt.Errorf("%w: a transaction pooler is in front of %s: name the server itself in --database, or set "+
		"`pool_mode = session` for this database in PgBouncer", ErrUnavailable, where)
}
