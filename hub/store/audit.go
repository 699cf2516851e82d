package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/shared/bound"
)

// An Audit is one audit record: a change, the reading of a secret, or a refusal.
type Audit struct {
	ID    int64 // increases with each record; set when the record is read
	At    time.Time
	Until time.Time // time of the last event, if the record counts several
	Count int       // number of events in this record; 0 means 1
	Who   string    // "": unknown
	// page, token, certificate, API, command line, join token, password, setup link; session in old
	// records
	Via       string
	Source    string // client's address
	Verb      string
	Resource  string
	Namespace string
	Name      string
	Code      int // HTTP status
	Message   string

	Prev, Hash []byte // the links of the chain; set for an export
	// Origin is the source of a possible flood, such as the network of Source; "": Source.
	Origin string
}

// Limits of one record. Longer text is cut and marked as cut.
const (
	maxAuditText    = 256  // bytes of who, via, source, verb, resource, namespace and name
	maxAuditMessage = 1024 // bytes
	// Limits for unauthenticated clients, so that 64 MiB hold seven weeks of a flood of the longest
	// records.
	maxStrangerText    = 64
	maxStrangerMessage = 128
	auditOverhead      = 200 // bytes of a record beside its text
)

// bounded returns the record as it is stored: cut, printable UTF-8, whole milliseconds.
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

// link returns the record's hash in the chain: sha256 over the previous hash (empty for the first
// record), then over each field as "LENGTH:TEXT,". The fields are id, at, until, count, who, via,
// source, verb, resource, namespace, name, message, code.
func (a *Audit) link(prev []byte) []byte {
	h := sha256.New()
	_, _ = h.Write(prev)
	fields := append([]string{strconv.FormatInt(a.ID, 10), stamp(a.At), stamp(a.Until), strconv.Itoa(a.Count)},
		a.texts()...)
	for _, f := range append(fields, strconv.Itoa(a.Code)) {
		_, _ = h.Write([]byte(strconv.Itoa(len(f)) + ":" + f + ","))
	}
	return h.Sum(nil)
}

// Audits returns at most limit records, newest first.
func (s *Store) Audits(ctx context.Context, limit int) ([]Audit, error) {
	return s.FindAudits(ctx, AuditQuery{Limit: limit})
}

// An AuditQuery selects audit records. An empty list selects all.
type AuditQuery struct {
	Before    int64    // only records with a smaller ID; 0: all
	Words     []string // words that the record must contain, in upper or lower case
	Refused   bool     // only refusals and failures
	Via       []string // only these ways of access
	Verbs     []string // only these verbs
	NotVerbs  []string // without these verbs
	Resources []string // only these resources, such as secrets or pods/exec
	Limit     int
}

const selectAudit = "SELECT id, at, until, count, who, via, source, verb, resource, namespace, name, code, message, " +
	"hash FROM audit"

// FindAudits returns the selected records, newest first.
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
		query += " AND instr(lower(who || ' ' || via || ' ' || source || ' ' || verb || ' ' || resource || ' ' || " +
			"namespace || ' ' || name || ' ' || message), lower(?)) > 0"
		args = append(args, word)
	}
	return list(ctx, s, scanAudit, query+" ORDER BY id DESC LIMIT ?", append(args, q.Limit)...)
}

func scanAudit(scan func(...any) error) (Audit, error) {
	var a Audit
	var at, until string
	err := scan(&a.ID, &at, &until, &a.Count, &a.Who, &a.Via, &a.Source, &a.Verb, &a.Resource, &a.Namespace, &a.Name,
		&a.Code, &a.Message, &a.Hash)
	a.At, a.Until = moment(at), moment(until)
	return a, err
}

// ExportAudit writes the audit as JSON lines, oldest first. It calls before ahead of each line, and
// stops if before returns an error.
func (s *Store) ExportAudit(ctx context.Context, w io.Writer, since time.Time, before func() error) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return s.EachAudit(ctx, since, func(a Audit) error {
		if err := before(); err != nil {
			return err
		}
		return out.Encode(a.Line())
	})
}

// ParseSince parses a time or an age; "" is the zero time.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("since: %.40q is not a duration, a day or a time; write 24h, 2026-11-22 or "+
		"2026-11-22T04:00:00Z", text)
}

