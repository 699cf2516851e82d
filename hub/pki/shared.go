package pki

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"flotilla.dev/hub/owner"
)

// ofDatabase is the file of a directory that is a copy: it names the database whose hubs
// share the authority.
const ofDatabase = "of-database"

// shared are the files that hubs of one database have in common: all but the hub's own
// certificate and what is of one machine.
var shared = []string{"root.crt", "root.key", "intermediate.crt", "intermediate.key", formerRoot + ".crt",
	formerRoot + ".key", crossFile, formerMiddle, revokedFile, firmwareKey}

// Files are the authority as hubs share it, by name. Keys stand there as on the disk: under
// their passphrase, where there is one.
func (a *Authority) Files() (all map[string][]byte, err error) {
	all = map[string][]byte{}
	err = a.locked(func() error {
		for _, name := range shared {
			text, err := os.ReadFile(a.path(name))
			if err == nil {
				all[name] = text
			} else if !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("read the certificate authority: %w", err)
			}
		}
		return nil
	})
	return all, err
}

// Install makes the authority of a data directory a copy of the one that the hubs of a
// database share. A directory that has an authority of its own is refused: devices that joined
// through it would be locked out.
func Install(dataDir, database string, files map[string][]byte) error {
	a := &Authority{dir: filepath.Join(dataDir, "pki")}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return fmt.Errorf("create %s: %w; make the data directory writable", a.dir, err)
	}
	return a.locked(func() error {
		if err := a.carryOut(); err != nil {
			return err
		}
		copyOf, err := os.ReadFile(a.path(ofDatabase))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read %s: %w", a.path(ofDatabase), err)
		}
		root, err := os.ReadFile(a.path("root.crt"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read %s: %w", a.path("root.crt"), err)
		}
		if of := strings.TrimSpace(string(copyOf)); root != nil && of != database &&
			string(root) != string(files["root.crt"]) {
			return fmt.Errorf("use the database's certificate authority: %w: %s holds another one; give this hub a "+
				"--data-dir of its own, or move that directory away if no device has joined through it", ErrKey, a.dir)
		}
		change := map[string][]byte{}
		for _, name := range shared {
			have, err := os.ReadFile(a.path(name))
			if want, there := files[name]; there && (err != nil || string(have) != string(want)) {
				change[name] = want
			} else if !there && err == nil {
				change[name] = nil
			}
		}
		if err := owner.WriteFile(a.path(ofDatabase), []byte(database+"\n")); err != nil {
			return fmt.Errorf("write %s: %w", a.path(ofDatabase), err)
		}
		if len(change) == 0 {
			return nil
		}
		if err := a.prepare(change); err != nil {
			return fmt.Errorf("copy the database's certificate authority: %w; nothing was changed", err)
		}
		return a.carryOut()
	})
}

// kept has those who share the authority remember what it is going to be; a.locked is held.
func (a *Authority) kept(change map[string][]byte) error {
	if a.Keep == nil {
		if _, err := os.Stat(a.path(ofDatabase)); err == nil { // it would be undone at the next start
			return fmt.Errorf(
				"%w: it is a copy of the one that the hubs of a database share, which changes through the hub that leads alone",
				ErrKey)
		}
		return nil
	}
	all := map[string][]byte{}
	for _, name := range shared {
		if text, err := os.ReadFile(a.path(name)); err == nil {
			all[name] = text
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	maps.Copy(all, change)
	maps.DeleteFunc(all, func(_ string, text []byte) bool { return text == nil })
	return a.Keep(all)
}
