// Package doctor looks for what goes wrong with a hub on its machine, and says of each
// thing what to do. It works while the hub runs and while it does not, and changes
// nothing: what it cannot see without a change, it does not see.
//
// It knows the data directory and the machine, not the fleet: what is wrong there is
// package incident's work. Command line and exit code are package cli's.
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

// A Level says how much a finding matters.
type Level string

// The levels.
const (
	OK   Level = "OK"
	Warn Level = "WARN" // it works, and will not always
	Fail Level = "FAIL" // it does not work, or soon will not
)

// A Finding is one line: what was looked at, what was seen, and what to do.
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

// A Patient is a hub, as its configuration has it.
type Patient struct {
	Config   config.Config
	Mistakes error // of the configuration
	Warnings []string
	Now      time.Time
	Unsynced bool // the kernel says that nobody sets the clock
	// Standing is what a hub says that stands by; nil: it does not.
	Standing *leader.Standing
}

// Clock asks the kernel for the time, and whether anybody sets it.
func Clock() (now time.Time, unsynced bool) {
	state, err := unix.Adjtimex(&unix.Timex{})
	return time.Now(), err == nil && state == unix.TIME_ERROR
}

const (
	soon     = 30 * 24 * time.Hour // before a certificate that nobody renews by itself ends
	tooSoon  = 24 * time.Hour      // before one ends that the hub renews in time
	lowBytes = 512 << 20
	noBytes  = 64 << 20 // below it, daily backups and a busy day no longer fit
	oldCopy  = 50 * time.Hour
	patience = 10 * time.Second
)

// Examine looks at everything. It does not end at the first thing that is wrong.
func Examine(ctx context.Context, p Patient) (all []Finding) {
	dir := p.Config.DataDir
	e, err := store.Examine(ctx, store.Options{Dir: dir, Database: p.Config.Database})
	//lint:ignore SA5001 what could be seen is there with an error, too
	defer e.Close()
	all = append(all, p.configuration()...)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return append(all, directory(dir, false)...) // nothing else is there to look at
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

// Worst is the level of the worst finding.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Fail || f.Level == Warn && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

func (p Patient) configuration() (all []Finding) {
	for _, w := range p.Warnings {
		all = append(all, Finding{Warn, "configuration", w, "correct it, or remove it"})
	}
	if p.Mistakes != nil {
		return append(all, Finding{Fail, "configuration", strings.ReplaceAll(p.Mistakes.Error(), "\n", "; "),
			"the hub does not start with it: correct it"})
	}
	if len(all) == 0 {
		all = append(all, Finding{OK, "configuration", "valid", ""})
	}
	return all
}

// directory looks at who may read and write what.
func directory(dir string, running bool) (all []Finding) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{{Fail, "directory", dir + " is not there",
			"name the hub's directory with --data-dir, or start `flotilla-hub serve` once, which makes it"}}
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
		all = append(all, Finding{Fail, "directory", fmt.Sprintf("%s is open to others (mode %04o)", dir, mode),
			"chmod 700 " + dir})
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		all = append(all, Finding{Fail, "directory", fmt.Sprintf("%s cannot be written: %v", dir, err),
			"run this as the user of the hub; if that is who you are, chown it, and see `dmesg` for a file system that has " +
				"become read-only"})
	}
	files, foreign := 0, false
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has just gone
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
				fmt.Sprintf("%s is open to others (mode %04o)", name, in.Mode().Perm()),
				"chmod 600 " + file + "; who may have read it has the hub's secrets"})
		}
		if ownerOf(in) != ownerOf(info) {
			foreign = true
			all = append(all, Finding{Fail, "directory", fmt.Sprintf("%s belongs to another user than %s", name, dir),
				fmt.Sprintf("chown %d %s: a command was run as another user", ownerOf(info), file)})
		}
		return nil
	})
	if err != nil {
		all = append(all, Finding{Fail, "directory", err.Error(), "run this as the user of the hub, or as root"})
	}
	if err := store.Refuses(dir); err != nil && !foreign { // else it is said
		all = append(all, Finding{Fail, "directory", err.Error(), startsNot})
	}
	if len(all) == 0 {
		state := "the hub is down"
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
		return nil // there is no directory, which is said already
	}
	//nolint:unconvert // their types differ between architectures
	free, size := int64(st.Bavail)*int64(st.Bsize), int64(st.Blocks)*int64(st.Bsize)
	seen := fmt.Sprintf("%d MB of %d MB are free", free>>20, size>>20)
	const room = "make room: journalctl --vacuum-size=100M, apt-get clean, old files beside hub.db; or move the " +
		"directory to a larger disk"
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return []Finding{{Fail, "disk", "the file system is read-only",
			"see `dmesg`: a kernel makes it so after errors of the disk. Copy the directory away before anything else"}}
	case free < noBytes:
		return []Finding{{Fail, "disk", seen, room}}
	case st.Files > 0 && st.Ffree < 100:
		return []Finding{{Fail, "disk", fmt.Sprintf("%d files can still be made", st.Ffree),
			"remove files: the file system has no inodes left"}}
	case free < lowBytes:
		return []Finding{{Warn, "disk", seen, room}}
	}
	return []Finding{{OK, "disk", seen, ""}}
}

