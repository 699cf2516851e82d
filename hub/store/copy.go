package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ownTables are the tables of every hub, in the order of their foreign keys. The tables of objects
// are listed in kinds.
var ownTables = []string{
	"meta", "users", "sessions", "api_tokens", "revoked_clients", "join_tokens", "enrolments", "audit",
}

// localKeys are the meta keys that belong to one database, and are not copied.
var localKeys = []string{metaSchema, metaMoved, metaCameFrom, metaLeader, metaFrom}

// copyAll replaces the content of the database that has a transaction open in to by the content of
// another database of the same schema. It does not recreate tables, because a concurrent reader in
// PostgreSQL would see a recreated table as empty.
func copyAll(ctx context.Context, from querier, to *conn) error {
	have, err := listKinds(ctx, to)
	if err != nil {
		return err
	}
	own := slices.Clone(ownTables)
	slices.Reverse(own)
	for _, table := range slices.Concat(have, own) {
		if _, err := to.ExecContext(ctx, forKind("DELETE FROM {kind}", table)); err != nil {
			return err
		}
	}
	kinds, err := listKinds(ctx, from)
	if err != nil {
		return err
	}
	for _, table := range ownTables {
		if err := copyTable(ctx, from, to, table); err != nil {
			return fmt.Errorf("copy %s: %w", table, err)
		}
	}
	for _, kind := range kinds {
		err := error(nil)
		if !slices.Contains(have, kind) {
			err = createKind(ctx, to, kind)
		}
		if err == nil {
			err = copyTable(ctx, from, to, kind)
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", kind, err)
		}
	}
	for _, key := range localKeys {
		if _, err := to.ExecContext(ctx, "DELETE FROM meta WHERE key = ?", key); err != nil {
			return err
		}
	}
	if to.postgres {
		_, err = to.ExecContext(ctx, setMeta, metaSchema, fmt.Sprint(latest()))
	}
	return err
}

// copyTable copies all rows into the same table, which is empty.
func copyTable(ctx context.Context, from querier, to *conn, table string) (err error) {
	rows, err := from.QueryContext(ctx, forKind("SELECT * FROM {kind}", table))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	n := 0
	next := func() ([]any, error) {
		if !rows.Next() {
			return nil, rows.Err()
		}
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		n++
		return row, nil
	}
	if to.postgres {
		return to.raw(func(c *pgx.Conn) error {
			done, err := c.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromFunc(func() ([]any, error) {
				row, err := next()
				for i := range row {
					switch text, ok := row[i].(string); {
					case ok && protoKind(table) && columns[i] == "object": // an older hub has written JSON
						row[i] = []byte(text)
					case ok:
						row[i] = storable(text)
					}
				}
				return row, err
			}))
			if err == nil && done != int64(n) {
				err = fmt.Errorf("read %d rows, but wrote %d", n, done)
			}
			return err
		})
	}
	put, err := to.PrepareContext(ctx, forKind(fmt.Sprintf(`INSERT INTO {kind} ("%s") VALUES (?%s)`,
		strings.Join(columns, `", "`), strings.Repeat(", ?", len(columns)-1)), table))
	if err != nil {
		return err
	}
	defer put.Close()
	for {
		row, err := next()
		if err != nil || row == nil {
			return err
		}
		if _, err := put.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
}

// export writes a consistent copy of the PostgreSQL database to a new SQLite file while the hub
// runs.
func (s *Store) export(ctx context.Context, file string) error {
	c, err := s.read.conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	defer func() { _, _ = c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") }()
	// A read-only transaction may wait long for a slow disk, because it blocks no other
	// transaction. So it gets more time than a leader's (see join).
	if _, err := c.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = "+idle); err != nil {
		return err
	}
	return s.fill(ctx, file, c, nil)
}

// fill creates an SQLite database with the content of another database. also, if not nil, runs in
// the same transaction.
func (s *Store) fill(
	ctx context.Context, file string, from querier, also func(ctx context.Context, t *Store, c *conn) error,
) error {
	version, err := valueOf(ctx, from, metaVersion)
	if err != nil {
		return err
	}
	t := newStore(Options{Dir: s.dir, Log: s.log}, file)
	if err := t.openDatabase(ctx, Options{Version: version}); err != nil {
		return err
	}
	err = t.txLocked(ctx, func(ctx context.Context, c *conn) error {
		if err := copyAll(ctx, from, c); err != nil || also == nil {
			return err
		}
		return also(ctx, t, c)
	})
	return errors.Join(err, t.disconnect())
}

// valueOf returns a value of meta; "": not set.
func valueOf(ctx context.Context, q querier, key string) (value string, err error) {
	rows, err := q.QueryContext(ctx, "SELECT value FROM meta WHERE key = ?", key)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := rows.Scan(&value); err != nil {
			return "", err
		}
	}
	return value, rows.Err()
}

// origin identifies the content of a database at one moment.
func origin(ctx context.Context, q querier) (string, error) {
	text := ""
	for _, key := range []string{metaHubID, metaRevision, metaAuditHead} {
		v, err := valueOf(ctx, q, key)
		if err != nil {
			return "", err
		}
		text += key + " " + v + " "
	}
	return text, nil
}

// objects counts the objects of all kinds.
func objects(ctx context.Context, q querier) (all int, err error) {
	kinds, err := listKinds(ctx, q)
	for _, kind := range kinds {
		var n int
		if err := q.QueryRowContext(ctx, forKind("SELECT count(*) FROM {kind}", kind)).Scan(&n); err != nil {
			return 0, err
		}
		all += n
	}
	return all, err
}
