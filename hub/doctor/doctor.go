// Package doctor checks a running or stopped hub's installation on its machine, and says how to fix
// each problem. A check never changes anything.
//
// It checks the data directory and the machine; package diagnose checks the fleet's health. Package
// cli prints the findings and sets the exit code.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/store"
)

// A Level is the severity of a finding.
type Level string

// The levels.
const (
	OK   Level = "OK"
	Warn Level = "WARN" // works now, but may fail later
	Fail Level = "FAIL" // does not work, or will fail soon
)

// A Finding is the result of one check, and the next step.
type Finding struct {
	Level    Level
	What     string
	Seen, Do string
}

func (f Finding) String() string {
	line := fmt.Sprintf("%-4s  %-13s %s", f.Level, f.What, f.Seen)
	if f.Do != "" {
		line += "\n      " + strings.Repeat(" ", 14) + "→ " + f.Do
	}
	return line
}

// A Hub is the installation to check, with its configuration.
type Hub struct {
	Config   config.Config
	Mistakes error // errors in the configuration
	Warnings []string
	Now      time.Time
	Unsynced bool // the kernel reports that the clock is not synchronized
	// Standing is the state of a hub on standby; nil if the hub is not on standby.
	Standing *leader.Status
}

// Clock returns the kernel's time, and whether the kernel says that it is not synchronized.
func Clock() (now time.Time, unsynced bool) {
	state, err := unix.Adjtimex(&unix.Timex{})
	return time.Now(), err == nil && state == unix.TIME_ERROR
}

const (
	soon     = 30 * 24 * time.Hour // time to the expiry of a certificate that is not renewed
	tooSoon  = 24 * time.Hour      // time to the expiry of a certificate that the hub renews
	lowBytes = 512 << 20
	noBytes  = 64 << 20 // less has no room for a daily backup and a busy day
	oldCopy  = 50 * time.Hour
	patience = 10 * time.Second
)

// Examine runs all checks, also after one has failed.
func Examine(ctx context.Context, p Hub) (all []Finding) {
	dir := p.Config.DataDir
	e, err := store.Examine(ctx, store.Options{Dir: dir, Database: p.Config.Database})
	//lint:ignore SA5001 the examination is useful even with an error
	defer e.Close()
	all = append(all, p.configuration()...)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return append(all, directory(dir, false)...) // all other checks need the directory
	}
	all = append(all, directory(dir, e.Running)...)
	all = append(all, disk(dir)...)
	all = append(all, p.database(e, err)...)
	all = append(all, p.backups()...)
	all = append(all, p.certificates()...)
	all = append(all, p.clock(e)...)
	all = append(all, p.brokers(ctx)...)
	switch {
	case e.Running && p.Standing != nil:
		return append(all, standby(*p.Standing, answers(ctx, p.Standing.URL)))
	case e.Running:
		return append(all, answers(ctx, e.URL))
	}
	return append(all, p.ports()...)
}

// Worst returns the highest level of the findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

func (p Hub) configuration() (all []Finding) {
	for _, w := range p.Warnings {
		all = append(all, Finding{Warn, "configuration", w, "correct or remove it"})
	}
	if p.Mistakes != nil {
		return append(all, Finding{Fail, "configuration", strings.ReplaceAll(p.Mistakes.Error(), "\n", "; "),
			"correct it: the hub does not start"})
	}
	if len(all) == 0 {
		all = append(all, Finding{OK, "configuration", "valid", ""})
	}
	return all
}

