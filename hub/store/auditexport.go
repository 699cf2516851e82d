package store

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// ExportAudit writes the audit as JSON lines, oldest first, and asks before each of
// them whether it may go on.
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

// ParseSince reads a moment, or how long ago it was; "" is the beginning.
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
	return time.Time{}, fmt.Errorf("since %.40q is neither a duration, a day nor a moment; write 24h, 2026-11-22 or 2026-11-22T04:00:00Z", text)
}
