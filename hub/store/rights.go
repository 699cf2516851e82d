package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// A restore brings back objects, not rights. Users, tokens and enrolments stay as they are in the
// replaced database if it is readable and belongs to this hub. Otherwise users removed after the
// backup could log in again. Sessions end in any case.

// rightsTables hold the rights, in the order of their foreign keys.
var rightsTables = []string{"users", "api_tokens", "revoked_clients", "join_tokens", "enrolments"}

// checkRights tells the administrator what to do if the former rights are unreadable.
const checkRights = "users, API tokens and devices that were removed, revoked or replaced since then have access " +
	"again: check them. Sessions and join tokens have ended"

// endedKey matches no key: the device of that node has to join again with a token.
const endedKey = "ended"

// deviceFields are the fields of a node's record that identify its device.
var deviceFields = []string{"key", "machineID", "enrolled", "expires", "token", "site", "labels"}

// rights are the rights in a database.
type rights struct {
	tables      map[string]tableRows
	devices     map[string]record // by node; deviceFields only
	rows        map[string]Row    // by node; initial rows for nodes that are not in the backup
	shared      tableRows         // values of Keep, such as the authority that several hubs share
	sharedKeyID string            // ID of the key that seals shared
}

// A record is a node's record as stored.
type record map[string]json.RawMessage

func (r record) fields() record {
	out := record{}
	for _, field := range deviceFields {
		if r[field] != nil {
			out[field] = r[field]
		}
	}
	return out
}

type tableRows struct {
	columns []string
	rows    [][]any
}

const (
	recordsTable    = "records"
	dismissalsTable = "dismissals"
)

// salvageRights reads the rights of the replaced database; nil: the rights are damaged, or belong
// to another hub.
func (s *Store) salvageRights(ctx context.Context, file string) *rights {
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		return nil
	}
	db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
	if err != nil {
		return nil
	}
	defer db.Close()
	r, err := s.readRights(ctx, db)
	if err != nil {
		s.log.Warn("cannot read users and rights of the former database", "file", file, "err", err)
		return nil
	}
	return r
}

func (s *Store) readRights(ctx context.Context, db *sql.DB) (*rights, error) {
	var was, is string
	if err := db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaHubID).Scan(&was); err != nil {
		return nil, err
	}
	if err := s.conn.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaHubID).Scan(&is); err != nil {
		return nil, err
	}
	if was != is {
		return nil, errors.New("it belongs to another hub")
	}
	r := &rights{tables: map[string]tableRows{}, devices: map[string]record{}, rows: map[string]Row{}}
	for _, table := range append(slices.Clone(rightsTables), dismissalsTable) {
		t, err := readTable(ctx, db, s.conn, table)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
		r.tables[table] = t
	}
	var err error
	if r.shared, err = selected(ctx, db, "SELECT key, value FROM meta WHERE key LIKE '"+metaKept+"%'"); err != nil {
		return nil, err
	}
	if r.sharedKeyID, err = valueOf(ctx, db, metaKeyID); err != nil {
		return nil, err
	}
	if has, err := hasTable(ctx, db, recordsTable); err != nil || !has {
		return r, err
	}
	if err := intact(ctx, db, recordsTable); err != nil {
		return nil, fmt.Errorf("read %s: %w", recordsTable, err)
	}
	records, rows, err := readRecords(ctx, db)
	if err != nil {
		return nil, err
	}
	for name, record := range records {
		row, fields := rows[name], record.fields()
		r.devices[name] = record.fields()
		fields["metadata"] = record["metadata"]
		if row.Object, err = json.Marshal(fields); err != nil {
			return nil, err
		}
		r.rows[name] = row
	}
	return r, nil
}

func hasTable(ctx context.Context, q querier, table string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", table).Scan(&n)
	return n > 0, err
}

// intact returns an error if a table is damaged.
func intact(ctx context.Context, q querier, table string) error {
	var said string
	err := q.QueryRowContext(ctx, "PRAGMA integrity_check('"+table+"')").Scan(&said)
	if err == nil && said != "ok" {
		err = errors.New(said)
	}
	return err
}

func readRecords(ctx context.Context, q querier) (map[string]record, map[string]Row, error) {
	rows, err := q.QueryContext(ctx, "SELECT name, uid, rev, object FROM "+recordsTable)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	all, as := map[string]record{}, map[string]Row{}
	for rows.Next() {
		r := Row{Kind: recordsTable}
		if err := rows.Scan(&r.Name, &r.UID, &r.Rev, &r.Object); err != nil {
			return nil, nil, err
		}
		var one record
		if err := json.Unmarshal(r.Object, &one); err != nil {
			return nil, nil, fmt.Errorf("the record of node %s: %w", r.Name, err)
		}
		all[r.Name], as[r.Name] = one, r
	}
	return all, as, rows.Err()
}