// directory checks owners and permissions.
func directory(dir string, running bool) (all []Finding) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{{Fail, "directory", dir + " not found",
			"name the hub's directory with --data-dir, or create it: run `flotilla-hub serve` once"}}
	}
	if err != nil {
		return []Finding{{Fail, "directory", err.Error(), "run this as the user of the hub, or as root"}}
	}
	if !info.IsDir() {
		return []Finding{{Fail, "directory", dir + " is not a directory", "name the hub's directory with --data-dir"}}
	}
	if err := store.Foreign(dir); err != nil {
		return []Finding{{Fail, "directory", err.Error(), startsNot}}
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		all = append(all, Finding{Fail, "directory", fmt.Sprintf("other users may open %s (mode %04o)", dir, mode),
			"chmod 700 " + dir})
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		all = append(all, Finding{Fail, "directory", fmt.Sprintf("%s cannot be written: %v", dir, err),
			"run this as the user of the hub; if you did, chown it, and see `dmesg` for a read-only file " +
				"system"})
	}
	files, foreign := 0, false
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file has been removed since it was listed
		}
		if err != nil {
			return err
		}
		in, err := d.Info()
		if err != nil || file == dir {
			return nil
		}
		files++
		name, _ := filepath.Rel(dir, file)
		if d.Type().IsRegular() && in.Mode().Perm()&0o077 != 0 &&
			(strings.HasSuffix(name, ".key") || name == "database" || strings.HasPrefix(name, "hub.db") ||
				strings.HasPrefix(name, "backups")) {
			all = append(all, Finding{Fail, "directory",
				fmt.Sprintf("other users may open %s (mode %04o)", name, in.Mode().Perm()),
				"chmod 600 " + file + "; another user may have read the hub's secrets"})
		}
		if ownerOf(in) != ownerOf(info) {
			foreign = true
			all = append(all, Finding{Fail, "directory", fmt.Sprintf("%s does not have the owner of %s", name, dir),
				fmt.Sprintf("chown %d %s; then run commands as that user", ownerOf(info), file)})
		}
		return nil
	})
	if err != nil {
		all = append(all, Finding{Fail, "directory", err.Error(), "run this as the user of the hub, or as root"})
	}
	if err := store.Refuses(dir); err != nil && !foreign { // an earlier check has reported foreign files
		all = append(all, Finding{Fail, "directory", err.Error(), startsNot})
	}
	if len(all) == 0 {
		state := "the hub is stopped"
		if running {
			state = "the hub runs"
		}
		all = append(all, Finding{OK, "directory", fmt.Sprintf("%s, %d files, %s", dir, files, state), ""})
	}
	return all
}

func disk(dir string) []Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil // the check of the directory has reported it
	}
	//nolint:unconvert // their types differ between architectures
	free, size := int64(st.Bavail)*int64(st.Bsize), int64(st.Blocks)*int64(st.Bsize)
	seen := fmt.Sprintf("%d MB of %d MB are free", free>>20, size>>20)
	const room = "free space: journalctl --vacuum-size=100M, apt-get clean, old files beside hub.db; or move the " +
		"directory to a larger disk"
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return []Finding{{Fail, "disk", "the file system is read-only",
			"copy the directory to another disk now, then see `dmesg`: disk errors make a file system read-only"}}
	case free < noBytes:
		return []Finding{{Fail, "disk", seen, room}}
	case st.Files > 0 && st.Ffree < 100:
		return []Finding{{Fail, "disk", fmt.Sprintf("%d inodes are free", st.Ffree),
			"remove files: the file system has almost no inodes"}}
	case free < lowBytes:
		return []Finding{{Warn, "disk", seen, room}}
	}
	return []Finding{{OK, "disk", seen, ""}}
}

