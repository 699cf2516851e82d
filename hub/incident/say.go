package incident

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// mostDetail limits the length of a device's text in an incident.
const mostDetail = 300

// bounded returns one line of a device's text.
func bounded(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if r := []rune(text); len(r) > mostDetail {
		text = string(r[:mostDetail]) + "…"
	}
	return text
}

// name returns a unique name for a new incident: its subject, its cause, and a few letters.
func (p *pass) name(f *found) string {
	family := diagnose.RuleOf(f.Cause).Family
	base := slug(cmp.Or(f.About.Name, "fleet")) + "-" + strings.ToLower(slug(string(family)))
	for n := 0; ; n++ {
		sum := sha256.Sum256([]byte(strings.Join([]string{f.About.Kind, f.About.Namespace, f.About.Name, string(family),
			strconv.FormatInt(f.Since.Unix(), 10), strconv.Itoa(n)}, "\x00")))
		name := base + "-" + hex.EncodeToString(sum[:3])
		if p.s.Get(state.Key{Kind: state.Incidents, Name: name}) == nil && !p.named[name] {
			p.named[name] = true
			return name
		}
	}
}

// slug changes a name to the characters and length that an object's name may have.
func slug(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	if len(name) > 40 {
		name = name[len(name)-40:]
	}
	return cmp.Or(strings.Trim(name, "-"), "x")
}

func plural[N int | int32 | int64](n N, one string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// sentence describes an incident in one sentence. Times and consequences are in its fields.
func sentence(i *fleet.Incident) string {
	rule, name := diagnose.RuleOf(i.Cause), i.About.Name
	nodes := i.Count.Nodes
	if i.State == fleet.IncidentClosed {
		nodes = i.Most.Nodes
	}
	if ns := i.About.Namespace; ns != "" && ns != "default" {
		name = ns + "/" + name
	}
	card := rule.Card
	switch {
	case i.Cause == diagnose.ImageNotPulled:
		card = "Image %s " + diagnose.ImageCauseOf(i.Detail).Card
	case i.Cause == diagnose.SiteDark, rule.Family == diagnose.FamilyBoot:
	case i.About.Kind != state.Sites.Row().Name:
		name = i.About.Kind + " " + name
	case len(i.Examples) == 1 && nodes <= 1:
		name = i.Examples[0]
	default:
		name, card = plural(nodes, "node")+" of "+name, cmp.Or(rule.Many, card)
	}
	text := strings.Replace(card, "%s", name, 1)
	if i.Detail != "" && !rule.Raw {
		detail := i.Detail
		if rule.Brief {
			detail, _, _ = strings.Cut(detail, ": ")
		}
		text += ": " + detail
	}
	return text
}

// Counts says in a few words what an incident affects; "" if nothing is counted.
func Counts(c fleet.IncidentCount) string {
	var parts []string
	for _, n := range []struct {
		n    int32
		what string
	}{{c.Nodes, "node"}, {c.Pods, "pod"}, {c.Workloads, "workload"}} {
		if n.n == 0 {
			continue
		}
		text := plural(n.n, n.what)
		if n.what == "workload" {
			text += " short"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func same(a, b *fleet.Incident) bool { return equality.Semantic.DeepEqual(a, b) }
