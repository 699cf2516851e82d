package upgrade

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// ErrRestart is returned by Run when the agent must end, so that its supervisor starts it again.
var ErrRestart = errors.New("the agent restarts as another version")

const (
	stepTime   = 5 * time.Second
	stableTime = 30 * time.Second // a candidate runs at least so long before it is confirmed
	retryTime  = time.Minute      // between two downloads that failed
	checkTime  = time.Minute      // for `version` and `probe` of a candidate
)

// A Runner keeps the agent at the version that the hub wants.
type Runner struct {
	Store
	Self     string // path of the running program
	Program  string // path of the installed program; Step sets it
	Version  string // of the running program
	Keys     []ed25519.PublicKey
	Unsigned bool   // the device's owner allows agents that nobody has signed
	Refused  string // why this device cannot upgrade itself, "" if it can
	Want     func() *wire.Upgrade
	Heard    func() bool // the hub acknowledges this process's messages
	Report   func(*wire.UpgradeStatus)
	// Fetch writes a file of the hub from an offset on, up to its size.
	Fetch func(ctx context.Context, path string, offset, size int64, w io.Writer) error
	Log   *slog.Logger

	// Check tells whether a program is the one that it should be; nil: by running its harmless
	// commands.
	Check func(ctx context.Context, program string, b fleet.AgentBuild) error

	deadline time.Duration // 0: Deadline
	began    time.Time
	reported *wire.UpgradeStatus
	staged   string // hash of the candidate that was checked by this process
	quiet    bool   // nothing is left to do for wanted
	wanted   *wire.Upgrade
	trial    bool      // this process is a candidate that was not confirmed when it began
	tried    time.Time // last download that failed
	failure  string
}

// Arch returns the processor architecture of this program, as the hub names its agents.
func Arch() string {
	arch := runtime.GOARCH
	if info, ok := debug.ReadBuildInfo(); ok && arch == "arm" {
		for _, s := range info.Settings {
			if s.Key == "GOARM" && s.Value != "" {
				arch += "v" + s.Value[:1]
			}
		}
	}
	return arch
}

