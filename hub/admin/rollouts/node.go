package rollouts

import (
	"fmt"
	"net/url"

	"flotilla.dev/hub/admin/diff"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A bootBad is a configuration that failed on a board, and whether it may be tried again.
type bootBad struct{ Digest, Again, Href string }

// A NodeBoot is the boot configuration on a node's page.
type NodeBoot struct {
	Pill          frame.Pill
	Message       string
	Rollout, Href string
	Turn          frame.Pill
	Why           string // why its last turn ended early, or why the hub gave the node up
	NotBefore     *format.Moment
	Facts         []frame.Fact
	Bad           []bootBad
	Diff          []diff.Hunk
}

// NodeBootOf is nil if neither the device nor a rollout reports anything.
func NodeBootOf(a *frame.Request, name string) *NodeBoot {
	rec := a.Record(name)
	if rec == nil || rec.Firmware == nil && rec.Assigned == nil {
		return nil
	}
	b := &NodeBoot{Pill: frame.Pill{Kind: "idle", Text: "Not known"},
		Message: "The device does not report its boot configuration: its agent may be too old, or was not installed " +
			"with a boot helper."}
	digest, retry := "", ""
	if t := rec.Assigned; t != nil {
		b.Rollout, b.Href, digest = t.Rollout, frame.RolloutHref(t.Rollout), t.Digest
		if r := a.Rollout(t.Rollout); r != nil {
			if t.Step != "" {
				b.Turn = firmwarePill(t.Step, r.Status.Undoing)
			}
			if a.May("patch", "firmwarerollouts") {
				retry = "/actions/firmwarerollouts/retry?" + url.Values{"item": {frame.ItemOf(r).Form()}}.Encode()
			}
			if t.NotBefore.After(a.Now) {
				b.Why, b.NotBefore = t.Why, format.Time(t.NotBefore.Time, a.Now)
			}
			if t.Failed != "" && t.Retry >= r.Spec.Retry {
				b.Why = t.Failed
			}
		}
	}
	f := rec.Firmware
	if f == nil {
		return b
	}
	b.Pill, b.Message = reportPill(f), f.Message
	add := func(name, value string) {
		if value != "" {
			b.Facts = append(b.Facts, frame.Fact{Name: name, Value: value})
		}
	}
	kept := "the board's own configuration"
	if f.Digest != "" {
		kept = shortDigest(f.Digest)
		if f.Digest == digest {
			kept += ", that of its rollout"
		}
	}
	add("Keeps", kept)
	add("Staged", shortDigest(f.Candidate))
	add("Tried with", f.Trial)
	add("Written by", f.Backend)
	for _, d := range f.Bad {
		x := bootBad{Digest: shortDigest(d), Again: "it is not tried again automatically"}
		if d == digest {
			x.Again = "it may be tried again when the rollout's retry is raised"
			x.Href = retry
			if f.Candidate == d && f.State != wire.FirmwareRolledBack {
				x.Again, x.Href = fmt.Sprintf("it may be tried again: it is %s", f.State), ""
			}
		}
		b.Bad = append(b.Bad, x)
	}
	if f.Diff != "" && f.Candidate != "" {
		b.Diff = deviceDiff(f.Diff)
	}
	return b
}

func reportPill(f *state.FirmwareReport) frame.Pill {
	p := frame.Pill{Kind: "idle", Text: f.State}
	switch f.State {
	case wire.FirmwareUpToDate:
		p.Kind = "ok"
	case wire.FirmwareTrial, wire.FirmwareVerifying, wire.FirmwareDraining:
		p.Kind = "warn"
	case wire.FirmwareRolledBack, wire.FirmwareFailed:
		p.Kind = "bad"
	}
	return p
}
