package incident

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

const (
	// MostCards is the largest number of cards for the whole fleet.
	MostCards = 7
	// Alone is how many incidents of one cause get a card each. If there are more, all share one
	// card.
	Alone = 3
)

// A Card is one open incident, or several with the same cause, with their consequences. The page
// and notifications show cards; the API shows incidents.
type Card struct {
	// Key identifies the card while it is open. It is the incident's name, or the cause if the card
	// has several incidents. If there are too many cards, the last one has the key RestKey and no
	// cause.
	Key       string
	Cause     fleet.IncidentCause
	Severity  fleet.IncidentSeverity // the highest of its incidents
	Title     string
	Incidents []*fleet.Incident   // worst first; at least one
	Sites     []string            // by name; empty if a site is not known
	Count     fleet.IncidentCount // the sum of its incidents
	Since     time.Time           // of the oldest incident
	NextMove  time.Time           // when the first pods are evicted; zero: no pod will be
	Evicted   int32               // pods evicted so far
	Follows   []Card              // the consequences, a card for each cause
}

// Provisional tells whether the card may still be joined with another card. While it may, nobody is
// notified of it.
func (c Card) Provisional(now time.Time) bool {
	return !slices.ContainsFunc(c.Incidents, func(i *fleet.Incident) bool {
		return i.NotifyAfter == nil || !i.NotifyAfter.After(now)
	})
}

// RestKey is the key of the last card when there are too many cards.
const RestKey = "rest"

// Cards folds the open incidents into cards. Consequences are under their cause, and more than
// Alone incidents of one cause share a card. If there are still more than MostCards, the incidents
// of the least important causes share cards too, and the last card has all that remain. The worst
// card is the first.
func Cards(all iter.Seq[*fleet.Incident]) []Card {
	open := map[string]*fleet.Incident{}
	for i := range all {
		if i.State == fleet.IncidentOpen {
			open[i.Name] = i
		}
	}
	roots := map[fleet.IncidentCause][]*fleet.Incident{}
	follows := map[string][]*fleet.Incident{} // by name of the incident at the top of the chain
	for _, i := range open {
		if top := topOf(i, open); top != i {
			follows[top.Name] = append(follows[top.Name], i)
		} else {
			roots[i.Cause] = append(roots[i.Cause], i)
		}
	}
	cards := fold(roots, Alone, follows)
	if len(cards) <= MostCards {
		return cards
	}
	for n := len(cards) - 1; n >= 0 && len(cards) > MostCards; n-- { // the least important first
		cause := cards[n].Cause
		if list := roots[cause]; len(list) > 1 && len(cards[n].Incidents) == 1 {
			cards = slices.DeleteFunc(cards, func(c Card) bool { return c.Cause == cause })
			cards = append(cards, cardOf(list, follows))
			n = len(cards)
			slices.SortFunc(cards, compareCards)
		}
	}
	if len(cards) <= MostCards {
		return cards
	}
	return append(cards[:MostCards-1:MostCards-1], restOf(cards[MostCards-1:]))
}

// topOf returns the incident at the top of the chain of causes; the incident itself if it follows
// from none.
func topOf(i *fleet.Incident, open map[string]*fleet.Incident) *fleet.Incident {
	for range 8 {
		next := open[i.PartOf]
		if next == nil {
			break
		}
		i = next
	}
	return i
}

// fold makes cards of incidents. More than alone incidents of the same cause share a card.
func fold(byCause map[fleet.IncidentCause][]*fleet.Incident, alone int,
	follows map[string][]*fleet.Incident) (cards []Card) {
	for _, list := range byCause {
		if len(list) > alone {
			cards = append(cards, cardOf(list, follows))
			continue
		}
		for n := range list {
			cards = append(cards, cardOf(list[n:n+1], follows))
		}
	}
	slices.SortFunc(cards, compareCards)
	return cards
}

// cardOf makes a card of incidents of one cause.
func cardOf(list []*fleet.Incident, follows map[string][]*fleet.Incident) Card {
	list = slices.SortedFunc(slices.Values(list), Compare)
	c := Card{Key: list[0].Name, Cause: list[0].Cause, Severity: list[0].Severity, Title: Title(list), Incidents: list}
	if len(list) > 1 {
		c.Key = string(c.Cause)
	}
	below := map[fleet.IncidentCause][]*fleet.Incident{}
	for _, i := range list {
		for _, f := range follows[i.Name] {
			below[f.Cause] = append(below[f.Cause], f)
		}
	}
	c.sum()
	c.Follows = fold(below, 1, nil)
	return c
}

