package format

import (
	"testing"
)

func TestMessagesAreShownWithAmountsAndTimesAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"it lasted 4m30s":                 "it lasted 4m30s",
		"seen within the last 5m0s":       "seen within the last 5 min",
		"back-off 5m0s, then 1h30m0s.":    "back-off 5 min, then 90 min.",
		"one node every 2160h0m0s":        "one node every 90 days",
		"all of 12345678901h0m0s":         "all of 12345678901h0m0s",
		"kubelet is posting ready status": "the device reports that it is ready",
		"Node didn't have enough resource: memory, requested: 67108864, used: 268435456, capacity: 331350016": "The node has too little memory: it asks for 64 MiB, and 60 MiB of 316 MiB are free",
		"Node didn't have enough resource: cpu, requested: 100, used: 3700, capacity: 3700":                   "The node has too little cpu: it asks for 0.1, and 0 of 3.7 are free",
		"Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110":                      "The node has too little pods: it asks for 1, and 0 of 110 are free",
		"Node didn't have enough resource: memory, requested: 99999999999999999999, used: 1, capacity: 2":     "Node didn't have enough resource: memory, requested: 99999999999999999999, used: 1, capacity: 2",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestARateInWords(t *testing.T) {
	for perSecond, want := range map[string]string{
		"0.1": "one node every 10s", "0.01": "one node every 1m40s", "1": "one node a second",
		"2.5": "2.5 nodes a second", "0": "none", "": "none", "1e-10": "one node every 36500 days",
	} {
		if got := Rate(perSecond); got != want {
			t.Errorf("%s: %q, want %q", perSecond, got, want)
		}
	}
}
