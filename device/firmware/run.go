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

// Health is the health of the device, by which a trial is judged.
type Health struct {
	Hub          bool          // the hub is connected
	Engine       string        // why the container engine does not answer
	Disk         func() string // writes to the disk and returns why that failed; called only during a trial
	Undervoltage bool          // the supply voltage is too low now
	Missing      string        // the board profile's missing peripherals, with reasons
	Desired      []string      // UIDs of the pods that should run here
	Running      []string      // UIDs of the pods that run
}

// failing returns the checks that fail, each with the reason.
func failing(checks []string, was Baseline, now Health) (out []string) {
	for _, c := range checks {
		why := ""
		switch c {
		case fleet.CheckAgentRunning: // true, because this code runs in the agent
		case fleet.CheckEnginePing:
			why = now.Engine
		case fleet.CheckHubReconnected:
			if was.Hub && !now.Hub {
				why = "the hub was connected before the trial and is not now"
			}
		case fleet.CheckDiskWritable:
			why = now.Disk()
		case fleet.CheckPeripherals:
			why = now.Missing
		case fleet.CheckUndervoltage:
			if now.Undervoltage {
				why = "the supply voltage is too low"
			}
		case fleet.CheckWorkloads:
			for _, uid := range was.Running {
				if slices.Contains(now.Desired, uid) && !slices.Contains(now.Running, uid) {
					why = "pod " + uid + " ran before the trial and does not now"
					break
				}
			}
		default:
			why = "this agent does not support the check"
		}
		if why != "" {
			out = append(out, c+": "+why)
		}
	}
	return out
}

// A Runner takes steps until the board boots as the hub wants.
type Runner struct {
	Node    string
	Ask     func(context.Context, boothelper.Request) (boothelper.Reply, error) // sends a request to the boot helper
	Disk    boothelper.Disk
	Dir     string                          // directory of the journal
	Desired func() (*wire.Firmware, []byte) // returns the hub's desired boot configuration and the hub's key
	Health  func(context.Context) Health    // returns the health of the device now
	Report  func(*wire.FirmwareStatus)      // called when the status changes
	Log     *slog.Logger
	Uptime  func() time.Duration // time since the boot, including suspended time; nil: the system's

	slots       *boothelper.Slots
	journal     Journal
	loaded      bool
	facts       Facts // facts that are kept between steps
	holding     bool
	lookedAt    time.Duration // uptime at the last check of the device's health
	inspectedAt time.Time
	asked       question // the last request to the helper
	askedAt     time.Time
	quiet       bool   // the last step was idle
	refusedKey  string // the key that the helper refused, which is logged once
	reported    *wire.FirmwareStatus
}

// A question is a request that the agent may repeat to the helper: unless it changes, the next one
// waits for askTime.
type question struct {
	key  string
	want wire.Firmware
}

const (
	restTime  = 5 * time.Second  // time between two steps while idle
	trialTime = 5 * time.Second  // time between two steps of a trial
	blindTime = 30 * time.Second // after a longer pause between two steps, the time for which the checks hold starts anew
	askTime   = 5 * time.Minute  // time between two requests to the helper while idle
	lookTime  = 10 * time.Minute // time between two inspections of a configuration
	retryTime = time.Minute      // time between two inspections after a failure
)

// Run takes steps until ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	for {
		every := restTime
		again, err := r.Step(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			r.Log.Error("cannot continue with the boot configuration; trying again", "err", err)
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
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // CLOCK_BOOTTIME never fails
	return time.Duration(t.Nano())
}

// Step gathers the facts, saves the journal, and takes at most one action. It reports whether the
// caller should take the next step at once.
func (r *Runner) Step(ctx context.Context, now time.Time) (again bool, err error) {
	want, key := r.Desired()
	if !r.loaded {
		r.slots = &boothelper.Slots{Disk: r.Disk, Dir: r.Dir, Name: "firmware"}
		text, err := r.slots.Load()
		if err == nil && text != nil {
			err = json.Unmarshal(text, &r.journal)
		}
		if err != nil { // the helper knows the board's files; a failed configuration may be tried once more
			r.Log.Error("the journal of boot configurations is lost; starting a new one", "err", err)
			r.journal = Journal{}
		}
		if err := r.slots.Sync(); err != nil && r.journal.Phase != Idle {
			return true, err
		}
		r.loaded = true
	}
	if want == nil && len(key) == 0 && r.journal.Phase == Idle && r.reported == nil {
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
	f, health := &r.facts, r.Health(ctx)
	status, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpStatus})
	f.HelperErr = ""
	if err != nil { // most devices have no boot helper: report that only if the hub wants a configuration
		f.HelperErr, err = err.Error(), nil
	} else {
		f.Helper = *status.Status
		if err := r.pin(ctx, key); err != nil { // the next step tries again
			f.HelperErr = err.Error()
		}
	}
	f.Baseline = Baseline{Hub: health.Hub, Running: health.Running}
	f.Failing = nil
	if r.journal.Phase != Idle {
		f.Failing = failing(r.journal.Checks, r.journal.Baseline, health)
	}
	at := r.uptime()
	// blind means that no step ran for a while: the agent stood still, alone or with the device, or
	// waited for an answer.
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
		f.Failed, f.Inspected = "", "" // facts of the previous phase may be outdated
	}
	r.report(st)
	if do != Wait {
		err = r.do(ctx, do, want, now)
		f.Failed = ""
		if err != nil {
			f.Failed = err.Error()
		}
	}
	return r.journal.Phase != Idle || do != Wait || next.Phase != was, err
}

// do carries out one action. If the helper refuses a configuration, that is a fact for Decide, not
// an error.
func (r *Runner) do(ctx context.Context, do string, want *wire.Firmware, now time.Time) error {
	f := &r.facts
	switch do {
	case Inspect:
		a, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpInspect, Firmware: want})
		if a.Error == "" && err != nil { // the helper did not answer
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
			r.say(false, "the board reboots to try the files from before boot configuration %s", of)
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

// pin gives the helper the node's name and its hub's key. It returns an error only if a later
// attempt may succeed.
func (r *Runner) pin(ctx context.Context, key []byte) error {
	h := r.facts.Helper
	if len(key) == 0 || h.Node == r.Node && string(h.Key) == string(key) || r.refusedKey == string(key) {
		return nil
	}
	_, err := r.Ask(ctx, boothelper.Request{Op: boothelper.OpPin, Node: r.Node, Key: key})
	if err != nil && h.Node == "" && len(key) == ed25519.PublicKeySize {
		return fmt.Errorf("the boot helper refuses its first key: %w", err)
	} else if err != nil { // the helper has pinned another key for good
		r.refusedKey = string(key)
		r.say(true, "the boot helper refuses the hub's key: %v", err)
		return nil
	}
	r.facts.Inspected = ""
	r.say(false, "this device now takes boot configurations that its hub has signed for node %s", r.Node)
	return nil
}

func (r *Runner) report(st *wire.FirmwareStatus) {
	if reflect.DeepEqual(st, r.reported) {
		return
	}
	if st != nil && (r.reported == nil || r.reported.State != st.State) {
		switch st.State {
		case wire.FirmwareRolledBack, wire.FirmwareFailed:
			what := "boot configuration"
			if st.Candidate != "" {
				what += " " + st.Candidate
			} else if st.Digest != "" { // the files from before a digest have no digest
				what += " before " + st.Digest
			}
			r.say(true, "%s: %s: %s", what, st.State, st.Message)
		default:
			r.say(false, "boot configuration: %s: %s", st.State, st.Message)
		}
	}
	r.reported = st
	if r.Report != nil {
		r.Report(st)
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
