// Package format writes amounts, times and numbers as people write them. It imports nothing of the
// hub; the page's packages and templates call it.
package format

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	evenly = regexp.MustCompile(`\b(\d+h)?\d+m0s\b`)
	noRoom = regexp.MustCompile(
		`Node didn't have enough resource: ([^,\s]+), requested: (\d+), used: (\d+), capacity: (\d+)`)
	// kubeletSays replaces the kubelet's sentences in API objects with the page's words.
	kubeletSays = strings.NewReplacer("kubelet is posting ready status", "the device reports that it is ready",
		"Kubelet stopped posting node status.", "The device no longer reports.",
		"Kubelet never posted node status.", "The device has never reported.")
)

// Plain rewrites a message of an API object for people, with amounts and times as people write them.
// The object keeps Kubernetes' words.
func Plain(text string) string {
	if strings.Contains(text, "m0s") {
		text = evenly.ReplaceAllStringFunc(text, func(s string) string {
			d, err := time.ParseDuration(s)
			if err != nil {
				return s
			}
			return Duration(d)
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
			return "The node has too little " + m[1] + ": it asks for " + roomText(m[1], n[0]) + ", and " +
				roomText(m[1], max(n[2]-n[1], 0)) + " of " + roomText(m[1], n[2]) + " are free"
		})
	}
	if strings.Contains(text, "ubelet") {
		text = kubeletSays.Replace(text)
	}
	return text
}

// roomText writes an amount from a kubelet's message, in which CPU is in thousandths.
func roomText(resource string, n int64) string {
	switch resource {
	case "cpu":
		return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	case "memory", "ephemeral-storage":
		return Bytes(n)
	}
	return strconv.FormatInt(n, 10)
}

// Duration writes a duration for people, such as "5 min".
func Duration(d time.Duration) string {
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

// Amount writes a quantity for people: bytes in binary units, CPU as a decimal.
func Amount(name corev1.ResourceName, q resource.Quantity) string {
	switch name {
	case corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage:
		return Bytes(q.Value())
	case corev1.ResourceCPU:
		return strconv.FormatFloat(float64(q.MilliValue())/1000, 'f', -1, 64)
	}
	return q.String()
}

// Bytes writes bytes in binary units.
func Bytes(n int64) string {
	v, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 && v > -1024 {
			break
		}
		v, unit = v/1024, next
	}
	if unit == "B" || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + unit
}

// Rate writes an eviction rate for people: one node every 10 s.
func Rate(perSecond string) string {
	var r float64
	if _, err := fmt.Sscan(perSecond, &r); err != nil || r <= 0 {
		return "none"
	}
	switch {
	case r == 1:
		return "one node a second"
	case r > 1:
		return fmt.Sprintf("%g nodes a second", r)
	}
	return "one node every " + Plain(TimeAtRate(1, r).Round(100*time.Millisecond).String())
}

// TimeAtRate returns how long a rate takes for a number of nodes, at most 100 years, because a
// time.Duration cannot hold much more.
func TimeAtRate(nodes int, perSecond float64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(min(float64(nodes)/perSecond*float64(time.Second), float64(most)))
}
