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

// A Row is one object as it is remembered.
type Row struct {
	Kind, Namespace, Name, UID string
	Rev                        uint64 // resourceVersion
	Node, Phase                string // what people query; "" where the kind has none
	Object                     []byte // JSON; nil: the object is gone
}

// A Commit is what one pass has decided.
type Commit struct {
	Rev  uint64 // the hub's revision after it; never less than before
	Rows []Row  // of two rows of one object the later counts
}

// sealedKind tells whether objects of a kind are unreadable in the database.
func sealedKind(kind string) bool {
	r := state.Kind(kind).Row()
	return r != nil && r.Sealed
}

// protoKind tells whether objects of a kind are stored in Kubernetes' protobuf form.
func protoKind(kind string) bool {
	r := state.Kind(kind).Row()
	return r != nil && r.Proto
}

// expendableKind tells whether new objects of a kind are left out while the disk is full.
func expendableKind(kind string) bool {
	r := state.Kind(kind).Row()
	return r != nil && r.Expendable
}

var kindForm = regexp.MustCompile(`^[a-z][a-z0-9]{0,62}$`)

// The statements by which the table of a kind is written.
const (
	putRow = `INSERT INTO {kind} (namespace, name, uid, rev, node, phase, object) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (namespace, name) DO UPDATE SET uid = excluded.uid, rev = excluded.rev,
		node = excluded.node, phase = excluded.phase, object = excluded.object`
	changeRow = `UPDATE {kind} SET uid = ?, rev = ?, node = ?, phase = ?, object = ? WHERE namespace = ? AND name = ?`
	removeRow = `DELETE FROM {kind} WHERE namespace = ? AND name = ?`
)

// A kindTable holds the prepared statements of one kind's table. In PostgreSQL it only
// says that there is one.
type kindTable struct{ put, change, remove *sql.Stmt }

func (t *kindTable) close() error {
	if t.put == nil {
		return nil
	}
	return errors.Join(t.put.Close(), t.change.Close(), t.remove.Close())
}

// Commit remembers a plan in one transaction. When it returns nil, all of it is
// on the disk; when it returns an error, nothing of it is. Rows are written in
// key order, which costs SQLite a fraction of writing them at random.
//
// On a full disk it returns ErrFull for a plan that adds objects. Plans that
// change or delete keep working, from the space of the ballast.
func (s *Store) Commit(ctx context.Context, c Commit) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.lock == nil {
		return errors.New("commit: the store is shared with a hub, which is the only writer of objects; ask the hub " +
			"through its API")
	}
	rows := slices.Clone(c.Rows)
	sort.SliceStable(rows, func(i, j int) bool { // of package slices it would have a sorter of its own, of 10 kB
		a, b := &rows[i], &rows[j]
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isOpen() {
		return errors.New("commit: the store is closed")
	}
	if s.Leads() && s.pg.token == 0 { // it has left: another hub is the only writer of objects
		return ErrStandby
	}
	if c.Rev < s.rev || c.Rev > math.MaxInt64 {
		return fmt.Errorf("commit revision %d: the newest is %d, and revisions never go back", c.Rev, s.rev)
	}
	for i := range rows {
		if err := s.check(&rows[i], c.Rev); err != nil {
			return err
		}
	}
	ctx = context.WithoutCancel(ctx)
	if s.full.Load() && (s.pg == nil || time.Since(s.roomAt) > roomWait) {
		s.roomAgain(ctx)
	}
	grow := !s.full.Load()
	err := s.apply(ctx, rows, c.Rev, grow)
	if errors.Is(err, ErrFull) && grow {
		if !s.full.Load() {
			s.full.Store(true)
			s.log.Error("the disk is full: nothing new is remembered until there is space", "where", s.where())
		}
		if s.giveUpBallast() || s.pg != nil {
			err = s.apply(ctx, rows, c.Rev, false)
		}
	}
	if err != nil {
		return fmt.Errorf("commit %d changes: %w", len(rows), err)
	}
	s.rev = c.Rev
	s.witness.saw(s.progress())
	if s.full.Load() && s.pg == nil {
		s.shrink(ctx)
	}
	return nil
}

func (s *Store) check(r *Row, rev uint64) error {
	switch {
	case !kindForm.MatchString(r.Kind):
		return fmt.Errorf("commit %q %s/%s: a kind is lower-case letters and digits, such as pods", r.Kind, r.Namespace,
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

// apply writes rows in one transaction; without grow it adds no object.
func (s *Store) apply(ctx context.Context, rows []Row, rev uint64, grow bool) error {
	var fit []Row // without those for which there is not even room for a table
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
	now, tell := s.untold()
	write := func(ctx context.Context, c *conn) (err error) {
		dropped = 0 // it may be done again
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
			kept, err := s.write(ctx, r, grow)
			if err != nil {
				return fmt.Errorf("%s %s/%s: %w", r.Kind, r.Namespace, r.Name, err)
			}
			if !kept {
				dropped++
			}
		}
		_, err = c.ExecContext(ctx, setMeta, metaRevision, strconv.FormatUint(rev, 10))
		return err
	}
	err := s.txLocked(ctx, write)
	for in := (errDoubt{}); errors.As(err, &in); {
		if err = s.settle(ctx, in); errors.Is(err, errUndone) {
			err = s.txLocked(ctx, write)
		}
	}
	if err == nil && tell {
		s.told = now
	}
	if dropped += lost; err == nil && dropped > 0 {
		s.log.Warn("events were not remembered: the disk is full", "count", dropped)
	}
	return err
}

func (s *Store) write(ctx context.Context, r Row, grow bool) (kept bool, err error) {
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

// Into reads the object of a row.
func (r Row) Into(o state.Object) error { return state.Decode(r.Object, o) }

// put, change and remove are what is filled into the statements of these names.
func (r Row) put() []any {
	return []any{r.Namespace, r.Name, r.UID, int64(r.Rev), r.Node, r.Phase, r.object()}
}

func (r Row) change() []any {
	return []any{r.UID, int64(r.Rev), r.Node, r.Phase, r.object(), r.Namespace, r.Name}
}

func (r Row) remove() []any { return []any{r.Namespace, r.Name} }

// object is JSON as text where it can be: people read it with sqlite3 and psql.
func (r Row) object() any {
	if sealedKind(r.Kind) || protoKind(r.Kind) {
		return r.Object
	}
	return unsafe.String(unsafe.SliceData(r.Object), len(r.Object)) // nobody writes into it: no copy of each
}

// changed tells of a row that may only be changed, and was so in n places, whether it is kept.
func changed(r Row, n int64) (kept bool, err error) {
	switch {
	case n > 0:
		return true, nil
	case expendableKind(r.Kind):
		return false, nil
	}
	return false, fmt.Errorf("%w: cannot add an object; make space or delete something", ErrFull)
}

// openKind makes sure that a kind has its table and prepared statements.
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
	if s.pg != nil { // pgx keeps statements prepared by itself
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

// Load gives every object to fn, kind by kind and in key order within a kind. The text of an
// object is there until fn returns: the next one takes its place. A command is given all but
// the secrets, whose key is the hub's.
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

// loadRows gives the rows of a query to fn, as Load does, with secrets opened.
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