func (p Hub) database(e *store.Examination, err error) (all []Finding) {
	const restore = "restart the hub: it restores the newest backup; to choose another one, stop the hub and run " +
		"`flotilla-hub restore FILE`"
	switch {
	case e.Server != "":
		return p.server(e, err)
	case errors.Is(err, store.ErrNotFound):
		return []Finding{{Fail, "database", "hub.db not found",
			"name the hub's directory with --data-dir; if this is it, restore the newest of backups/ with `flotilla-hub restore`"}}
	case err != nil:
		return []Finding{{Fail, "database", err.Error(), "run this as the user of the hub, or as root"}}
	case e.Refused != nil:
		return []Finding{{Fail, "database", e.Refused.Error(), startsNot}}
	case e.Damage != "":
		return []Finding{{Fail, "database", "hub.db is damaged: " + e.Damage, restore}}
	case e.Schema > e.Newest:
		all = append(all, Finding{Fail, "database", fmt.Sprintf(
			"hub.db has schema %d, of flotilla-hub %s; this program needs %d", e.Schema, e.Version,
			e.Newest), "install that version, or restore a backup of an older one"})
	case e.Schema < e.Newest:
		all = append(all, Finding{Warn, "database",
			fmt.Sprintf("hub.db has schema %d; this program needs %d", e.Schema, e.Newest),
			"copy the directory, then restart the hub: it updates the schema"})
	default:
		all = append(all, Finding{OK, "database",
			fmt.Sprintf("hub.db is intact, %.1f MB, schema %d", float64(e.Bytes)/(1<<20), e.Schema), ""})
	}
	all = append(append(all, p.paused(e)...), secretsOfDatabase(e)...)
	lost, _ := fs.Glob(os.DirFS(p.Config.DataDir), "hub.db.corrupt-*")
	// SQLite's log and index belong to the damaged database beside them.
	lost = slices.DeleteFunc(lost, func(file string) bool {
		return strings.HasSuffix(file, "-wal") || strings.HasSuffix(file, "-shm")
	})
	if len(lost) > 0 {
		all = append(all, Finding{Warn, "database",
			fmt.Sprintf("%d damaged databases are kept beside hub.db: %s", len(lost), filepath.Base(lost[len(lost)-1])),
			"replace the disk or SD card, which may damage it again; then remove the files"})
	}
	return all
}

// server checks a PostgreSQL database with the permissions of the hub's user.
func (p Hub) server(e *store.Examination, err error) (all []Finding) {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return []Finding{{Fail, "database", e.Server + " is empty",
			"start `flotilla-hub serve` once, correct --database, or `flotilla-hub restore` a backup"}}
	case errors.Is(err, store.ErrUnavailable):
		return []Finding{{Fail, "database", err.Error(), "check that PostgreSQL runs and its disk has space (its log " +
			"has the reason), that this machine may connect (pg_hba.conf, firewall), and that user, password " +
			"and database name are right"}}
	case err != nil:
		return []Finding{{Fail, "database", err.Error(), "see the manual's page on PostgreSQL"}}
	case e.Schema < e.Newest:
		all = append(all, Finding{Warn, "database",
			fmt.Sprintf("%s has schema %d; this program needs %d", e.Server, e.Schema, e.Newest),
			"make a copy with pg_dump, then restart the hub: it updates the schema"})
	default:
		all = append(all, Finding{OK, "database",
			fmt.Sprintf("%s answers, PostgreSQL %s, %.1f MB, schema %d", e.Server, e.Release, float64(e.Bytes)/(1<<20),
				e.Schema), ""})
	}
	if e.Exposed != "" {
		all = append(all, Finding{Warn, "database", e.Exposed,
			"set sslmode=verify-full and sslrootcert in the database's URL"})
	}
	if len(e.Unsafe) > 0 {
		all = append(all, Finding{Fail, "database", "a power cut of the server loses acknowledged writes: " +
			strings.Join(e.Unsafe, ", "), "set fsync and full_page_writes to on in postgresql.conf, and restart PostgreSQL"})
	}
	return append(append(all, p.paused(e)...), secretsOfDatabase(e)...)
}

const startsNot = "fix this first: the hub does not start"

// secretsOfDatabase checks that the database's secrets are sealed with the hub's key.
func secretsOfDatabase(e *store.Examination) []Finding {
	switch {
	case e.Key == nil:
		return nil
	case errors.Is(e.Key, fs.ErrNotExist):
		return []Finding{{Warn, "secrets", e.Key.Error(),
			"ignore this if systemd passes the key to the hub; else " + startsNot}}
	}
	return []Finding{{Fail, "secrets", e.Key.Error(), startsNot}}
}

