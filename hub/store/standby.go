package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/state"
)

const (
	metaLeader = "leader"       // key of leadership, as JSON
	metaFrom   = "changes-from" // key of the revision from which the table changes has each commit
	metaKept   = "kept-"        // prefix of the keys of Keep

	// leaderIdleTimeout is how long an idle leader may lock the row. A leader that was stopped in a
	// transaction must not block a takeover.
	leaderIdleTimeout = 2 * time.Second
	// changesKept is how many revisions a standby may lag before it has to read everything.
	changesKept = 50_000
	// maxNamedReads is how many objects a standby reads by name; beyond that it reads everything.
	maxNamedReads = 20_000
)

// ErrStandby: a standby never writes.
var ErrStandby = errors.New("this hub is a standby: only the leader writes")

// A Standby is the database of a hub that does not lead. It reads, and can take the lead.
type Standby struct {
	store *Store
	lock  *dirLock

	mu          sync.Mutex
	highest     progress // the highest progress seen, at first from the high-water mark
	olderLogged bool     // an older database was logged
}

// StandBy opens the database for a hub that does not lead, and creates it if needed. It holds the
// lock of the data directory until Close. The hub needs the database's key, because it could not
// take over without it.
func StandBy(ctx context.Context, o Options) (_ *Standby, err error) {
	address, err := place(o)
	if err != nil {
		return nil, err
	}
	if address == "" {
		return nil, errors.New("several hubs need a PostgreSQL database: name it with --database, or start this hub " +
			"without --peer-listen")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w; make the directory above it writable or choose another with "+
			"--data-dir", err)
	}
	if err := checkDirectory(o, newStore(o, "").log); err != nil {
		return nil, err
	}
	s := newStore(o, filepath.Join(o.Dir, database))
	log := s.log
	s.log = slog.New(slog.DiscardHandler) // the caller retries and logs errors
	defer func() {
		if err != nil {
			err = errors.Join(s.explain(err), s.Close())
			return
		}
		s.log, s.pg.log = log, log
	}()
	if s.pg, err = parsePostgres(address, o.timeouts, s.log); err != nil {
		return nil, err
	}
	s.connectPostgres()
	if err := s.reconnect(ctx); err != nil {
		return nil, err
	}
	have, err := s.checkServer(ctx, o)
	if err != nil {
		return nil, err
	}
	if have > 0 {
		if err := s.refuseForeign(ctx); err != nil {
			return nil, err
		}
	}
	if have == 0 { // the first hub creates the tables like a single hub
		alone := o
		alone.Member = nil
		first, err := Open(ctx, alone)
		if err != nil {
			return nil, err
		}
		if err := first.Close(); err != nil {
			return nil, err
		}
	}
	if s.seal, err = s.knownSealer(ctx); err != nil {
		return nil, err
	}
	if err := writePlace(o); err != nil {
		return nil, err
	}
	s.pg.standby = true
	lock, err := takeLock(o.Dir, anotherHub)
	if err != nil {
		return nil, err
	}
	saw := readHighWater(o.Dir)
	if err := s.openHighWater(ctx); err != nil {
		log.Warn("cannot write the database's high-water mark", "err", err)
	}
	return &Standby{store: s, lock: lock, highest: saw}, nil
}

// knownSealer reads the key that seals the database. It never creates a key.
func (s *Store) knownSealer(ctx context.Context) (*sealer, error) {
	known, err := s.Meta(ctx, metaKeyID)
	if errors.Is(err, ErrNotFound) { // the first hub is creating the database
		return nil, fmt.Errorf("%w: another hub is creating the database", ErrLocked)
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, secretsKey)
	key, err := readKey(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w: it is missing: all hubs of a database need the same key: copy %s from the data "+
			"directory of the first hub, with mode 0600", file, ErrKey, secretsKey)
	}
	if err != nil {
		return nil, err
	}
	if id := keyID(key); id != known {
		return nil, fmt.Errorf("open %s: %w: its ID is %s, but the database is sealed with key %s: copy %s from the data "+
			"directory of the first hub", file, ErrKey, id, known, secretsKey)
	}
	return newSealer(key)
}

