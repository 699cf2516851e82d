// Package watch streams changes of selected objects to one client, over HTTP or as messages of a
// WebSocket.
//
// A Watch follows the control loop's bounded history. A client that falls behind must list again.
// All watches of a hub share encodings. Package kube checks access before it starts a watch.
package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

const (
	// bookmarkEvery is the interval of bookmarks for clients that want them.
	bookmarkEvery = time.Minute
	// writeTimeout is how long a client may take to read a write.
	writeTimeout = 30 * time.Second
	// leasePeriod is the interval at which watches of node leases send renewals. Renewals are not
	// changes, so the history does not have them.
	leasePeriod = 10 * time.Second
	flushAbove  = 64 << 10 // send the buffer once it has this many bytes
	// batchTimeout is how long a client may take to read the initial objects, or the changes since
	// its revision. Their snapshot stays in memory for that time.
	batchTimeout = 2 * time.Minute
)

// A Fleet is the source of changes.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() state.Snapshot
	// Since returns every change after the revision, in order, and a channel that is closed when
	// more changes exist. It fails only if the history does not reach back that far.
	Since(rev uint64) ([]state.Applied, <-chan struct{}, error)
}

// A Watch writes one stream of changes.
type Watch struct {
	Fleet     Fleet
	View      *resource.View
	Resource  *resource.Resource
	Selection *resource.Selection
	Form      resource.Form
	Rev       uint64 // newest revision that was sent; 0 for none
	Encodings *Encodings
	Hold      func(bytes int) (release func(), err error) // counts bytes that the client has not read
	Log       *slog.Logger

	out         sink
	buf         bytes.Buffer
	deadline    time.Time // end of the time to send the batch; zero without a batch
	sentColumns bool      // the table's columns were sent

	leases map[string]time.Time // time of the last sent renewal by node; nil if leases are not watched
}

// A sink writes whole frames.
type sink interface {
	write(frames []byte) error
}

// Serve sends the stream as the answer of rw until the client or ctx ends it.
func (w *Watch) Serve(ctx context.Context, rw http.ResponseWriter, o *internalversion.ListOptions) {
	w.out = &flusher{w: rw, rc: http.NewResponseController(rw)}
	kind := w.Form.Media
	if kind == resource.MediaProto {
		kind += ";stream=watch"
	}
	rw.Header().Set("Content-Type", kind)
	rw.WriteHeader(http.StatusOK)
	if err := w.out.write(nil); err != nil { // clients wait for the response's header
		return
	}
	w.run(ctx, o)
}

// run sends the initial objects if requested, and then the changes, until the client or ctx ends
// it. An error ends the stream: either the client has gone, or it was sent the reason.
func (w *Watch) run(ctx context.Context, o *internalversion.ListOptions) {
	if w.Selection.Kind == state.Leases &&
		(w.Selection.Namespace == "" || w.Selection.Namespace == corev1.NamespaceNodeLease) {
		w.leases = map[string]time.Time{}
	}
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	if initial || o.SendInitialEvents == nil && w.Rev == 0 {
		if !w.sendAll(o.AllowWatchBookmarks && initial) {
			return
		}
	} else if w.Rev == 0 {
		w.Rev = w.Fleet.Snapshot().Revision
	}
	bookmark := time.NewTicker(bookmarkEvery)
	defer bookmark.Stop()
	var renewals <-chan time.Time
	if w.leases != nil {
		t := time.NewTicker(leasePeriod)
		defer t.Stop()
		renewals = t.C
	}
	for {
		events, more, err := w.Fleet.Since(w.Rev)
		if err != nil {
			w.expired()
			return
		}
		w.deadline = time.Now().Add(batchTimeout)
		for _, a := range events {
			if !w.send(a) {
				return
			}
			w.Rev = a.Rev
		}
		w.deadline = time.Time{}
		if !w.flush() {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		case <-renewals:
			if !w.sendLeases() {
				return
			}
		case <-bookmark.C:
			if o.AllowWatchBookmarks && !w.bookmark(nil) {
				return
			}
		}
	}
}

// sendAll sends all selected objects as ADDED.
func (w *Watch) sendAll(end bool) bool {
	snap := w.Fleet.Snapshot()
	w.deadline = time.Now().Add(batchTimeout)
	defer func() { w.deadline = time.Time{} }()
	for o := range w.View.Walk(snap, w.Selection, "", "") {
		body, err := resource.Marshal(w.View.One(w.Resource, o, w.Form, w.headers()), w.Form.Media)
		if err != nil || !w.frame("ADDED", body) {
			return false
		}
		w.noteRenewal(o)
	}
	w.Rev = snap.Revision
	if end && !w.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"}) {
		return false
	}
	return w.flush()
}

// send sends a change of a selected object. An object that starts or stops matching is ADDED or
// DELETED.
func (w *Watch) send(a state.Applied) bool {
	if a.Key.Kind != w.Selection.Kind {
		return true
	}
	was := a.Old != nil && w.Selection.Matches(a.Old)
	is := a.New != nil && w.Selection.Matches(a.New)
	switch {
	case is && !was:
		return w.change("ADDED", a, a.New)
	case is:
		return w.change("MODIFIED", a, a.New)
	case was:
		return w.change("DELETED", a, a.Old)
	}
	return true
}

