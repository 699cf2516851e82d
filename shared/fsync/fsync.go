// Package fsync makes what is on a disk survive a power cut.
package fsync

import (
	"errors"
	"os"
)

// Dir makes the names in a directory durable: that a file is there, or is not any more.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
