package logs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/frame"
)

const (
	lastWords   = 10  // lines of log shown with a crash
	wordsLength = 400 // runes of each line
	keptEnds    = 200 // crashes whose last lines are kept
)

// Crashes keeps the last lines of crashed containers, so that a device is asked only once per crash.
type Crashes struct {
	mu   sync.Mutex
	made map[string]*oneEnd
}

// A oneEnd has the last lines of one crash.
type oneEnd struct {
	mu    sync.Mutex // held while the device is asked
	lines []string
	asked bool
}

func (e *Crashes) of(key string) *oneEnd {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.made[key] == nil {
		if e.made == nil || len(e.made) >= keptEnds {
			e.made = map[string]*oneEnd{}
		}
		e.made[key] = &oneEnd{}
	}
	return e.made[key]
}

// LastLines answers, as JSON, with the last lines that a container logged before it ended. The open
// page requests them, because the device may take long.
func LastLines(c *frame.Call, known *Crashes) error {
	p, err := podOf(c)
	if err != nil {
		return c.Refuse("Not found", err)
	}
	name, err := containerOf(p, c.QueryParam("container"))
	if err != nil {
		return c.Refuse("Not found", err)
	}
	statuses := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	i := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		return c.Message(http.StatusNotFound, "Not found", "Container "+name+" has not run yet.")
	}
	t, running := finding.LastEndOf(&statuses[i], c.Now())
	if t == nil || finding.CrashMark(t) != c.QueryParam("of") {
		return c.Message(http.StatusGone, "Not there any more", "Container "+name+" has gone on since.")
	}
	lines, err := known.of(fmt.Sprint(p.UID, "/", name, "/", finding.CrashMark(t))).known(func() ([]string, error) {
		return askLastWords(c, p, name, running, t.FinishedAt.Time)
	})
	answer := struct {
		Lines   []string `json:"lines"`
		Trouble string   `json:"trouble,omitempty"`
	}{lines, logTrouble(p.Spec.NodeName, err)}
	return c.JSON(http.StatusOK, answer)
}

// known returns the lines. It asks the device once; after a failure, the next request asks again.
func (e *oneEnd) known(ask func() ([]string, error)) (lines []string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.asked {
		if e.lines, err = ask(); err == nil {
			e.asked = true
		}
	}
	return e.lines, err
}

// askLastWords asks the device for the last lines before the end of a container at a moment.
func askLastWords(c *frame.Call, p *corev1.Pod, container string, previous bool, ended time.Time) ([]string, error) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), firstLook)
	defer cancel()
	leave, ok := c.Tools.Logs.Enter(c.User.Name)
	if !ok {
		return nil, frame.UserError(crowdedLogs)
	}
	defer leave()
	found := &last{most: lastWords}
	tail := int64(lastWords)
	cut := &cutter{take: func(lines []logLine) error {
		// Later lines belong to the next instance of the container.
		return found.add(slices.DeleteFunc(lines,
			func(l logLine) bool { return !ended.IsZero() && l.At.After(ended.Add(2*time.Second)) }))
	}}
	err := c.Logs.Logs(ctx, p, corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true,
		TailLines: &tail}, cut)
	err = errors.Join(err, cut.end())
	lines := make([]string, 0, len(found.lines))
	for _, l := range found.lines {
		if r := []rune(l.Text); len(r) > wordsLength {
			l.Text = string(r[:wordsLength]) + "…"
		}
		lines = append(lines, l.Text)
	}
	return lines, err
}
