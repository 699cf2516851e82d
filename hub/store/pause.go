package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// A Pause is a while in which no hub ran on this database, and so nothing was
// noticed. One that did not end cleanly is taken to have run until it last wrote.
type Pause struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// How many pauses are kept, and for how long: as long as a node's history.
const (
	pauseAge  = 8 * 24 * time.Hour
	maxPauses = 100
)

// metaPauses is written at a start and at a clean end, and never in between.
const metaPauses = "pauses"

type pauses struct {
	Ended  time.Time `json:"ended,omitzero"` // of the newest run; zero: it runs, or did not end cleanly
	Pauses []Pause   `json:"pauses,omitempty"`
}

// Begin notes that the hub runs from now on, and returns when it did not, oldest first.
func (s *Store) Begin(ctx context.Context, now time.Time) ([]Pause, error) {
	p, err := s.pauses(ctx)
	if err != nil {
		return nil, err
	}
	from := p.Ended
	if from.IsZero() {
		from = s.written
	}
	if !from.IsZero() && from.Before(now) {
		p.Pauses = append(p.Pauses, Pause{from.UTC(), now.UTC()})
	}
	p.Pauses = slices.DeleteFunc(p.Pauses, func(x Pause) bool { return now.Sub(x.To) > pauseAge })
	p.Pauses = p.Pauses[max(0, len(p.Pauses)-maxPauses):]
	p.Ended = time.Time{}
	return p.Pauses, s.setPauses(ctx, p)
}

// End notes that the hub ends cleanly.
func (s *Store) End(ctx context.Context, now time.Time) error {
	p, err := s.pauses(ctx)
	if err != nil {
		return err
	}
	p.Ended = now.UTC()
	return s.setPauses(ctx, p)
}

func (s *Store) pauses(ctx context.Context) (p pauses, err error) {
	text, err := s.Meta(ctx, metaPauses)
	switch {
	case errors.Is(err, ErrNotFound):
		return p, nil
	case err != nil:
		return p, fmt.Errorf("read when the hub ran: %w", err)
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		s.log.Warn("when the hub ran is not readable, and is forgotten", "err", err)
		return pauses{}, nil
	}
	return p, nil
}

func (s *Store) setPauses(ctx context.Context, p pauses) error {
	text, err := json.Marshal(p)
	if err == nil {
		err = s.SetMeta(ctx, metaPauses, string(text))
	}
	if err != nil {
		return fmt.Errorf("note when the hub runs: %w", err)
	}
	return nil
}

// lastWritten is when the database was written last, zero where there is none yet.
func (s *Store) lastWritten() (last time.Time) {
	for _, file := range []string{s.file, s.file + "-wal"} {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}
