package notify

import (
	"iter"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/incident"
	"flotilla.dev/shared/fleet"
)

const (
	// mostWait is how long a message waits while more incidents of its cause open.
	mostWait = 2 * time.Minute
	// mostTogether limits the incidents of one message.
	mostTogether = 500
)

// A delivery is one message to one target, about one incident or several with the same cause.
type delivery struct {
	event     Event
	only      []string
	incidents []*fleet.Incident // worst first
}

// deliveries returns the messages that are due to a target. Many incidents of one cause are one
// message. It waits up to mostWait while more such incidents open.
func deliveries(all iter.Seq[*fleet.Incident], whom string, now time.Time) (out []delivery) {
	type group struct {
		event Event
		cause fleet.IncidentCause
		only  string
	}
	found := map[group][]*fleet.Incident{}
	soon := map[fleet.IncidentCause]int{} // number of incidents that become due soon, by cause
	first := map[fleet.IncidentCause]time.Time{}
	for i := range all {
		event, only := due(i, whom, now)
		switch {
		case event != "":
			g := group{event, i.Cause, strings.Join(only, "\x00")}
			found[g] = append(found[g], i)
			if at := i.NotifyAfter; at != nil && event == Opened && (first[i.Cause].IsZero() || at.Time.Before(first[i.Cause])) {
				first[i.Cause] = at.Time
			}
		case untold(i, whom) && i.NotifyAfter != nil && i.NotifyAfter.After(now):
			soon[i.Cause]++
		}
	}
	for g, list := range found {
		slices.SortFunc(list, incident.Compare)
		d := delivery{event: g.event}
		if g.only != "" {
			d.only = strings.Split(g.only, "\x00")
		}
		if more := soon[g.cause]; g.event == Opened && more > 0 && len(list)+more > incident.Alone &&
			now.Before(first[g.cause].Add(mostWait)) {
			continue
		}
		each := 1
		if len(list) > incident.Alone {
			each = mostTogether
		}
		for part := range slices.Chunk(list, each) {
			d.incidents = part
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b delivery) int { return incident.Compare(a.incidents[0], b.incidents[0]) })
	return out
}

// untold tells whether a target still has to be notified of an incident's opening. Consequences,
// incidents for information and acknowledged incidents are not notified.
func untold(i *fleet.Incident, whom string) bool {
	return i.State == fleet.IncidentOpen && i.PartOf == "" && i.Severity != fleet.SeverityInfo && i.Acknowledged == nil &&
		toldOf(i, whom).Opened == nil
}

func toldOf(i *fleet.Incident, whom string) (told fleet.IncidentTold) {
	if at := slices.IndexFunc(i.Told, func(t fleet.IncidentTold) bool { return t.Whom == whom }); at >= 0 {
		told = i.Told[at]
	}
	return told
}

// due returns the event that is to be notified to a target now, "" for none, and its recipients;
// nil: all. An incident that closes before its opening was notified is not notified. A recipient
// that missed the opening is notified of the end.
func due(i *fleet.Incident, whom string, now time.Time) (event Event, only []string) {
	told := toldOf(i, whom)
	waits := told.Next != nil && told.Next.After(now)
	switch {
	case waits && len(told.Missed) == 0:
		return "", nil
	case untold(i, whom) && (i.NotifyAfter == nil || !now.Before(i.NotifyAfter.Time)):
		return Opened, nil
	case i.State == fleet.IncidentClosed && told.Whom != "" && told.Closed == nil:
		return Closed, nil
	case waits || len(told.Missed) == 0:
		return "", nil
	case i.State == fleet.IncidentClosed:
		return Closed, told.Missed
	case i.Acknowledged != nil:
		return "", nil
	}
	return Opened, told.Missed
}
