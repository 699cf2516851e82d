package store

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
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

// A doubt is a transaction whose COMMIT was not answered. The next connection tells what
// became of it: nothing is written before that.
type doubt struct {
	tx     int64
	writes uint64    // see metaWrites
	audits []*queued // that were written with it
	done   bool      // known once it is the store's doubt no more
}

// errDoubt: nobody knows yet whether it was carried out.
type errDoubt struct {
	of *doubt
	error
}

func (e errDoubt) Unwrap() error { return e.error }

const (
	// oldestServer is the first release with all that is used here, and that is still maintained anywhere.
	oldestServer = 13
	dialTimeout  = 5 * time.Second
	// between two tries to reach a server that is away: who comes meanwhile is told at once.
	restBetween = 500 * time.Millisecond
	// conflicts is how often one transaction is tried again that the server gave up for another's sake.
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

// setUp is what every connection is told. A user's or a server's defaults may be others:
// commits are durable here and on the synchronous standbys, if there are any; nobody but
// us gives up on a statement; and a connection whose hub has vanished ends by itself.
const setUp = `
SELECT set_config('synchronous_commit', ` + durable + `, false),
	set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),
	set_config('idle_in_transaction_session_timeout', '60000', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false);
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')` // not every release has them

// durable is what synchronous_commit has to be: on, or more where it is that.
const durable = "CASE WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END"

// parsePostgres reads where the server is, and with what name and password.
func parsePostgres(address string, w waits, log *slog.Logger) (*postgres, error) {
	if w == (waits{}) {
		w = usualWaits
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("read the address of the database: %s; write postgres://USER@HOST:5432/NAME", unread(address, err))
	}
	if strings.Contains(config.Host, "@") { // the end of a password
		return nil, fmt.Errorf("read the address of the database: %s; write postgres://USER@HOST:5432/NAME", unread(address, nil))
	}
	config.ConnectTimeout = dialTimeout
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &patient{Conn: c, stalled: w.stalled}, nil
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
		return "it is no URL (it is not shown, for the password); in a password write %25, %2F, %3F, %23, %40 and %3A for % / ? # @ and :"
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
		if at := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !strings.HasPrefix(f.Host, "/") && at != hosts[len(hosts)-1] {
			hosts = append(hosts, at)
		}
	}
	return fmt.Sprintf("postgres://%s@%s/%s", c.User, strings.Join(hosts, ","), c.Database)
}

// A patient connection gives up on a server that says nothing for long: a frozen one, or a
// network that swallows packets. Where its user has set a deadline, that one counts.
type patient struct {
	net.Conn
	stalled time.Duration
	mu      sync.Mutex
	set     bool
}

var errStalled = errors.New("the server says nothing any more")

func (p *patient) SetDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = !t.IsZero()
	return p.Conn.SetDeadline(t)
}

func (p *patient) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = !t.IsZero()
	return p.Conn.SetReadDeadline(t)
}

// arm sets the deadline of what comes next, and tells whether it is ours.
func (p *patient) arm(set func(time.Time) error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.set && set(time.Now().Add(p.stalled)) == nil
}

func (p *patient) Read(b []byte) (int, error) {
	ours := p.arm(p.Conn.SetReadDeadline)
	n, err := p.Conn.Read(b)
	return n, p.tell(ours, err)
}

func (p *patient) Write(b []byte) (int, error) {
	ours := p.arm(p.Conn.SetWriteDeadline)
	n, err := p.Conn.Write(b)
	return n, p.tell(ours, err)
}

