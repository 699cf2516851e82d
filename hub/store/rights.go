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

// A restore brings objects back, not rights. Who may do what stays as it was decided last,
// as far as the database that is replaced can be read and is this hub's: or everybody who
// was shut out since the backup would be in again. Sessions end in any case.

// rightsTables say who may, each after those that it refers to.
var rightsTables = []string{"users", "api_tokens", "revoked_clients", "join_tokens", "enrolments"}

// asInBackup is what an administrator has to do where the former database says nothing.
const asInBackup = "people, API tokens and devices that were removed, revoked or replaced since then are let in " +
	"again: look at them. Sessions and join tokens have ended"

// endedKey is no hash of a key: whoever was the node joins again, with a token for it.
const endedKey = "ended"

// deviceFields are those of a node's record that say who speaks for it.
var deviceFields = []string{"key", "machineID", "enrolled", "expires", "token", "site", "labels"}

// rights are those of a database.
type rights struct {
	tables  map[string]tableRows
	devices map[string]record // by node, the deviceFields only
	rows    map[string]Row    // of the same, as those begin that the backup does not know
	kept    tableRows         // what Keep has kept: the authority of several hubs
	sealed  string            // by which key
}

// A record is a node's, as it is stored.
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

// salvageRights reads the rights of the database that is to be replaced; nil: it is
// damaged there, or another hub's.
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
		s.log.Warn("the former database does not tell who may do what", "file", file, "err", err)
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
		return nil, errors.New("it is another hub's")
	}
	r := &rights{tables: map[string]tableRows{}, devices: map[string]record{}, rows: map[string]Row{}}
	for _, table := range append(slices.Clone(rightsTables), dismissalsTable) {
		t, err := readTable(ctx, db, table)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
		r.tables[table] = t
	}
	var err error
	if r.kept, err = selected(ctx, db, "SELECT key, value FROM meta WHERE key LIKE '"+metaKept+"%'"); err != nil {
		return nil, err
	}
	if r.sealed, err = valueOf(ctx, db, metaKeyID); err != nil {
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

// intact is nil for a table that is whole.
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

// readTable reads all of a table that is whole; one that is not there is empty.
func readTable(ctx context.Context, db *sql.DB, table string) (t tableRows, err error) {
	if has, err := hasTable(ctx, db, table); err != nil || !has {
		return t, err
	}
	if err := intact(ctx, db, table); err != nil {
		return t, err
	}
	return selected(ctx, db, "SELECT * FROM "+table)
}

// selected is what a query finds.
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

// restore puts the rights in the place of those of a backup. Without any, what can be made
// again in a minute ends.
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

// restoreKept puts the authority of several hubs in the place of that of the backup: what was revoked
// since then would be trusted again. Under another key nobody could open it.
func (r *rights) restoreKept(ctx context.Context, c *conn) error {
	if is, err := valueOf(ctx, c, metaKeyID); err != nil || is != r.sealed {
		return err
	}
	if _, err := c.ExecContext(ctx, "DELETE FROM meta WHERE key LIKE '"+metaKept+"%'"); err != nil {
		return err
	}
	return r.kept.insert(ctx, c, "INSERT", "meta")
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

// restoreDevices sees to it that the key that spoke for a node last is the one that
// does, and that none does whose enrolment had ended. A device that was enrolled since the
// backup stays enrolled: its Node is made when it reports, and it keeps what it runs until
// somebody says resume.
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
