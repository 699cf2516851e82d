package diagnose

import "flotilla.dev/hub/state"

// IsWork tells whether objects of a kind make pods.
func IsWork(k state.Kind) bool { return k.Row() != nil && k.Row().Template != nil }