func (w *Watch) change(verb string, a state.Applied, o state.Object) bool {
	if verb == "DELETED" {
		o = resource.Shallow(o)
		o.SetResourceVersion(resource.FormatRev(a.Rev))
	}
	headers := w.headers()
	key := encodingKey{rev: a.Rev, old: verb == "DELETED", resource: w.Resource, form: w.Form, headers: headers}
	body, err := w.Encodings.get(key, func() ([]byte, error) {
		return resource.Marshal(w.View.One(w.Resource, o, w.Form, headers), w.Form.Media)
	})
	if err != nil {
		w.Log.Error("encode a change for its watchers", "err", err)
		return false
	}
	return w.frame(verb, body)
}

// headers reports whether the next frame is a table's first, which has the columns.
func (w *Watch) headers() bool {
	first := !w.sentColumns && w.Form.As == "Table"
	w.sentColumns = true
	return first
}

// frame buffers an event: a line of JSON, or a protobuf WatchEvent after its length (four bytes,
// big endian).
func (w *Watch) frame(verb string, body []byte) bool {
	if w.Form.Media == resource.MediaProto {
		event := metav1.WatchEvent{Type: verb, Object: runtime.RawExtension{Raw: body}}
		b, err := event.Marshal()
		if err != nil {
			w.Log.Error("encode an event for its watcher", "err", err)
			return false
		}
		w.buf.Write(binary.BigEndian.AppendUint32(w.buf.AvailableBuffer(), uint32(len(b))))
		w.buf.Write(b)
		return w.buf.Len() < flushAbove || w.flush()
	}
	w.buf.WriteString(`{"type":"`)
	w.buf.WriteString(verb)
	w.buf.WriteString(`","object":`)
	w.buf.Write(bytes.TrimSuffix(body, []byte("\n")))
	w.buf.WriteString("}\n")
	return w.buf.Len() < flushAbove || w.flush()
}

// flush sends the buffered frames. They count as an unread answer of the client. Over the limit the
// watch ends; the client may resume it.
func (w *Watch) flush() bool {
	if w.buf.Len() == 0 {
		return true
	}
	if !w.deadline.IsZero() && time.Now().After(w.deadline) {
		return false
	}
	release, err := w.Hold(w.buf.Cap())
	if err != nil {
		return false
	}
	defer release()
	err = w.out.write(w.buf.Bytes())
	if w.buf.Reset(); w.buf.Cap() > 2*flushAbove { // do not keep a large buffer for a quiet watch
		w.buf = bytes.Buffer{}
	}
	return err == nil
}

// bookmark sends the newest revision that the client has received completely.
func (w *Watch) bookmark(annotations map[string]string) bool {
	m := metav1.ObjectMeta{ResourceVersion: resource.FormatRev(w.Rev), Annotations: annotations}
	// In protobuf every kind has its metadata in the same field.
	some := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: w.Resource.Kind, APIVersion: w.Resource.GroupVersion().String()},
		ObjectMeta: m,
	}
	var o runtime.Object = some
	if w.Form.As != "" {
		some.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
	}
	if w.Form.As == "Table" { // a Table has no annotations, so its row has them
		o = &metav1.Table{
			TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: m.ResourceVersion},
			Rows:     []metav1.TableRow{{Cells: []any{}, Object: runtime.RawExtension{Object: some}}},
		}
	}
	body, err := resource.Marshal(w.Form.Versioned(o), w.Form.Media)
	return err == nil && w.frame("BOOKMARK", body) && w.flush()
}

// expired ends the stream of a client that needs changes older than the history. The client must
// list again.
func (w *Watch) expired() {
	st := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", w.Rev,
		w.Fleet.Snapshot().Revision)).Status()
	st.Kind, st.APIVersion = "Status", "v1"
	body, err := resource.Marshal(&st, w.Form.Media)
	if err == nil && w.frame("ERROR", body) {
		w.flush()
	}
}

// sendLeases sends the nodes' leases that were added, renewed or removed since the last call.
func (w *Watch) sendLeases() bool {
	snap := w.Fleet.Snapshot()
	gone := w.leases
	w.leases = map[string]time.Time{}
	for _, l := range w.View.Leases.Leases() {
		o := resource.Stamp(l, snap)
		if !w.Selection.Matches(o) {
			continue
		}
		sent, known := gone[l.Name]
		w.noteRenewal(o)
		delete(gone, l.Name)
		verb := "ADDED"
		if known {
			verb = "MODIFIED"
			if sent.Equal(w.leases[l.Name]) {
				continue
			}
		}
		body, err := resource.Marshal(w.View.One(w.Resource, o, w.Form, w.headers()), w.Form.Media)
		if err != nil || !w.frame(verb, body) {
			return false
		}
	}
	for name := range gone {
		o := leaseNamed(name, snap)
		body, err := resource.Marshal(w.View.One(w.Resource, o, w.Form, w.headers()), w.Form.Media)
		if err != nil || !w.frame("DELETED", body) {
			return false
		}
	}
	return w.flush()
}

// noteRenewal records the sent renewal of a node's lease.
func (w *Watch) noteRenewal(o state.Object) {
	if w.leases != nil && o.GetNamespace() == corev1.NamespaceNodeLease {
		w.leases[o.GetName()] = renewed(o)
	}
}

// A flusher writes frames to an HTTP answer. It closes the connection of a client that does not
// read.
type flusher struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (f *flusher) write(b []byte) error {
	// A deadline between writes would reset an HTTP/2 stream. Writers without deadlines end with
	// their connection.
	_ = f.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer func() { _ = f.rc.SetWriteDeadline(time.Time{}) }()
	if _, err := f.w.Write(b); err != nil {
		return err
	}
	return f.rc.Flush()
}
