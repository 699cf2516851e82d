package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"time"
	"unsafe"

	"flotilla.dev/hub/state"
)

// A Row is one stored object.
type Row struct {
	Kind, Namespace, Name, UID string
	Rev                        uint64 // resourceVersion
	Node, Phase                string // columns for queries by hand; "" if the kind has none
	Object                     []byte // JSON or protobuf; nil: the object is deleted
}

// A Commit is the result of one pass.
type Commit struct {
	Rev  uint64 // the hub's revision after the commit; never decreases
	Rows []Row  // of two rows of one object, the later one is stored
}

// sealedKind reports whether objects of a kind are encrypted in the database.
func sealedKind(kind string) bool {
	r := state.Kind(kind).Row()
	return r != nil && r.Sealed
}

// protoKind reports whether objects of a kind are stored in Kubernetes' protobuf form.
func protoKind(kind string) bool {
	r := state.Kind(kind).Row()
	return r != nil && r.Proto
}

// expendableKind reports whether new objects of a kind are dropped while the disk is full.
func expendableKind(kind string) bool {
	r := state.Kind(kind).Row()
	return r != nil && r.Expendable
}

var kindForm = regexp.MustCompile(`^[a-z][a-z0-9]{0,62}$`)

// The statements that write the table of a kind.
const (
	putRow = `INSERT INTO {kind} (namespace, name, uid, rev, node, phase, object) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (namespace, name) DO UPDATE SET uid = excluded.uid, rev = excluded.rev,
		node = excluded.node, phase = excluded.phase, object = excluded.object`
	changeRow = `UPDATE {kind} SET uid = ?, rev = ?, node = ?, phase = ?, object = ? WHERE namespace = ? AND name = ?`
	removeRow = `DELETE FROM {kind} WHERE namespace = ? AND name = ?`
)

// A kindTable holds the prepared statements of one kind's table. With PostgreSQL it is empty: it
// only shows that the table exists.
type kindTable struct{ put, change, remove *sql.Stmt }

func (t *kindTable) close() error {
	if t.put == nil {
		return nil
	}
	return errors.Join(t.put.Close(), t.change.Close(), t.remove.Close())
}

