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
	return errors.Join(s.setPauses(ctx, p), s.SetMeta(ctx, metaTime, formTime(now)))
}

// metaTime is the hub's own time, with the first commit of a start and of an hour, for which no commit
// is made, and at a clean end.
const metaTime = "time"

// TimeEvery is how much later than metaTime a commit may be.
const TimeEvery = time.Hour

func formTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// untold tells whether it is time to note the hub's.
func (s *Store) untold() (now time.Time, tell bool) {
	if s.Now == nil { // a command's store: nobody's time
		return now, false
	}
	now = s.Now()
	return now, now.Sub(s.told) >= TimeEvery
}

// LastTime is the hub's own time when it was noted last, at most an hour before the last commit; zero
// where it never was.
func (s *Store) LastTime(ctx context.Context) (time.Time, error) {
	text, err := s.Meta(ctx, metaTime)
	switch {
	case errors.Is(err, ErrNotFound):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read the time of the hub: %w", err)
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		s.log.Warn("when the hub was there last is not readable, and is forgotten", "err", err)
		return time.Time{}, nil
	}
	return t, nil
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