func (p Patient) database(e *store.Examination, err error) (all []Finding) {
	const restore = "the hub takes its newest backup by itself at its next start; to choose one: stop the hub, " +
		"`flotilla-hub restore FILE`"
	switch {
	case e.Server != "":
		return p.server(e, err)
	case errors.Is(err, store.ErrNotFound):
		return []Finding{{Fail, "database", "hub.db is not there",
			"name the hub's directory with --data-dir; if this is it, `flotilla-hub restore` the newest of backups/"}}
	case err != nil:
		return []Finding{{Fail, "database", err.Error(), "run this as the user of the hub, or as root"}}
	case e.Refused != nil:
		return []Finding{{Fail, "database", e.Refused.Error(), startsNot}}
	case e.Damage != "":
		return []Finding{{Fail, "database", "hub.db is damaged: " + e.Damage, restore}}
	case e.Schema > e.Newest:
		all = append(all, Finding{Fail, "database", fmt.Sprintf(
			"hub.db has schema %d, of flotilla-hub %s; this program works with %d", e.Schema, e.Version,
			e.Newest), "install that version again, or restore a backup from before it"})
	case e.Schema < e.Newest:
		all = append(all, Finding{Warn, "database", fmt.Sprintf("hub.db has schema %d, this program %d", e.Schema, e.Newest),
			"the hub brings it up to date at its next start; make a copy of the directory before"})
	default:
		all = append(all, Finding{OK, "database",
			fmt.Sprintf("hub.db is whole, %.1f MB, schema %d", float64(e.Bytes)/(1<<20), e.Schema), ""})
	}
	all = append(append(all, p.paused(e)...), secretsOfDatabase(e)...)
	lost, _ := fs.Glob(os.DirFS(p.Config.DataDir), "hub.db.corrupt-*")
	// of one of them
	lost = slices.DeleteFunc(lost, func(file string) bool {
		return strings.HasSuffix(file, "-wal") || strings.HasSuffix(file, "-shm")
	})
	if len(lost) > 0 {
		all = append(all, Finding{Warn, "database",
			fmt.Sprintf("%d damaged databases are kept beside it: %s", len(lost), filepath.Base(lost[len(lost)-1])),
			"a disk or SD card that does it once does it again: replace it; then remove them"})
	}
	return all
}

// server looks at a database in PostgreSQL, as far as who uses it sees it.
func (p Patient) server(e *store.Examination, err error) (all []Finding) {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return []Finding{{Fail, "database", e.Server + " is empty",
			"start `flotilla-hub serve` once, correct --database, or `flotilla-hub restore` a backup"}}
	case errors.Is(err, store.ErrUnavailable):
		return []Finding{{Fail, "database", err.Error(), "see that PostgreSQL runs and that its disk has room (its log " +
			"says why it does not), that this machine may connect to it (pg_hba.conf, firewall), and that user, password " +
			"and name are right"}}
	case err != nil:
		return []Finding{{Fail, "database", err.Error(), "see the manual's page about PostgreSQL"}}
	case e.Schema < e.Newest:
		all = append(all, Finding{Warn, "database",
			fmt.Sprintf("%s has schema %d, this program %d", e.Server, e.Schema, e.Newest),
			"the hub brings it up to date at its next start; make a copy with pg_dump before"})
	default:
		all = append(all, Finding{OK, "database",
			fmt.Sprintf("%s answers, PostgreSQL %s, %.1f MB, schema %d", e.Server, e.Release, float64(e.Bytes)/(1<<20),
				e.Schema), ""})
	}
	if e.Exposed != "" {
		all = append(all, Finding{Warn, "database", e.Exposed,
			"set sslmode=verify-full and sslrootcert in the address of the database"})
	}
	if len(e.Unsafe) > 0 {
		all = append(all, Finding{Fail, "database", "a power cut of the server loses what was acknowledged: " +
			strings.Join(e.Unsafe, ", "), "set fsync and full_page_writes to on in postgresql.conf, and restart PostgreSQL"})
	}
	return append(append(all, p.paused(e)...), secretsOfDatabase(e)...)
}