// Commit stores the rows of a pass in one transaction. If it returns nil, all rows are on the disk;
// after an error, no row is. It writes rows in key order, which is much faster with SQLite.
//
// On a full disk it returns ErrFull for a commit that adds objects. Commits that change or delete
// objects still work, because they may use the ballast.
func (s *Store) Commit(ctx context.Context, c Commit) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.lock == nil {
		return errors.New("commit: a hub has this store open, and only that hub writes objects; use its API")
	}
	rows := slices.Clone(c.Rows)
	sort.SliceStable(rows, func(i, j int) bool { // a generic sort would add 10 kB of code
		a, b := &rows[i], &rows[j]
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isOpen() {
		return errors.New("commit: the store is closed")
	}
	if s.Leads() && s.pg.token == 0 { // after Leave, another hub is the only writer of objects
		return ErrStandby
	}
	if c.Rev < s.rev || c.Rev > math.MaxInt64 {
		return fmt.Errorf("commit revision %d: it is less than the newest one, %d", c.Rev, s.rev)
	}
	for i := range rows {
		if err := s.check(&rows[i], c.Rev); err != nil {
			return err
		}
	}
	ctx = context.WithoutCancel(ctx)
	if s.full.Load() && (s.pg == nil || time.Since(s.probedAt) > probeEvery) {
		s.probeSpace(ctx)
	}
	grow := !s.full.Load()
	err := s.apply(ctx, rows, c.Rev, grow)
	if errors.Is(err, ErrFull) && grow {
		if !s.full.Load() {
			s.full.Store(true)
			s.log.Error("the disk is full: new objects are refused until there is space", "where", s.where())
		}
		if s.giveUpBallast() || s.pg != nil {
			err = s.apply(ctx, rows, c.Rev, false)
		}
	}
	if err != nil {
		return fmt.Errorf("commit %d changes: %w", len(rows), err)
	}
	s.rev = c.Rev
	s.highWater.write(s.progress())
	if s.full.Load() && s.pg == nil {
		s.shrink(ctx)
	}
	return nil
}

func (s *Store) check(r *Row, rev uint64) error {
	switch {
	case !kindForm.MatchString(r.Kind):
		return fmt.Errorf("commit %q %s/%s: a kind has lower-case letters and digits only, such as pods", r.Kind, r.Namespace,
			r.Name)
	case r.Name == "":
		return fmt.Errorf("commit %s of namespace %q: the object has no name", r.Kind, r.Namespace)
	case r.Rev > rev:
		return fmt.Errorf("commit %s %s/%s: its revision %d is beyond the commit's %d", r.Kind, r.Namespace, r.Name, r.Rev,
			rev)
	}
	if r.Object != nil && sealedKind(r.Kind) {
		blob, err := s.seal.seal(r.Object, identity(*r))
		if err != nil {
			return fmt.Errorf("seal secret %s/%s: %w", r.Namespace, r.Name, err)
		}
		r.Object = blob
	}
	return nil
}

// apply writes rows in one transaction. Unless grow is set, it adds no object.
func (s *Store) apply(ctx context.Context, rows []Row, rev uint64, grow bool) error {
	var fit []Row // rows of kinds that have a table, or get one
	for i, r := range rows {
		if s.kinds[r.Kind] == nil && (i == 0 || rows[i-1].Kind != r.Kind) {
			if err := s.openKind(ctx, r.Kind); err != nil && (grow || !expendableKind(r.Kind) || !errors.Is(err, ErrFull)) {
				return err
			}
		}
		if s.kinds[r.Kind] != nil {
			fit = append(fit, r)
		}
	}
	lost := len(rows) - len(fit)
	rows = fit
	dropped := 0
	now, tell := s.timeDue()
	write := func(ctx context.Context, c *conn) (err error) {
		dropped = 0 // reset, because a retry runs this function again
		if tell {
			if _, err := c.ExecContext(ctx, setMeta, metaTime, formTime(now)); err != nil {
				return err
			}
		}
		if c.postgres {
			dropped, err = writeAll(ctx, c, rows, grow)
			if err == nil && s.Leads() && len(rows) > 0 {
				err = s.logChanges(ctx, c, rows, rev)
			}
			if err == nil {
				_, err = c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10))
			}
			return err
		}
		for _, r := range rows {
			stored, err := s.write(ctx, r, grow)
			if err != nil {
				return fmt.Errorf("%s %s/%s: %w", r.Kind, r.Namespace, r.Name, err)
			}
			if !stored {
				dropped++
			}
		}
		_, err = c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10))
		return err
	}
	err := s.txLocked(ctx, write)
	for in := (errUnresolved{}); errors.As(err, &in); {
		if err = s.settle(ctx, in); errors.Is(err, errNotCommitted) {
			err = s.txLocked(ctx, write)
		}
	}
	if err == nil && tell {
		s.timeWritten = now
	}
	if dropped += lost; err == nil && dropped > 0 {
		s.log.Warn("events were dropped: the disk is full", "count", dropped)
	}
	return err
}

func (s *Store) write(ctx context.Context, r Row, grow bool) (stored bool, err error) {
	t := s.kinds[r.Kind]
	if r.Object == nil {
		_, err := t.remove.ExecContext(ctx, r.remove()...)
		return true, err
	}
	if grow {
		_, err := t.put.ExecContext(ctx, r.put()...)
		return true, err
	}
	done, err := t.change.ExecContext(ctx, r.change()...)
	if err != nil {
		return false, err
	}
	n, err := done.RowsAffected()
	if err != nil {
		return false, err
	}
	return changed(r, n)
}

// Into decodes the row into an object.
func (r Row) Into(o state.Object) error { return state.Decode(r.Object, o) }