func keyID(key []byte) string {
	sum := sha256.Sum256(append([]byte(keyIDPurpose), key...))
	return hex.EncodeToString(sum[:8])
}

// Close closes the database and releases the data directory.
func (s *Standby) Close() error { return errors.Join(s.store.Close(), s.lock.Close()) }

// People returns the store for reading users and their rights.
func (s *Standby) People() *Store { return s.store }

// Row returns the leader's row.
func (s *Standby) Row(ctx context.Context) (row leader.Row, err error) {
	defer func() { err = s.store.explain(err) }()
	var said, rev, writes sql.NullString
	var held bool
	if err := s.store.read.QueryRowContext(ctx, `SELECT l.token, l.tx, m.value, r.value, w.value,
		EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = ?::int::oid AND objid = hashtext(current_schema())::oid
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
		FROM leader l LEFT JOIN meta m ON m.key = ? LEFT JOIN meta r ON r.key = ? LEFT JOIN meta w ON w.key = ?`, lockClass, metaLeader, metaRevision, metaWrites).Scan(&row.Token, &row.Beat, &said, &rev, &writes, &held); err != nil {
		return row, err
	}
	row.Revision, _ = strconv.ParseUint(rev.String, 10, 64)
	is := progress{rev: row.Revision}
	is.writes, _ = strconv.ParseUint(writes.String, 10, 64)
	s.observe(is)
	var l leadership
	if json.Unmarshal([]byte(said.String), &l) == nil && l.Token == row.Token {
		row.Holder, row.Address, row.Left = l.Name, l.Address, l.Left
		return row, nil
	}
	// A single hub was the last leader. It writes no heartbeat, and leads as long as it holds the
	// lock.
	row.Holder, row.Left = "a hub without --peer-listen", !held
	if held {
		row.Beat = uint64(time.Now().UnixNano())
	}
	return row, nil
}

// observe updates the high-water mark. It logs an older database, because the leader may not
// notice: it may never have seen the newer one, or may have lost its files.
func (s *Standby) observe(is progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.highest.before(is):
		s.highest, s.olderLogged = is, false
		s.store.highWater.write(is)
	case is.before(s.highest) && !s.olderLogged:
		s.olderLogged = true
		s.store.log.Error("DATABASE IS OLDER than this standby has seen it: changes are lost. This hub pauses when it "+
			"leads. A leader that does not report it has not noticed, and sends devices the older state: stop it, unless you "+
			"want that",
			"database", s.store.where(), "revision", is.rev, "seen", s.highest.rev, "transactions", is.writes,
			"seenTransactions",
			s.highest.writes)
	}
}

// Take makes a member the leader if the leader's row is still as seen and no transaction is open.
// After Take the former leader cannot commit.
func (s *Standby) Take(ctx context.Context, seen leader.Row, m Member) (token uint64, err error) {
	defer func() { err = s.store.explain(err) }()
	c, err := s.store.read.conn(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	text, err := json.Marshal(leadership{Token: seen.Token + 1, Name: m.Name, Address: m.Address})
	if err != nil {
		return 0, err
	}
	err = c.raw(func(c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite},
			func(t pgx.Tx) error {
				var now, tx uint64
				err := t.QueryRow(ctx, "SELECT token, tx FROM leader FOR UPDATE NOWAIT").Scan(&now, &tx)
				var e *pgconn.PgError
				if errors.As(err, &e) && e.Code == stateLocked ||
					err == nil && (now != seen.Token || tx != seen.Beat && !seen.Left) {
					return ErrExists
				}
				if err != nil {
					return err
				}
				if _, err := t.Exec(ctx, "UPDATE leader SET token = token + 1, tx = tx + 1, who = $1, written = $2", m.Name,
					stamp(time.Now())); err != nil {
					return err
				}
				_, err = t.Exec(ctx, "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = "+
					"excluded.value", metaLeader, string(text))
				return err
			})
	})
	if errors.Is(err, ErrExists) {
		return 0, fmt.Errorf("take the lead: the leader is alive, or another hub was faster: %w", ErrExists)
	}
	return seen.Token + 1, err
}

