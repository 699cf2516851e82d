// Package clock reads from the kernel whether the time is reliable.
package clock

import "golang.org/x/sys/unix"

// Kept reports whether a time service adjusts the clock; known is false if the kernel does not say.
func Kept() (kept, known bool) {
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx) // modes 0: read only
	if err != nil {
		return false, false
	}
	const timeError = 5 // TIME_ERROR of adjtimex(2)
	return state != timeError && tx.Status&unix.STA_UNSYNC == 0, true
}
