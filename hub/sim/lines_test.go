package sim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// lines is the log of the hub and the devices.
type lines struct {
	mu    sync.Mutex
	kept  []string
	bad   []string
	count int
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *lines) WithAttrs(attrs []slog.Attr) slog.Handler         { return withAttrs{l, attrs} }
func (l *lines) WithGroup(string) slog.Handler                    { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.add(r, nil)
	return nil
}

func (l *lines) add(r slog.Record, attrs []slog.Attr) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %-5s %s", r.Time.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Round(time.Millisecond), r.Level,
		r.Message)
	for _, a := range attrs {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
	}
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.kept = append(l.kept, b.String())
	if len(l.kept) > 1000 {
		l.kept = slices.Delete(l.kept, 0, 500)
	}
	if r.Level >= slog.LevelError {
		l.bad = append(l.bad, b.String())
	}
}

func (l *lines) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.kept[max(0, len(l.kept)-n):], "\n")
}

// excuse removes the error lines that contain words, and returns their number.
func (l *lines) excuse(words string) (count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad = slices.DeleteFunc(l.bad, func(line string) bool {
		is := strings.Contains(line, words)
		if is {
			count++
		}
		return is
	})
	return count
}

// wrong returns the remaining error lines.
func (l *lines) wrong() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.bad)
}

func (l *lines) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

type withAttrs struct {
	*lines
	attrs []slog.Attr
}

func (a withAttrs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withAttrs{a.lines, slices.Concat(a.attrs, attrs)}
}
func (a withAttrs) Handle(_ context.Context, r slog.Record) error { a.add(r, a.attrs); return nil }
