package store

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
)

// The statements of this package are written once, with ? for what is filled in. What
// SQLite and PostgreSQL call differently is below; what only one of them has is in files
// of its own.

// A conn is the writer's connection, or one of a reader.
type conn struct {
	*sql.Conn
	postgres bool
}

// A pool is the readers' connections.
type pool struct {
	*sql.DB
	postgres bool
}

func (c *conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	query, args = worded(c.postgres, query, args)
	return c.Conn.ExecContext(ctx, query, args...)
}

func (c *conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = worded(c.postgres, query, args)
	return c.Conn.QueryContext(ctx, query, args...)
}

func (c *conn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = worded(c.postgres, query, args)
	return c.Conn.QueryRowContext(ctx, query, args...)
}

func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = worded(p.postgres, query, args)
	return p.DB.QueryContext(ctx, query, args...)
}

func (p *pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = worded(p.postgres, query, args)
	return p.DB.QueryRowContext(ctx, query, args...)
}

func (p *pool) conn(ctx context.Context) (*conn, error) {
	c, err := p.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c, p.postgres}, nil
}

// worded is a statement in the words of its database. No statement of this package has a
// question mark in a text.
func worded(postgres bool, query string, args []any) (string, []any) {
	if !postgres || len(args) == 0 {
		return query, args
	}
	var b strings.Builder
	n := 0
	for {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			break
		}
		n++
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = storable(text)
		}
	}
	return strings.ReplaceAll(b.String(), "instr(", "strpos("), args
}

// storable is a text as PostgreSQL takes it: UTF-8 without NUL. Nothing that a hub lets in
// is any other, but names that somebody asks for may be.
func storable(text string) string {
	const instead = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(text, instead), "\x00", instead)
}

// number is a bool as both databases keep it.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
