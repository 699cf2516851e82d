//go:build !race

package firmware

// raced: see race_test.go.
const raced = false