// put, change and remove return the arguments of the statements with the same names.
func (r Row) put() []any {
	return []any{r.Namespace, r.Name, r.UID, int64(r.Rev), r.Node, r.Phase, r.object()}
}

func (r Row) change() []any {
	return []any{r.UID, int64(r.Rev), r.Node, r.Phase, r.object(), r.Namespace, r.Name}
}

func (r Row) remove() []any { return []any{r.Namespace, r.Name} }

// object returns JSON as text if possible, so that sqlite3 and psql show it readably.
func (r Row) object() any {
	if sealedKind(r.Kind) || protoKind(r.Kind) {
		return r.Object
	}
	return unsafe.String(unsafe.SliceData(r.Object), len(r.Object)) // not modified, so no copy is needed
}

// changed reports whether an update of n rows has stored the row. On a full disk rows are only
// updated, never added.
func changed(r Row, n int64) (stored bool, err error) {
	switch {
	case n > 0:
		return true, nil
	case expendableKind(r.Kind):
		return false, nil
	}
	return false, fmt.Errorf("%w: cannot add an object; free space or delete objects", ErrFull)
}

// openKind creates the table of a kind if needed, and prepares its statements.
func (s *Store) openKind(ctx context.Context, kind string) error {
	if s.kinds[kind] != nil {
		return nil
	}
	err := s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		var n int
		if err := c.QueryRowContext(ctx, "SELECT count(*) FROM kinds WHERE name = ?", kind).Scan(&n); err != nil || n > 0 {
			return err
		}
		return createKind(ctx, c, kind)
	})
	if err != nil {
		return err
	}
	t := &kindTable{}
	if s.pg != nil { // pgx prepares statements itself
		s.kinds[kind] = t
		return nil
	}
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{{&t.put, putRow}, {&t.change, changeRow}, {&t.remove, removeRow}} {
		if *p.to, err = s.conn.PrepareContext(ctx, forKind(p.sql, kind)); err != nil {
			return s.explain(err)
		}
	}
	s.kinds[kind] = t
	return nil
}

// Load calls fn for every object, kind by kind and in key order within a kind. Row.Object is valid
// until fn returns. A store that is shared with a hub skips secrets, since it has no key.
func (s *Store) Load(ctx context.Context, fn func(Row) error) error {
	var c *conn
	var kinds []string
	if err := s.reading(func() (err error) {
		if c != nil {
			_ = c.Close()
		}
		if c, err = s.read.conn(ctx); err == nil {
			kinds, err = listKinds(ctx, c)
		}
		return err
	}); err != nil {
		return fmt.Errorf("load objects: %w", err)
	}
	defer c.Close()
	for _, kind := range kinds {
		if s.shared && sealedKind(kind) {
			continue
		}
		if err := s.loadKind(ctx, c, kind, fn); err != nil {
			return fmt.Errorf("load %s: %w", kind, s.explain(err))
		}
	}
	return nil
}

func (s *Store) loadKind(ctx context.Context, c *conn, kind string, fn func(Row) error) error {
	return s.loadRows(ctx, c, kind, "SELECT namespace, name, uid, rev, node, phase, object FROM {kind} ORDER BY "+
		"namespace, name", nil, fn)
}

// loadRows calls fn for each row of a query, as Load does, with secrets decrypted.
func (s *Store) loadRows(ctx context.Context, c *conn, kind, query string, args []any, fn func(Row) error) error {
	rows, err := c.QueryContext(ctx, forKind(query, kind), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var r Row
	var object sql.RawBytes
	for rows.Next() {
		r.Kind = kind
		if err := rows.Scan(&r.Namespace, &r.Name, &r.UID, &r.Rev, &r.Node, &r.Phase, &object); err != nil {
			return err
		}
		r.Object = object
		if sealedKind(kind) {
			if r.Object, err = s.seal.open(r.Object, identity(r)); err != nil {
				return fmt.Errorf("%s/%s: %w", r.Namespace, r.Name, err)
			}
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return rows.Err()
}
