package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Engines lose lines if a log rotates while a reader lags: Docker skips or repeats whole files,
// Podman continues in the new file. The log names the missing lines, which the engines do not
// report.
func TestAFollowedLogReportsMissingLinesAndRepeatsNone(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	at := func(second int) string {
		return began.Add(time.Duration(second) * time.Second).UTC().Format(time.RFC3339Nano)
	}
	line := func(second int) string { return fmt.Sprintf("line %d\n", second) }
	entry := func(second int) string {
		b, _ := json.Marshal(map[string]string{"log": line(second), "stream": "stdout", "time": at(second)})
		return string(b) + "\n"
	}
	const missing = "are missing"
	for name, c := range map[string]struct {
		sends      []int
		files      map[string]string // suffix of the log's name to content
		want       []int             // -1: the notice about missing lines
		timestamps bool
	}{
		"the engine repeats lines":          {sends: []int{1, 2, 3, 1, 2, 3, 4}, want: []int{1, 2, 3, 4}},
		"no line is missing":                {sends: []int{1, 2, 3, 4}, want: []int{1, 2, 3, 4}, files: map[string]string{"": entry(3) + entry(4), ".1": entry(1) + entry(2)}},
		"the program paused":                {sends: []int{1, 2, 30, 31}, want: []int{1, 2, 30, 31}, files: map[string]string{"": entry(1) + entry(2) + entry(30)}},
		"the program paused at a rotation":  {sends: []int{1, 2, 30, 31}, want: []int{1, 2, 30, 31}, files: map[string]string{"": entry(30) + entry(31), ".1": entry(1) + entry(2)}},
		"the next file is deleted":          {sends: []int{1, 2, 30, 31}, want: []int{1, 2, -1, 30, 31}, files: map[string]string{"": entry(30) + entry(31), ".1": entry(20) + entry(29)}},
		"two files are deleted":             {sends: []int{1, 2, 30, 31}, want: []int{1, 2, -1, 30, 31}, files: map[string]string{"": entry(40), ".1": entry(30) + entry(31)}, timestamps: true},
		"Podman's single file is truncated": {sends: []int{1, 2, 30, 31}, want: []int{1, 2, -1, 30, 31}, files: map[string]string{"": at(30) + " stdout F " + line(30)}},
		"with times":                        {sends: []int{1, 2, 1, 2, 3}, want: []int{1, 2, 3}, timestamps: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			for suffix, text := range c.files {
				if err := os.WriteFile(path+suffix, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			a := served(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/json") {
					fmt.Fprintf(w, `{"Id":"x","LogPath":%q,"State":{"Status":"running","Running":true},"Config":{}}`, path)
					return
				}
				for _, s := range c.sends {
					text := line(s)
					if r.URL.Query().Get("timestamps") == "1" {
						text = at(s) + " " + text
					}
					_, _ = w.Write(append([]byte{1, 0, 0, 0, 0, 0, 0, byte(len(text))}, text...))
				}
			})
			var out bytes.Buffer
			if err := a.Logs(context.Background(), "x", LogOptions{Tail: -1, Follow: true, Timestamps: c.timestamps}, &out,
				&out); err != nil {
				t.Fatal(err)
			}
			got := strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
			for i, want := range c.want {
				text, stamp := line(max(want, 0)), at(max(want, 0))+" "
				if want < 0 {
					text, stamp = missing, at(c.want[i+1])+" "
				}
				if i >= len(got) || !strings.Contains(got[i]+"\n", strings.TrimSuffix(text, "\n")) ||
					strings.HasPrefix(got[i], stamp) != c.timestamps {
					t.Fatalf("the log is %q, want %v", got, c.want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("the log is %q, want %v", got, c.want)
			}
		})
	}
}

// After the clock is set back, new lines have older times and are still not repeated lines.
func TestAFollowedLogContinuesAfterTheClockIsSetBack(t *testing.T) {
	out := &bytes.Buffer{}
	w := &followed{follower: &follower{}, to: out}
	for i, at := range []time.Time{time.Now().Add(time.Hour), time.Now().Add(-time.Second), time.Now()} {
		fmt.Fprintf(w, "%s %d\n", at.Format(time.RFC3339Nano), i)
	}
	fmt.Fprint(w, "no time\n")
	if out.String() != "0\n1\n2\nno time\n" {
		t.Errorf("the log is %q", out)
	}
}