// paused reports a replaced database that waits for `flotilla-hub resume`.
func (p Hub) paused(e *store.Examination) (all []Finding) {
	if e.Paused != nil {
		from := "a backup, " + filepath.Base(e.Paused.From)
		switch {
		case e.Paused.From == "":
			from = "an empty one"
		case e.Paused.From == filepath.Join(p.Config.DataDir, "hub.db"), e.Paused.From == e.Server:
			from = "an older copy of itself"
		}
		all = append(all, Finding{Warn, "database", fmt.Sprintf(
			"it was replaced by %s at %s (%s); devices with a newer desired state keep it", from,
			e.Paused.At.Format(time.RFC3339), e.Paused.Cause),
			"check that the hub's objects are right, then run `flotilla-hub resume`"})
	}
	return all
}

func (p Hub) backups() []Finding {
	at, err := store.NewestBackup(p.Config.DataDir, p.Now)
	switch {
	case p.Standing != nil && err == nil:
		return []Finding{{OK, "backups", "the leader makes them, in its data directory", ""}}
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{{Fail, "backups", err.Error(),
			"fix this: until then the hub makes no backups, and does not start with a damaged database"}}
	case err != nil:
		return []Finding{{Fail, "backups", err.Error(), "run this as the user of the hub, or as root"}}
	case at.IsZero():
		return []Finding{{Warn, "backups", "none yet",
			"wait: a running hub makes one a day; or run `flotilla-hub backup FILE`"}}
	case p.Now.Sub(at) > oldCopy:
		return []Finding{{Warn, "backups", "the newest is from " + at.Format(time.RFC3339),
			"see the hub's log for the reason: a running hub makes one a day"}}
	}
	return []Finding{{OK, "backups", "the newest is from " + at.Format(time.RFC3339), ""}}
}

func (p Hub) clock(e *store.Examination) []Finding {
	const set = "run timedatectl set-ntp true, or set the clock by hand; a gateway without internet needs a clock with a battery"
	now := p.Now.UTC().Format(time.RFC3339)
	switch {
	case !e.Changed.IsZero() && e.Changed.After(p.Now.Add(time.Minute)):
		return []Finding{{Fail, "clock",
			fmt.Sprintf("it shows %s, but the database was last written at %s", now, e.Changed.UTC().Format(time.RFC3339)), set}}
	case p.Now.Year() < 2026:
		return []Finding{{Fail, "clock", "it shows " + now, set}}
	case p.Unsynced:
		return []Finding{{Warn, "clock", "it shows " + now + " and is not synchronized", set}}
	}
	return []Finding{{OK, "clock", "it shows " + now, ""}}
}

// ports checks whether a stopped hub could listen on its ports.
func (p Hub) ports() (all []Finding) {
	for _, l := range []struct{ flag, addr string }{{"--https-listen", p.Config.HTTPSListen},
		{"--mqtt-listen", p.Config.MQTTListen}, {"--mqtt-dev-listen", p.Config.MQTTDevListen},
		{"--peer-listen", p.Config.PeerListen}} {
		external := len(p.Config.Brokers) > 0 && strings.HasPrefix(l.flag, "--mqtt") // devices connect to the external broker
		if l.addr == "" || external {
			continue
		}
		conn, err := net.Listen("tcp", l.addr)
		if err != nil {
			all = append(all, Finding{Fail, "ports", fmt.Sprintf("%s %s: %v", l.flag, l.addr, err),
				"find the program with `ss -ltnp`, or choose another port with " + l.flag})
			continue
		}
		_ = conn.Close()
		all = append(all, Finding{OK, "ports", l.flag + " " + l.addr + " is free", ""})
	}
	return all
}
