package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/fsync"
	"flotilla.dev/shared/wire"
)

// stage downloads and checks a candidate.
func (r *Runner) stage(ctx context.Context, j journal, now time.Time) error {
	if r.failure != "" && now.Sub(r.tried) < retryTime {
		r.say(wire.UpgradeDownloading, j, "%s; trying again", r.failure)
		return nil
	}
	r.say(wire.UpgradeDownloading, j, "")
	err := r.download(ctx, j)
	if ctx.Err() != nil {
		return nil
	}
	bad := (*badProgram)(nil)
	switch {
	case errors.As(err, &bad):
		r.failure = ""
		if err := r.update(func(now *journal) bool {
			now.Bad = append(now.Bad, badVersion{j.Candidate.Version, false, r.Want().Retry,
				bound.Text(bad.Error(), wire.MaxFirmwareMessage)})
			return true
		}); err != nil {
			return err
		}
		return r.remove(r.candidate())
	case err != nil:
		r.failure, r.tried = err.Error(), now
		r.say(wire.UpgradeDownloading, j, "%s; trying again", r.failure)
		return nil
	}
	r.failure, r.staged = "", j.Candidate.SHA256
	r.say(wire.FirmwareStaged, j, "it is downloaded and checked")
	return nil
}

// A badProgram is a candidate that fails its checks.
type badProgram struct{ error }

func (b *badProgram) Unwrap() error { return b.error }

// download brings the candidate, durably, and checks it. It goes on where an earlier one broke.
func (r *Runner) download(ctx context.Context, j journal) error {
	b := j.Candidate
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	sum, _, err := hashOf(r.candidate())
	if err != nil {
		return err
	}
	if sum != b.SHA256 {
		part := filepath.Join(r.Dir, "part-"+b.SHA256[:16])
		if err := r.fetch(ctx, part, b); err != nil {
			return err
		}
		if sum, _, err = hashOf(part); err != nil {
			return err
		}
		if sum != b.SHA256 {
			return errors.Join(fmt.Errorf("the hub's agent %s is not the one that its rollout names", b.Version),
				r.remove(part))
		}
		if err := r.rename(part, r.candidate()); err != nil {
			return err
		}
	}
	check := r.Check
	if check == nil {
		check = checkProgram
	}
	return check(ctx, r.candidate(), b)
}

func (r *Runner) fetch(ctx context.Context, part string, b fleet.AgentBuild) error {
	old, err := filepath.Glob(filepath.Join(r.Dir, "part-*"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if name != part {
			if err := r.remove(name); err != nil {
				return err
			}
		}
	}
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o700)
	if err != nil {
		return err
	}
	defer f.Close()
	offset, err := f.Seek(0, io.SeekEnd)
	if err == nil && offset > b.Size {
		offset, err = 0, f.Truncate(0)
	}
	if err == nil {
		err = room(r.Dir, 2*b.Size-offset) // with the copy of the program before
	}
	if err == nil {
		err = r.writable(b.Size)
	}
	if err == nil && offset < b.Size {
		err = r.Fetch(ctx, "/install/flotilla-device-"+b.Arch, offset, b.Size, f)
	}
	return errors.Join(err, f.Chmod(0o700), f.Sync(), fsync.Dir(r.Dir))
}

// writable checks that a program of a size can be installed.
func (r *Runner) writable(size int64) error {
	dir := filepath.Dir(r.Program)
	f, err := os.CreateTemp(dir, ".flotilla-*")
	if err != nil {
		return fmt.Errorf("the agent could not be installed in %s: %w", dir, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()), room(dir, size))
}

// room checks the free space of a directory's disk.
func room(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need { //nolint:unconvert // its type differs
		return fmt.Errorf("no room for the agent in %s: %d MB are free, %d MB are needed", dir, free>>20, need>>20+1)
	}
	return nil
}

// checkProgram runs a candidate's harmless commands.
func checkProgram(ctx context.Context, program string, b fleet.AgentBuild) error {
	ctx, stop := context.WithTimeout(ctx, checkTime)
	defer stop()
	out, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil && (ctx.Err() != nil || !broken(err)) {
		return err
	}
	if err != nil {
		return &badProgram{fmt.Errorf("it does not run on this device: %w", err)}
	}
	if fields := strings.Fields(string(out)); len(fields) < 2 || fields[1] != b.Version {
		return &badProgram{fmt.Errorf("it says that it is %.60q, not version %s", bytes.TrimSpace(out), b.Version)}
	}
	if out, err := exec.CommandContext(ctx, program, "probe").CombinedOutput(); err != nil && !broken(err) {
		return err
	} else if err != nil {
		return &badProgram{fmt.Errorf("its probe of this device fails: %w: %.200s", err, bytes.TrimSpace(out))}
	}
	return nil
}

// broken tells an error of a program from one of the device, such as a lack of memory.
func broken(err error) bool {
	exit := (*exec.ExitError)(nil)
	return errors.As(err, &exit) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.EACCES)
}
