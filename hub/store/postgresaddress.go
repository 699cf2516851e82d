package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
