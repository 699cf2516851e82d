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

// ofDatabase is a file that marks the directory's authority as a copy. The file contains the
// database whose hubs share the authority.
const ofDatabase = "of-database"

// shared are the files that all hubs of a database have. A hub's server certificate is not shared.
var shared = []string{"root.crt", "root.key", "intermediate.crt", "intermediate.key", formerRoot + ".crt",
	formerRoot + ".key", crossFile, formerIntermediateFile, revokedFile, firmwareKey}

// Files returns the shared files by name. Encrypted keys stay encrypted.
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

// Install copies the shared authority of a database into a data directory. It refuses a directory
// with another authority, because devices that joined with that authority would be locked out.
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
			return fmt.Errorf("use the database's certificate authority: %w: %s has another one; give this hub a "+
				"separate --data-dir, or move that directory away if no device joined through it", ErrKey, a.dir)
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

// kept passes a change to Keep. The caller holds the lock.
func (a *Authority) kept(change map[string][]byte) error {
	if a.Keep == nil {
		if _, err := os.Stat(a.path(ofDatabase)); err == nil { // the next start would undo a change of a copy
			return fmt.Errorf(
				"%w: it is a copy of the authority of a database; make the change at the leader",
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
