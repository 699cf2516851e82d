package request

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

// journalOf returns a journal with "line 0" at its start and a further line every ten seconds.
func journalOf(lines int) *Journal {
	j := NewJournal(JournalSize)
	log := slog.New(j.Handler(slog.LevelInfo))
	for n := range lines {
		time.Sleep(time.Duration(min(n, 1)) * 10 * time.Second)
		log.Info(fmt.Sprintf("line %d", n))
	}
	return j
}

func TestLinesOfAJournal(t *testing.T) {
	three, none, negative, all := int64(3), int64(0), int64(-5), int64(100)
	secs := func(n int64) *int64 { return &n }
	// The time of line 3: a synctest bubble begins at midnight UTC 2000-01-01.
	at := time.Date(2000, 1, 1, 0, 0, 30, 0, time.UTC)
	after := at.Add(1)
	for _, c := range []struct {
		name string
		r    wire.Request
		want string // numbers of the expected lines
	}{
		{"all lines", wire.Request{}, "0 1 2 3 4"},
		{"the last lines", wire.Request{TailLines: &three}, "2 3 4"},
		{"more lines than there are", wire.Request{TailLines: &all}, "0 1 2 3 4"},
		{"no line", wire.Request{TailLines: &none}, ""},
		{"a negative number of lines", wire.Request{TailLines: &negative}, ""},
		{"new lines", wire.Request{SinceSeconds: secs(15)}, "3 4"},
		{"the last of the new lines", wire.Request{SinceSeconds: secs(25), TailLines: secs(1)}, "4"},
		{"lines since a time, which has priority over seconds", wire.Request{SinceTime: &at, SinceSeconds: secs(1000)}, "3 4"},
		{"lines after a time, to the nanosecond", wire.Request{SinceTime: &after, SinceSeconds: secs(1000)}, "4"},
		{"lines of the last 0 seconds", wire.Request{SinceSeconds: secs(0)}, "4"},
		{"lines of a time before the first line", wire.Request{SinceSeconds: secs(1 << 62)}, "0 1 2 3 4"},
		{"lines of the future", wire.Request{SinceSeconds: secs(-100)}, "4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				if err := journalOf(5).Copy(t.Context(), c.r, &out); err != nil {
					t.Fatal(err)
				}
				var have []string
				for line := range strings.Lines(out.String()) {
					have = append(have, strings.TrimSuffix(strings.TrimPrefix(line, `level=INFO msg="line `), "\"\n"))
				}
				if got := strings.Join(have, " "); got != c.want {
					t.Errorf("got lines %q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestAnEntryOfAJournalIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := NewJournal(JournalSize)
		log := slog.New(j.Handler(slog.LevelInfo)).With("node", "pi-1")
		log.Debug("below the level")
		log.Warn("two\nlines\x1b[31m", "err", errors.New("a\r\nb"), "time", "to go")
		log.WithGroup("g").Info("x", "time", "stays")
		log.Info(strings.Repeat("é", maxEntry))
		var out bytes.Buffer
		if err := j.Copy(t.Context(), wire.Request{Timestamps: true}, &out); err != nil {
			t.Fatal(err)
		}
		stamp := "2000-01-01T00:00:00.000000000Z "
		lines := strings.Split(out.String(), "\n")
		want := []string{
			stamp + `level=WARN msg="two\nlines\x1b[31m" node=pi-1 err="a\r\nb"`,
			stamp + `level=INFO msg=x node=pi-1 g.time=stays`,
		}
		if len(lines) != 4 || lines[0] != want[0] || lines[1] != want[1] {
			t.Errorf("%.300q", lines)
		}
		if long := lines[2]; !strings.HasSuffix(long, "éé…") || len(long) > maxEntry+len(stamp)+len("…") {
			t.Errorf("a long line has %d bytes and ends with %q", len(long), long[len(long)-10:])
		}
	})
}

func TestAJournalIsLimited(t *testing.T) {
	j := NewJournal(4096)
	log := slog.New(j.Handler(slog.LevelInfo))
	for n := range 10_000 {
		log.Info(strings.Repeat("x", n%100), "n", n)
	}
	log.Info(strings.Repeat("x", maxEntry)) // a line larger than the whole journal
	var out bytes.Buffer
	if _ = j.Copy(t.Context(), wire.Request{}, &out); strings.Count(out.String(), "\n") != 1 {
		t.Errorf("after a line of %[2]d bytes the journal has %[1]d bytes, want only that line", out.Len(), maxEntry)
	}
	for n := range 100 {
		log.Info("y", "n", n)
	}
	out.Reset()
	_ = j.Copy(t.Context(), wire.Request{}, &out)
	if n := strings.Count(out.String(), "\n"); j.size > 4096 || out.Len()+n*entryCost > 4096+n || n < 40 ||
		!strings.HasSuffix(out.String(), "n=99\n") {
		t.Errorf("the journal has %d bytes in %d lines, counted as %d, and ends with %q", out.Len(), n, j.size,
			out.String()[max(0, out.Len()-20):])
	}
	if cap(j.entries) > 1000 {
		t.Errorf("the journal keeps an array of %d for %d entries, want at most 1000", cap(j.entries), len(j.entries))
	}
}

// A loggingWriter logs a line whenever the reader writes one.
type loggingWriter struct {
	bytes.Buffer
	log *slog.Logger
}

func (c *loggingWriter) Write(b []byte) (int, error) {
	c.log.Info("more")
	return c.Buffer.Write(b)
}

func TestWithoutFollowACopyEndsWithTheLastLine(t *testing.T) {
	j := NewJournal(JournalSize)
	log := slog.New(j.Handler(slog.LevelInfo))
	for range 3*readAtOnce - 1 {
		log.Info("x")
	}
	w := &loggingWriter{log: log}
	if err := j.Copy(t.Context(), wire.Request{}, w); err != nil || strings.Count(w.String(), "\n") != 3*readAtOnce-1 {
		t.Errorf("copied %d lines, %v; want %d", strings.Count(w.String(), "\n"), err, 3*readAtOnce-1)
	}
}

// following copies lines with Follow until stop is called.
func following(j *Journal, r wire.Request, w io.Writer) (stop func() error) {
	r.Follow = true
	ctx, cancel := context.WithCancelCause(context.Background())
	end := make(chan error, 1)
	go func() { end <- j.Copy(ctx, r, w) }()
	return func() error {
		cancel(ErrStopping)
		return <-end
	}
}

func TestAJournalIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := journalOf(2)
		log := slog.New(j.Handler(slog.LevelInfo))
		var a, b bytes.Buffer
		none := int64(0)
		stopA, stopB := following(j, wire.Request{}, &a), following(j, wire.Request{TailLines: &none}, &b)
		synctest.Wait()
		for n := 2; n < 5; n++ {
			log.Info(fmt.Sprintf("line %d", n))
			synctest.Wait()
		}
		if n, m := strings.Count(a.String(), "\n"), strings.Count(b.String(), "\n"); n != 5 || m != 3 {
			t.Errorf("the reader of all lines has %d, the reader of new lines %d; want 5 and 3", n, m)
		}
		if err := errors.Join(stopA(), stopB()); !errors.Is(err, ErrStopping) {
			t.Error(err)
		}
	})
}

