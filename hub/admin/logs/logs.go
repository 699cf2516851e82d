// Package logs shows the logs of containers and agents, and terminals in containers. It stores no
// lines except the last ones of crashed containers.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/state"
)

// firstLook is how long a page waits for a device's last lines.
const firstLook = 5 * time.Second

// A logAsk is a request for a part of a log.
type logAsk struct {
	node      string
	uid       types.UID   // the pod or node that the log belongs to
	site      string      // the node, for its agent's log
	pod       *corev1.Pod // nil: the agent's log
	container string
	previous  bool
	tail      int64
	since     time.Duration // 0: no limit
}

var (
	logTails = [][2]string{{"100", "Last 100 lines"}, {"500", "Last 500 lines"}, {"2000", "Last 2,000 lines"},
		{"5000", "Last 5,000 lines"}}
	logSinces = [][2]string{{"", "However old"}, {"5m", "Last 5 minutes"}, {"1h", "Last hour"},
		{"24h", "Last 24 hours"}}
)

const usualTail = "500"

// podOf returns the pod that the address names.
func podOf(c *frame.Call) (*corev1.Pod, error) {
	namespace, name := c.Param("namespace"), c.Param("name")
	p := c.Fleet.Snapshot().Pod(namespace, name)
	if p == nil {
		return nil, frame.MissingError(fmt.Sprintf("There is no pod %s in namespace %s.", name, namespace))
	}
	return p, nil
}

// containerOf returns the named container of a pod; without a name, the container that the pod's
// annotation names, or the first.
func containerOf(p *corev1.Pod, name string) (string, error) {
	names := containerNames(p)
	if name == "" {
		if name = p.Annotations["kubectl.kubernetes.io/default-container"]; !slices.Contains(names, name) {
			name = p.Spec.Containers[0].Name
		}
	}
	if !slices.Contains(names, name) {
		return "", frame.MissingError(fmt.Sprintf("Pod %s has no container %s.", p.Name, name))
	}
	return name, nil
}

func containerNames(p *corev1.Pod) (names []string) {
	for _, ct := range p.Spec.Containers {
		names = append(names, ct.Name)
	}
	for _, ct := range p.Spec.InitContainers {
		names = append(names, ct.Name)
	}
	return names
}

func askedLog(c *frame.Call) (q logAsk, err error) {
	if c.Param("namespace") != "" {
		if q.pod, err = podOf(c); err != nil {
			return q, err
		}
		if q.container, err = containerOf(q.pod, c.QueryParam("container")); err != nil {
			return q, err
		}
		q.node, q.uid, q.previous = q.pod.Spec.NodeName, q.pod.UID, c.QueryParam("previous") != ""
	} else {
		n := c.Fleet.Snapshot().Node(c.Param("name"))
		if n == nil {
			return q, frame.MissingError(fmt.Sprintf("There is no node %s.", c.Param("name")))
		}
		q.node, q.uid, q.site = n.Name, n.UID, state.SiteOf(n)
	}
	q.tail, _ = strconv.ParseInt(chosen(c.QueryParam("tail"), usualTail, logTails), 10, 64)
	q.since, _ = time.ParseDuration(chosen(c.QueryParam("since"), "", logSinces))
	return q, nil
}

// copyLog copies the log to w.
func copyLog(c *frame.Call, ctx context.Context, q logAsk, o corev1.PodLogOptions, w io.Writer) error {
	if q.pod == nil {
		return c.Logs.NodeLogs(ctx, q.node, o, w)
	}
	return c.Logs.Logs(ctx, q.pod, o, w)
}

// resource is the resource that the role must be allowed to get.
func (q logAsk) resource() string {
	if q.pod == nil {
		return "nodes/proxy"
	}
	return "pods/log"
}

// name is the pod, or the node.
func (q logAsk) name() string {
	if q.pod == nil {
		return q.node
	}
	return q.pod.Name
}

// chosen returns the value if it is an option, otherwise the default.
func chosen(value, usual string, options [][2]string) string {
	if slices.ContainsFunc(options, func(o [2]string) bool { return o[0] == value }) {
		return value
	}
	return usual
}

// options returns the request to the device. Lines have times, so that the page can continue later.
func (q logAsk) options() corev1.PodLogOptions {
	o := corev1.PodLogOptions{Container: q.container, Previous: q.previous, Timestamps: true, TailLines: &q.tail}
	if q.since > 0 {
		seconds := int64(q.since / time.Second)
		o.SinceSeconds = &seconds
	}
	return o
}

