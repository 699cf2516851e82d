package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// OpenShared opens the store of a data directory for a command that works while
// the hub runs: it takes no lock, migrates nothing and repairs nothing. Commit
// is refused: objects have one writer, the hub.
func OpenShared(ctx context.Context, o Options) (*Store, error) {
	s := newStore(o, filepath.Join(o.Dir, database))
	s.shared = true
	err := s.openShared(ctx, o)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) openShared(ctx context.Context, o Options) (err error) {
	if s.used, err = use(ctx, o.Dir, with); err != nil && !errors.Is(err, fs.ErrNotExist) { // what is missing is said below
		return err
	}
	url, err := place(o)
	if err != nil {
		return err
	}
	if url != "" {
		return s.sharePostgres(ctx, o, url)
	}
	if info, err := os.Stat(s.file); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 { // there is none, or a hub is about to make it
		return fmt.Errorf("open %s: %w: no hub has run here yet; start `flotilla-hub serve --data-dir %s` once, or name its directory with --data-dir", s.file, ErrNotFound, o.Dir)
	} else if err != nil {
		return fmt.Errorf("open %s: %w; run this as the user of the hub", s.file, err)
	}
	if err := s.notNewer(ctx, o); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return fmt.Errorf("open %s: %w", s.file, err)
	}
	have, err := s.schema(ctx)
	switch {
	case err != nil:
		return err
	case have == 0: // in this moment one begins
		return fmt.Errorf("open %s: %w: the hub here has not finished its first start; run this again", s.file, ErrNotFound)
	case have > latest(): // since a moment ago
		return fmt.Errorf("open %s: %w", s.file, ErrNewer)
	case have < latest():
		return fmt.Errorf("open %s: it has schema %d and this program works with %d: start the new `flotilla-hub serve` once, it migrates the database", s.file, have, latest())
	}
	return nil
}
