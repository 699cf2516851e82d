package kube

import (
	"bytes"
	"net/url"
	"testing"
)

// FuzzLogQuery parses a query and filters a line with it. The cost of an accepted query is bounded,
// even if its pattern repeats much.
func FuzzLogQuery(f *testing.F) {
	for _, pattern := range []string{"level=WARN", "(a?){1000}", "((a{1,100}){1,100}){1,100}", "(x*)*(a*)*z", "[",
		"(?i)a{0,100}b{0,100}", ".{100}.{100}", "\\pN{5}"} {
		f.Add(url.Values{"query": {"kubelet"}, "pattern": {pattern}}.Encode())
	}
	f.Add("query=kubelet&sinceTime=2026-11-20T12:00:00Z&untilTime=2026-11-20T13:00:00Z&tailLines=5&follow=true")
	line := bytes.Repeat([]byte("a"), 4096)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, errs := logQueryOf(v)
		if len(errs) > 0 {
			return
		}
		if q.pattern != nil {
			if n := len(q.pattern.String()); n > maxPattern {
				t.Errorf("a pattern of %d bytes is accepted", n)
			}
		}
		_ = q.wants(line)
	})
}