// logTrouble says why there is no log, or why it ended.
func logTrouble(node string, err error) string {
	var ours frame.UserError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &ours):
		return ours.Error()
	case errors.Is(err, ask.ErrOffline):
		return "The device of node " + node + " is not connected to the hub; its logs are there when it is back."
	case errors.Is(err, ask.ErrLost), errors.Is(err, context.DeadlineExceeded):
		return "The device of node " + node + " does not answer now; it is asked again."
	case errors.Is(err, ask.ErrTooOld):
		return "The agent of node " + node + " is too old to show its log here; update flotilla-device there."
	}
	return "The device says: " + strings.TrimSuffix(err.Error(), ".") + "."
}

// unplaced says why a pod without a node has no log and no terminal.
const unplaced = "This pod has not been placed on a node yet, so it has not run."

type logRow struct {
	At     string // RFC 3339; "": not known
	Time   string
	Text   string
	Hidden bool // it does not contain the searched text
}

type logsData struct {
	Of, Href                  string // the pod, or the node for its agent's log
	Namespace, Container      string // "": the agent's log
	Node, NodeHref, Site      string
	Containers, Tails, Sinces []frame.Option
	Previous                  bool
	Search                    string
	Rows                      []logRow
	Cut                       bool
	Shown, Total              int
	Trouble                   string
	Stream, Download          string
	Shell                     string // the terminal's address; "": the role may not open one
	From                      string // bookmark after the last line
}

// Show shows the last lines of a log; the page's script follows from there.
func Show(c *frame.Call) error {
	q, err := askedLog(c)
	if err != nil {
		return c.Refuse("Not found", err)
	}
	d := logsData{
		Of: q.name(), Node: q.node, NodeHref: frame.NodeHref(q.node), Container: q.container,
		Tails:    frame.Options(fmt.Sprint(q.tail), logTails...),
		Sinces:   frame.Options(chosen(c.QueryParam("since"), "", logSinces), logSinces...),
		Previous: q.previous, Search: strings.TrimSpace(c.QueryParam("q")),
	}
	same := url.Values{}
	if p := q.pod; p == nil {
		d.Href, d.Site = d.NodeHref, q.site
	} else {
		d.Href, d.Namespace = frame.PodHref(p), p.Namespace
		same.Set("container", q.container)
		for _, name := range containerNames(p) {
			d.Containers = append(d.Containers, frame.Option{Value: name, Text: name, Chosen: name == q.container})
		}
		if c.Allow(c.User.Role, "create", "pods/exec") {
			d.Shell = frame.PodHref(p) + "/terminal?" + same.Encode()
		}
	}
	if q.node == "" {
		d.Trouble = unplaced
		return c.ShowPage(http.StatusOK, frame.Page{Template: "logs", Title: "Logs of " + d.Of, Data: d})
	}
	if q.previous {
		same.Set("previous", "1")
	}
	d.Download = d.Href + "/logs/download?" + same.Encode()
	if !q.previous {
		same.Set("tail", fmt.Sprint(q.tail))
		d.Stream = d.Href + "/logs/stream?" + same.Encode()
	}
	found, err := lastLines(c, q)
	d.Trouble, d.Cut, d.Total, d.From = logTrouble(q.node, err), found.cut, len(found.lines), found.end.String()
	for _, l := range found.lines {
		r := logRowOf(l)
		if r.Hidden = !strings.Contains(strings.ToLower(l.Text), strings.ToLower(d.Search)); !r.Hidden {
			d.Shown++
		}
		d.Rows = append(d.Rows, r)
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "logs", Title: "Logs of " + d.Of, Data: d})
}

func lastLines(c *frame.Call, q logAsk) (*last, error) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), firstLook)
	defer cancel()
	found := &last{most: int(q.tail), end: bookmark{of: q.uid}}
	leave, ok := c.Tools.Logs.Enter(c.User.Name)
	if !ok {
		return found, frame.UserError(crowdedLogs)
	}
	defer leave()
	cut := &cutter{take: found.add}
	err := copyLog(c, ctx, q, q.options(), cut)
	return found, errors.Join(err, cut.end())
}

func logRowOf(l logLine) logRow {
	r := logRow{Text: l.Text}
	if !l.At.IsZero() {
		r.At, r.Time = l.At.Format(time.RFC3339Nano), l.At.Format("01-02 15:04:05")
	}
	return r
}

// late is the longest time that a request takes to reach a device; see package ask.
const late = 20 * time.Second

// sinceTime returns the time from which to ask a device, so that no line is missing. An older agent
// subtracts from its own clock when the request arrives.
func sinceTime(c *frame.Call, node string, line time.Time) *metav1.Time {
	t := metav1.NewTime(line.Add(-max(c.Liveness(node).Skew, 0) - late))
	return &t
}
