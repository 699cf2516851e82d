package fleet

import (
	"encoding/json"
	"math"
)

// readings are the measured fields of a hardware report. A device reports a field at once if it
// changes by at least the given amount. It reports any change of other fields.
var readings = map[string]float64{
	"celsius": 5,
	"rpm":     1000,
	"volts":   0.25,
	"battery": 0.25,
	"signal":  10,      // dBm
	"written": 1 << 30, // bytes
	"some10":  math.Inf(1),
	"full10":  math.Inf(1),
	"some60":  25, // percent
	"full60":  25,
}

// HardwareChanged reports whether two hardware reports differ by more than small changes of
// readings. In that case a device sends its report at once, and the hub stores it.
func HardwareChanged(old, report json.RawMessage) bool {
	var a, b any
	if json.Unmarshal(old, &a) != nil || json.Unmarshal(report, &b) != nil {
		return true
	}
	return changed("", a, b)
}

func changed(field string, a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return true
		}
		for k, v := range a {
			if w, ok := b[k]; !ok || changed(k, v, w) {
				return true
			}
		}
		return false
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return true
		}
		for i := range a {
			if changed(field, a[i], b[i]) {
				return true
			}
		}
		return false
	case float64:
		if b, ok := b.(float64); ok {
			return a != b && math.Abs(a-b) >= readings[field]
		}
		return true
	}
	return a != b
}
