//go:build race

package firmware

// raced: the race detector makes everything about five times slower, and looks for another
// kind of bug: a sixtieth of the stops is then enough, make test makes all of them without it.
const raced = true
