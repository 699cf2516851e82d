package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"time"
)

// lagTime is how far a reader must lag: the follower looks for missing lines only if the last line
// was this old when it was read, and the next line is this much newer.
const lagTime = time.Second

// A follower repairs a followed log that rotates faster than it is read. Docker repeats some files
// and skips others, Podman skips the rest of a file, and the engines do not report it. The times of
// the lines show it.
type follower struct {
	path    string // the log's file
	stamped bool   // the caller wants the times too
	latest  time.Time
	readAt  time.Time // when the last line was read
}

// A followed passes one stream of the log to a writer. Each line starts with its time.
type followed struct {
	*follower
	to        io.Writer
	last      time.Time
	repeating bool // the last lines were repeated ones
}

func (f *followed) Write(p []byte) (int, error) {
	stamp, text, _ := bytes.Cut(p, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return f.to.Write(p)
	}
	now := time.Now()
	// A line older than the last one is a repeated line, unless the clock was set back.
	if f.repeating = (f.repeating && !at.After(f.last) || at.Before(f.last)) && !f.last.After(now); f.repeating {
		return len(p), nil
	}
	out := text
	if f.stamped {
		out = p
	}
	if f.missing(at, text) {
		note := "flotilla-device: lines from " + f.latest.UTC().Format(time.TimeOnly) + " to " +
			at.UTC().Format(time.TimeOnly) +
			" are missing: they were written faster than they were read, and the container engine keeps the newest 5 to " +
			"10 MB\n"
		if f.stamped {
			note = string(stamp) + " " + note
		}
		out = append([]byte(note), out...)
	}
	f.last, f.latest, f.readAt = at, at, now
	if _, err := f.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// missing reports whether lines before this one are missing: the line comes late, and is the first
// line of a file that is not the oldest.
func (f *follower) missing(at time.Time, text []byte) bool {
	if f.path == "" || f.latest.IsZero() || at.Sub(f.latest) < lagTime || f.readAt.Sub(f.latest) < lagTime {
		return false
	}
	first, _ := edgeLines(f.path)
	older, before := edgeLines(f.path + ".1")
	return entryIs(older, at, text) || entryIs(first, at, text) && !entryIs(before, f.latest, nil)
}

// edgeLines returns the first and the last line of a file.
func edgeLines(path string) (first, last []byte) {
	const most = 128 << 10
	file, err := os.Open(path)
	if err != nil {
		return nil, nil
	}
	defer file.Close()
	first, _ = bufio.NewReader(io.LimitReader(file, most)).ReadBytes('\n')
	if info, err := file.Stat(); err == nil {
		tail, _ := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-most), most))
		tail = bytes.TrimSuffix(tail, []byte("\n"))
		last = tail[bytes.LastIndexByte(tail, '\n')+1:]
	}
	return first, last
}

// entryIs reports whether a line of a log file has this time or, in Podman's files, this text.
func entryIs(line []byte, at time.Time, text []byte) bool {
	var entry struct{ Time time.Time }
	if json.Unmarshal(line, &entry) == nil {
		return entry.Time.Equal(at)
	}
	return len(text) > 0 && bytes.HasSuffix(line, text)
}
