package admin

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"flotilla.dev/hub/state"
)

// seen is the generation of each object, by its uid, as somebody saw it who wants something done that
// is meant for what they saw: done twice, or after somebody else has done it, it is another thing.
type seen map[string]string

const seenName = "seen"

// seenField has a page before an action carry what it was made of.
func seenField(with []state.Object) field {
	var all strings.Builder
	for _, o := range with {
		fmt.Fprintf(&all, "%s=%d ", o.GetUID(), o.GetGeneration())
	}
	return field{Name: seenName, Type: "hidden", Value: all.String()}
}

// parseSeen reads what a form says was seen.
func parseSeen(form url.Values) seen {
	all := seen{}
	for _, one := range strings.Fields(form.Get(seenName)) {
		uid, generation, _ := strings.Cut(one, "=")
		all[uid] = generation
	}
	return all
}

var errChanged = errors.New("somebody has changed it since you looked at it: look at it again first")

// changed fails where the spec of an object is another than the one that was seen, if it was.
func (s seen) changed(o state.Object) error {
	if was, ok := s[string(o.GetUID())]; ok && was != fmt.Sprint(o.GetGeneration()) {
		return errChanged
	}
	return nil
}
