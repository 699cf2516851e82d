package logs

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/frame"
)

const (
	maxLine = 8 << 10 // bytes; a longer line becomes several
	maxHeld = 1 << 20 // bytes of the last lines on a page
)

// A logLine is one line of a container's log.
type logLine struct {
	At   time.Time // zero: the engine gave no time
	Text string
}

// A cutter cuts a log's stream into lines. It buffers at most one line.
type cutter struct {
	take func([]logLine) error
	rest []byte
}

func (c *cutter) Write(b []byte) (int, error) {
	var lines []logLine
	for from := b; len(from) > 0; {
		end := bytes.IndexByte(from, '\n')
		piece := from
		if end >= 0 {
			piece = from[:end]
		}
		room := maxLine - len(c.rest)
		switch {
		case len(piece) > room:
			c.rest = append(c.rest, from[:room]...)
			from = from[room:]
		case end < 0:
			c.rest = append(c.rest, piece...)
			from = nil
			continue
		default:
			c.rest = append(c.rest, piece...)
			from = from[end+1:]
		}
		lines = append(lines, lineOf(c.rest))
		c.rest = c.rest[:0]
	}
	if len(lines) == 0 {
		return len(b), nil
	}
	return len(b), c.take(lines)
}

// end passes on a last line that has no line end.
func (c *cutter) end() error {
	if len(c.rest) == 0 {
		return nil
	}
	l := lineOf(c.rest)
	c.rest = nil
	return c.take([]logLine{l})
}

// lineOf parses a line that begins with the engine's time.
func lineOf(b []byte) logLine {
	stamp, text, ok := strings.Cut(string(bytes.TrimSuffix(b, []byte("\r"))), " ")
	if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
		return logLine{At: at.UTC(), Text: readable(text)}
	}
	if ok {
		stamp += " " + text
	}
	return logLine{Text: readable(stamp)}
}

// readable removes what only a terminal understands: colours, cursor movements, bells, and text
// before a carriage return.
func readable(s string) string {
	if i := strings.LastIndexByte(strings.TrimRight(s, "\r"), '\r'); i >= 0 {
		s = s[i+1:]
	}
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			i += escape(s[i:])
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		if r == '\t' || !unicode.IsControl(r) {
			b.WriteRune(frame.Visible(r))
		}
	}
	return b.String()
}

func odd(r rune) bool {
	return unicode.IsControl(r) && r != '\t' || r == utf8.RuneError || frame.Visible(r) != r
}

// escape returns the length of the escape sequence at the beginning of s: a CSI or string sequence of
// ECMA-48, otherwise ESC and one byte.
func escape(s string) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[':
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
		}
		return len(s)
	case ']', 'P', '_', '^', 'X': // up to BEL or ST
		for i := 2; i < len(s); i++ {
			if s[i] == 0x07 {
				return i + 1
			}
			if s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				return i + 2
			}
		}
		return len(s)
	}
	_, n := utf8.DecodeRuneInString(s[1:])
	return 1 + n
}

// A bookmark is a place in the log of one pod or node: after the nth line with this time, because
// some engines give whole seconds. It has the UID, because another pod with the same name has
// another log.
type bookmark struct {
	at time.Time
	n  int
	of types.UID
}

// pass moves the bookmark behind a line, unless the line is before it.
func (m *bookmark) pass(at time.Time) {
	switch {
	case at.After(m.at):
		m.at, m.n = at, 1
	case at.Equal(m.at):
		m.n++
	}
}

func (m bookmark) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.Format(time.RFC3339Nano) + "/" + strconv.Itoa(m.n) + "/" + string(m.of)
}

// parseBookmark reads a bookmark. A bookmark of another log means the beginning.
func parseBookmark(s string, of types.UID) bookmark {
	at, rest, _ := strings.Cut(s, "/")
	n, uid, _ := strings.Cut(rest, "/")
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil || types.UID(uid) != of {
		return bookmark{of: of}
	}
	count, _ := strconv.Atoi(n)
	return bookmark{t.UTC(), count, of}
}

// last keeps the newest lines, within a number and maxHeld bytes.
type last struct {
	lines []logLine
	most  int
	bytes int
	cut   bool // lines have been dropped
	end   bookmark
}

func (l *last) add(lines []logLine) error {
	for _, line := range lines {
		l.lines = append(l.lines, line)
		l.end.pass(line.At)
		l.bytes += len(line.Text)
		for len(l.lines) > l.most || l.bytes > maxHeld && len(l.lines) > 1 {
			l.bytes -= len(l.lines[0].Text)
			l.lines = l.lines[1:]
			l.cut = true
		}
	}
	return nil
}
