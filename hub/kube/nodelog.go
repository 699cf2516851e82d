package kube

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxTailLines = 100_000  // as in Kubernetes
	maxPattern   = 1 << 10  // bytes
	maxLogLine   = 64 << 10 // bytes; a longer line counts as several
	maxLogHeld   = 1 << 20  // bytes of the last lines, four times what an agent keeps
)

// agentNames are the query names of the agent's log, the only log that a device has.
var agentNames = []string{"flotilla-device", "kubelet"}

// nodeLog is Kubernetes' node log query (KEP-2258). Devices serve the log of their agent only, each
// line with its time.
func (c *call) nodeLog() error {
	if c.Fleet.Snapshot().Node(c.name) == nil {
		return c.missing()
	}
	if c.below != "logs" {
		return c.notServed()
	}
	q, errs := logQueryOf(c.r.URL.Query())
	if len(errs) > 0 {
		return apierrors.NewBadRequest(errs.ToAggregate().Error())
	}
	if c.Online != nil && !c.Online(c.name) {
		return apierrors.NewServiceUnavailable(c.offline(c.name))
	}
	if q.follow {
		leave, err := c.enter()
		if err != nil {
			return err
		}
		defer leave()
	}
	out := &stream{w: c.w, rc: http.NewResponseController(c.w)}
	o := corev1.PodLogOptions{Follow: q.follow, Timestamps: true, TailLines: q.tail}
	if !q.filters() {
		return c.finishLog(out, c.Logs.NodeLogs(c.r.Context(), c.name, o, out), "node", c.name)
	}
	leave, err := c.filters.enter(c.user.Name, c.name)
	if err != nil {
		return err
	}
	defer leave()
	ctx := c.r.Context()
	if !q.follow {
		o.TailLines = nil // the filter counts the lines that match
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, filterTime)
		defer cancel()
	}
	s := &lineFilter{logQuery: q, ctx: ctx, out: out}
	err = c.Logs.NodeLogs(ctx, c.name, o, s)
	if err == nil {
		err = s.end()
	}
	return c.finishLog(out, err, "node", c.name)
}

// A logQuery selects lines of an agent's log. follow is ours: Kubernetes has it for pods only.
type logQuery struct {
	follow       bool
	tail         *int64
	since, until time.Time // times of the device's clock
	pattern      *regexp.Regexp
}

// filters tells whether the query selects lines by time or pattern.
func (q logQuery) filters() bool {
	return !q.since.IsZero() || !q.until.IsZero() || q.pattern != nil
}

// logQueryOf reads a query. Unknown options are ignored, as in Kubernetes.
func logQueryOf(v url.Values) (q logQuery, errs field.ErrorList) {
	at := func(name string) *field.Path { return field.NewPath(name) }
	wrong := func(name, why string) { errs = append(errs, field.Invalid(at(name), v.Get(name), why)) }
	moment := func(name string) (t time.Time) {
		if v.Get(name) == "" {
			return t
		}
		t, err := time.Parse(time.RFC3339, v.Get(name))
		if err != nil {
			wrong(name, "must be a time such as 2026-01-31T12:00:00Z")
		}
		return t
	}
	hasService := false
	for _, name := range v["query"] {
		if hasService = true; !slices.Contains(agentNames, strings.TrimSuffix(name, ".service")) {
			errs = append(errs, field.NotSupported(at("query"), name, agentNames))
		}
	}
	if !hasService {
		errs = append(errs, field.Required(at("query"),
			"name a service: "+strings.Join(agentNames, " or ")+", which have the same log"))
	}
	q.follow, q.since, q.until = truthy(v, "follow"), moment("sinceTime"), moment("untilTime")
	switch {
	case !q.until.IsZero() && q.since.After(q.until):
		wrong("untilTime", "must be after `sinceTime`")
	case v.Get("untilTime") != "" && q.follow:
		errs = append(errs, field.Forbidden(at("untilTime"), "may not be used together with `follow`"))
	}
	if text := v.Get("tailLines"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > maxTailLines {
			wrong("tailLines", fmt.Sprintf("must be a whole number from 0 to %d", maxTailLines))
		}
		q.tail = &n
	}
	if text := v.Get("boot"); text != "" {
		switch n, err := strconv.Atoi(text); {
		case err != nil || n > 0:
			wrong("boot", "must be a whole number less than 1")
		case n < 0:
			wrong("boot", "only the log since the agent's start exists: leave it out, or use 0")
		}
	}
	if text := v.Get("pattern"); len(text) > maxPattern {
		errs = append(errs, field.TooLong(at("pattern"), "", maxPattern))
	} else if text != "" {
		var err error
		if q.pattern, err = compilePattern(text); err != nil {
			wrong("pattern", err.Error())
		}
	}
	return q, errs
}

// wants tells whether the query selects a line. A line without a readable time counts as the
// oldest.
func (q logQuery) wants(line []byte) bool {
	stamp, text, ok := bytes.Cut(line, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || !ok {
		at, text = time.Time{}, line
	}
	return !at.Before(q.since) && (q.until.IsZero() || !at.After(q.until)) && (q.pattern == nil || q.pattern.Match(text))
}

// A lineFilter writes the selected lines at once, or with tailLines the last of them at the end.
type lineFilter struct {
	logQuery
	ctx  context.Context
	out  *stream
	busy time.Duration // time spent matching since the last rest
	rest []byte        // an unfinished line
	last [][]byte      // the newest selected lines
	size int           // bytes in last
}

func (s *lineFilter) Write(b []byte) (int, error) {
	var through []byte
	for from := b; len(from) > 0; {
		n, complete := bytes.IndexByte(from, '\n')+1, true
		if n == 0 {
			n, complete = len(from), false
		}
		if room := maxLogLine - len(s.rest); n > room {
			n, complete = room, true
		}
		s.rest, from = append(s.rest, from[:n]...), from[n:]
		if complete {
			began := time.Now()
			through = append(through, s.line()...)
			if s.busy += time.Since(began); s.busy > 10*time.Millisecond {
				pause(s.ctx, s.busy)
				s.busy = 0
			}
			if err := s.ctx.Err(); err != nil {
				return 0, err
			}
		}
	}
	if len(through) == 0 {
		return len(b), nil
	}
	_, err := s.out.Write(through)
	return len(b), err
}

// line takes the line that is complete, and returns it if it is to be written at once.
func (s *lineFilter) line() []byte {
	line := append(bytes.TrimSuffix(s.rest, []byte("\n")), '\n')
	s.rest = nil
	switch {
	case !s.wants(line[:len(line)-1]):
		return nil
	case s.follow || s.tail == nil:
		return line
	}
	s.last = append(s.last, line)
	s.size += len(line)
	for int64(len(s.last)) > *s.tail || s.size > maxLogHeld {
		s.size -= len(s.last[0])
		s.last = s.last[1:]
	}
	return nil
}

// end writes the last lines.
func (s *lineFilter) end() error {
	var last []byte
	if len(s.rest) > 0 {
		last = s.line()
	}
	if all := append(bytes.Join(s.last, nil), last...); len(all) > 0 {
		_, err := s.out.Write(all)
		return err
	}
	return nil
}
