package admin

import (
	"net/http"
	"slices"
	"strings"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
)

// mostOffered bounds the completions of a search.
const mostOffered = 20

// An offer is a completion, with its meaning.
type offer struct {
	Text string `json:"text"`
	Say  string `json:"say,omitempty"`
	More bool   `json:"more,omitempty"` // the key needs a value
}

// offers are completions of the last word of a search text; the word begins after head.
type offers struct {
	Head   string  `json:"head"`
	Offers []offer `json:"offers"`
}

// complete answers with completions as JSON.
func complete(c *frame.Call) error {
	a, list := c.Ask(), c.QueryParam("list")
	if len(search.KeysOf(list)) == 0 || !mayOpen(c, "/"+list) {
		return c.Message(http.StatusNotFound, "Nothing here", "There is no such list to search.")
	}
	return c.JSON(http.StatusOK, completed(a, list, c.QueryParam("text")))
}

// completed offers keys and values; those that begin with the typed text are first.
func completed(a *frame.Request, list, text string) offers {
	at := search.Last(text)
	o := offers{Head: at.Head, Offers: []offer{}}
	add := func(t string, say string, more bool) {
		if len(o.Offers) < mostOffered {
			o.Offers = append(o.Offers, offer{t, say, more})
		}
	}
	if at.Key == "" {
		minus := ""
		if at.Not {
			minus = "-"
		}
		for _, k := range search.Keys {
			if slices.Contains(k.Lists, list) && strings.HasPrefix(k.Name, at.Value) {
				add(minus+k.Name+":", k.Value, true)
			}
		}
		if at.Value != "" && at.Value != "-" { // a user may know the value without its key
			for _, key := range []string{"status", "site", "namespace", "board"} {
				if !slices.Contains(search.KeysOf(list), key) {
					continue
				}
				for _, v := range a.Values(list, key) {
					if strings.HasPrefix(strings.ToLower(v), at.Value) {
						add(search.Spot{Not: at.Not, Key: key}.With(v), "", false)
					}
				}
			}
		}
		return o
	}
	if !slices.Contains(search.KeysOf(list), at.Key) {
		return o
	}
	name, typed, valued := at.Value, "", false
	if at.Key == "label" || at.Key == "condition" {
		name, typed, valued = strings.Cut(at.Value, "=")
	}
	if valued {
		for _, v := range best(a.ValuesOf(list, at.Key, name), typed) {
			add(at.With(name+"="+v), "", false)
		}
		return o
	}
	for _, v := range best(a.Values(list, at.Key), name) {
		add(at.With(v), optionText(frame.StatusesOf(list), at.Key, v), false)
	}
	return o
}

// optionText returns a status's text in the list's menu.
func optionText(pairs [][2]string, key, value string) string {
	for _, p := range pairs {
		if key == "status" && p[0] == value {
			return p[1]
		}
	}
	return ""
}

// best returns the values that contain the typed text; those that begin with it are first.
func best(values []string, typed string) []string {
	var first, then []string
	for _, v := range values {
		switch i := strings.Index(strings.ToLower(v), typed); {
		case i == 0:
			first = append(first, v)
		case i > 0:
			then = append(then, v)
		}
	}
	return append(first, then...)
}
