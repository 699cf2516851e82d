package store

import (
	"context"
	"crypto/sha256"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/shared/bound"
)

// An Audit is one thing that somebody did, read that is secret, or was refused.
type Audit struct {
	ID        int64 // when it is read: later ones have greater ones
	At        time.Time
	Until     time.Time // of a record that stands for several: when the last of them was
	Count     int       // how many it stands for; 0 is 1
	Who       string    // "": nobody that is known
	Via       string    // page, token, certificate, API, command line, join token, password, setup link; session in old records
	Source    string    // address
	Verb      string
	Resource  string
	Namespace string
	Name      string
	Code      int // as HTTP's
	Message   string

	Prev, Hash []byte // when it is exported: the links of the chain
	// Origin is whom a flood is counted for when it is written, such as the network of
	// Source; "": Source.
	Origin string
}

// Bounds of one record. What is longer is cut, with a sign of it.
const (
	maxAuditText    = 256  // bytes of who, via, source, verb, resource, namespace and name
	maxAuditMessage = 1024 // bytes
	// What one whom nobody knows made us write: 64 MiB are seven weeks of a flood of the longest.
	maxStrangerText    = 64
	maxStrangerMessage = 128
	auditOverhead      = 200 // bytes that a record costs beside its text
)

// bounded is a record as it is kept: cut, in UTF-8 of which every character shows, and
// with whole milliseconds.
func (a Audit) bounded() Audit {
	most, message := maxAuditText, maxAuditMessage
	if a.Code >= 400 && a.source() == a.from() {
		most, message = maxStrangerText, maxStrangerMessage
	}
	for _, text := range []*string{&a.Who, &a.Via, &a.Source, &a.Verb, &a.Resource, &a.Namespace, &a.Name} {
		*text = cut(*text, most)
	}
	a.Message = cut(a.Message, message)
	a.At, a.Until, a.Count = moment(stamp(a.At)), moment(stamp(a.Until)), max(a.Count, 1)
	return a
}

func cut(text string, most int) string { return bound.Text(strings.ToValidUTF8(text, "?"), most) }

func (a *Audit) texts() []string {
	return []string{a.Who, a.Via, a.Source, a.Verb, a.Resource, a.Namespace, a.Name, a.Message}
}

func (a *Audit) bytes() int64 {
	n := auditOverhead
	for _, t := range a.texts() {
		n += len(t)
	}
	return int64(n)
}

// link is the hash of a record behind another: sha256 over the hash before it
// (nothing for the first), and over each field as its length in bytes, ":", its
// text and ",": id, at, until, count, who, via, source, verb, resource,
// namespace, name, message, code.
func (a *Audit) link(prev []byte) []byte {
	h := sha256.New()
	_, _ = h.Write(prev) // a hash never fails
	fields := append([]string{strconv.FormatInt(a.ID, 10), stamp(a.At), stamp(a.Until), strconv.Itoa(a.Count)}, a.texts()...)
	for _, f := range append(fields, strconv.Itoa(a.Code)) {
		_, _ = h.Write([]byte(strconv.Itoa(len(f)) + ":" + f + ","))
	}
	return h.Sum(nil)
}

// Audits lists the newest records, newest first, at most limit.
func (s *Store) Audits(ctx context.Context, limit int) ([]Audit, error) {
	return s.FindAudits(ctx, AuditQuery{Limit: limit})
}

// An AuditQuery says which records are wanted.
type AuditQuery struct {
	Before    int64    // older than this ID; 0: from the newest on
	Words     []string // all of them must occur, whatever their case
	Refused   bool     // only what was refused or has failed
	Via       []string // only what came in one of these ways; none: in any
	Verbs     []string // only these; none: any
	NotVerbs  []string // none of these
	Resources []string // only what was done to these, such as secrets or pods/exec; none: to any
	Limit     int
}

const selectAudit = "SELECT id, at, until, count, who, via, source, verb, resource, namespace, name, code, message, hash FROM audit"

// FindAudits lists records, newest first.
func (s *Store) FindAudits(ctx context.Context, q AuditQuery) ([]Audit, error) {
	if err := s.flushAudits(nil); err != nil {
		return nil, err
	}
	query, args := selectAudit+" WHERE 1 = 1", []any{}
	if q.Before > 0 {
		query, args = query+" AND id < ?", append(args, q.Before)
	}
	if q.Refused {
		query += " AND code >= 400"
	}
	for _, c := range []struct {
		column, in string
		values     []string
	}{{"via", "IN", q.Via}, {"verb", "IN", q.Verbs}, {"verb", "NOT IN", q.NotVerbs}, {"resource", "IN", q.Resources}} {
		if len(c.values) > 0 {
			query += " AND " + c.column + " " + c.in + " (?" + strings.Repeat(", ?", len(c.values)-1) + ")"
		}
		for _, v := range c.values {
			args = append(args, v)
		}
	}
	for _, word := range q.Words {
		query += " AND instr(lower(who || ' ' || via || ' ' || source || ' ' || verb || ' ' || resource || ' ' || namespace || ' ' || name || ' ' || message), lower(?)) > 0"
		args = append(args, word)
	}
	return list(ctx, s, scanAudit, query+" ORDER BY id DESC LIMIT ?", append(args, q.Limit)...)
}

func scanAudit(scan func(...any) error) (Audit, error) {
	var a Audit
	var at, until string
	err := scan(&a.ID, &at, &until, &a.Count, &a.Who, &a.Via, &a.Source, &a.Verb, &a.Resource, &a.Namespace, &a.Name, &a.Code, &a.Message, &a.Hash)
	a.At, a.Until = moment(at), moment(until)
	return a, err
}
