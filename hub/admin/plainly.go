package admin

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	evenly = regexp.MustCompile(`\b(\d+h)?\d+m0s\b`)
	noRoom = regexp.MustCompile(`Node didn't have enough resource: ([^,\s]+), requested: (\d+), used: (\d+), capacity: (\d+)`)
	// kubeletSays are the kubelet's sentences, which API and kubectl keep, as the page says them.
	kubeletSays = strings.NewReplacer("kubelet is posting ready status", "the device reports that it is ready", "Kubelet stopped posting node status.", "The device no longer reports.",
		"Kubelet never posted node status.", "The device has never reported.")
)

// plainly is a message of an API object as the page shows it: with amounts and times as people
// write them. The object keeps the words that Kubernetes' programs have for it.
func plainly(text string) string {
	if strings.Contains(text, "m0s") {
		text = evenly.ReplaceAllStringFunc(text, func(s string) string {
			d, err := time.ParseDuration(s)
			if err != nil {
				return s
			}
			return Roundly(d)
		})
	}
	if strings.Contains(text, ", requested: ") {
		text = noRoom.ReplaceAllStringFunc(text, func(s string) string {
			m := noRoom.FindStringSubmatch(s)
			var n [3]int64
			for i := range n {
				v, err := strconv.ParseInt(m[2+i], 10, 64)
				if err != nil {
					return s
				}
				n[i] = v
			}
			return "The node has too little " + m[1] + ": it asks for " + roomText(m[1], n[0]) + ", and " + roomText(m[1], max(n[2]-n[1], 0)) + " of " + roomText(m[1], n[2]) + " are free"
		})
	}
	if strings.Contains(text, "ubelet") {
		text = kubeletSays.Replace(text)
	}
	return text
}

// roomText is an amount as the kubelet counts it: processors by the thousandth.
func roomText(resource string, n int64) string {
	switch resource {
	case "cpu":
		return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	case "memory", "ephemeral-storage":
		return bytesOf(n)
	}
	return strconv.FormatInt(n, 10)
}

// Roundly is a length of time as people say it.
func Roundly(d time.Duration) string {
	n, unit := int64(d/time.Hour/24), "days"
	switch {
	case d < time.Minute:
		n, unit = max(1, int64(d/time.Second)), "s"
	case d < 2*time.Hour:
		n, unit = int64(d/time.Minute), "min"
	case d < 2*24*time.Hour:
		n, unit = int64(d/time.Hour), "h"
	}
	return strconv.FormatInt(n, 10) + " " + unit
}
