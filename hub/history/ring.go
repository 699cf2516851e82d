package history

import "time"

const (
	// Slot is the time that a sample covers.
	Slot   = 5 * time.Minute
	perDay = int(24 * time.Hour / Slot)
	// Longest is the longest time that samples can be kept.
	Longest = 7 * 24 * time.Hour
	maxDays = int(Longest/(24*time.Hour)) + 1 // plus the current day
)

// slotOf returns the number of a slot since 1970.
func slotOf(t time.Time) int64 { return t.Unix() / int64(Slot/time.Second) }

// A ring holds a node's samples of up to eight days. Days without samples take no memory.
type ring struct{ days [maxDays]day }

type day struct {
	number  int64 // days since 1970
	samples *[perDay]Word
}

func split(slot int64) (day int64, in int) { return slot / int64(perDay), int(slot % int64(perDay)) }

// note merges a word into a slot. Slots before the ring's oldest day are ignored.
func (r *ring) note(slot int64, w Word) {
	number, in := split(slot)
	if w == 0 || slot < 0 {
		return
	}
	d := &r.days[number%int64(maxDays)]
	if d.samples == nil || d.number < number {
		*d = day{number, new([perDay]Word)}
	}
	if d.number == number {
		d.samples[in] = d.samples[in].with(w)
	}
}

// put replaces the word of a slot.
func (r *ring) put(slot int64, w Word) {
	if r.at(slot) != 0 {
		number, in := split(slot)
		r.days[number%int64(maxDays)].samples[in] = 0
	}
	r.note(slot, w)
}

func (r *ring) at(slot int64) Word {
	number, in := split(slot)
	if slot < 0 {
		return 0
	}
	if d := r.days[number%int64(maxDays)]; d.samples != nil && d.number == number {
		return d.samples[in]
	}
	return 0
}

// forget drops the days before a slot's day, and tells whether the ring is empty.
func (r *ring) forget(before int64) (empty bool) {
	number, _ := split(before)
	empty = true
	for i := range r.days {
		if r.days[i].number < number {
			r.days[i] = day{}
		}
		empty = empty && r.days[i].samples == nil
	}
	return empty
}
