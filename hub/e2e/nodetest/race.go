//go:build race

package nodetest

// Raced: the race detector makes tests about five times slower. Tests with one goroutine are
// skipped, and repetitive ones run a part.
const Raced = true
