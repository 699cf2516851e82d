// Package fsync makes changes of directories durable.
package fsync

import (
	"errors"
	"os"
)

// Dir makes the changes of names in a directory durable: created, renamed and removed files.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
