package table

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func init() {
	show(state.Incidents, columns("Name State Cause Site Since Nodes(i) Pods(i) Short(i) (w)Severity (w)About "+
		"(w)Moves (w)Evicted(i) (w)Closed (w)Part-Of (w)Acknowledged (w)Note Message"), incidentCells)
}

func incidentCells(obj state.Object, o *Options) []any {
	i := obj.(*fleet.Incident)
	about := i.About.Kind
	if i.About.Name != "" {
		about += "/" + i.About.Name
	}
	moves := "<none>"
	if i.NextMove != nil {
		moves = "now"
		if left := i.NextMove.Sub(o.Now); left > 0 {
			moves = "in " + duration.HumanDuration(left)
		}
	} else if i.Held != "" {
		moves = "held: " + i.Held
	}
	closed := "<none>"
	if i.Closed != nil {
		closed = age(*i.Closed, o)
	}
	by := ""
	if a := i.Acknowledged; a != nil {
		by = a.By + " " + age(a.Time, o) + " ago"
	}
	return []any{
		i.Name, orUnknown(string(i.State)), orUnknown(string(i.Cause)), orNone(i.Site), age(i.Since, o),
		int64(i.Count.Nodes), int64(i.Count.Pods), int64(i.Count.Workloads),
		orUnknown(string(i.Severity)), about, moves, int64(i.Evicted), closed, orNone(i.PartOf), orNone(by),
		orNone(strings.Join(strings.Fields(i.Note), " ")), i.Message,
	}
}
