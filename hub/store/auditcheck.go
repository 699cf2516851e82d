package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// An AuditLine is a record as it is exported, one JSON object a line.
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
	Prev      string `json:"prev"` // hash of the record before it
	Hash      string `json:"hash"` // "": from before the chain began
}

// Line is how a record is exported.
func (a Audit) Line() AuditLine {
	return AuditLine{a.ID, stamp(a.At), stamp(a.Until), a.Count, a.Who, a.Via, a.Source, a.Verb, a.Resource, a.Namespace, a.Name, a.Code, a.Message, hex.EncodeToString(a.Prev), hex.EncodeToString(a.Hash)}
}

func (l AuditLine) audit() (Audit, error) {
	prev, err := hex.DecodeString(l.Prev)
	hash, herr := hex.DecodeString(l.Hash)
	return Audit{ID: l.ID, At: moment(l.At), Until: moment(l.Until), Count: l.Count, Who: l.Who, Via: l.Via, Source: l.Source, Verb: l.Verb, Resource: l.Resource,
		Namespace: l.Namespace, Name: l.Name, Code: l.Code, Message: l.Message, Prev: prev, Hash: hash}, errors.Join(err, herr)
}

// EachAudit gives every record to fn, the oldest first, from the first one at or
// after since on; the zero time is from the beginning. It reads in small steps: a
// slow reader keeps no one.
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
		before, err := list(ctx, s, scanAudit, selectAudit+" WHERE id < coalesce((SELECT min(id) FROM audit WHERE at >= ?), 9223372036854775807) ORDER BY id DESC LIMIT 1", stamp(since))
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

// An AuditReport says how far the chain of the audit is whole.
type AuditReport struct {
	Records   int
	From, To  Audit    // the first and the last of the chain
	Unchained int      // records from before the chain began
	Broken    []string // where it is not whole, a sentence each; the first 20
	Breaks    int
}

const maxBroken = 20

func (r *AuditReport) broken(format string, args ...any) {
	if r.Breaks++; r.Breaks <= maxBroken {
		r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
	}
}

// add checks the next record. The hash that it carries counts for the one behind
// it, so that one wrong record is one finding.
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
			r.broken("record %d (%s) is the first of the chain and does not say that it begins: those before it are missing", a.ID, stamp(a.At))
		}
	}
	switch gone := a.ID - r.To.ID - 1; {
	case !first && gone == 1:
		r.broken("record %d is missing, behind %s", a.ID-1, stamp(r.To.At))
	case !first && gone > 1:
		r.broken("records %d to %d are missing, between %s and %s", r.To.ID+1, a.ID-1, stamp(r.To.At), stamp(a.At))
	case !first && gone < 0:
		r.broken("record %d stands behind record %d", a.ID, r.To.ID)
	case !bytes.Equal(a.link(a.Prev), a.Hash):
		r.broken("record %d (%s) was changed, or the one before it was replaced", a.ID, stamp(a.At))
	case !first && !bytes.Equal(a.Prev, r.To.Hash):
		r.broken("record %d (%s) does not follow the one before it", a.ID, stamp(a.At))
	}
}

// VerifyAudit checks the chain in the database.
func (s *Store) VerifyAudit(ctx context.Context) (AuditReport, error) {
	var r AuditReport
	if err := s.flushAudits(nil); err != nil {
		return r, err
	}
	// The head first: records that come while this reads are beyond it.
	head, begun, err := chainEndOf(ctx, s.read, metaAuditHead)
	if errors.Is(err, errNoEnd) {
		r.broken("the note of where the audit ends is no more: %v", err)
	} else if err != nil {
		return r, fmt.Errorf("read where the audit ends: %w", err)
	}
	anchor, cut, err := chainEndOf(ctx, s.read, metaAuditAnchor)
	if errors.Is(err, errNoEnd) {
		r.broken("the note of where the audit begins is no more: %v", err)
	} else if err != nil {
		return r, fmt.Errorf("read where the audit begins: %w", err)
	}
	if cut {
		r.To = Audit{ID: anchor.id, Hash: anchor.hash}
	}
	seen := !begun
	if err := s.EachAudit(ctx, time.Time{}, func(a Audit) error {
		if cut && r.Records == 0 && a.ID > anchor.id+1 {
			r.broken("records %d to %d are missing at the beginning: what is too old ends with record %d", anchor.id+1, a.ID-1, anchor.id)
		}
		r.add(a)
		seen = seen || a.ID == head.id && bytes.Equal(a.Hash, head.hash)
		return nil
	}); err != nil {
		return r, err
	}
	if !seen && (!cut || anchor.id < head.id) {
		r.broken("the newest record was %d with the hash %x: records at the end are missing or were replaced", head.id, head.hash)
	}
	return r, nil
}

// VerifyAuditExport checks an export without its hub.
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
			return r, fmt.Errorf("line %d is no record of an audit: %w", n, err)
		}
		r.add(a)
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("line %d: %w", n+1, err)
	}
	return r, nil
}
