package search

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// sites implements Known for the tests.
func sites(key, value string) (bool, []string) {
	have := []string{"bergen", "oslo", "two words"}
	return key != "site" || slices.Contains(have, value), have
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		rule, list, text string
		want             string // the query as text
		wrong            string // part of Wrong; "": none
	}{
		{"an empty search finds all", Nodes, "  \t ", "", ""},
		{"words are searched as they are", Nodes, "Pi 4", "pi 4", ""},
		{"a key has a value", Nodes, "SITE:Oslo status:attention", "site:oslo status:attention", ""},
		{"a minus negates a term", Nodes, "-site:oslo -pi", "-site:oslo -pi", ""},
		{"a minus alone is a word", Nodes, "-", `"-"`, ""},
		{"quotes keep spaces", Nodes, `site:"two words" "a b"`, `site:"two words" "a b"`, ""},
		{"quotes keep colons", Events, `"docker.io/nginx:1"`, `"docker.io/nginx:1"`, ""},
		{"quotes keep a minus", Nodes, `"-x"`, `"-x"`, ""},
		{"a label's value may follow = or :", Nodes, "label=room=kitchen label:room", "label:room=kitchen label:room", ""},
		{"a value may have colons", Pods, "image:nginx:1.27", "image:nginx:1.27", ""},
		{"an unknown key is reported, and the rest is searched", Nodes, "pi room:kitchen", "pi", "Unknown key “room:”; use site:, status:, condition:, label:, ip:, board:, agent:, image:, node:. For a label write label:room=kitchen"},
		{"a key of another list is reported", Sites, "board:pi", "", "The list of sites has no key “board:”; use site:, status:, label:."},
		{"a key without a value is reported", Nodes, "board: pi", "pi", "“board:” needs a value: part of the board's name, for example board:raspberry."},
		{"an unknown value is reported", Nodes, "-site:olso pi", "pi", "Unknown site “olso”; use bergen, oslo, two words."},
		{"a pattern need not match", Nodes, "site:x*", "site:x*", ""},
		{"an open quote is reported", Nodes, `pi "a b`, "pi", `The quote in "a b is not closed.`},
		{"not an address", Nodes, "ip:oslo", "", "“oslo” is not an address"},
		{"not a label", Nodes, "label:=x", "", "is not a label"},
		{"Kubernetes' != is a minus here", Nodes, "label:room!=x", "", "a minus before it"},
		{"two times", Events, "time:01:00-02:30 -time:23-4", "time:01:00-02:30 -time:23-4", ""},
		{"one time", Events, "pi time:01:00", "pi", "“01:00” is not two times; write for example time:01:00-02:30"},
		{"a time that does not exist", Events, "time:1-25", "", "is not two times"},
		{"the same time twice", Events, "time:1-01:00", "", "is not two times"},
		{"the first error is reported", Nodes, "a:1 b:2", "", "“a:”"},
		{"long", Nodes, strings.Repeat("x", MaxText+1), "", "more than 500"},
		{"many", Nodes, strings.Repeat("x ", MaxTerms+1), "", "more than 20 terms"},
	} {
		q := Parse(c.list, c.text, sites)
		if q.String() != c.want || (q.Wrong == "") != (c.wrong == "") || !strings.Contains(q.Wrong, c.wrong) {
			t.Errorf("%s: %q is parsed as %q with the error %q; want %q, %q", c.rule, c.text, q, q.Wrong, c.want, c.wrong)
		}
	}
}

func TestIs(t *testing.T) {
	for _, c := range []struct {
		term, value string
		want        bool
	}{
		{"site:oslo", "oslo", true}, {"site:oslo", "OSLO", true}, {"site:oslo", "oslo-2", false}, {"site:os", "oslo", false},
		{"site:os*", "oslo", true}, {"site:*lo", "oslo", true}, {"site:o*l*o", "oslo", true}, {"site:o*x*o", "oslo", false}, {"site:oslo*oslo", "oslo", false}, {"site:*", "", true},
		{"board:pi", "raspberrypi4", true}, {"board:PI4", "RaspberryPi4", true}, {"board:pi5", "raspberrypi4", false},
		{"image:nginx*", "docker.io/nginx:1.27", true}, {"image:nginx:*-alpine", "docker.io/nginx:1.27-alpine", true}, {"image:nginx:*-alpine", "docker.io/nginx:1.27", false}, {"board:*pi4", "RaspberryPi4", true}, {"board:p*5", "raspberrypi4", false},
		{"ip:10.0.0.1", "10.0.0.1", true}, {"ip:10.0.0.1", "10.0.0.10", false}, {"ip:10.0.0.0/24", "10.0.0.200", true}, {"ip:10.0.0.7/24", "10.0.0.200", true},
		{"ip:10.0.0.0/24", "10.0.1.1", false}, {"ip:10.0.", "10.0.1.1", true}, {"ip:10.0.", "10.10.1.1", false}, {"ip:fd00::/8", "fd00::1", true}, {"ip:FD00:0:0::1", "fd00::1", true},
		{"ip:10.0.0.0/8", "none", false}, {"ip:::ffff:10.0.0.1", "10.0.0.1", true},
		{"ip:::ffff:10.0.0.0/104", "10.9.0.1", true}, {"ip:::ffff:10.0.0.0/104", "11.0.0.1", false}, {"ip:::ffff:10.0.0.7/128", "10.0.0.7", true}, {"ip:::ffff:0:0/96", "10.0.0.1", true},
	} {
		q := Parse(Nodes, c.term, nil)
		if len(q.Terms) != 1 || q.Terms[0].Is(c.value) != c.want {
			t.Errorf("%s matches %q: want %v (%q)", c.term, c.value, c.want, q.Wrong)
		}
	}
}

