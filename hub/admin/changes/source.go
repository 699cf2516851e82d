package changes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// listed are the events that count as changes, with their kinds. Other events repeat what the other
// sources say, or are not changes.
var listed = map[string]Kind{
	"Rebooted": Link, "RegisteredNode": Link, "IdentityConflict": Link, "EvictionThresholdMet": Link,
	"DeviceUnplugged": Link, "DevicePlugged": Link, "InventoryChanged": People,
	"SiteDisrupted": Link, "SiteNormal": Link,
	"FirmwareTurn": Boot, "FirmwareTurnEnded": Boot, "FirmwareOverdue": Boot, "FirmwareStaged": Boot,
	"FirmwareRolledBack": Boot, "FirmwareFailed": Boot, "FirmwareKept": Boot,
	"ScalingReplicaSet": Scaling, "BackOff": Crash,
}

// events adds the events about an object that count as changes.
func (l *list) events(kind state.Kind, o state.Object) {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = corev1.NamespaceDefault // events about cluster-wide objects are there
	}
	for _, e := range frame.EventsOf(l.s, kind.Row().Name, namespace, o.GetName()) {
		k, ok := listed[e.Reason]
		if !ok {
			continue
		}
		if e.Reason == "RegisteredNode" { // many nodes of a site may join together, so these events are folded
			l.add(Entry{At: frame.EventTime(e), Kind: k, name: o.GetName(), what: ": joined"})
			continue
		}
		r := frame.EventRowOf(&frame.Request{Snapshot: l.s, Now: l.now}, e)
		text := format.Capital(r.Message)
		if r.Count > 1 {
			text += " (" + format.Times(r.Count) + ")"
		}
		l.add(Entry{At: frame.EventTime(e), Kind: k, Text: text, Bad: e.Type == corev1.EventTypeWarning})
	}
}

// versions adds the versions of a workload that were made in the window.
func (l *list) versions(o state.Object) {
	kind := state.KindOf(o)
	href := frame.WorkloadHref(kind, o.GetNamespace(), o.GetName())
	version := func(made time.Time, number string, spec *corev1.PodSpec) {
		var images []string
		for _, c := range spec.Containers {
			images = append(images, c.Image)
		}
		l.add(Entry{At: made, Kind: Version, Href: href, Text: fmt.Sprintf("%s %s: version %s, image %s",
			kind.Row().Name, frame.ItemOf(o), number, format.List(images, 3))})
	}
	for owned := range l.s.Owned(o.GetUID(), state.ReplicaSets) {
		rs := owned.(*appsv1.ReplicaSet)
		if n := rs.Annotations[revisionAnnotation]; n != "" && rs.CreationTimestamp.After(l.since) {
			version(rs.CreationTimestamp.Time, n, &rs.Spec.Template.Spec)
		}
	}
	for owned := range l.s.Owned(o.GetUID(), state.ControllerRevisions) {
		r := owned.(*appsv1.ControllerRevision)
		var patch struct {
			Spec struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		if r.CreationTimestamp.After(l.since) && json.Unmarshal(r.Data.Raw, &patch) == nil {
			version(r.CreationTimestamp.Time, fmt.Sprint(r.Revision), &patch.Spec.Template.Spec)
		}
	}
}

const revisionAnnotation = "deployment.kubernetes.io/revision"

// bootBatches adds the batches of boot rollouts that had nodes of the subject.
func (l *list) bootBatches(sub Subject) {
	if k := state.KindOf(sub.Object); k != state.Nodes && k != state.Sites {
		return
	}
	for r := range state.Each[*fleet.FirmwareRollout](l.s, state.FirmwareRollouts, "") {
		for _, b := range r.Status.Batches {
			if b.Site != sub.Site || len(sub.Nodes) == 1 && !slices.Contains(b.Nodes, sub.Nodes[0].Name) {
				continue
			}
			text := fmt.Sprintf("Rollout %s: batch %d on %s", r.Name, b.Number, format.List(b.Nodes, 3))
			l.add(Entry{At: b.Began.Time, Kind: Boot, Text: text + " started", Href: frame.RolloutHref(r.Name)})
			if b.Ended != nil {
				l.add(Entry{At: b.Ended.Time, Kind: Boot, Href: frame.RolloutHref(r.Name), Bad: b.Bad > 0,
					Text: fmt.Sprintf("%s ended: %d kept, %d went back", text, b.Kept, b.Bad)})
			}
		}
	}
}

// Audits returns what users did to a subject and its objects since a moment, in the order of the
// records.
func Audits(sub Subject, audits []store.Audit, since time.Time) (entries []Entry) {
	about := map[state.Key]bool{}
	add := func(o state.Object) { about[state.KeyOf(o)] = true }
	add(sub.Object)
	about[state.Key{Kind: state.Sites, Name: sub.Site}] = sub.Site != ""
	for _, n := range sub.Nodes {
		add(n)
	}
	if state.KindOf(sub.Object) != state.Sites { // a site has too many pods and workloads
		for _, p := range sub.Pods {
			add(p)
		}
		for _, o := range sub.Workloads {
			add(o)
			for _, k := range configOf(o) {
				about[k] = true
			}
		}
	}
	for _, a := range audits {
		resource, _, _ := strings.Cut(a.Resource, "/")
		if a.At.Before(since) || a.Code >= 400 || slices.Contains(frame.Reading, a.Verb) ||
			!about[state.Key{Kind: state.Kind(resource), Namespace: a.Namespace, Name: a.Name}] {
			continue
		}
		text := a.Who + " " + Deed(a)
		if a.Message != "" {
			text += " " + a.Message
		}
		if a.Count > 1 {
			text += ", " + format.Times(int32(a.Count)) //nolint:gosec // a count of records of a day
		}
		entries = append(entries, Entry{At: a.At, Kind: People, Text: text})
	}
	return entries
}

// configOf returns the ConfigMaps and Secrets that the pods of a workload read.
func configOf(o state.Object) (keys []state.Key) {
	spec := state.PodSpecOf(o)
	if spec == nil {
		return nil
	}
	add := func(kind state.Kind, name string) {
		if name != "" {
			keys = append(keys, state.Key{Kind: kind, Namespace: o.GetNamespace(), Name: name})
		}
	}
	for _, v := range spec.Volumes {
		if v.ConfigMap != nil {
			add(state.ConfigMaps, v.ConfigMap.Name)
		}
		if v.Secret != nil {
			add(state.Secrets, v.Secret.SecretName)
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, e := range c.EnvFrom {
			if e.ConfigMapRef != nil {
				add(state.ConfigMaps, e.ConfigMapRef.Name)
			}
			if e.SecretRef != nil {
				add(state.Secrets, e.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				add(state.ConfigMaps, e.ValueFrom.ConfigMapKeyRef.Name)
			}
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				add(state.Secrets, e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	return keys
}
