// Package leader decides which of several hubs on one database leads.
//
// There is one row. Whoever leads has its token, changes it with every beat and with every
// commit, and says so when it leaves. A hub that sees the row stand still for the whole Lease,
// by its own monotonic clock, takes the next token; nobody's wall clock matters. What
// makes two leaders impossible is not this package: each writing transaction names its
// token, and the database lets only the row's commit (package store). A hub that is
// wrong here therefore costs time and never a change.
//
// The package is pure: package serve reads, takes and renews the row as it is told.
package leader

import "time"

const (
	// Lease is how long the row must stand still before another hub takes it, and how
	// long a leader goes on that cannot reach the database.
	Lease = 6 * time.Second
	// Beat is how often a leader that commits nothing changes the row.
	Beat = 2 * time.Second
	// Look is how often a standby reads the row: what an orderly change of leaders costs.
	Look = 250 * time.Millisecond
)

// A Row is who leads, as the database has it. Token 0: nobody ever did.
type Row struct {
	Token    uint64 // grows with every change of leaders
	Beat     uint64 // grows with every sign of the leader's life
	Holder   string // the leader's name
	Address  string // where the other hubs pass requests on to
	Revision uint64 // of the leader's newest commit
	Left     bool   // the leader has ended in order
}

// A Step is what a hub does next.
type Step int

// The steps.
const (
	Wait     Step = iota
	Take          // become the leader, if the row is still as it was seen
	Renew         // show that the leader lives
	StepDown      // it leads no more: stop, and tell nobody anything
)

func (s Step) String() string { return [...]string{"wait", "take", "renew", "step down"}[s] }

// A View is what one hub knows of the row. Moments are by its monotonic clock, from
// any beginning.
type View struct {
	Mine    uint64        // the token by which this hub leads; 0: it does not
	Renewed time.Duration // when the last renewal that succeeded was begun, or the last look at the token

	Row     Row
	Known   bool          // Row was read
	Read    time.Duration // when that was over
	Changed time.Duration // since when it stands still
	Beats   int           // how often it was seen to change under this token
}

// Saw is the belief after the row was read. A hub that did not look for a while has not seen
// the row stand still: its time begins again.
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

// SawChange is the belief after the row was found locked, or changed: whoever has it is in the middle
// of a transaction, however long that takes, and nobody can take the row from it.
func (b View) SawChange(at time.Duration) View {
	b.Changed = at
	return b
}

// Took is the belief of a hub that has taken the row, renewed it, or found its token there, by a
// request that it began then.
func (b View) Took(token uint64, began time.Duration) View {
	b.Mine, b.Renewed = token, began
	return b
}

// Decide says what to do now.
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
	case !b.Known || now-b.Read > Beat: // it may be another one by now
		return Wait
	case b.Row.Token == 0, b.Row.Left, now-b.Changed >= Lease:
		return Take
	}
	return Wait
}

// LeaderActive tells whether the hub that leads was seen at work. Of one that was killed the server may
// still carry out one transaction.
func (b View) LeaderActive() bool { return b.Beats >= 3 }

// HasLeader tells whether anybody is believed to lead.
func (b View) HasLeader(now time.Duration) bool {
	return b.Known && b.Row.Token != 0 && !b.Row.Left && now-b.Changed < Lease && now-b.Read < Lease
}

// A Status is what a hub that stands by says of itself, to the one that leads and to commands.
type Status struct {
	Name     string        `json:"name"`
	Address  string        `json:"address"` // of its peer listener
	URL      string        `json:"url"`     // of its page, on its machine
	Version  string        `json:"version"`
	Since    time.Time     `json:"since"`
	Revision uint64        `json:"revision"`
	Behind   time.Duration `json:"behind"` // for how long it may not have been up to date with the database
	Leader   string        `json:"leader"` // "": nobody leads
	At       string        `json:"at"`     // the leader's peer listener
}

// MaxBehind is how far behind a standby may be that still answers who wants any version.
const MaxBehind = 10 * time.Second