// An AuditLine is one exported record, a JSON object on a line.
type AuditLine struct {
	ID        int64  `json:"id"`
	At        string `json:"at"`
	Until     string `json:"until,omitempty"`
	Count     int    `json:"count"`
	Who       string `json:"who"`
	Via       string `json:"via"`
	Source    string `json:"source"`
	Verb      string `json:"verb"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Code      int    `json:"code"`
	Message   string `json:"message,omitempty"`
	Prev      string `json:"prev"` // hash of the previous record
	Hash      string `json:"hash"` // "": older than the chain
}

// Line returns the record in its exported form.
func (a Audit) Line() AuditLine {
	return AuditLine{
		a.ID, stamp(a.At), stamp(a.Until), a.Count, a.Who, a.Via, a.Source, a.Verb, a.Resource, a.Namespace, a.Name, a.Code,
		a.Message, hex.EncodeToString(a.Prev), hex.EncodeToString(a.Hash),
	}
}

func (l AuditLine) audit() (Audit, error) {
	prev, err := hex.DecodeString(l.Prev)
	hash, herr := hex.DecodeString(l.Hash)
	return Audit{ID: l.ID, At: moment(l.At), Until: moment(l.Until), Count: l.Count, Who: l.Who, Via: l.Via,
			Source: l.Source, Verb: l.Verb, Resource: l.Resource,
			Namespace: l.Namespace, Name: l.Name, Code: l.Code, Message: l.Message, Prev: prev, Hash: hash},
		errors.Join(err, herr)
}

// EachAudit calls fn for every record, oldest first, from the first one at or after since; the zero
// time means all records. It reads in pages, so that a slow reader blocks no writer.
func (s *Store) EachAudit(ctx context.Context, since time.Time, fn func(Audit) error) error {
	if err := s.flushAudits(nil); err != nil {
		return err
	}
	anchor, _, err := chainEndOf(ctx, s.read, metaAuditAnchor)
	if err != nil && !errors.Is(err, errNoEnd) {
		return fmt.Errorf("read where the audit begins: %w", err)
	}
	last := Audit{ID: -1, Hash: anchor.hash}
	if !since.IsZero() {
		before, err := list(ctx, s, scanAudit, selectAudit+" WHERE id < coalesce((SELECT min(id) FROM audit WHERE at >= "+
			"?), 9223372036854775807) ORDER BY id DESC LIMIT 1", stamp(since))
		if err != nil {
			return err
		}
		if len(before) > 0 {
			last = before[0]
		}
	}
	for {
		page, err := list(ctx, s, scanAudit, selectAudit+" WHERE id > ? ORDER BY id LIMIT 500", last.ID)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, a := range page {
			a.Prev = last.Hash
			if err := fn(a); err != nil {
				return err
			}
			last = a
		}
	}
}

// An AuditReport is the result of verifying the chain.
type AuditReport struct {
	Records   int
	From, To  Audit    // first and last record of the chain
	Unchained int      // records older than the chain
	Broken    []string // a sentence for each of the first 20 breaks
	Breaks    int
}

const maxBroken = 20

func (r *AuditReport) broken(format string, args ...any) {
	if r.Breaks++; r.Breaks <= maxBroken {
		r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
	}
}

// add checks the next record. It continues with the record's own hash, so that one wrong record is
// reported once.
func (r *AuditReport) add(a Audit) {
	defer func() { r.Records, r.To = r.Records+1, a }()
	if len(a.Hash) == 0 && len(r.From.Hash) == 0 {
		r.Unchained++
		return
	}
	first := len(r.From.Hash) == 0
	if first {
		r.From = a
		if len(a.Prev) == 0 && a.Verb != auditBegins {
			r.broken("record %d (%s) is the first of the chain, but does not begin it: earlier records are missing",
				a.ID, stamp(a.At))
		}
	}
	switch gone := a.ID - r.To.ID - 1; {
	case !first && gone == 1:
		r.broken("record %d is missing, after the one of %s", a.ID-1, stamp(r.To.At))
	case !first && gone > 1:
		r.broken("records %d to %d are missing, between %s and %s", r.To.ID+1, a.ID-1, stamp(r.To.At), stamp(a.At))
	case !first && gone < 0:
		r.broken("record %d comes after record %d", a.ID, r.To.ID)
	case !bytes.Equal(a.link(a.Prev), a.Hash):
		r.broken("record %d (%s) was changed, or the previous one was replaced", a.ID, stamp(a.At))
	case !first && !bytes.Equal(a.Prev, r.To.Hash):
		r.broken("record %d (%s) does not follow the previous one", a.ID, stamp(a.At))
	}
}

// VerifyAudit verifies the chain in the database.
func (s *Store) VerifyAudit(ctx context.Context) (AuditReport, error) {
	var r AuditReport
	if err := s.flushAudits(nil); err != nil {
		return r, err
	}
	// Read the stored end first: records that arrive during the check come after it.
	head, begun, err := chainEndOf(ctx, s.read, metaAuditHead)
	if errors.Is(err, errNoEnd) {
		r.broken("the stored end of the audit cannot be read: %v", err)
	} else if err != nil {
		return r, fmt.Errorf("read where the audit ends: %w", err)
	}
	anchor, cut, err := chainEndOf(ctx, s.read, metaAuditAnchor)
	if errors.Is(err, errNoEnd) {
		r.broken("the stored beginning of the audit cannot be read: %v", err)
	} else if err != nil {
		return r, fmt.Errorf("read where the audit begins: %w", err)
	}
	if cut {
		r.To = Audit{ID: anchor.id, Hash: anchor.hash}
	}
	seen := !begun
	if err := s.EachAudit(ctx, time.Time{}, func(a Audit) error {
		if cut && r.Records == 0 && a.ID > anchor.id+1 {
			r.broken("records %d to %d are missing at the beginning: the last expired record is %d", anchor.id+1, a.ID-1,
				anchor.id)
		}
		r.add(a)
		seen = seen || a.ID == head.id && bytes.Equal(a.Hash, head.hash)
		return nil
	}); err != nil {
		return r, err
	}
	if !seen && (!cut || anchor.id < head.id) {
		r.broken("the newest record was %d with the hash %x: records at the end are missing or were replaced", head.id,
			head.hash)
	}
	return r, nil
}

// VerifyAuditExport verifies an exported file without the hub.
func VerifyAuditExport(in io.Reader) (AuditReport, error) {
	var r AuditReport
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<10)
	n := 0
	for lines.Scan() {
		if n++; len(lines.Bytes()) == 0 {
			continue
		}
		var l AuditLine
		err := json.Unmarshal(lines.Bytes(), &l)
		var a Audit
		if err == nil {
			a, err = l.audit()
		}
		if err != nil {
			return r, fmt.Errorf("line %d is not an audit record: %w", n, err)
		}
		r.add(a)
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("line %d: %w", n+1, err)
	}
	return r, nil
}
