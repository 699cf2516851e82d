package firmware

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Fares is how the device fares, as far as a trial is judged by it.
type Fares struct {
	Hub          bool          // connected
	Engine       string        // why the container engine does not answer
	Disk         func() string // writes to the disk, and says why it could not; asked only while something is tried
	Undervoltage bool          // now
	Missing      string        // which of the board profile's peripherals are, and why
	Desired      []string      // UIDs of the pods that are to run here
	Running      []string      // UIDs of the pods that run
}

// failing are the checks that do not hold, each with why.
func failing(checks []string, was Was, now Fares) (out []string) {
	for _, c := range checks {
		why := ""
		switch c {
		case fleet.CheckAgentRunning: // it asks
		case fleet.CheckEnginePing:
			why = now.Engine
		case fleet.CheckHubReconnected:
			if was.Hub && !now.Hub {
				why = "the hub was connected before, and is not"
			}
		case fleet.CheckDiskWritable:
			why = now.Disk()
		case fleet.CheckPeripherals:
			why = now.Missing
		case fleet.CheckUndervoltage:
			if now.Undervoltage {
				why = "the supply's voltage is too low"
			}
		case fleet.CheckWorkloads:
			for _, uid := range was.Running {
				if slices.Contains(now.Desired, uid) && !slices.Contains(now.Running, uid) {
					why = "pod " + uid + " ran before, and does not"
					break
				}
			}
		default:
			why = "this agent does not know the check"
		}
		if why != "" {
			out = append(out, c+": "+why)
		}
	}
	return out
}

// A Runner takes one step after the other until the board's boot is as the hub wants it.
type Runner struct {
	Node    string
	Ask     func(context.Context, boothelper.Request) (boothelper.Reply, error) // the helper
	Disk    boothelper.Disk
	Dir     string                          // of the journal
	Desired func() (*wire.Firmware, []byte) // what the hub wants, and its key
	Fares   func(context.Context) Fares     //
	Tell    func(*wire.FirmwareStatus)      // it has changed
	Log     *slog.Logger
	Uptime  func() time.Duration // since the boot, with the time for which the device was suspended; nil: the system's

	slots       *boothelper.Slots
	journal     Journal
	loaded      bool
	facts       Facts // what stays between two steps
	holding     bool
	lookedAt    time.Duration // at how the device fares, the last time, by Uptime
	inspectedAt time.Time
	asked       question // when the helper was asked last
	askedAt     time.Time
	quiet       bool   // and nothing was under way
	foreign     string // the key that was refused, so that it is said once
	told        *wire.FirmwareStatus
}

// A question is what the helper is asked for.
type question struct {
	key  string
	want wire.Firmware
}

const (
	restTime  = 5 * time.Second  // between two looks at what the hub wants
	trialTime = 5 * time.Second  // between two steps
	blindTime = 30 * time.Second // without a look, after which what held before it counts no more
	askTime   = 5 * time.Minute  // between two questions to the helper while nothing is under way
	lookTime  = 10 * time.Minute // between two looks at what a configuration would change
	retryTime = time.Minute      // and where something speaks against it
)

// Run takes steps until ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	for {
		every := restTime
		again, err := r.Step(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			r.Log.Error("cannot go on with the boot configuration; trying again", "err", err)
		} else if again {
			every = trialTime
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

func (r *Runner) uptime() time.Duration {
	if r.Uptime != nil {
		return r.Uptime()
	}
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it never fails
	return time.Duration(t.Nano())
}

// Step takes one step: it looks, remembers, and does one thing. It tells whether something
// is under way.
func (r *Runner) Step(ctx context.Context, now time.Time) (again bool, err error) {
	want, key := r.Desired()
	if !r.loaded {
		r.slots = &boothelper.Slots{Disk: r.Disk, Dir: r.Dir, Name: "firmware"}
		text, err := r.slots.Load()
		if err == nil && text != nil {
			err = json.Unmarshal(text, &r.journal)
		}
		if err != nil { // the helper knows what the board boots; what has failed before may be tried once more
			r.Log.Error("the journal of boot configurations is lost and begun anew", "err", err)
			r.journal = Journal{}
		}
		if err := r.slots.Sync(); err != nil && r.journal.Phase != Idle {
			return true, err
		}
		r.loaded = true
	}
	if want == nil && len(key) == 0 && r.journal.Phase == Idle && r.told == nil {
		return false, nil
	}
	asked := question{string(key), wire.Firmware{}}
	if want != nil {
		asked.want = *want
	}
	if r.quiet && r.journal.Phase == Idle && now.Sub(r.askedAt) < askTime && reflect.DeepEqual(asked, r.asked) {
		return false, nil
	}
	r.asked, r.askedAt = asked, now
	defer func() { r.quiet = !again && err == nil }()
	f, fares := &r.facts, r.Fares(ctx)
	status, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpStatus})
	f.HelperErr = ""
	if err != nil { // as on most devices, which have none: a fact that is told where it matters
		f.HelperErr, err = err.Error(), nil
	} else {
		f.Helper = *status.Status
		if err := r.pin(ctx, key); err != nil { // it is asked again
			f.HelperErr = err.Error()
		}
	}
	f.Was = Was{Hub: fares.Hub, Running: fares.Running}
	f.Failing = nil
	if r.journal.Phase != Idle {
		f.Failing = failing(r.journal.Checks, r.journal.Was, fares)
	}
	at := r.uptime()
	// the agent stood still, alone or with the device, or waited for one of those whom it asks
	blind := at-r.lookedAt > blindTime
	r.lookedAt = at
	switch {
	case r.journal.Phase != Verifying || len(f.Failing) > 0:
		r.holding = false
	case !r.holding || blind:
		r.holding, f.Holding = true, f.Helper.Uptime
	}
	if !r.holding {
		f.Holding = f.Helper.Uptime
	}
	if every := lookTime; want != nil && f.HelperErr == "" && f.Inspected == want.Digest && r.journal.Phase == Idle {
		if f.Wrong != "" {
			every = retryTime
		}
		if now.Sub(r.inspectedAt) >= every {
			err = r.do(ctx, Inspect, want, now)
		}
	}
	next, do, st := Decide(r.journal, *f, want, now)
	was := r.journal.Phase
	if !reflect.DeepEqual(next, r.journal) {
		text, err := json.Marshal(next)
		if err == nil {
			err = r.slots.Save(text)
		}
		if err != nil {
			return true, err
		}
		r.journal = next
	}
	if next.Phase != was {
		f.Failed, f.Inspected = "", "" // whatever was looked at may have changed since
	}
	r.tell(st)
	if do != Wait {
		err = r.do(ctx, do, want, now)
		f.Failed = ""
		if err != nil {
			f.Failed = err.Error()
		}
	}
	return r.journal.Phase != Idle || do != Wait || next.Phase != was, err
}