// A stalledWriter blocks until the test releases it.
type stalledWriter struct {
	release chan struct{}
	bytes.Buffer
}

func (s *stalledWriter) Write(b []byte) (int, error) {
	<-s.release
	return s.Buffer.Write(b)
}

func TestASlowReaderGetsTheNumberOfLostLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := NewJournal(4096)
		log := slog.New(j.Handler(slog.LevelInfo))
		log.Info("first")
		w := &stalledWriter{release: make(chan struct{})}
		stop := following(j, wire.Request{Timestamps: true}, w)
		synctest.Wait()
		for n := range 1000 {
			log.Info("line", "n", n)
		}
		close(w.release)
		synctest.Wait()
		_ = stop()
		lines := strings.Split(strings.TrimSuffix(w.String(), "\n"), "\n")
		var lost, kept int
		if _, err := fmt.Sscanf(lines[1], "2000-01-01T00:00:00.000000000Z level=WARN msg=\"%d lines", &lost); err != nil {
			t.Fatalf("%q: %v", lines[1], err)
		}
		if kept = len(lines) - 2; lost+kept != 1000 || !strings.HasSuffix(lines[2], fmt.Sprintf("n=%d", lost)) {
			t.Errorf("%d lines are lost and %d are kept, from %q; want 1000 in all without a gap", lost, kept, lines[2])
		}
	})
}

func TestAJournalIsSafeForConcurrentUse(t *testing.T) {
	j := NewJournal(16 << 10)
	log := slog.New(j.Handler(slog.LevelInfo))
	var writers, readers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 4 {
		readers.Go(func() { _ = j.Copy(ctx, wire.Request{Follow: true}, io.Discard) })
		writers.Go(func() {
			for n := range 2000 {
				log.Info("said", "n", n)
				if n%100 == 0 {
					_ = j.Copy(ctx, wire.Request{}, io.Discard)
				}
			}
		})
	}
	writers.Wait()
	cancel()
	readers.Wait()
}

func TestTheHubReadsTheAgentsOwnLog(t *testing.T) {
	two, bytes9 := int64(2), int64(9)
	for _, c := range []struct {
		name string
		r    wire.Request
		data string
		err  string
	}{
		{"the last lines", wire.Request{TailLines: &two}, "level=INFO msg=\"line 1\"\nlevel=INFO msg=\"line 2\"\n", ""},
		{"the first bytes", wire.Request{LimitBytes: &bytes9}, "level=INF", ""},
		{"the first bytes, with Follow", wire.Request{LimitBytes: &bytes9, Follow: true}, "level=INF", ""},
		{"with Follow for a second", wire.Request{TailLines: &two, Follow: true, DeadlineSeconds: 1}, "level=INFO msg=\"line 1\"\nlevel=INFO msg=\"line 2\"\n", "context deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, "wait", func(t *testing.T, d *fixture) {
				d.server.device.Journal = journalOf(3)
				c.r.Type = wire.RequestNodeLogs
				s := d.serve("r1", c.r)
				if end := <-s.End; end.Error != c.err || s.Stdout() != c.data {
					t.Errorf("%q ends with %q, want %q and %q", s.Stdout(), end.Error, c.data, c.err)
				}
			})
		})
	}
	bubble(t, "wait", func(t *testing.T, d *fixture) {
		s := d.serve("r1", wire.Request{Type: wire.RequestNodeLogs})
		if end := <-s.End; end.Error != "this agent stores no log" {
			t.Errorf("an agent without a journal returns the error %q", end.Error)
		}
	})
}
