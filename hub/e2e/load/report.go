package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// report prints a measurement. If a page is given, report also writes it between its markers in
// that page of the manual, with the machine's description. A failed measurement does not change the
// page.
func report(page, name string, measure func(out io.Writer) error) error {
	if page != "" { // check this first, because measuring takes a quarter of an hour
		text, err := os.ReadFile(page)
		if err == nil {
			_, err = between(string(text), page, name, "")
		}
		if err != nil {
			return err
		}
	}
	var result bytes.Buffer
	fmt.Fprintf(&result, "%s, %s\n\n", time.Now().UTC().Format("2006-01-02"), machine())
	_, _ = io.Copy(os.Stdout, bytes.NewReader(result.Bytes()))
	if err := measure(io.MultiWriter(os.Stdout, &result)); err != nil || page == "" {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	next, err := between(string(text), page, name, strings.TrimRight(result.String(), "\n"))
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(next), 0o644)
}

// between replaces the text between the two markers with this name.
func between(page, file, name, text string) (string, error) {
	begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("%s has no lines %q and %q", file, strings.TrimSpace(begin), end)
	}
	return head + begin + "\n" + text + "\n\n" + end + tail, nil
}

// machine describes the machine and its load.
func machine() string {
	model, load := "", ""
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			model = " (" + strings.TrimSpace(value) + ")"
			break
		}
	}
	if avg, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(avg), " ")
	}
	return fmt.Sprintf("%s/%s, %d processors%s, %s; load average before it: %s", runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), model, runtime.Version(), load)
}