const stateLocked = "55P03"

// HubID returns the identity that the hubs of a database share.
func (s *Standby) HubID(ctx context.Context) (string, error) { return s.store.HubID(ctx) }

// Kept returns a value that Keep stored.
func (s *Standby) Kept(ctx context.Context, name string) ([]byte, error) {
	return s.store.Kept(ctx, name)
}

// A Delta has the changes since a revision.
type Delta struct {
	Rev  uint64 // includes changes up to this revision
	All  bool   // Rows are all objects
	Rows []Row  // current objects; the Object of a deleted one is nil, and its Rev is that of the deletion
}

// Gone returns the deleted objects.
func (d Delta) Gone() (gone []state.Key) {
	for _, r := range d.Rows {
		if r.Object == nil {
			gone = append(gone, state.Key{Kind: state.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name})
		}
	}
	return gone
}

// Follow returns the leader's commits since a revision, or all objects if the change log does not
// reach back that far.
func (s *Standby) Follow(ctx context.Context, rev uint64) (d Delta, err error) {
	defer func() { err = s.store.explain(err) }()
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
	var now, from, schema sql.NullString
	if err := c.QueryRowContext(ctx, "SELECT (SELECT value FROM meta WHERE key = ?), (SELECT value FROM meta WHERE key "+
		"= ?), (SELECT value FROM meta WHERE key = ?)", metaRevision, metaFrom,
		metaSchema).Scan(&now, &from, &schema); err != nil {
		return d, err
	}
	if have, err := strconv.Atoi(schema.String); err != nil || have < latest() {
		return d, fmt.Errorf("follow the leader: the database has an older schema, which a leader of this version migrates: "+
			"%w", ErrUnavailable)
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
				r.Object = bytes.Clone(r.Object)
				d.Rows = append(d.Rows, r)
				return nil
			})
		}
	}
	return d, err
}

// changed returns the objects that were written since a revision; nil: too many objects.
func (s *Standby) changed(ctx context.Context, c *conn, rev uint64) (all []Row, err error) {
	rows, err := c.QueryContext(ctx, "SELECT DISTINCT ON (kind, namespace, name) kind, namespace, name, rev FROM "+
		"changes WHERE commit > ? ORDER BY kind, namespace, name, commit DESC LIMIT ?", int64(rev), maxNamedReads+1)
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
	if err := rows.Err(); err != nil || len(all) > maxNamedReads {
		return nil, err
	}
	for begin := 0; begin < len(all); {
		end := begin
		var namespaces, names []string
		for ; end < len(all) && all[end].Kind == all[begin].Kind; end++ {
			namespaces, names = append(namespaces, all[end].Namespace), append(names, all[end].Name)
		}
		of := all[begin:end] // sorted by kind
		if err := s.store.loadRows(ctx, c, of[0].Kind, "SELECT namespace, name, uid, rev, node, phase, object FROM {kind} "+
			"WHERE (namespace, name) IN (SELECT * FROM unnest(?::text[], ?::text[]))",
			[]any{namespaces, names}, func(r Row) error {
				i, found := slices.BinarySearchFunc(of, r, func(a,
					b Row) int {
					return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
				})
				if !found {
					return fmt.Errorf("%s %s/%s was not requested", r.Kind, r.Namespace, r.Name)
				}
				r.Object = bytes.Clone(r.Object)
				of[i] = r
				return nil
			}); err != nil {
			return nil, err
		}
		begin = end
	}
	return all, nil
}