const startsNot = "the hub does not start like this: mend it first"

// secretsOfDatabase says that the key of the secrets is not the database's.
func secretsOfDatabase(e *store.Examination) []Finding {
	switch {
	case e.Key == nil:
		return nil
	case errors.Is(e.Key, fs.ErrNotExist):
		return []Finding{{Warn, "secrets", e.Key.Error(), "where systemd gives the key to the hub all is well; " + startsNot}}
	}
	return []Finding{{Fail, "secrets", e.Key.Error(), startsNot}}
}

// paused says that nobody has looked yet at a database that was replaced.
func (p Patient) paused(e *store.Examination) (all []Finding) {
	if e.Paused != nil {
		from := "a backup, " + filepath.Base(e.Paused.From)
		switch {
		case e.Paused.From == "":
			from = "an empty one"
		case e.Paused.From == filepath.Join(p.Config.DataDir, "hub.db"), e.Paused.From == e.Server:
			from = "an older state of itself"
		}
		all = append(all, Finding{Warn, "database", fmt.Sprintf(
			"it was replaced by %s, at %s (%s): devices with a newer desired state keep it", from,
			e.Paused.At.Format(time.RFC3339), e.Paused.Cause), "see that what the hub has is right, then `flotilla-hub resume`"})
	}
	return all
}

func (p Patient) backups() []Finding {
	at, err := store.NewestBackup(p.Config.DataDir, p.Now)
	switch {
	case p.Standing != nil && err == nil:
		return []Finding{{OK, "backups", "the hub that leads makes them, in its own data directory", ""}}
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{{Fail, "backups", err.Error(),
			"until then the hub makes none, and does not start if its database is damaged"}}
	case err != nil:
		return []Finding{{Fail, "backups", err.Error(), "run this as the user of the hub, or as root"}}
	case at.IsZero():
		return []Finding{{Warn, "backups", "there is none yet",
			"the hub makes one a day while it runs; now: `flotilla-hub backup FILE`"}}
	case p.Now.Sub(at) > oldCopy:
		return []Finding{{Warn, "backups", "the newest is of " + at.Format(time.RFC3339),
			"the hub makes one a day while it runs: see its log for why it did not"}}
	}
	return []Finding{{OK, "backups", "the newest is of " + at.Format(time.RFC3339), ""}}
}

func (p Patient) clock(e *store.Examination) []Finding {
	const set = "timedatectl set-ntp true, or set it by hand; a gateway without internet wants a clock with a battery"
	now := p.Now.UTC().Format(time.RFC3339)
	switch {
	case !e.Changed.IsZero() && e.Changed.After(p.Now.Add(time.Minute)):
		return []Finding{{Fail, "clock",
			fmt.Sprintf("it is %s, and the database was last written at %s", now, e.Changed.UTC().Format(time.RFC3339)), set}}
	case p.Now.Year() < 2026:
		return []Finding{{Fail, "clock", "it is " + now, set}}
	case p.Unsynced:
		return []Finding{{Warn, "clock", "it is " + now + ", and nothing keeps it right", set}}
	}
	return []Finding{{OK, "clock", "it is " + now, ""}}
}

// ports tells whether a hub that is down could listen.
func (p Patient) ports() (all []Finding) {
	for _, l := range []struct{ flag, addr string }{{"--https-listen", p.Config.HTTPSListen},
		{"--mqtt-listen", p.Config.MQTTListen}, {"--mqtt-dev-listen", p.Config.MQTTDevListen},
		{"--peer-listen", p.Config.PeerListen}} {
		if l.addr == "" || len(p.Config.Brokers) > 0 && strings.HasPrefix(l.flag, "--mqtt") { // devices connect to the broker
			continue
		}
		conn, err := net.Listen("tcp", l.addr)
		if err != nil {
			all = append(all, Finding{Fail, "ports", fmt.Sprintf("%s %s: %v", l.flag, l.addr, err),
				"see who has it with `ss -ltnp`, or choose another with " + l.flag})
			continue
		}
		_ = conn.Close()
		all = append(all, Finding{OK, "ports", l.flag + " " + l.addr + " is free", ""})
	}
	return all
}
