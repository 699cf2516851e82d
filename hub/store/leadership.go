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

// A Member is a hub as one of several on a database.
type Member struct {
	Name    string // as people call it
	Address string // of its peer listener
	Token   uint64 // by which it leads, see Standby.Take
}

// leadership is what a leader says of itself beside its row.
type leadership struct {
	Token   uint64 `json:"token"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Left    bool   `json:"left,omitempty"`
}

// Beat shows the standbys that this hub lives. It fails as any transaction would, and is none that
// somebody could miss.
func (s *Store) Beat(ctx context.Context) error { return s.tx(ctx, nil) }

// Holds is nil when the token of this hub is in the row of a server that takes writes. It asks past
// the transaction that the hub may be in the middle of, and which holds the row as long as it
// takes.
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
		return fmt.Errorf("%w: another hub has taken %s over", ErrLocked, s.pg.where)
	}
	return nil
}

// Leads tells whether this is the store of a hub that leads others.
func (s *Store) Leads() bool { return s.pg != nil && s.pg.member != nil }

// beginChanges makes the log that standbys follow. It is nobody's memory: it may begin anew
// with each leader, and then they read all.
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

// endChanges says that nothing is noted: whoever writes from now on is alone, as far as he knows.
func (s *Store) endChanges(ctx context.Context) error {
	_, err := s.exec(ctx, "DELETE FROM meta WHERE key = ?", metaFrom)
	return err
}

// logChanges notes what a commit changes, in its transaction.
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

// Leave hands the lead over, in order, while this hub still says goodbye to who is there: nobody
// waits for that. From then on this store writes as a command does, which is what is left of the
// audit.
func (s *Store) Leave(ctx context.Context) error {
	if !s.Leads() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pg
	if !s.isOpen() || p.token == 0 || p.over != nil {
		return nil
	}
	if err := s.leave(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	p.token, p.tx = 0, 0
	_, err := s.conn.ExecContext(ctx, "SELECT pg_advisory_unlock_all()")
	return s.explain(err)
}

// ReachedAt tells the others where they reach this hub, which leads, from now on.
func (s *Store) ReachedAt(ctx context.Context, address string) error {
	if !s.Leads() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pg
	if !s.isOpen() || p.token == 0 || p.over != nil {
		return nil
	}
	err := s.say(ctx, leadership{Token: p.member.Token, Name: p.member.Name, Address: address})
	if err == nil {
		p.member.Address = address
	}
	return err
}

// leave says that this hub has ended in order, so that nobody waits for it.
func (s *Store) leave(ctx context.Context) error {
	m := s.pg.member
	return s.say(ctx, leadership{Token: m.Token, Name: m.Name, Address: m.Address, Left: true})
}

// say writes what a leader says of itself.
func (s *Store) say(ctx context.Context, l leadership) error {
	said, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		_, err := c.ExecContext(ctx, setMeta, metaLeader, string(said))
		return err
	})
}

// Keep keeps something for all hubs of this database, sealed.
func (s *Store) Keep(ctx context.Context, name string, what []byte) error {
	blob, err := s.seal.seal(what, []byte(metaKept+name))
	if err != nil {
		return fmt.Errorf("keep %s in the database: %w", name, err)
	}
	return s.SetMeta(ctx, metaKept+name, base64.StdEncoding.EncodeToString(blob))
}

// Kept returns what Keep has kept, or ErrNotFound.
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

// join makes this the store of one of several hubs. A server lets a leader that was stopped in the
// middle of a transaction hold the row for a moment only.
func (s *Store) join(m *Member) error {
	if s.pg == nil {
		return errors.New("several hubs share a PostgreSQL database: name it with --database, or start this one without " +
			"--peer-listen")
	}
	s.pg.member = m
	next := s.pg.config.AfterConnect
	s.pg.config.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		if err := next(ctx, c); err != nil {
			return err
		}
		_, err := c.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", frozen.Milliseconds())).ReadAll()
		return err
	}
	return nil
}

// stillLeads tells, before another hub's connection is ended, that it is not the one that leads.
func (s *Store) stillLeads(ctx context.Context) error {
	var token uint64
	if err := s.conn.QueryRowContext(ctx, "SELECT token FROM leader").Scan(&token); err != nil {
		return err
	}
	if token != s.pg.member.Token {
		return s.isOver(fmt.Errorf("%w: another hub has taken %s over: this one ends", ErrLocked, s.pg.where))
	}
	return nil
}

// A Pause is a while in which no hub ran on this database, and so nothing was
// noticed. One that did not end cleanly is taken to have run until it last wrote.
type Pause struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// How many pauses are kept, and for how long: as long as a node's history.
const (
	pauseAge  = 8 * 24 * time.Hour
	maxPauses = 100
)

// metaPauses is written at a start and at a clean end, and never in between.
const metaPauses = "pauses"

type pauses struct {
	Ended  time.Time `json:"ended,omitzero"` // of the newest run; zero: it runs, or did not end cleanly
	Pauses []Pause   `json:"pauses,omitempty"`
}

// Begin notes that the hub runs from now on, and returns when it did not, oldest first.
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

// End notes that the hub ends cleanly.
func (s *Store) End(ctx context.Context, now time.Time) error {
	p, err := s.pauses(ctx)
	if err != nil {
		return err
	}
	p.Ended = now.UTC()
	return errors.Join(s.setPauses(ctx, p), s.SetMeta(ctx, metaTime, formTime(now)))
}

// metaTime is the hub's own time, with the first commit of a start and of an hour, for which no
// commit is made, and at a clean end.
const metaTime = "time"

// TimeEvery is how much later than metaTime a commit may be.
const TimeEvery = time.Hour

func formTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// untold tells whether it is time to note the hub's.
func (s *Store) untold() (now time.Time, tell bool) {
	if s.Now == nil { // a command's store: nobody's time
		return now, false
	}
	now = s.Now()
	return now, now.Sub(s.told) >= TimeEvery
}

// LastTime is the hub's own time when it was noted last, at most an hour before the last commit;
// zero where it never was.
func (s *Store) LastTime(ctx context.Context) (time.Time, error) {
	text, err := s.Meta(ctx, metaTime)
	switch {
	case errors.Is(err, ErrNotFound):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read the time of the hub: %w", err)
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		s.log.Warn("when the hub was there last is not readable, and is forgotten", "err", err)
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
		return p, fmt.Errorf("read when the hub ran: %w", err)
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		s.log.Warn("when the hub ran is not readable, and is forgotten", "err", err)
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
		return fmt.Errorf("note when the hub runs: %w", err)
	}
	return nil
}

// lastWritten is when the database was written last, zero where there is none yet.
func (s *Store) lastWritten() (last time.Time) {
	for _, file := range []string{s.file, s.file + "-wal"} {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// takeLeadership takes the advisory lock. The connection that we have lost may still have
// it, where the server has not heard of its end: it is ended there.
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
		case errors.Is(err, sql.ErrNoRows): // it has just gone
		case err != nil:
			return err
		// the row is ours, or compare finds out that it is not: whoever has the lock cannot commit
		case pid != p.pid && p.member != nil:
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
			return fmt.Errorf("lock %s: %w: another hub (connected %s since %s) writes there; stop it, or give this one its "+
				"own --database", p.where, ErrLocked, at, since.String)
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
