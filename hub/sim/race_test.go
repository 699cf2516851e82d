//go:build race

package sim

// raced: the race detector makes everything about five times slower. Tests that play
// hundreds of cases then play a part of them, as it looks for another kind of bug:
// make test plays all of them without it.
const raced = true
