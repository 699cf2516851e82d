// Package leader decides which of several hubs on one database leads.
//
// One row holds the leader's token. The leader changes the row with every beat and every commit,
// and marks it when it leaves. A hub that sees no change for Lease, by its own monotonic clock,
// takes the next token; wall clocks do not matter. Even a bug in this package cannot make two
// leaders: each writing transaction names its token, and package store commits only with the row's
// token.
//
// The package is pure: package cluster reads, takes and renews the row.
package leader

import "time"

const (
	// Lease is how long the row must stay unchanged before another hub takes it, and how long a
	// leader goes on without reaching the database.
	Lease = 6 * time.Second
	// Beat is how often a leader without commits changes the row.
	Beat = 2 * time.Second
	// Look is how often a standby reads the row, and so the time that an orderly change of leaders
	// takes.
	Look = 250 * time.Millisecond
)

// A Row is the leader as stored in the database. Token 0 means that no hub has led yet.
type Row struct {
	Token    uint64 // grows with every change of leaders
	Beat     uint64 // grows with every beat and commit
	Holder   string // the leader's name
	Address  string // address to which other hubs forward requests
	Revision uint64 // revision of the leader's newest commit
	Left     bool   // the leader has stopped in order
}

// A Step is what a hub does next.
type Step int

// The steps.
const (
	Wait     Step = iota
	Take          // become the leader if the row has not changed
	Renew         // change the row to show that the leader works
	StepDown      // stop leading at once
)

func (s Step) String() string { return [...]string{"wait", "take", "renew", "step down"}[s] }

// A View is what one hub knows of the row. Times are on its monotonic clock.
type View struct {
	Mine    uint64        // token with which this hub leads; 0: it does not lead
	Renewed time.Duration // start of the last successful renewal or check of the token

	Row     Row
	Known   bool          // Row has been read
	Read    time.Duration // when the last read of Row ended
	Changed time.Duration // since when the row has not changed
	Beats   int           // number of changes seen under this token
}

// Saw returns the view after the row was read. After a pause without reads, the time without change
// starts again.
func (b View) Saw(row Row, at time.Duration) View {
	if !b.Known || row != b.Row || at-b.Read > Beat {
		b.Changed = at
	}
	switch {
	case row.Token != b.Row.Token:
		b.Beats = 0
	case b.Known && row.Beat != b.Row.Beat:
		b.Beats++
	}
	b.Row, b.Known, b.Read = row, true, at
	return b
}

// SawChange returns the view after the row was found locked or changed. Its owner is in a
// transaction, so no hub can take the row.
func (b View) SawChange(at time.Duration) View {
	b.Changed = at
	return b
}

// Took returns the view after the hub took or renewed the row, or found its own token in it. began
// is when the hub sent the request.
func (b View) Took(token uint64, began time.Duration) View {
	b.Mine, b.Renewed = token, began
	return b
}

// Decide returns what to do now.
func (b View) Decide(now time.Duration) Step {
	if b.Mine != 0 {
		switch {
		case b.Known && b.Row.Token > b.Mine, now-b.Renewed >= Lease:
			return StepDown
		case now-b.Renewed >= Beat:
			return Renew
		}
		return Wait
	}
	switch {
	case !b.Known || now-b.Read > Beat: // another hub may lead by now
		return Wait
	case b.Row.Token == 0, b.Row.Left, now-b.Changed >= Lease:
		return Take
	}
	return Wait
}

// LeaderActive tells whether the leader has changed the row several times. A single change may be
// the last transaction of a killed hub.
func (b View) LeaderActive() bool { return b.Beats >= 3 }

// HasLeader tells whether a hub seems to lead.
func (b View) HasLeader(now time.Duration) bool {
	return b.Known && b.Row.Token != 0 && !b.Row.Left && now-b.Changed < Lease && now-b.Read < Lease
}

// A Status is a standby's report about itself, for the leader and for commands.
type Status struct {
	Name     string        `json:"name"`
	Address  string        `json:"address"` // address of its peer listener
	URL      string        `json:"url"`     // URL of its page on its own machine
	Version  string        `json:"version"`
	Since    time.Time     `json:"since"`
	Revision uint64        `json:"revision"`
	Behind   time.Duration `json:"behind"` // how far it is behind the database at most
	Leader   string        `json:"leader"` // name of the leader; "": no hub leads
	At       string        `json:"at"`     // address of the leader's peer listener
}

// MaxBehind is how far behind a standby may be and still answer requests for any version.
const MaxBehind = 10 * time.Second
