package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"time"
)

// lagging is how long a line has lain there, and how long none may have come after it, before it is
// asked whether lines are missing.
const lagging = time.Second

// A follower mends how engines follow a log that is rotated before they have read it: Docker reads
// files again, and leaves out others, Podman leaves out the rest of the file; neither says so. The
// times of the lines tell.
type follower struct {
	path    string // of the log's file
	stamped bool   // the times are wanted
	latest  time.Time
	heard   time.Time // when that came
}

// A followed stream of the log is on its way to a writer, line by line, each with its time before
// it.
type followed struct {
	*follower
	to    io.Writer
	last  time.Time
	again bool // we are in what was read before
}

func (f *followed) Write(p []byte) (int, error) {
	stamp, text, _ := bytes.Cut(p, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return f.to.Write(p)
	}
	now := time.Now()
	// A time before the last one is that of a repeated line, unless the clock has been set back.
	if f.again = (f.again && !at.After(f.last) || at.Before(f.last)) && !f.last.After(now); f.again {
		return len(p), nil
	}
	out := text
	if f.stamped {
		out = p
	}
	if f.missing(at, text) {
		note := "flotilla-device: lines from " + f.latest.UTC().Format(time.TimeOnly) + " to " +
			at.UTC().Format(time.TimeOnly) +
			" are missing: they were written faster than this was read, and the container engine keeps the newest 5 to 10 MB\n"
		if f.stamped {
			note = string(stamp) + " " + note
		}
		out = append([]byte(note), out...)
	}
	f.last, f.latest, f.heard = at, at, now
	if _, err := f.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// missing tells whether lines between the latest one and this one are missing: that came late, and
// this one is the first of a file, before which there is another one.
func (f *follower) missing(at time.Time, text []byte) bool {
	if f.path == "" || f.latest.IsZero() || at.Sub(f.latest) < lagging || f.heard.Sub(f.latest) < lagging {
		return false
	}
	first, _ := ends(f.path)
	older, before := ends(f.path + ".1")
	return entryIs(older, at, text) || entryIs(first, at, text) && !entryIs(before, f.latest, nil)
}

// ends returns the first and the last line of a file.
func ends(path string) (first, last []byte) {
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

// entryIs tells whether a line of a log's file has a time, or in Podman's files, a text.
func entryIs(line []byte, at time.Time, text []byte) bool {
	var entry struct{ Time time.Time }
	if json.Unmarshal(line, &entry) == nil {
		return entry.Time.Equal(at)
	}
	return len(text) > 0 && bytes.HasSuffix(line, text)
}
