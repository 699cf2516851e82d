package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// A backup that somebody has had in the hand may hold more than rows: a trigger gives
// rights back as soon as they are taken, a generated column says what nobody has written,
// and the name of a table of objects becomes part of statements. So nothing of one is
// carried out before its schema is known to be a hub's, to the letter.

// genuine tells whether the schema of a database file is one that a hub makes.
func genuine(ctx context.Context, file string) error {
	db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
	if err != nil {
		return err
	}
	defer db.Close()
	have, err := schemaOf(ctx, db)
	if err != nil {
		return err
	}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > latest() {
		return nil // of a newer program: it is refused as such
	}
	if version == 0 && len(have) == 0 { // SQLite takes an empty file for an empty database
		return errors.New("it is empty, as a copy that was cut off; restore another backup")
	}
	if version < 0 {
		return fmt.Errorf("it has schema %d, which no hub makes", version)
	}
	var kinds []string
	if has, err := hasTable(ctx, db, "kinds"); err != nil {
		return err
	} else if has {
		if kinds, err = listKinds(ctx, db); err != nil {
			return err
		}
	}
	want, err := schemaAt(ctx, version, kinds)
	if err != nil {
		return err
	}
	for what, text := range have {
		if want[what] != text {
			return fmt.Errorf("it has a %s that no hub makes: somebody has changed it; restore another backup", what)
		}
	}
	for what := range want {
		if _, has := have[what]; !has {
			return fmt.Errorf("it lacks the %s of a hub: somebody has changed it; restore another backup", what)
		}
	}
	return nil
}

// schemaAt is the schema of that version with tables of those kinds.
func schemaAt(ctx context.Context, version int, kinds []string) (map[string]string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	for _, m := range migrations[:version] {
		if _, err := db.ExecContext(ctx, m.sql); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds {
		if !kindForm.MatchString(kind) {
			return nil, fmt.Errorf("it has a kind of objects called %.100q, which no hub makes: somebody has changed it; restore another backup", kind)
		}
		for _, m := range migrations[:version] {
			if _, err := db.ExecContext(ctx, forKind(m.perKind, kind)); err != nil {
				return nil, err
			}
		}
	}
	return schemaOf(ctx, db)
}

// schemaOf is what a database consists of, by kind and name, in the words that made it.
// What SQLite makes by itself has none.
func schemaOf(ctx context.Context, q querier) (_ map[string]string, err error) {
	rows, err := q.QueryContext(ctx, "SELECT type, name, coalesce(sql, '') FROM sqlite_master")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	all := map[string]string{}
	for rows.Next() {
		var kind, name, text string
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return nil, err
		}
		if text != "" {
			all[fmt.Sprintf("%.20s %.100q", kind, name)] = text
		}
	}
	return all, rows.Err()
}
