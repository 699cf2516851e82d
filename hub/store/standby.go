package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/state"
)

// A Member is a hub as one of several on a database.
type Member struct {
	Name    string // as people call it
	Address string // of its peer listener
	Token   uint64 // by which it leads, see Standby.Take
}

const (
	metaLeader = "leader"       // leadership, as JSON
	metaFrom   = "changes-from" // the table changes has every commit after this revision
	metaKept   = "kept-"        // begins the keys of what Keep keeps

	// frozen is how long the server lets a leader hold the row without a word: one that was stopped
	// in the middle of a transaction must not keep it from the others.
	frozen = 2 * time.Second
	// changesKept is how many revisions a standby may be behind without reading all anew.
	changesKept = 50_000
	// changesMost is how many objects are read by their names; where it are more, all are.
	changesMost = 20_000
)

// leadership is what a leader says of itself beside its row.
type leadership struct {
	Token   uint64 `json:"token"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Left    bool   `json:"left,omitempty"`
}

// ErrStandby: a standby writes nothing.
var ErrStandby = errors.New("this hub stands by: only the one that leads writes")

// A Standby is the database of a hub that does not lead. It reads, and takes the leader's row.
type Standby struct {
	store *Store
	lock  *os.File
	cold  bool // its schema is older than this program: what is in it is read when this hub leads
}

// StandBy opens the database for a hub that does not lead, and makes it where there is none. It
// takes the lock of the data directory until it is closed. The key of secrets has to be the
// database's: without it this hub could not take over.
func StandBy(ctx context.Context, o Options) (_ *Standby, err error) {
	address, err := place(o)
	if err != nil {
		return nil, err
	}
	if address == "" {
		return nil, errors.New("several hubs share a PostgreSQL database: name it with --database, or start this one without --peer-listen")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w; make the directory above it writable or choose another with --data-dir", err)
	}
	if err := private(o.Dir, newStore(o, "").log); err != nil {
		return nil, err
	}
	s := newStore(o, filepath.Join(o.Dir, database))
	log := s.log
	s.log = slog.New(slog.DiscardHandler) // whoever tries again and again says himself what is wrong
	defer func() {
		if err != nil {
			err = errors.Join(s.explain(err), s.Close())
			return
		}
		s.log, s.pg.log = log, log
	}()
	if s.pg, err = parsePostgres(address, o.waits, s.log); err != nil {
		return nil, err
	}
	s.connectPostgres()
	if err := s.reach(ctx); err != nil {
		return nil, err
	}
	have, err := s.fit(ctx, o)
	if err != nil {
		return nil, err
	}
	if have == 0 { // the first of all begins it, as a hub alone would
		alone := o
		alone.Member = nil
		first, err := Open(ctx, alone)
		if err != nil {
			return nil, err
		}
		if err := first.Close(); err != nil {
			return nil, err
		}
		have = latest()
	}
	if s.seal, err = s.knownSealer(ctx); err != nil {
		return nil, err
	}
	if err := keepPlace(o); err != nil {
		return nil, err
	}
	s.pg.standby = true
	lock, err := takeLock(o.Dir)
	if err != nil {
		return nil, err
	}
	return &Standby{store: s, cold: have < latest(), lock: lock}, nil
}

// knownSealer reads the key by which the database is sealed; it makes none.
func (s *Store) knownSealer(ctx context.Context) (*sealer, error) {
	known, err := s.Meta(ctx, metaKeyID)
	if errors.Is(err, ErrNotFound) { // the first hub is just making it
		return nil, fmt.Errorf("%w: another hub is making the database", ErrLocked)
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, secretsKey)
	key, err := readKey(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w: it is missing, and the hubs of a database share one: copy %s from the data directory of the first hub, with mode 0600", file, ErrKey, secretsKey)
	}
	if err != nil {
		return nil, err
	}
	if id := keyID(key); id != known {
		return nil, fmt.Errorf("open %s: %w: its id is %s, and the database is sealed with key %s: copy %s from the data directory of the first hub", file, ErrKey, id, known, secretsKey)
	}
	return newSealer(key)
}

func keyID(key []byte) string {
	sum := sha256.Sum256(append([]byte(keyIDPurpose), key...))
	return hex.EncodeToString(sum[:8])
}

// Close gives the data directory back.
func (s *Standby) Close() error { return errors.Join(s.store.Close(), s.lock.Close()) }

// People is the database for those who only read who may do what.
func (s *Standby) People() *Store { return s.store }

// Row is who leads.
func (s *Standby) Row(ctx context.Context) (row leader.Row, err error) {
	defer func() { err = s.store.explain(err) }()
	var said, rev sql.NullString
	var held bool
	if err := s.store.read.QueryRowContext(ctx, `SELECT l.token, l.tx, m.value, r.value,
		EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = ?::int::oid AND objid = hashtext(current_schema())::oid
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
		FROM leader l LEFT JOIN meta m ON m.key = ? LEFT JOIN meta r ON r.key = ?`, lockClass, metaLeader, metaRevision).Scan(&row.Token, &row.Beat, &said, &rev, &held); err != nil {
		return row, err
	}
	row.Revision, _ = strconv.ParseUint(rev.String, 10, 64)
	var l leadership
	if json.Unmarshal([]byte(said.String), &l) == nil && l.Token == row.Token {
		row.Holder, row.Address, row.Left = l.Name, l.Address, l.Left
		return row, nil
	}
	// A hub that knows of no others had it last: it does not beat, and leads as long as it is there.
	row.Holder, row.Left = "a hub without --peer-listen", !held
	if held {
		row.Beat = uint64(time.Now().UnixNano())
	}
	return row, nil
}

// Take makes a member the leader, if the row is still as it was seen, and nobody is in the
// middle of a transaction. Whoever led until now can commit nothing any more when it
// returns.
func (s *Standby) Take(ctx context.Context, seen leader.Row, m Member) (token uint64, err error) {
	defer func() { err = s.store.explain(err) }()
	c, err := s.store.read.conn(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	said, err := json.Marshal(leadership{Token: seen.Token + 1, Name: m.Name, Address: m.Address})
	if err != nil {
		return 0, err
	}
	err = c.raw(func(c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(t pgx.Tx) error {
			var now, tx uint64
			err := t.QueryRow(ctx, "SELECT token, tx FROM leader FOR UPDATE NOWAIT").Scan(&now, &tx)
			var e *pgconn.PgError
			if errors.As(err, &e) && e.Code == stateLocked || err == nil && (now != seen.Token || tx != seen.Beat && !seen.Left) {
				return ErrExists
			}
			if err != nil {
				return err
			}
			if _, err := t.Exec(ctx, "UPDATE leader SET token = token + 1, tx = tx + 1, who = $1, written = $2", m.Name, stamp(time.Now())); err != nil {
				return err
			}
			_, err = t.Exec(ctx, "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", metaLeader, string(said))
			return err
		})
	})
	if errors.Is(err, ErrExists) {
		return 0, fmt.Errorf("take the lead: the leader lives, or another hub was faster: %w", ErrExists)
	}
	return seen.Token + 1, err
}

const stateLocked = "55P03"

// HubID is the identity that the hubs of a database share.
func (s *Standby) HubID(ctx context.Context) (string, error) { return s.store.HubID(ctx) }

// Kept is what Keep has kept.
func (s *Standby) Kept(ctx context.Context, name string) ([]byte, error) {
	return s.store.Kept(ctx, name)
}

// A Delta is what has changed since a revision.
type Delta struct {
	Rev  uint64 // up to which
	All  bool   // Rows are all that there is
	Rows []Row  // as they are now; those without an object are gone, with the revision of their end
}

// Gone are the objects that are no more.
func (d Delta) Gone() (gone []state.Key) {
	for _, r := range d.Rows {
		if r.Object == nil {
			gone = append(gone, state.Key{Kind: state.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name})
		}
	}
	return gone
}

// Follow returns what the leader has committed since a revision, or all of it where that is not
// known any more.
func (s *Standby) Follow(ctx context.Context, rev uint64) (d Delta, err error) {
	defer func() { err = s.store.explain(err) }()
	if s.cold {
		return Delta{}, fmt.Errorf("follow the hub that leads: the database has an older schema, which this program migrates when it leads: %w", ErrUnavailable)
	}
	c, err := s.store.read.conn(ctx)
	if err != nil {
		return d, err
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return d, err
	}
	defer func() {
		if _, rerr := c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); err == nil {
			err = rerr
		}
	}()
	var now, from sql.NullString
	if err := c.QueryRowContext(ctx, "SELECT (SELECT value FROM meta WHERE key = ?), (SELECT value FROM meta WHERE key = ?)", metaRevision, metaFrom).Scan(&now, &from); err != nil {
		return d, err
	}
	if d.Rev, err = strconv.ParseUint(now.String, 10, 64); err != nil {
		return d, fmt.Errorf("read the revision: %w", err)
	}
	first, ferr := strconv.ParseUint(from.String, 10, 64)
	if rev != 0 && rev == d.Rev {
		return d, nil
	}
	if rev != 0 && rev < d.Rev && ferr == nil && rev >= first {
		if d.Rows, err = s.changed(ctx, c, rev); err != nil || d.Rows != nil {
			return d, err
		}
	}
	d.All = true
	kinds, err := listKinds(ctx, c)
	for _, kind := range kinds {
		if err == nil {
			err = s.store.loadKind(ctx, c, kind, func(r Row) error {
				d.Rows = append(d.Rows, r)
				return nil
			})
		}
	}
	return d, err
}

// changed are the objects that were written since a revision; nil: too many.
func (s *Standby) changed(ctx context.Context, c *conn, rev uint64) (all []Row, err error) {
	rows, err := c.QueryContext(ctx, "SELECT DISTINCT ON (kind, namespace, name) kind, namespace, name, rev FROM changes WHERE commit > ? ORDER BY kind, namespace, name, commit DESC LIMIT ?", int64(rev), changesMost+1)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all = []Row{}
	for rows.Next() {
		var r Row
		if err := rows.Scan(&r.Kind, &r.Namespace, &r.Name, &r.Rev); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil || len(all) > changesMost {
		return nil, err
	}
	for begin := 0; begin < len(all); {
		end := begin
		var namespaces, names []string
		for ; end < len(all) && all[end].Kind == all[begin].Kind; end++ {
			namespaces, names = append(namespaces, all[end].Namespace), append(names, all[end].Name)
		}
		of := all[begin:end] // sorted
		if err := s.store.loadRows(ctx, c, of[0].Kind, "SELECT namespace, name, uid, rev, node, phase, object FROM {kind} WHERE (namespace, name) IN (SELECT * FROM unnest(?::text[], ?::text[]))",
			[]any{namespaces, names}, func(r Row) error {
				i, found := slices.BinarySearchFunc(of, r, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) })
				if !found {
					return fmt.Errorf("%s %s/%s was not asked for", r.Kind, r.Namespace, r.Name)
				}
				of[i] = r
				return nil
			}); err != nil {
			return nil, err
		}
		begin = end
	}
	return all, nil
}

// Beat shows the standbys that this hub lives. It fails as any transaction would.
func (s *Store) Beat(ctx context.Context) error {
	return s.tx(ctx, func(context.Context, *conn) error { return nil })
}

// Holds is nil when the token of this hub is in the row of a server that takes writes. It asks past the
// transaction that the hub may be in the middle of, and which holds the row as long as it takes.
func (s *Store) Holds(ctx context.Context) (err error) {
	defer func() { err = s.explain(err) }()
	ctx, cancel := context.WithTimeout(ctx, leader.Beat)
	defer cancel()
	var token uint64
	if err := s.read.QueryRowContext(ctx, "SELECT token FROM leader WHERE NOT pg_is_in_recovery()").Scan(&token); err != nil {
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
		_, err := c.ExecContext(ctx, "INSERT INTO meta (key, value) SELECT ?, value FROM meta WHERE key = ? ON CONFLICT (key) DO UPDATE SET value = excluded.value", metaFrom, metaRevision)
		return err
	})
}

// logChanges notes what a commit changes, in its transaction.
func (s *Store) logChanges(ctx context.Context, c *conn, rows []Row, rev uint64) error {
	var revs []int64
	var kinds, namespaces, names []string
	for _, r := range rows {
		revs, kinds, namespaces, names = append(revs, int64(r.Rev)), append(kinds, r.Kind), append(namespaces, r.Namespace), append(names, r.Name)
	}
	if _, err := c.ExecContext(ctx, "INSERT INTO changes (commit, rev, kind, namespace, name) SELECT ?::bigint, * FROM unnest(?::bigint[], ?::text[], ?::text[], ?::text[])", int64(rev), revs, kinds, namespaces, names); err != nil {
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

// Leave hands the lead over, in order, while this hub still says goodbye to who is there: nobody waits for
// that. From then on this store writes as a command does, which is what is left of the audit.
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

// leave says that this hub has ended in order, so that nobody waits for it.
func (s *Store) leave(ctx context.Context) error {
	m := s.pg.member
	said, err := json.Marshal(leadership{Token: m.Token, Name: m.Name, Address: m.Address, Left: true})
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
		return errors.New("several hubs share a PostgreSQL database: name it with --database, or start this one without --peer-listen")
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
