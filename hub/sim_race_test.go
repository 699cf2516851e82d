//go:build race

package main

// raced: the race detector makes everything about five times slower.
const raced = true
