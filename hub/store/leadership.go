package store

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"flotilla.dev/hub/leader"
)

// A Member is one of several hubs that share a database.
type Member struct {
	Name    string // shown to users
	Address string // address of its peer listener
	Token   uint64 // token of its lead, see Standby.Take
}

// leadership is what a leader publishes beside its row.
type leadership struct {
	Token   uint64 `json:"token"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Left    bool   `json:"left,omitempty"`
}

// Beat writes a heartbeat for the standbys. It can fail like any transaction, but its loss loses
// nothing.
func (s *Store) Beat(ctx context.Context) error { return s.tx(ctx, nil) }

// Holds returns nil if this hub's token is in the leader's row of a writable server. It reads
// outside of the hub's running transaction, which may lock the row for long.
func (s *Store) Holds(ctx context.Context) (err error) {
	defer func() { err = s.explain(err) }()
	ctx, cancel := context.WithTimeout(ctx, leader.Beat)
	defer cancel()
	var token uint64
	if err := s.read.QueryRowContext(ctx,
		"SELECT token FROM leader WHERE NOT pg_is_in_recovery()").Scan(&token); err != nil {
		return err
	}
	if token != s.pg.member.Token {
		return fmt.Errorf("%w: another hub has taken over %s", ErrLocked, s.pg.where)
	}
	return nil
}

// Leads reports whether this is the store of a leader with standbys.
func (s *Store) Leads() bool { return s.pg != nil && s.pg.member != nil }

// beginChanges starts the change log that standbys follow. A new leader may start it again, and
// standbys then read everything.
func (s *Store) beginChanges(ctx context.Context) error {
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		for _, query := range []string{
			`CREATE TABLE IF NOT EXISTS changes (commit bigint NOT NULL, rev bigint NOT NULL, kind text COLLATE "C" NOT NULL, namespace text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL)`,
			"CREATE INDEX IF NOT EXISTS changes_commit ON changes (commit)",
			"DELETE FROM changes",
		} {
			if _, err := c.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		_, err := c.ExecContext(ctx, "INSERT INTO meta (key, value) SELECT ?, value FROM meta WHERE key = ? ON CONFLICT "+
			"(key) DO UPDATE SET value = excluded.value", metaFrom, metaRevision)
		return err
	})
}

// endChanges marks the change log as not written, because this hub now has no standbys.
func (s *Store) endChanges(ctx context.Context) error {
	_, err := s.exec(ctx, "DELETE FROM meta WHERE key = ?", metaFrom)
	return err
}

// logChanges writes the changes of a commit to the log, in the same transaction.
func (s *Store) logChanges(ctx context.Context, c *conn, rows []Row, rev uint64) error {
	var revs []int64
	var kinds, namespaces, names []string
	for _, r := range rows {
		revs, kinds, namespaces, names = append(revs, int64(r.Rev)), append(kinds, r.Kind), append(namespaces, r.Namespace),
			append(names, r.Name)
	}
	if _, err := c.ExecContext(ctx, "INSERT INTO changes (commit, rev, kind, namespace, name) SELECT ?::bigint, * FROM "+
		"unnest(?::bigint[], ?::text[], ?::text[], ?::text[])", int64(rev), revs, kinds, namespaces, names); err != nil {
		return err
	}
	const every = changesKept / 10
	if rev/every == s.rev/every || rev < changesKept {
		return nil
	}
	if _, err := c.ExecContext(ctx, "DELETE FROM changes WHERE commit <= ?", int64(rev-changesKept)); err != nil {
		return err
	}
	_, err := c.ExecContext(ctx, setMeta, metaFrom, strconv.FormatUint(rev-changesKept, 10))
	return err
}

// Leave gives up the lead while this hub still closes connections, so that no standby waits for its
// lease to expire. Afterwards this store writes only the rest of the audit, like a command.
func (s *Store) Leave(ctx context.Context) error {
	if !s.Leads() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pg
	if !s.isOpen() || p.token == 0 || p.stopped != nil {
		return nil
	}
	if err := s.leave(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	p.token, p.tx = 0, 0
	_, err := s.conn.ExecContext(ctx, "SELECT pg_advisory_unlock_all()")
	return s.explain(err)
}

// SetAddress publishes the address at which other hubs reach this leader.
func (s *Store) SetAddress(ctx context.Context, address string) error {
	if !s.Leads() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pg
	if !s.isOpen() || p.token == 0 || p.stopped != nil {
		return nil
	}
	err := s.writeLeadership(ctx, leadership{Token: p.member.Token, Name: p.member.Name, Address: address})
	if err == nil {
		p.member.Address = address
	}
	return err
}

// leave publishes that this leader has ended, so that no standby waits for its lease to expire.
func (s *Store) leave(ctx context.Context) error {
	m := s.pg.member
	return s.writeLeadership(ctx, leadership{Token: m.Token, Name: m.Name, Address: m.Address, Left: true})
}

// writeLeadership writes what the leader publishes.
func (s *Store) writeLeadership(ctx context.Context, l leadership) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		_, err := c.ExecContext(ctx, setMeta, metaLeader, string(text))
		return err
	})
}

// Keep stores a value for all hubs of this database, encrypted.
func (s *Store) Keep(ctx context.Context, name string, what []byte) error {
	blob, err := s.seal.seal(what, []byte(metaKept+name))
	if err != nil {
		return fmt.Errorf("keep %s in the database: %w", name, err)
	}
	return s.SetMeta(ctx, metaKept+name, base64.StdEncoding.EncodeToString(blob))
}

// Kept returns a value that Keep stored, or ErrNotFound.
func (s *Store) Kept(ctx context.Context, name string) ([]byte, error) {
	text, err := s.Meta(ctx, metaKept+name)
	if err != nil {
		return nil, err
	}
	blob, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("read %s from the database: %w", name, err)
	}
	return s.seal.open(blob, []byte(metaKept+name))
}

// join makes this the store of one of several hubs. It limits how long a leader that was stopped in
// a transaction can lock the row.
func (s *Store) join(m *Member) error {
	if s.pg == nil {
		return errors.New("several hubs need a PostgreSQL database: name it with --database, or start this hub without " +
			"--peer-listen")
	}
	s.pg.member = m
	next := s.pg.config.AfterConnect
	s.pg.config.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		if err := next(ctx, c); err != nil {
			return err
		}
		_, err := c.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d",
			leaderIdleTimeout.Milliseconds())).ReadAll()
		return err
	}
	return nil
}

// stillLeads returns an error if another hub has taken the lead, before that hub's server ends this
// connection.
func (s *Store) stillLeads(ctx context.Context) error {
	var token uint64
	if err := s.conn.QueryRowContext(ctx, "SELECT token FROM leader").Scan(&token); err != nil {
		return err
	}
	if token != s.pg.member.Token {
		return s.stop(fmt.Errorf("%w: another hub has taken over %s: this one exits", ErrLocked, s.pg.where))
	}
	return nil
}

// A Pause is a time in which no hub ran on this database, so nothing was observed. After an unclean
// end it begins at the last write.
type Pause struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Limits of stored pauses, the same as of a node's history.
const (
	pauseAge  = 8 * 24 * time.Hour
	maxPauses = 100
)

// metaPauses is the key of the pauses. It is written only at a start and at a clean end.
const metaPauses = "pauses"

type pauses struct {
	Ended  time.Time `json:"ended,omitzero"` // end of the newest run; zero: the hub runs, or ended uncleanly
	Pauses []Pause   `json:"pauses,omitempty"`
}

// Begin records the start of the hub, and returns its pauses, oldest first.
func (s *Store) Begin(ctx context.Context, now time.Time) ([]Pause, error) {
	p, err := s.pauses(ctx)
	if err != nil {
		return nil, err
	}
	from := p.Ended
	if from.IsZero() {
		from = s.written
	}
	if !from.IsZero() && from.Before(now) {
		p.Pauses = append(p.Pauses, Pause{from.UTC(), now.UTC()})
	}
	p.Pauses = slices.DeleteFunc(p.Pauses, func(x Pause) bool { return now.Sub(x.To) > pauseAge })
	p.Pauses = p.Pauses[max(0, len(p.Pauses)-maxPauses):]
	p.Ended = time.Time{}
	return p.Pauses, s.setPauses(ctx, p)
}

// End records a clean end of the hub.
func (s *Store) End(ctx context.Context, now time.Time) error {
	p, err := s.pauses(ctx)
	if err != nil {
		return err
	}
	p.Ended = now.UTC()
	return errors.Join(s.setPauses(ctx, p), s.SetMeta(ctx, metaTime, formTime(now)))
}

// metaTime is the key of the hub's time. The first commit of a start and of each hour writes it,
// and a clean end. It never causes a commit.
const metaTime = "time"

// TimeEvery is the longest time between metaTime and a later commit.
const TimeEvery = time.Hour

func formTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// timeDue reports whether the next commit has to write metaTime.
func (s *Store) timeDue() (now time.Time, tell bool) {
	if s.Now == nil { // a command does not have the hub's time
		return now, false
	}
	now = s.Now()
	return now, now.Sub(s.timeWritten) >= TimeEvery
}

// LastTime returns the stored metaTime, which is at most an hour before the last commit; zero:
// never written.
func (s *Store) LastTime(ctx context.Context) (time.Time, error) {
	text, err := s.Meta(ctx, metaTime)
	switch {
	case errors.Is(err, ErrNotFound):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read the hub's last time: %w", err)
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		s.log.Warn("cannot read the hub's last time; ignoring it", "err", err)
		return time.Time{}, nil
	}
	return t, nil
}

func (s *Store) pauses(ctx context.Context) (p pauses, err error) {
	text, err := s.Meta(ctx, metaPauses)
	switch {
	case errors.Is(err, ErrNotFound):
		return p, nil
	case err != nil:
		return p, fmt.Errorf("read the hub's pauses: %w", err)
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		s.log.Warn("cannot read the hub's pauses; ignoring them", "err", err)
		return pauses{}, nil
	}
	return p, nil
}

func (s *Store) setPauses(ctx context.Context, p pauses) error {
	text, err := json.Marshal(p)
	if err == nil {
		err = s.SetMeta(ctx, metaPauses, string(text))
	}
	if err != nil {
		return fmt.Errorf("write the hub's pauses: %w", err)
	}
	return nil
}

// lastWritten returns when the database was last written; zero: it does not exist.
func (s *Store) lastWritten() (last time.Time) {
	for _, file := range []string{s.file, s.file + "-wal"} {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// takeLeadership takes the advisory lock. On the server, our own lost connection may still hold the
// lock; takeLeadership terminates it.
func (s *Store) takeLeadership(ctx context.Context) error {
	p, began := s.pg, time.Now()
	for {
		var got bool
		if err := s.conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock(?::int, hashtext(coalesce(current_schema(), '')))",
			lockClass).Scan(&got); err != nil {
			return err
		}
		if got {
			break
		}
		var pid int32
		var who, since, from sql.NullString
		err := s.conn.QueryRowContext(ctx,
			`SELECT l.pid, a.application_name, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), host(a.client_addr)
			FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.granted AND l.classid = ?::int::oid AND l.objid = hashtext(coalesce(current_schema(), ''))::oid
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, lockClass).Scan(&pid, &who, &since, &from)
		switch {
		case errors.Is(err, sql.ErrNoRows): // the lock was released a moment ago
		case err != nil:
			return err
		// This member holds the lead, or compare finds that it does not. In both cases the other
		// connection cannot commit.
		case pid != p.pid && p.member != nil:
			if err := s.stillLeads(ctx); err != nil {
				return err
			}
			if _, err := s.conn.ExecContext(ctx, "SELECT pg_terminate_backend(?::int)", pid); err != nil {
				return err
			}
		case pid != p.pid && time.Since(began) < time.Second: // the server needs a moment after a kill
		case pid != p.pid:
			at := "on the server's machine"
			if from.String != "" {
				at = "from " + from.String
			}
			return fmt.Errorf("lock %s: %w: another hub (connected %s since %s) writes there; stop it, or give this one "+
				"another --database", p.where, ErrLocked, at, since.String)
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
	if p.token == 0 { // at a start, openPostgres takes a new token
		return nil
	}
	return s.compare(ctx)
}
