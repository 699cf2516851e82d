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

// ErrStandby: a standby writes nothing.
var ErrStandby = errors.New("this hub stands by: only the one that leads writes")

// A Standby is the database of a hub that does not lead. It reads, and takes the leader's row.
type Standby struct {
	store *Store
	lock  *dirLock

	mu   sync.Mutex
	saw  progress // how far the database was at least, as its witness here says
	told bool     // that it is older than that
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
		return nil, errors.New("several hubs share a PostgreSQL database: name it with --database, or start this one " +
			"without --peer-listen")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w; make the directory above it writable or choose another with "+
			"--data-dir", err)
	}
	if err := private(o, newStore(o, "").log); err != nil {
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
	if have > 0 {
		if err := s.notAnothers(ctx); err != nil {
			return nil, err
		}
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
	}
	if s.seal, err = s.knownSealer(ctx); err != nil {
		return nil, err
	}
	if err := keepPlace(o); err != nil {
		return nil, err
	}
	s.pg.standby = true
	lock, err := takeLock(o.Dir, anotherHub)
	if err != nil {
		return nil, err
	}
	saw := witnessed(o.Dir)
	if err := s.openWitness(ctx); err != nil {
		log.Warn("how far the database is cannot be noted beside it", "err", err)
	}
	return &Standby{store: s, lock: lock, saw: saw}, nil
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
		return nil, fmt.Errorf("open %s: %w: it is missing, and the hubs of a database share one: copy %s from the data "+
			"directory of the first hub, with mode 0600", file, ErrKey, secretsKey)
	}
	if err != nil {
		return nil, err
	}
	if id := keyID(key); id != known {
		return nil, fmt.Errorf("open %s: %w: its id is %s, and the database is sealed with key %s: copy %s from the data "+
			"directory of the first hub", file, ErrKey, id, known, secretsKey)
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
	s.sees(is)
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

// sees notes how far the database is. A hub that leads one that is older may not know it: it has
// not seen the newer one, or its files were lost.
func (s *Standby) sees(is progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.saw.before(is):
		s.saw, s.told = is, false
		s.store.witness.saw(is)
	case is.before(s.saw) && !s.told:
		s.told = true
		s.store.log.Error("DATABASE IS OLDER than this hub, which stands by, has seen it: changes are lost. This hub "+
			"holds still when it leads; one that leads already and says nothing does not know, and tells devices what is in "+
			"the older one: stop it, unless that is what you want",
			"database", s.store.where(), "revision", is.rev, "seen", s.saw.rev, "transactions", is.writes, "seenTransactions",
			s.saw.writes)
	}
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
					"excluded.value", metaLeader, string(said))
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
		return d, fmt.Errorf("follow the hub that leads: the database has an older schema, which a hub of this version "+
			"migrates when it leads: %w", ErrUnavailable)
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

// changed are the objects that were written since a revision; nil: too many.
func (s *Standby) changed(ctx context.Context, c *conn, rev uint64) (all []Row, err error) {
	rows, err := c.QueryContext(ctx, "SELECT DISTINCT ON (kind, namespace, name) kind, namespace, name, rev FROM "+
		"changes WHERE commit > ? ORDER BY kind, namespace, name, commit DESC LIMIT ?", int64(rev), changesMost+1)
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
		if err := s.store.loadRows(ctx, c, of[0].Kind, "SELECT namespace, name, uid, rev, node, phase, object FROM {kind} "+
			"WHERE (namespace, name) IN (SELECT * FROM unnest(?::text[], ?::text[]))",
			[]any{namespaces, names}, func(r Row) error {
				i, found := slices.BinarySearchFunc(of, r, func(a,
					b Row) int {
					return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
				})
				if !found {
					return fmt.Errorf("%s %s/%s was not asked for", r.Kind, r.Namespace, r.Name)
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
