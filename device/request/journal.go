package request

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

const (
	// JournalSize is how much of its own log an agent keeps, in bytes: some 1,500 lines.
	JournalSize = 256 << 10

	entryCost  = 64      // bytes that an entry takes beside its text
	maxEntry   = 8 << 10 // bytes of text; the rest of a longer one is cut off
	readAtOnce = 100     // entries

	// stampLayout is that of the engine's and Kubernetes' logs: all are of one width.
	stampLayout = "2006-01-02T15:04:05.000000000Z07:00"
)

// A Journal is the newest part of the agent's own log. It lies in memory, so that it
// costs the flash nothing, and ends with the agent: all of the log is on standard
// error.
type Journal struct {
	most int // bytes

	mu      sync.Mutex
	entries []entry
	first   uint64 // number of the first of them, from 0
	size    int
	more    chan struct{} // closed with the next entry; nil: nobody waits
}

// An entry is one line, as it was said then. The time has its monotonic reading, so
// that a clock that jumps does not make it older or newer than it is.
type entry struct {
	at   time.Time
	text string
}

// NewJournal returns a journal that keeps at most so many bytes.
func NewJournal(most int) *Journal { return &Journal{most: most} }

// Handler notes in the journal what is logged at the level or above, as text.
func (j *Journal) Handler(level slog.Leveler) slog.Handler {
	return slog.NewTextHandler(j, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{} // an entry has it by itself
			}
			return a
		}})
}

// Write takes one line, as slog's handlers write them.
func (j *Journal) Write(line []byte) (int, error) {
	kept := bytes.TrimSuffix(line, []byte("\n"))
	text := string(kept[:min(len(kept), maxEntry)])
	if len(kept) > maxEntry {
		text = strings.ToValidUTF8(text, "") + "…"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{time.Now(), text})
	j.size += len(text) + entryCost
	for j.size > j.most && len(j.entries) > 1 {
		j.size -= len(j.entries[0].text) + entryCost
		j.entries[0] = entry{} // the array may live on for long
		j.entries = j.entries[1:]
		j.first++
	}
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
	return len(line), nil
}

// Copy writes to w what a request for logs wants of the journal, each line with its
// time if that is wanted, until its end or, following, that of ctx. A reader who is
// so slow that lines are gone before their turn is told how many.
func (j *Journal) Copy(ctx context.Context, r wire.Request, w io.Writer) error {
	next, end := j.begin(r)
	for r.Follow || next < end {
		most := readAtOnce
		if !r.Follow {
			most = int(min(readAtOnce, end-next))
		}
		list, first, more := j.read(next, most)
		if len(list) == 0 {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		gone := first - next
		next = first + uint64(len(list))
		if gone > 0 {
			note := fmt.Sprintf("level=WARN msg=\"%d lines are gone: they were read too slowly\"", gone)
			list = slices.Insert(list, 0, entry{list[0].at, note})
		}
		var out bytes.Buffer
		for _, e := range list {
			if r.Timestamps {
				out.WriteString(e.at.UTC().Format(stampLayout) + " ")
			}
			out.WriteString(e.text + "\n")
		}
		if _, err := w.Write(out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// begin returns the numbers of the first entry that is wanted, and of the next one
// that will be said.
func (j *Journal) begin(r wire.Request) (first, end uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first, end = j.first, j.first+uint64(len(j.entries))
	if since := sinceOf(r); !since.IsZero() {
		for first < end && j.entries[first-j.first].at.Before(since) {
			first++
		}
	}
	if r.TailLines != nil {
		if tail := uint64(max(*r.TailLines, 0)); end-first > tail {
			first = end - tail
		}
	}
	return first, end
}

// read returns at most so many entries from a number on, the number of the first that is
// still there, and, where there is none, what is closed once there is.
func (j *Journal) read(next uint64, most int) (list []entry, first uint64, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first = max(next, j.first)
	from := min(int(first-j.first), len(j.entries))
	list = append(list, j.entries[from:min(from+most, len(j.entries))]...)
	if len(list) == 0 {
		if j.more == nil {
			j.more = make(chan struct{})
		}
		more = j.more
	}
	return list, first, more
}
