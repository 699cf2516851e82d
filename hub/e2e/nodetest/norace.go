//go:build !race

package nodetest

// Raced: see race.go.
const Raced = false
