package logs

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLinesOfALog(t *testing.T) {
	at := "2026-11-21T02:20:20.123456789Z "
	for _, tt := range []struct{ name, in, want string }{
		{"a line has its time and its text", at + "hello\n", "02:20:20 hello"},
		{"a line without a time", "hello world\n", "hello world"},
		{"colours and titles are removed", at + "\x1b[1;31mred\x1b[0m \x1b]0;title\x07end\n", "02:20:20 red end"},
		{"overwritten text is removed", at + "10 %\r20 %\r\n", "02:20:20 20 %"},
		{"characters that hide or reverse text are marked", at + "a\u202eb\u200b\n", "02:20:20 a\ufffdb\ufffd"},
		{"an unfinished escape sequence ends with its line", at + "a\x1b[12\n" + at + "b\n", "02:20:20 a|02:20:20 b"},
		{"a last line without a line end", at + "a\n" + at + "b", "02:20:20 a|02:20:20 b"},
		{"a line that is too long is split", strings.Repeat("x", maxLine+3) + "\n",
			strings.Repeat("x", maxLine) + "|xxx"},
		{"invalid UTF-8 is marked", at + "a\xff\n", "02:20:20 a\ufffd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for step := 1; step < 40; step += 19 { // in reads of any size
				var got []string
				c := &cutter{take: func(lines []logLine) error {
					for _, l := range lines {
						text := l.Text
						if !l.At.IsZero() {
							text = l.At.Format("15:04:05 ") + text
						}
						got = append(got, text)
					}
					return nil
				}}
				for rest := tt.in; rest != ""; rest = rest[min(step, len(rest)):] {
					if _, err := c.Write([]byte(rest[:min(step, len(rest))])); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.end(); err != nil {
					t.Fatal(err)
				}
				if strings.Join(got, "|") != tt.want {
					t.Fatalf("in steps of %d: %.100q, want %.100q", step, strings.Join(got, "|"), tt.want)
				}
			}
		})
	}
}

func TestOnlyTheLastLinesAreHeld(t *testing.T) {
	l := &last{most: 3}
	for i := range 10 {
		_ = l.add([]logLine{{Text: fmt.Sprint(i)}})
	}
	if len(l.lines) != 3 || l.lines[0].Text != "7" || !l.cut {
		t.Errorf("%v", l.lines)
	}
	l = &last{most: 5000}
	for range 400 {
		_ = l.add([]logLine{{Text: strings.Repeat("x", maxLine)}})
	}
	if l.bytes > maxHeld || len(l.lines) != maxHeld/maxLine {
		t.Errorf("%d lines with %d bytes are held", len(l.lines), l.bytes)
	}
}

func TestALogGoesOnBehindAMark(t *testing.T) {
	second := func(n int) time.Time { return time.Date(2026, 11, 21, 3, 54, n, 0, time.UTC) }
	for _, tt := range []struct {
		name, from string
		want       string
	}{
		{"no bookmark: all lines are new", "", "a b c d e"},
		{"a bookmark within a second continues there", "2026-11-21T03:54:02Z/2/u", "d e"},
		{"a bookmark at the end: nothing is new", "2026-11-21T03:54:03Z/1/u", ""},
		{"a bookmark of an earlier second", "2026-11-21T03:54:01Z/1/u", "b c d e"},
		{"an invalid bookmark means the beginning", "yesterday/x", "a b c d e"},
		{"a bookmark of another log means the beginning", "2026-11-21T03:54:02Z/2/v", "a b c d e"},
		{"a rebooted device whose clock is slow", "2026-11-21T03:56:00Z/1/u", "a b c d e"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &logSender{from: parseBookmark(tt.from, "u"), at: bookmark{of: "u"}}
			var got []string
			for i, at := range []time.Time{second(1), second(2), second(2), second(2), second(3)} {
				if !s.had(at) {
					got = append(got, string(rune('a'+i)))
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if s.at.String() != "2026-11-21T03:54:03Z/1/u" || parseBookmark(s.at.String(), "u") != s.at {
				t.Errorf("the bookmark is %s", s.at)
			}
		})
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("2026-11-21T02:20:20Z a\x1b[31mb\r\n\x1b]x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &cutter{take: func(lines []logLine) error {
			for _, l := range lines {
				if strings.ContainsAny(l.Text, "\x1b\n\u202e\x00") || len(l.Text) > 3*maxLine {
					t.Fatalf("%q", l.Text)
				}
			}
			return nil
		}}
		_, _ = c.Write(b)
		_ = c.end()
	})
}
