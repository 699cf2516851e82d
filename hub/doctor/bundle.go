package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// A Bundle is data about a hub for support, without secrets. Objects have only the fields below,
// and all text passes Mask. It omits annotations, environments, arguments, config maps and messages
// of pods' events, because users write any text there.
type Bundle struct {
	Hub     Hub
	Version string
	Metrics string    // metrics of the running hub; if "", WhyNone has the reason
	WhyNone string    // reason for missing metrics
	Log     io.Reader // log of --log; nil if not given
}

const maxLog = 32 << 20

// Write writes the bundle as a tar.gz. A part that cannot be read is replaced by the error.
func (b Bundle) Write(ctx context.Context, w io.Writer) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	add := func(name, text string) error {
		if err := out.WriteHeader(&tar.Header{Name: "flotilla-support/" + name, Mode: 0o600, Size: int64(len(text)),
			ModTime: b.Hub.Now}); err != nil {
			return err
		}
		_, err := io.WriteString(out, text)
		return err
	}
	mask := secretsOf(b.Hub.Config).mask
	e, err := store.Examine(ctx, store.Options{Dir: b.Hub.Config.DataDir, Database: b.Hub.Config.Database})
	//lint:ignore SA5001 the examination is useful even with an error
	defer e.Close()
	if err != nil {
		err = fmt.Errorf("read the database: %w", err)
	}
	type file struct{ name, text string }
	files := []file{
		{"version.txt", b.Version + "\n"},
		{"doctor.txt", mask(lines(Examine(ctx, b.Hub)))},
		{"config.yaml", mask(b.config())},
		{"directory.txt", listing(b.Hub.Config.DataDir)},
		{"metrics.txt", mask(b.Metrics)},
		{"nodes.json", each(ctx, e, err, mask, state.Nodes, nodeOf)},
		{"sites.json", each(ctx, e, err, mask, state.Sites, siteOf)},
		{"pods.json", each(ctx, e, err, mask, state.Pods, podOf)},
		{"incidents.json", each(ctx, e, err, mask, state.Incidents, incidentOf)},
		{"events.json", each(ctx, e, err, mask, state.Events, eventOf)},
	}
	if b.Metrics == "" {
		files[4].text = "# no metrics: " + mask(b.WhyNone) + "\n"
	}
	if b.Log != nil {
		text, err := io.ReadAll(io.LimitReader(b.Log, maxLog))
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		files = append(files, file{"log.txt", mask(string(text))})
	}
	for _, f := range files {
		if err := add(f.name, f.text); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return zip.Close()
}

func (b Bundle) config() string {
	var text bytes.Buffer
	if err := b.Hub.Config.Print(&text); err != nil {
		return err.Error()
	}
	return text.String()
}

func lines(all []Finding) string {
	var text strings.Builder
	for _, f := range all {
		fmt.Fprintln(&text, f)
	}
	return text.String()
}

// each writes the objects of a kind, one per line.
func each[T any](ctx context.Context, e *store.Examination, err error, mask func(string) string, kind state.Kind,
	show func(*T) any) string {
	var text strings.Builder
	if err == nil {
		err = e.Each(ctx, string(kind), func(r store.Row) error {
			o := new(T)
			if err := r.Into(any(o).(state.Object)); err != nil {
				return err
			}
			line, err := json.Marshal(show(o))
			if err != nil {
				return err
			}
			var shown any
			if err := json.Unmarshal(line, &shown); err != nil {
				return err
			}
			if line, err = json.Marshal(masked(shown, mask)); err == nil {
				text.Write(append(line, '\n'))
			}
			return err
		})
	}
	if err != nil {
		fmt.Fprintf(&text, "%q\n", mask(err.Error()))
	}
	return text.String()
}

type fields map[string]any

func nodeOf(n *corev1.Node) any {
	taints := []string{}
	for _, t := range n.Spec.Taints {
		taints = append(taints, t.Key+":"+string(t.Effect))
	}
	return fields{
		"name": n.Name, "site": n.Labels[corev1.LabelTopologyZone], "created": n.CreationTimestamp,
		"conditions": n.Status.Conditions,
		"capacity":   n.Status.Capacity, "allocatable": n.Status.Allocatable, "system": n.Status.NodeInfo, "taints": taints,
		"unschedulable": n.Spec.Unschedulable,
	}
}

func siteOf(s *fleet.Site) any { return fields{"name": s.Name, "state": s.Status.State} }

func podOf(p *corev1.Pod) any {
	containers := []fields{}
	for _, c := range p.Status.ContainerStatuses {
		f := fields{"name": c.Name, "ready": c.Ready, "restarts": c.RestartCount}
		if w := c.State.Waiting; w != nil {
			f["waiting"] = w.Reason
		}
		for name, t := range map[string]*corev1.ContainerStateTerminated{"ended": c.State.Terminated,
			"endedBefore": c.LastTerminationState.Terminated} {
			if t != nil {
				f[name] = fields{"reason": t.Reason, "exitCode": t.ExitCode, "at": t.FinishedAt}
			}
		}
		containers = append(containers, f)
	}
	conditions := []string{}
	for _, c := range p.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	return fields{
		"namespace": p.Namespace, "name": p.Name, "node": p.Spec.NodeName, "created": p.CreationTimestamp,
		"deleted": p.DeletionTimestamp, "phase": p.Status.Phase, "reason": p.Status.Reason,
		"conditions": conditions, "containers": containers,
	}
}

func incidentOf(i *fleet.Incident) any {
	f := fields{
		"name": i.Name, "state": i.State, "cause": i.Cause, "severity": i.Severity, "site": i.Site, "about": i.About,
		"partOf": i.PartOf,
		"since":  i.Since, "opened": i.Opened, "closed": i.Closed, "count": i.Count, "most": i.Most, "evicted": i.Evicted,
	}
	if i.About.Kind == "Node" || i.About.Kind == "Site" {
		f["message"] = i.Message
	}
	return f
}

func eventOf(e *corev1.Event) any {
	f := fields{
		"namespace": e.Namespace, "kind": e.InvolvedObject.Kind, "name": e.InvolvedObject.Name, "type": e.Type,
		"reason": e.Reason, "count": e.Count,
		"first": e.FirstTimestamp, "last": e.LastTimestamp, "at": e.EventTime,
	}
	if k := e.InvolvedObject.Kind; k == "Node" || k == "Site" {
		f["message"] = e.Message
	}
	return f
}
