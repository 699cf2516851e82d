//go:build race

package nodetest

// Raced: the race detector makes everything about five times slower. Tests of one goroutine leave it
// out, and those of the same goroutines many times play a part.
const Raced = true
