// Package clock asks the kernel about the time of day.
package clock

import "golang.org/x/sys/unix"

// Kept tells whether a time service keeps the time of day right; known is false where the kernel
// does not say.
func Kept() (kept, known bool) {
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx) // modes 0: only reads
	if err != nil {
		return false, false
	}
	const timeError = 5 // TIME_ERROR of adjtimex(2)
	return state != timeError && tx.Status&unix.STA_UNSYNC == 0, true
}