// restOf is the card of all causes without a card.
func restOf(cards []Card) Card {
	rest := Card{Key: RestKey, Severity: cards[0].Severity}
	for _, c := range cards {
		rest.Incidents = append(rest.Incidents, c.Incidents...)
		rest.Follows = append(rest.Follows, c.Follows...)
		if severityRank(c.Severity) < severityRank(rest.Severity) {
			rest.Severity = c.Severity
		}
	}
	causes := map[fleet.IncidentCause]bool{}
	for _, i := range rest.Incidents {
		causes[i.Cause] = true
	}
	rest.Title = plural(len(rest.Incidents), "other incident") + " of " + plural(len(causes), "cause")
	rest.sum()
	return rest
}

// sum adds up the counts of the card's incidents. Several sites may lack pods of the same workload,
// so it takes the largest count of workloads.
func (c *Card) sum() {
	shared := int32(0)
	for n, i := range c.Incidents {
		if n == 0 || i.Since.Time.Before(c.Since) {
			c.Since = i.Since.Time
		}
		if i.NextMove != nil {
			c.NextMove = earliest(c.NextMove, i.NextMove.Time)
		}
		c.Evicted += i.Evicted
		c.Count.Nodes += i.Count.Nodes
		c.Count.Pods += i.Count.Pods
		if ofWork(i) {
			c.Count.Workloads += i.Count.Workloads
		} else {
			shared = max(shared, i.Count.Workloads)
		}
		if i.Site != "" {
			c.Sites = append(c.Sites, i.Site)
		}
	}
	c.Count.Workloads += shared
	slices.Sort(c.Sites)
	c.Sites = slices.Compact(c.Sites)
}

// ofWork tells whether an incident is about a single workload.
func ofWork(i *fleet.Incident) bool { return diagnose.IsWork(state.KindNamed(i.About.Kind)) }

// Title describes incidents of the same cause in one sentence. For one incident it is the
// incident's message.
func Title(list []*fleet.Incident) string {
	first := list[0]
	if len(list) == 1 {
		return first.Message
	}
	rule := diagnose.RuleOf(first.Cause)
	var nodes, pods int32
	sites, mixed := map[string]bool{}, false
	for _, i := range list {
		nodes, pods = nodes+i.Count.Nodes, pods+i.Count.Pods
		if i.State == fleet.IncidentClosed {
			nodes, pods = nodes+i.Most.Nodes, pods+i.Most.Pods
		}
		sites[i.About.Name] = true
		mixed = mixed || i.About.Kind != first.About.Kind
	}
	what := strings.ToLower(first.About.Kind)
	switch {
	case rule.Family == diagnose.FamilyBoot:
		what = "rollout"
	case mixed:
		what = "workload"
	}
	name := plural(len(list), what)
	switch {
	case first.Cause == diagnose.SiteDark:
	case what == "site" && len(sites) == 1:
		name = plural(nodes, "node") + " of " + first.About.Name
	case what == "site":
		name = plural(nodes, "node") + " of " + plural(len(sites), "site")
	case pods > 0 && what != "pod" && what != "image":
		name = plural(pods, "pod") + " of " + name
	}
	return strings.Replace(cmp.Or(rule.Many, rule.Card), "%s", name, 1)
}

// Compare orders open incidents, the worst first: incidents of the whole fleet, dark sites, then
// all others; among these by severity, by how much they affect, and by age.
func Compare(a, b *fleet.Incident) int { return weigh(a).compare(weigh(b)) }

func compareCards(a, b Card) int { return a.weigh().compare(b.weigh()) }

// A weight is the key by which incidents and cards are ordered.
type weight struct {
	reach, severity int
	affects         int32
	since           time.Time
	key             string
}

func (w weight) compare(o weight) int {
	return cmp.Or(w.reach-o.reach, w.severity-o.severity, cmp.Compare(o.affects, w.affects), w.since.Compare(o.since),
		strings.Compare(w.key, o.key))
}

func weigh(i *fleet.Incident) weight {
	return weight{reachOf(i), severityRank(i.Severity), affects(i.Count), i.Since.Time, i.Name}
}

func (c Card) weigh() weight {
	return weight{reachOf(c.Incidents[0]), severityRank(c.Severity), affects(c.Count), c.Since, c.Key}
}

// affects returns how much an incident affects as one number.
func affects(c fleet.IncidentCount) int32 { return c.Nodes + c.Pods + c.Workloads }

// reachOf returns 0 for an incident of the whole fleet, 1 for an incident of a whole site, 2 for
// all others.
func reachOf(i *fleet.Incident) int {
	switch {
	case i.About.Kind == diagnose.KindFleet:
		return 0
	case i.Cause == diagnose.SiteDark:
		return 1
	}
	return 2
}

// severityRank returns 0 for the highest severity.
func severityRank(s fleet.IncidentSeverity) int {
	switch s {
	case fleet.SeverityCritical:
		return 0
	case fleet.SeverityWarning:
		return 1
	}
	return 2
}

// String returns the card on one line, for tests and logs.
func (c Card) String() string {
	text := fmt.Sprintf("%s: %s", c.Severity, c.Title)
	for _, f := range c.Follows {
		text += " < " + f.Title
	}
	return text
}