func (p *patient) tell(ours bool, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ours && !p.set && errors.Is(err, os.ErrDeadlineExceeded) {
		return errStalled // no timeout in pgx's eyes: the connection is given up
	}
	return err
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
	case strings.HasPrefix(state, "531"): // 53100: disk full
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

// connectPostgres makes the readers' pool and the pool of the one connection that writes.
func (s *Store) connectPostgres() {
	s.db = stdlib.OpenDB(*s.pg.config)
	s.db.SetMaxOpenConns(1)
	s.read = &pool{stdlib.OpenDB(*s.pg.config), true}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	s.kinds = map[string]*kindTable{}
}

// raw gives the connection of pgx below one of database/sql.
func (c *conn) raw(do func(*pgx.Conn) error) error {
	return c.Raw(func(d any) error { return do(d.(*stdlib.Conn).Conn()) })
}

// reach makes the writer's connection. A leader takes the lock that keeps other hubs out,
// and compares what the database says with what it knows.
func (s *Store) reach(ctx context.Context) (err error) {
	p := s.pg
	if now := time.Now(); now.Before(p.rest) {
		return p.why
	}
	defer func() {
		if err != nil {
			s.dropConn()
			err = p.explain(err)
			p.rest, p.why = time.Now().Add(restBetween), err
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	s.conn = &conn{c, true}
	pid, err := s.session(ctx)
	if err != nil {
		return err
	}
	if s.lock != nil {
		if err := s.takeLeadership(ctx); err != nil {
			return err
		}
	}
	p.pid = pid
	return nil
}

// session is the server's process behind the writer's connection. A pooler that gives each
// transaction whatever connection is free is refused: what a connection is told, and the
// lock that it holds, would be somebody else's.
func (s *Store) session(ctx context.Context) (pid int32, err error) {
	pid, direct, err := backend(ctx, s.conn, "")
	if err != nil || direct {
		return pid, err
	}
	other, err := s.read.conn(ctx)
	if err != nil {
		return 0, err
	}
	defer other.Close()
	switch _, _, err := backend(ctx, other, "BEGIN"); { // such a pooler gives it the connection that is free: ours
	case sqlState(err) == stateProtocol: // or, statement by statement, knows no transactions
		return 0, pooled(s.pg.where)
	case err != nil:
		return 0, err
	}
	now, _, err := backend(ctx, s.conn, "")
	_, _, rerr := backend(ctx, other, "ROLLBACK")
	if err == nil && now != pid {
		err = pooled(s.pg.where)
	}
	return pid, errors.Join(err, rerr)
}

// backend does something on a connection, if anything, and tells which process of the server
// did it, and whether that is the one that has answered the connection: no pooler is between.
// Nothing is prepared for it, which a pooler may not know.
func backend(ctx context.Context, c *conn, does string) (pid int32, direct bool, err error) {
	err = c.raw(func(c *pgx.Conn) error {
		if does != "" {
			if _, err := c.PgConn().Exec(ctx, does).ReadAll(); err != nil {
				return err
			}
		}
		r, err := c.PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
		if err != nil {
			return err
		}
		if len(r) != 1 || len(r[0].Rows) != 1 {
			return errors.New("the server does not tell its process")
		}
		n, err := strconv.ParseInt(string(r[0].Rows[0][0]), 10, 32)
		pid, direct = int32(n), uint32(n) == c.PgConn().PID()
		return err
	})
	return pid, direct, err
}

// pooled is the error of a server behind such a pooler.
func pooled(where string) error {
	return fmt.Errorf("%w: between here and %s is a pooler that gives each transaction another connection: name the server itself in --database, or set `pool_mode = session` for this database in PgBouncer", ErrUnavailable, where)
}

// takeLeadership takes the advisory lock. The connection that we have lost may still have
// it, where the server has not heard of its end: it is ended there.
func (s *Store) takeLeadership(ctx context.Context) error {
	p, began := s.pg, time.Now()
	for {
		var got bool
		if err := s.conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock(?::int, hashtext(coalesce(current_schema(), '')))", lockClass).Scan(&got); err != nil {
			return err
		}
		if got {
			break
		}
		var pid int32
		var who, since, from sql.NullString
		err := s.conn.QueryRowContext(ctx, `SELECT l.pid, a.application_name, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), host(a.client_addr)
			FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.granted AND l.classid = ?::int::oid AND l.objid = hashtext(coalesce(current_schema(), ''))::oid
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, lockClass).Scan(&pid, &who, &since, &from)
		switch {
		case errors.Is(err, sql.ErrNoRows): // it has just gone
		case err != nil:
			return err
		case pid != p.pid && p.member != nil: // the row is ours, or compare finds out that it is not: whoever has the lock cannot commit
			if err := s.stillLeads(ctx); err != nil {
				return err
			}
			if _, err := s.conn.ExecContext(ctx, "SELECT pg_terminate_backend(?::int)", pid); err != nil {
				return err
			}
		case pid != p.pid && time.Since(began) < time.Second: // one that was just killed takes the server a moment
		case pid != p.pid:
			at := "on the server's machine"
			if from.String != "" {
				at = "from " + from.String
			}
			return fmt.Errorf("lock %s: %w: another hub (connected %s since %s) writes there; stop it, or give this one its own --database", p.where, ErrLocked, at, since.String)
		default:
			if _, err := s.conn.ExecContext(ctx, "SELECT pg_terminate_backend(?::int)", pid); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if p.token == 0 { // at the start, openPostgres goes on
		return nil
	}
	return s.compare(ctx)
}

// compare looks, on a new connection, whether the database is as it was left. The lock of
// the row waits for the end of whatever an older connection still does.
func (s *Store) compare(ctx context.Context) error {
	p := s.pg
	var token, tx int64
	if err := s.conn.QueryRowContext(ctx, "SELECT token, tx FROM leader FOR UPDATE").Scan(&token, &tx); err != nil {
		return err
	}
	switch {
	case token != p.token:
		return s.isOver(fmt.Errorf("%w: another hub has taken %s over: this one ends", ErrLocked, p.where))
	case tx == p.tx:
		p.doubt = nil
		return nil
	case p.doubt != nil && tx == p.doubt.tx:
		p.tx, p.doubt.done = tx, true
		s.audits.kept(p.doubt.audits, true, time.Now())
		s.wrote(p.doubt.writes)
		p.doubt = nil
		return nil
	case tx < p.tx:
		return s.isOver(fmt.Errorf("%s is older than it was: the newest transaction there is %d, and %d was acknowledged: it was restored, or a standby took over that had not got everything. The hub ends, and looks at it anew when it starts", p.where, tx, p.tx))
	}
	return s.isOver(fmt.Errorf("%s has transaction %d, and this hub has made %d: something else writes as this hub. The hub ends, and begins anew from what is there", p.where, tx, p.tx))
}

// isOver notes that nothing can be written by this store any more.
func (s *Store) isOver(err error) error {
	if s.pg.over == nil {
		s.pg.over = err
		s.pg.once.Do(func() { close(s.pg.overing) })
	}
	return s.pg.over
}

func (s *Store) dropConn() {
	if s.conn != nil {
		_ = s.conn.raw(func(c *pgx.Conn) error { // no farewell: who does not answer is not waited for
			_ = c.PgConn().Conn().Close()
			return nil
		})
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) // it goes back into no pool
		_ = s.conn.Close()
		s.conn = nil
	}
}

// transact runs fn in one transaction, and again where its connection was lost before it
// was over, or the server gave it up for the sake of another.
func (s *Store) transact(ctx context.Context, fn func(ctx context.Context, c *conn) error) error {
	p := s.pg
	var until time.Time // how long a connection that was there is waited for
	if s.conn != nil {
		until = time.Now().Add(p.waits.patience)
	}
	for try := 0; ; {
		if p.over != nil {
			return p.over
		}
		err := error(nil)
		if s.conn == nil {
			err = s.reach(ctx)
		}
		if err == nil {
			if err = s.attempt(ctx, fn); err == nil {
				return nil
			}
		}
		state := sqlState(err)
		switch {
		case p.over != nil:
			return p.over
		case errors.Is(err, ErrLocked), errors.As(err, new(errDoubt)):
			return p.explain(err)
		case s.conn == nil && time.Now().Before(until):
			time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
			p.rest = time.Time{}
		case errors.Is(err, errUndone) && time.Now().Before(until):
		case (state == stateSerialization || state == stateDeadlock || state == stateCanceled) && try < conflicts:
			try++
		default:
			return p.explain(err)
		}
	}
}

// attempt runs one transaction. Where its connection is gone afterwards, s.conn is nil.
func (s *Store) attempt(ctx context.Context, fn func(ctx context.Context, c *conn) error) (err error) {
	p, now := s.pg, time.Now()
	defer func() {
		if err == nil || s.conn == nil {
			return
		}
		gone := true
		_ = s.conn.raw(func(c *pgx.Conn) error { gone = c.IsClosed(); return nil })
		if !gone {
			_, rerr := s.conn.ExecContext(ctx, "ROLLBACK")
			gone = rerr != nil
		}
		if gone || sqlState(err) == stateReadOnly { // of several servers, another may take writes now
			s.dropConn()
		}
	}()
	if _, err := s.conn.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	writes, err := s.fence(ctx, p.tx+1, now)
	if err != nil {
		return err
	}
	if err := fn(ctx, s.conn); err != nil {
		return err
	}
	audits, err := s.writeAudits(ctx, s.conn)
	if err != nil {
		return err
	}
	if err := s.commit(ctx); err != nil {
		gone := true
		_ = s.conn.raw(func(c *pgx.Conn) error { gone = c.IsClosed(); return nil })
		switch {
		case !gone:
			return err
		case p.token == 0:
			return errDoubt{nil, fmt.Errorf("%w: %s was lost in the middle of a commit: look whether it was carried out: %w", ErrUnavailable, p.where, err)}
		}
		return s.resolve(ctx, &doubt{tx: p.tx + 1, writes: writes, audits: audits}, err)
	}
	if p.token != 0 {
		p.tx++
	}
	p.answers()
	if len(audits) > 0 {
		s.audits.kept(audits, true, time.Now())
	}
	s.wrote(writes)
	return nil
}

// fence locks the leader's row, and counts the transaction. A hub goes on only while its token
// is in the row, and anybody only on the connection that was set up for it.
func (s *Store) fence(ctx context.Context, tx int64, now time.Time) (writes uint64, err error) {
	p := s.pg
	if p.standby {
		return 0, ErrStandby
	}
	if p.empty {
		return 0, nil
	}
	lock, args := "SELECT one FROM leader FOR UPDATE", []any{}
	if p.token != 0 {
		lock, args = "UPDATE leader SET tx = ?, written = ? WHERE token = ? RETURNING one", []any{tx, stamp(now), p.token}
	}
	var pid int32
	var sync string
	err = s.conn.QueryRowContext(ctx, "WITH own AS ("+lock+`) INSERT INTO meta (key, value) SELECT ?, '1' FROM own
		ON CONFLICT (key) DO UPDATE SET value = (meta.value::bigint + 1)::text RETURNING value::bigint, pg_backend_pid(), set_config('synchronous_commit', `+durable+`, true)`,
		append(args, metaWrites)...).Scan(&writes, &pid, &sync)
	switch {
	case errors.Is(err, sql.ErrNoRows) && p.token != 0:
		return 0, s.isOver(fmt.Errorf("%w: another hub has taken %s over: this one ends", ErrLocked, p.where))
	case err == nil && pid != p.pid:
		s.dropConn()
		return 0, pooled(p.where)
	}
	return writes, err
}

// errUndone: a COMMIT was not answered, and has not been carried out.
var errUndone = errors.New("the connection was lost while it committed, and nothing was")

// errAborted: the server made a rollback of a commit.
var errAborted = errors.New("the server has undone the transaction at its end")

// commit ends a transaction. Only where the server answers with an error and stays is it
// certain that an error means that nothing was done.
func (s *Store) commit(ctx context.Context) error {
	return s.conn.raw(func(c *pgx.Conn) error {
		tag, err := c.Exec(ctx, "COMMIT")
		if err == nil && tag.String() != "COMMIT" {
			err = errAborted
		}
		return err
	})
}

// resolve finds out what became of a COMMIT that was not answered: nil, it was carried
// out; errUndone, it was not; errDoubt, the server has been away for too long.
func (s *Store) resolve(ctx context.Context, d *doubt, cause error) error {
	p := s.pg
	p.doubt = d
	until := time.Now().Add(p.waits.patience)
	for {
		s.dropConn()
		p.rest = time.Time{}
		err := s.reach(ctx)
		switch {
		case err == nil && d.done:
			p.answers()
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", errUndone, cause)
		case p.over != nil:
			return p.over
		case time.Now().After(until):
			return errDoubt{d, fmt.Errorf("%w; it was lost in the middle of a commit, and it is not known yet whether that was carried out", err)}
		}
		time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
	}
}

// settle waits until it is known what became of a plan, without keeping anybody else: all
// others are told that the server is away. It is called, and returns, with mu held.
func (s *Store) settle(ctx context.Context, in errDoubt) error {
	p := s.pg
	for until := time.Now().Add(p.waits.doubt); p.doubt == in.of; {
		if p.over != nil {
			return p.over
		}
		if time.Now().After(until) || !s.isOpen() {
			return s.isOver(fmt.Errorf("%s does not answer, and a plan may have been written there or not: the hub ends, and begins anew from what is there: %w", p.where, in.error))
		}
		s.mu.Unlock()
		time.Sleep(restBetween / 2)
		s.mu.Lock()
		if p.doubt == in.of && s.conn == nil && s.isOpen() {
			_ = s.reach(ctx) // with a connection it is the doubt no more
		}
	}
	if !in.of.done {
		return errUndone
	}
	p.answers()
	return nil
}

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

// batch is how many rows go to the server before their answers are read.
const batch = 500

// writeAll writes rows in the transaction that is open, many with each way to the server
// and back. It tells how many were left out for want of room.
func writeAll(ctx context.Context, c *conn, rows []Row, grow bool) (dropped int, err error) {
	statement := func(r Row) (string, []any) {
		switch {
		case r.Object == nil:
			return worded(true, forKind(removeRow, r.Kind), r.remove())
		case grow:
			return worded(true, forKind(putRow, r.Kind), r.put())
		}
		return worded(true, forKind(changeRow, r.Kind), r.change())
	}
	for some := range slices.Chunk(rows, batch) {
		if err := c.raw(func(c *pgx.Conn) error {
			var b pgx.Batch
			for _, r := range some {
				query, args := statement(r)
				b.Queue(query, args...)
			}
			answers := c.SendBatch(ctx, &b)
			for _, r := range some {
				done, err := answers.Exec()
				kept := true
				if err == nil && !grow && r.Object != nil {
					kept, err = changed(r, done.RowsAffected())
				}
				if err != nil {
					return errors.Join(fmt.Errorf("%s %s/%s: %w", r.Kind, r.Namespace, r.Name, err), ignore(answers.Close()))
				}
				if !kept {
					dropped++
				}
			}
			return answers.Close()
		}); err != nil {
			return 0, err
		}
	}
	return dropped, nil
}

// ignore is for an error that repeats one before it.
func ignore(error) error { return nil }