// readTable reads the columns of a table that this version has. A missing table is empty; a damaged
// one is an error. A newer version may have added columns. A row with another value there than the
// default is left out: this version would misread that right.
func readTable(ctx context.Context, db *sql.DB, here querier, table string) (t tableRows, err error) {
	if has, err := hasTable(ctx, db, table); err != nil || !has {
		return t, err
	}
	if err := intact(ctx, db, table); err != nil {
		return t, err
	}
	const query = "SELECT name, coalesce(dflt_value, 'NULL') FROM pragma_table_info('%s')"
	has, err := selected(ctx, db, fmt.Sprintf(query, table))
	if err != nil {
		return t, err
	}
	want, err := selected(ctx, here, fmt.Sprintf(query, table))
	if err != nil || len(want.rows) == 0 {
		return t, err
	}
	var columns []string
	where := " WHERE true"
	for _, c := range has.rows {
		if slices.ContainsFunc(want.rows, func(w []any) bool { return w[0] == c[0] }) {
			columns = append(columns, fmt.Sprint(c[0]))
		} else {
			where += fmt.Sprintf(" AND %q IS %s", c...)
		}
	}
	return selected(ctx, db, "SELECT "+strings.Join(columns, ", ")+" FROM "+table+where)
}

// selected returns the result of a query.
func selected(ctx context.Context, q querier, query string) (t tableRows, err error) {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return t, err
	}
	defer rows.Close()
	if t.columns, err = rows.Columns(); err != nil {
		return t, err
	}
	for rows.Next() {
		row, to := make([]any, len(t.columns)), make([]any, len(t.columns))
		for i := range row {
			to[i] = &row[i]
		}
		if err := rows.Scan(to...); err != nil {
			return t, err
		}
		t.rows = append(t.rows, row)
	}
	return t, rows.Err()
}

// restore replaces the backup's rights. Without former rights it revokes join tokens, because users
// can easily make new ones.
func (r *rights) restore(ctx context.Context, c *conn, now time.Time) error {
	if _, err := c.ExecContext(ctx, "DELETE FROM sessions"); err != nil {
		return err
	}
	if r == nil {
		_, err := c.ExecContext(ctx, "UPDATE join_tokens SET revoked = ? WHERE revoked = ''", stamp(now))
		return err
	}
	for _, table := range slices.Backward(rightsTables) {
		if _, err := c.ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return err
		}
	}
	for _, table := range rightsTables {
		if err := r.tables[table].insert(ctx, c, "INSERT", table); err != nil {
			return err
		}
	}
	if err := r.restoreKept(ctx, c); err != nil {
		return err
	}
	return r.restoreDevices(ctx, c)
}

// restoreKept replaces the backup's authority of several hubs, because that may trust a root that
// was revoked later. If the keys differ, the backup's authority stays, because no hub could decrypt
// the former one.
func (r *rights) restoreKept(ctx context.Context, c *conn) error {
	if is, err := valueOf(ctx, c, metaKeyID); err != nil || is != r.sharedKeyID {
		return err
	}
	if _, err := c.ExecContext(ctx, "DELETE FROM meta WHERE key LIKE '"+metaKept+"%'"); err != nil {
		return err
	}
	return r.shared.insert(ctx, c, "INSERT", "meta")
}

func (t tableRows) insert(ctx context.Context, c *conn, verb, table string) error {
	if len(t.rows) == 0 {
		return nil
	}
	query := fmt.Sprintf("%s INTO %s (%s) VALUES (?%s)", verb, table, strings.Join(t.columns, ", "),
		strings.Repeat(", ?", len(t.columns)-1))
	for _, row := range t.rows {
		if _, err := c.ExecContext(ctx, query, row...); err != nil {
			return fmt.Errorf("take over %s: %w", table, err)
		}
	}
	return nil
}

// restoreDevices restores each node's last key, and keeps ended enrolments ended. A device that was
// enrolled after the backup stays enrolled: it gets a Node when it reports, and keeps its pods
// until an administrator resumes.
func (r *rights) restoreDevices(ctx context.Context, c *conn) error {
	if has, err := hasTable(ctx, c, dismissalsTable); err != nil {
		return err
	} else if has {
		if err := r.tables[dismissalsTable].insert(ctx, c, "INSERT OR REPLACE", dismissalsTable); err != nil {
			return err
		}
	}
	if has, err := hasTable(ctx, c, recordsTable); err != nil {
		return err
	} else if !has {
		if len(r.rows) == 0 {
			return nil
		}
		if err := createKind(ctx, c, recordsTable); err != nil {
			return err
		}
	}
	records, _, err := readRecords(ctx, c)
	if err != nil {
		return err
	}
	for name, row := range r.rows {
		if records[name] != nil || r.devices[name]["key"] == nil {
			continue
		}
		if _, err := c.ExecContext(ctx, forKind(putRow, recordsTable), row.put()...); err != nil {
			return fmt.Errorf("take over the enrolment of %s: %w", name, err)
		}
	}
	for name, record := range records {
		last, now := r.devices[name], record.fields()
		if string(last["key"]) == string(now["key"]) {
			continue
		}
		if last["key"] == nil {
			now["key"] = json.RawMessage(`"` + endedKey + `"`)
			last = now
		}
		for _, field := range deviceFields {
			if delete(record, field); last[field] != nil {
				record[field] = last[field]
			}
		}
		object, err := json.Marshal(record)
		if err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, "UPDATE "+recordsTable+" SET object = ? WHERE name = ?", string(object),
			name); err != nil {
			return err
		}
	}
	return nil
}
