//go:build race

package nodetest

// Raced is true with the race detector, which makes tests about five times slower. Under it, tests
// skip cases with one goroutine, and repeat other cases less often.
const Raced = true
