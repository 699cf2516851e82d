package doctor

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// ours matches the names of the hub's own files in the data directory. The listing prints only
// these.
var ours = regexp.MustCompile(`^(` + strings.Join([]string{
	`hub\.(lock|rev|sock)`, `hub\.db(\.(migrate|restore))?(-wal|-shm|-journal)?`,
	`hub\.db\.(corrupt|before-migrate|before-restore)-[0-9TZ.-]+(\.part|\.restore)?(-wal|-shm|-journal)?`,
	`ballast`, `database`, `secrets\.key`, `(hub|policy)\.yaml`, `lost\+found`,
	`pki`, `pki/(next(\.part)?/)?(lock|remove|revoked|of-database|((former-)?root|intermediate|server|firmware|former|cross|peer|client|ca)\.(crt|key))`, `pki/next(\.part)?`,
	`backups`, `backups/(hub|before-schema-[0-9]+)-[0-9TZ.-]+\.db(\.part(-journal)?)?`,
	`history`, `history/[0-9-]+\.samples`,
}, "|") + `)$`)

// listing lists a directory without the files' content.
func listing(dir string) string {
	var text strings.Builder
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		name := named(dir, file)
		if err != nil {
			fmt.Fprintf(&text, "%s: cannot be read\n", name)
			return nil
		}
		if in, err := d.Info(); err == nil {
			fmt.Fprintf(&text, "%s %10d %s %s\n", in.Mode(), in.Size(), in.ModTime().UTC().Format(time.RFC3339), name)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(&text, err)
	}
	return text.String()
}

// named returns a file's name for display.
func named(dir, file string) string {
	name, err := filepath.Rel(dir, file)
	switch {
	case err != nil || name == ".":
		return dir
	case ours.MatchString(name):
		return filepath.Join(dir, name)
	}
	const other = "(not of the hub)"
	if in := filepath.Dir(name); ours.MatchString(in) {
		return filepath.Join(dir, in, other)
	}
	return filepath.Join(dir, other)
}

// othersIn returns the names in a directory that are not the hub's.
func othersIn(dir string) (names []string) {
	// An unreadable directory shows no names, so there are none to hide.
	_ = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if name, rerr := filepath.Rel(dir, file); err == nil && rerr == nil && name != "." && !ours.MatchString(name) {
			names = append(names, name, filepath.Base(name))
		}
		return nil
	})
	return names
}