// ReadKeys returns the keys of a file of the device's owner, one a line in base64; without that
// file the key that the build has linked in.
func ReadKeys(file, linked string) (keys []ed25519.PublicKey, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || file == "" {
		text, err = []byte(linked), nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("%s: %.60q is not an Ed25519 key of 32 bytes in base64", file, line)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Announce reports the state before the first step, so that the first status of the agent has it.
func (r *Runner) Announce() {
	var j journal
	if _, err := os.Stat(r.Dir); err == nil {
		if j, err = r.read(); err != nil {
			r.Log.Error("cannot read the state of the upgrade", "err", err)
		}
	}
	switch want := r.Want(); {
	case j.Phase != idle:
		r.say(wire.FirmwareVerifying, j, "the agent has just started")
	case r.Refused != "":
		r.say(wire.FirmwareUnsupported, j, "%s", r.Refused)
	case want == nil || want.Version == r.Version:
		r.say(wire.FirmwareUpToDate, j, "")
	default:
		r.say(wire.UpgradeDownloading, j, "the agent has just started")
	}
}

// Run takes steps until ctx ends, or until the agent must restart.
func (r *Runner) Run(ctx context.Context) error {
	for {
		err := r.Step(ctx, time.Now())
		if errors.Is(err, ErrRestart) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			r.Log.Error("cannot go on with the upgrade of the agent; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(stepTime):
		}
	}
}

// Step looks at the journal and the hub's wish, and does what is next.
func (r *Runner) Step(ctx context.Context, now time.Time) error {
	if r.began.IsZero() {
		r.began = now
	}
	want := r.Want()
	if r.quiet && reflect.DeepEqual(want, r.wanted) { // only this process changes a journal that is idle
		return nil
	}
	r.quiet, r.wanted = false, want
	if want == nil && r.Self != r.candidate() {
		if _, err := os.Stat(r.Dir); err != nil { // most devices were never upgraded
			return r.rest(wire.FirmwareUpToDate, journal{}, "")
		}
	}
	j, err := r.read()
	if err != nil {
		return err
	}
	if r.Program = r.Self; r.Self == r.candidate() {
		r.Program = j.Program
	}
	switch j.Phase {
	case trying:
		if r.Self == r.candidate() {
			return r.judge(j, now)
		}
		return ErrRestart // the restart has not come yet
	case confirmed:
		if r.Self == r.candidate() {
			return r.install(j)
		}
		return r.goBack("it cannot be started", false)
	case back:
		if r.trial {
			return ErrRestart
		}
		return r.returned(j, now)
	}
	return r.idle(ctx, j, want, now)
}

// judge confirms the running candidate once the hub acknowledges it. The watcher ends it at the
// deadline; if that was killed, the candidate ends itself.
func (r *Runner) judge(j journal, now time.Time) error {
	within := r.deadline
	if within == 0 {
		within = Deadline
	}
	r.trial = true
	ran := now.Sub(r.began)
	r.say(wire.FirmwareVerifying, j, "it runs, and is kept once the hub has acknowledged it for %s", stableTime)
	switch {
	case ran >= stableTime && r.Heard():
		err := r.update(func(j *journal) bool {
			if j.Phase != trying {
				return false
			}
			j.Phase = confirmed
			return true
		})
		if err != nil {
			return err
		}
		return r.install(j)
	case ran >= within+stepTime:
		if err := r.goBack(fmt.Sprintf("the hub has not acknowledged it within %s", within), true); err != nil {
			return err
		}
		return ErrRestart
	}
	return nil
}

// install replaces the installed program by the candidate, which runs. A cut at any step leaves one
// of the two: both work, and this is done again.
func (r *Runner) install(j journal) error {
	sum, _, err := hashOf(j.Program)
	if err != nil {
		return err
	}
	if sum == j.Installed.SHA256 {
		info, err := os.Stat(j.Program)
		if err == nil {
			err = r.copyFile(j.Program, filepath.Join(r.Dir, previousFile), 0o700)
		}
		if err == nil {
			err = r.copyFile(r.candidate(), j.Program, info.Mode().Perm())
		}
		if err != nil {
			r.say(wire.FirmwareVerifying, j, "it works, and cannot be installed: %v", err)
			return fmt.Errorf("install agent %s as %s: %w", j.Candidate.Version, j.Program, err)
		}
	}
	if err := r.finish(); err != nil {
		return err
	}
	r.Log.Info("the agent is upgraded", "version", j.Candidate.Version, "before", j.Installed.Version)
	return nil
}

// returned records why the agent has gone back. A candidate that the hub did not acknowledge counts
// as failed only if the hub acknowledges this version: otherwise the line was down.
func (r *Runner) returned(j journal, now time.Time) error {
	failed := !j.Unheard || r.Heard()
	if !failed && now.Sub(r.began) < Deadline {
		r.say(wire.FirmwareVerifying, j, "it went back: %s", j.Why)
		return nil
	}
	err := r.update(func(j *journal) bool {
		next := journal{Program: j.Program, Previous: j.Previous, Bad: slices.DeleteFunc(j.Bad, func(b badVersion) bool {
			return b.Version == j.Candidate.Version && b.Undo == j.Undo
		})}
		if failed {
			next.Bad = append(next.Bad, badVersion{j.Candidate.Version, j.Undo, j.Retry,
				bound.Text(j.Why, wire.MaxFirmwareMessage)})
			next.Bad = next.Bad[max(0, len(next.Bad)-wire.MaxFirmwareBad):]
		}
		*j = next
		return true
	})
	if err != nil {
		return err
	}
	r.Log.Warn("the agent went back to the version before", "version", r.Version, "tried", j.Candidate.Version,
		"why", j.Why, "failed", failed)
	return r.remove(r.candidate())
}

func (r *Runner) idle(ctx context.Context, j journal, want *wire.Upgrade, now time.Time) error {
	switch {
	case want == nil && r.Refused == "":
		return r.rest(wire.FirmwareUpToDate, j, "")
	case r.Refused != "":
		return r.rest(wire.FirmwareUnsupported, j, "%s", r.Refused)
	case want.Undo:
		return r.undo(j, want)
	case want.Version == r.Version:
		return r.rest(wire.FirmwareUpToDate, j, "it runs")
	}
	j.Candidate = want.AgentBuild
	if why := j.failed(want.Version, false, want.Retry); why != "" {
		return r.rest(wire.FirmwareRolledBack, j, "%s", why)
	}
	if err := want.Verify(r.Keys); err != nil && !r.Unsigned {
		return r.rest(wire.FirmwareFailed, j,
			"%v; the device's owner may name a key in --upgrade-keys, or set --upgrade-unsigned", err)
	}
	if want.Arch != Arch() {
		return r.rest(wire.FirmwareFailed, j, "it is for %s, and this agent for %s", want.Arch, Arch())
	}
	if r.staged != want.SHA256 {
		return r.stage(ctx, j, now)
	}
	if !want.Try {
		return r.rest(wire.FirmwareStaged, j, "it is downloaded and checked")
	}
	return r.try(j, want.Retry)
}

// failed returns why a version failed here, "" if it may be tried.
func (j journal) failed(version string, undo bool, retry int64) string {
	for _, b := range j.Bad {
		if b.Version == version && b.Undo == undo && b.Retry >= retry {
			return b.Why
		}
	}
	return ""
}

// undo tries the version before the running one.
func (r *Runner) undo(j journal, want *wire.Upgrade) error {
	why := j.failed(j.Previous.Version, true, want.Retry)
	switch {
	case want.Version != r.Version:
		return r.rest(wire.FirmwareUpToDate, j, "it is undone")
	case j.Previous.SHA256 == "":
		return r.rest(wire.FirmwareFailed, j, "this device does not have the version before: roll that one out instead")
	case why != "":
		return r.rest(wire.FirmwareFailed, j, "%s", why)
	}
	if err := r.copyFile(filepath.Join(r.Dir, previousFile), r.candidate(), 0o700); err != nil {
		return err
	}
	j.Candidate, j.Undo = j.Previous, true
	return r.try(j, want.Retry)
}

// try restarts the agent as the candidate.
func (r *Runner) try(j journal, retry int64) error {
	sum, size, err := hashOf(r.Program)
	if err != nil {
		return err
	}
	j.Phase, j.Program, j.Retry, j.Starts = trying, r.Program, retry, 0
	j.Installed = fleet.AgentBuild{Version: r.Version, Arch: Arch(), SHA256: sum, Size: size}
	r.say(wire.FirmwareTrial, j, "the agent restarts to try it")
	if err := r.update(func(now *journal) bool { *now = j; return true }); err != nil {
		return err
	}
	r.Log.Info("the agent restarts to try another version; containers run on", "version", j.Candidate.Version,
		"now", r.Version)
	return ErrRestart
}

// rest reports the state, which stays until the hub wants something else.
func (r *Runner) rest(state string, j journal, format string, args ...any) error {
	r.say(state, j, format, args...)
	r.quiet = true
	return nil
}

// say reports the state of the upgrade.
func (r *Runner) say(state string, j journal, format string, args ...any) {
	st := &wire.UpgradeStatus{Arch: Arch(), State: state, Candidate: j.Candidate.Version, Previous: j.Previous.Version,
		Message: bound.Text(fmt.Sprintf(format, args...), wire.MaxFirmwareMessage)}
	if state == wire.FirmwareUpToDate || j.Undo || state == wire.FirmwareFailed && j.Candidate.SHA256 == "" {
		st.Candidate = "" // an undo's failure is about the running version
	}
	for _, b := range slices.Backward(j.Bad) {
		if !b.Undo {
			st.Bad = append(st.Bad, b.Version)
		}
	}
	if r.reported != nil {
		st.Since = r.reported.Since
		if reflect.DeepEqual(st, r.reported) {
			return
		}
	}
	if r.reported == nil || r.reported.State != state {
		st.Since = time.Now().UTC().Truncate(time.Second)
	}
	r.reported = st
	r.Report(st)
}
