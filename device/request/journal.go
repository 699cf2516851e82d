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
	// JournalSize is the default size of a journal in bytes, about 1,500 lines.
	JournalSize = 256 << 10

	entryCost  = 64      // bytes that an entry counts in addition to its text
	maxEntry   = 8 << 10 // most bytes of an entry's text; a longer line is cut off
	readAtOnce = 100     // entries that a reader copies at once

	// stampLayout is the time format of the engines' and Kubernetes' logs, with a fixed width.
	stampLayout = "2006-01-02T15:04:05.000000000Z07:00"
)

// A Journal keeps the newest part of the agent's own log. It is in memory only, to spare the flash,
// so it ends with the agent; the whole log goes to standard error.
type Journal struct {
	most int // most bytes

	mu      sync.Mutex
	entries []entry
	first   uint64 // number of entries[0], counted from 0
	size    int
	more    chan struct{} // closed when the next entry arrives; nil: no reader waits
}

// An entry is one line. Its time has a monotonic reading, so that setting the clock does not change
// the entry's age.
type entry struct {
	at   time.Time
	text string
}

// NewJournal returns a journal of at most this many bytes.
func NewJournal(most int) *Journal { return &Journal{most: most} }

// Handler returns a handler that logs to the journal, from this level up, as text.
func (j *Journal) Handler(level slog.Leveler) slog.Handler {
	return slog.NewTextHandler(j, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{} // each entry stores its time separately
			}
			return a
		}})
}

// Write adds one line; slog's handlers call it once for each line.
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
		j.entries[0] = entry{} // the array may stay in use for a long time, so release the text
		j.entries = j.entries[1:]
		j.first++
	}
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
	return len(line), nil
}

// Copy writes the requested lines to w until the last one, or with Follow until ctx ends. A reader
// that is too slow gets a line with the number of lost lines.
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
			note := fmt.Sprintf("level=WARN msg=\"%d lines are lost: the reader is too slow\"", gone)
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

// begin returns the numbers of the first requested entry and of the next new entry.
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

// read returns up to most entries from number next on, and the number of the first of them: it is
// higher than next if entries were dropped. Without entries it returns a channel that is closed
// when the next one arrives.
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
