//go:build race

package nodetest

// Raced is true with the race detector, which makes tests about five times slower. Such tests skip
// cases with one goroutine, and repeat others less often.
const Raced = true
