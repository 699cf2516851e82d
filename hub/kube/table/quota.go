package table

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.ResourceQuotas, columns("Name Request Limit Age"), quotaCells)
	show(state.LimitRanges, columns("Name", "Created At"), plain.cells)
}

// quotaCells shows used and limit of each resource.
func quotaCells(obj state.Object, o *Options) []any {
	q := obj.(*corev1.ResourceQuota)
	var requests, limits []string
	for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
		used, hard := q.Status.Used[name], q.Status.Hard[name]
		text := string(name) + ": " + used.String() + "/" + hard.String()
		if strings.HasPrefix(string(name), "limits.") {
			limits = append(limits, text)
		} else {
			requests = append(requests, text)
		}
	}
	return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(q.CreationTimestamp, o)}
}
