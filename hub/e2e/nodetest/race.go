//go:build race

package nodetest

// Raced: the race detector makes everything about five times slower. Tests that go on for a
// long time are shorter with it, as it looks for another kind of bug: make test plays all of
// them without it, too.
const Raced = true