// do takes one step with the helper. What speaks against a configuration is no error.
func (r *Runner) do(ctx context.Context, do string, want *wire.Firmware, now time.Time) error {
	f := &r.facts
	switch do {
	case Inspect:
		a, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpInspect, Firmware: want})
		if a.Error == "" && err != nil { // it was not asked at all
			return err
		}
		r.inspectedAt = now
		f.Inspected, f.Diff, f.Wrong, f.Config = want.Digest, a.Diff, a.Error, nil
		if b, err := fleet.ParseBootConfig(want.Document); err == nil {
			f.Config = b
		} else if f.Wrong == "" {
			f.Wrong = err.Error()
		}
		return nil
	case Arm:
		q := boothelper.Request{Op: boothelper.OpArm, Firmware: want}
		if of := r.journal.Undoes; of != "" {
			q = boothelper.Request{Op: boothelper.OpUndo, Digest: of}
			r.say(false, "the board reboots to try what it had before boot configuration %s", of)
		} else {
			r.say(false, "the board reboots to try boot configuration %s", want.Digest)
		}
		_, err := r.Ask(ctx, q)
		return err
	case Keep:
		_, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpKeep, Digest: r.journal.Candidate})
		return err
	case Restore:
		_, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpRestore})
		return err
	}
	return fmt.Errorf("unknown step %q", do)
}

// pin gives the helper the first key of this node's hub. The error is one that may pass.
func (r *Runner) pin(ctx context.Context, key []byte) error {
	h := r.facts.Helper
	if len(key) == 0 || h.Node == r.Node && string(h.Key) == string(key) || r.foreign == string(key) {
		return nil
	}
	_, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpPin, Node: r.Node, Key: key})
	if err != nil && h.Node == "" && len(key) == ed25519.PublicKeySize {
		return fmt.Errorf("it does not take its first key: %w", err)
	} else if err != nil { // it has another one, for good
		r.foreign = string(key)
		r.say(true, "the hub's key for boot configurations is not taken: %v", err)
		return nil
	}
	r.facts.Inspected = ""
	r.say(false, "boot configurations are taken from now on that this hub has signed for node %s", r.Node)
	return nil
}

func (r *Runner) tell(st *wire.FirmwareStatus) {
	if reflect.DeepEqual(st, r.told) {
		return
	}
	if st != nil && (r.told == nil || r.told.State != st.State) {
		switch st.State {
		case wire.FirmwareRolledBack, wire.FirmwareFailed:
			what := "boot configuration"
			if st.Candidate != "" {
				what += " " + st.Candidate
			} else if st.Digest != "" { // what was there before it has no name
				what += " before " + st.Digest
			}
			r.say(true, "%s: %s: %s", what, st.State, st.Message)
		default:
			r.say(false, "boot configuration: %s: %s", st.State, st.Message)
		}
	}
	r.told = st
	if r.Tell != nil {
		r.Tell(st)
	}
}

func (r *Runner) say(warning bool, format string, args ...any) {
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	level := slog.LevelInfo
	if warning {
		level = slog.LevelWarn
	}
	r.Log.Log(context.Background(), level, text)
}