func TestBetween(t *testing.T) {
	for _, c := range []struct{ rule, term, now, from, until string }{
		{"this morning", "time:1-2:30", "29T08:00", "29T01:00", "29T02:30"},
		{"before until", "time:1-2", "29T01:30", "29T01:00", "29T02:00"},
		{"at from", "time:1-2", "29T01:00", "29T01:00", "29T02:00"},
		{"before from: the times are yesterday's", "time:22-23", "29T08:00", "28T22:00", "28T23:00"},
		{"across midnight", "time:23-4", "29T08:00", "28T23:00", "29T04:00"},
		{"across midnight, before midnight", "time:23-4", "29T23:30", "29T23:00", "30T04:00"},
	} {
		const layout = "2006-01-02T15:04"
		now, err := time.Parse(layout, "2026-11-"+c.now)
		q := Parse(Events, c.term, nil)
		if err != nil || len(q.Terms) != 1 {
			t.Fatalf("%s: %v %q", c.rule, err, q.Wrong)
		}
		from, until := q.Terms[0].Between(now)
		if from.Format(layout) != "2026-11-"+c.from || until.Format(layout) != "2026-11-"+c.until {
			t.Errorf("%s: %s at %s is from %s until %s; want %s until %s", c.rule, c.term, c.now, from, until, c.from, c.until)
		}
	}
}

func TestHas(t *testing.T) {
	labels := map[string]string{"flotilla.dev/board": "raspberrypi4", "room": "", "Zone": "North-1"}
	for term, want := range map[string]bool{
		"label:board": true, "label:flotilla.dev/board": true, "label:dev/board": false, "label:board=raspberrypi4": true, "label:board=raspberry": false, "label:board=raspberry*": true,
		"label:room": true, "label:room=": true, "label:board=": false, "label:zone=north-1": true, "label:none": false,
	} {
		if q := Parse(Nodes, term, nil); len(q.Terms) != 1 || q.Terms[0].Has(labels) != want {
			t.Errorf("%s: Has must return %v (%q)", term, want, q.Wrong)
		}
	}
}

func TestLast(t *testing.T) {
	for _, c := range []struct{ text, head, key, value, with string }{
		{"", "", "", "", "v"}, {"pi ", "pi ", "", "", "v"}, {"pi si", "pi ", "", "si", "v"},
		{"pi site:", "pi ", "site", "", "site:v"}, {"-site:os", "", "site", "os", "-site:v"}, {`a site:"two w`, "a ", "site", "two w", "site:v"}, {"label=ro", "", "label", "ro", "label:v"},
	} {
		s := Last(c.text)
		if s.Head != c.head || s.Key != c.key || s.Value != c.value || s.With("v") != c.with {
			t.Errorf("the last term of %q is %+v, completed %q; want %+v", c.text, s, s.With("v"), c)
		}
	}
	if s := Last("site:t"); s.With("two words") != `site:"two words"` {
		t.Errorf("a value with a space is %s", s.With("two words"))
	}
}

// FuzzParse checks that any query is limited in size, that its text parses to an equal query, that
// only a minus negates a term, and that errors are reported.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", `pi -site:oslo "a b"`, `label=room=kit*en`, "ip:10.0.0.0/8", `"`, "-", `x"y z"w:`,
		"site:\u0130", "a:\xff", `-"-x"`, `""`, `"" -""`, "-:x", ":", `label="a b"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, list := range []string{Nodes, Pods, Sites} {
			q := Parse(list, text, nil)
			if len(q.Terms) > MaxTerms || len(q.Wrong) > 3*MaxText {
				t.Fatalf("%q: %d terms, %d characters of errors", text, len(q.Terms), len(q.Wrong))
			}
			again := Parse(list, q.String(), nil)
			if len(q.String()) <= MaxText && (again.Wrong != "" || !slices.Equal(again.Terms, q.Terms)) {
				t.Fatalf("%q is %+v; its text %q is parsed as %+v, %q", text, q.Terms, q, again.Terms, again.Wrong)
			}
			for _, x := range q.Terms {
				if x.Key == "" && !x.In(x.Value) {
					t.Fatalf("%q: the word %q does not match itself", text, x.Value)
				}
				if x.Key == "site" && !strings.Contains(x.Value, "*") && !x.Is(x.Value) {
					t.Fatalf("%q: %q does not equal itself", text, x.Value)
				}
			}
		}
		s := Last(text)
		if len(text) <= MaxText && !strings.HasPrefix(strings.ToValidUTF8(text, "\ufffd"), s.Head) {
			t.Fatalf("%q does not begin with %q", text, s.Head)
		}
	})
}
