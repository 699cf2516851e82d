package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// A database that somebody moves or removes while its hub runs goes on, for its hub has it open:
// all that is acknowledged from then on would be gone with the process, for the next one looks
// for it under its name. So nothing more is written to it, and what it has goes into a backup,
// with which the next start begins. Where the file comes back the hub goes on.

// isHere tells whether the database that the hub has open is the one under its name.
func (s *Store) isHere() bool {
	if s.ahead == nil {
		return true
	}
	is, err := s.ahead.Stat()
	if err != nil {
		return true // who writes into it says what there is to say
	}
	named, err := os.Stat(s.file)
	if err != nil {
		return !os.IsNotExist(err)
	}
	return os.SameFile(is, named)
}

// inPlace is nil if the database is where the next start looks for it.
func (s *Store) inPlace(ctx context.Context) error {
	if s.isHere() {
		if s.displaced {
			s.log.Info("the database is back in its place", "file", s.file)
		}
		s.displaced = false
		return nil
	}
	if !s.displaced {
		s.displaced = true
		file := filepath.Join(s.dir, "backups", s.now().UTC().Format(backupForm))
		err := s.backup(file, func(part string) error {
			_, err := s.conn.ExecContext(ctx, vacuumInto, part)
			return err
		})
		if err != nil {
			s.log.Error("THE DATABASE WAS MOVED OR REMOVED while the hub runs, and cannot be backed up either: put it back before the hub ends", "file", s.file, "err", err)
		} else {
			s.log.Error("THE DATABASE WAS MOVED OR REMOVED while the hub runs: nothing is remembered until it is back. The next start begins with the backup of this moment", "file", s.file, "backup", file)
		}
	}
	return fmt.Errorf("%w: %s was moved or removed while the hub runs: put it back, or start the hub again, which goes on from the newest backup", ErrUnavailable, s.file)
}
