package kube

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gorilla "github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	framedstream "k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/kube/resource"
)

const kubernetesWatchList = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// Older clients ask for tables and metadata of meta.k8s.io/v1beta1, which differ from v1 only in
// the version.
func TestTheOlderFormsDifferOnlyInTheirVersion(t *testing.T) {
	const newer, older = `"apiVersion":"meta.k8s.io/v1"`, `"apiVersion":"meta.k8s.io/v1beta1"`
	accept := func(as, version string) string {
		return "application/json;as=" + as + ";v=" + version + ";g=meta.k8s.io"
	}
	same := func(t *testing.T, v1, v1beta1 string) {
		t.Helper()
		if !strings.Contains(v1, newer) || strings.Contains(v1beta1, newer) {
			t.Errorf("only v1 may have the newer form\nv1: %.200s\nv1beta1: %.200s", v1, v1beta1)
		}
		if want := strings.ReplaceAll(v1, newer, older); want != v1beta1 {
			t.Errorf("got  %s\nwant %s", v1beta1, want)
		}
	}
	s := newServer(seeded())
	for _, c := range []struct{ as, path string }{
		{"Table", "/api/v1/nodes"},
		{"Table", "/api/v1/nodes?includeObject=Object"},
		{"Table", "/api/v1/nodes/pi-1"},
		{"Table", apps + "/deployments/web/scale"},
		{"Table", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"},
		{"PartialObjectMetadata", "/api/v1/nodes/pi-1"},
		{"PartialObjectMetadata", apps + "/deployments/web/scale"},
		{"PartialObjectMetadataList", "/api/v1/nodes"},
	} {
		t.Run(c.as+" of "+c.path, func(t *testing.T) {
			get := func(version string) string {
				w := request{method: "GET", path: c.path, accept: accept(c.as, version)}.do(s)
				if w.Code != 200 {
					t.Fatalf("%s: %d %s; want 200", version, w.Code, w.Body)
				}
				return w.Body.String()
			}
			same(t, get("v1"), get("v1beta1"))
		})
	}
	for _, as := range []string{"Table", "PartialObjectMetadata"} {
		t.Run("a watch as "+as, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(seeded())
				streams := map[string]string{}
				for _, version := range []string{"v1", "v1beta1"} {
					w := openWatch(t, s, "/api/v1/nodes?watch=1&"+kubernetesWatchList, accept(as, version))
					synctest.Wait()
					w.mu.Lock()
					streams[version] = w.buf.String()
					w.mu.Unlock()
					w.cancel()
				}
				if n := strings.Count(streams["v1"], "\n"); n != 3 {
					t.Errorf("%d frames, want two nodes and a bookmark: %s", n, streams["v1"])
				}
				same(t, streams["v1"], streams["v1beta1"])
			})
		})
	}
	t.Run("a list in protobuf, which has other field numbers", func(t *testing.T) {
		w := request{method: "GET", path: "/api/v1/nodes?limit=1",
			accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io"}.do(s)
		var u runtime.Unknown
		raw, ok := bytes.CutPrefix(w.Body.Bytes(), []byte("k8s\x00"))
		if err := u.Unmarshal(raw); !ok || err != nil || u.APIVersion != "meta.k8s.io/v1beta1" ||
			u.Kind != "PartialObjectMetadataList" {
			t.Fatalf("%d %v %+v", w.Code, err, u.TypeMeta)
		}
		var list metav1beta1.PartialObjectMetadataList
		if err := list.Unmarshal(u.Raw); err != nil || len(list.Items) != 1 || list.Items[0].Name != "pi-1" ||
			list.Continue == "" {
			t.Errorf("the list cannot be decoded (%v), or is not the first page: %+v", err, list)
		}
	})
}

// A protoEvent is an event of a watch in protobuf, as clients decode it.
type protoEvent struct {
	verb string
	runtime.Object
}

// known is the scheme of a client.
var known = func() *runtime.Scheme {
	s := resource.NewScheme()
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}()

// protoEvents reads a stream with Kubernetes' own framer and decoders.
func protoEvents(t *testing.T, stream io.ReadCloser) (list []protoEvent) {
	t.Helper()
	d := framedstream.NewDecoder(protobuf.LengthDelimitedFramer.NewFrameReader(stream),
		protobuf.NewRawSerializer(resource.Scheme, resource.Scheme))
	for {
		var e metav1.WatchEvent
		if _, _, err := d.Decode(nil, &e); err == io.EOF {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		o, _, err := protobuf.NewSerializer(known, known).Decode(e.Object.Raw, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", e.Type, err)
		}
		list = append(list, protoEvent{e.Type, o})
	}
}

// take returns the bytes that arrived since the last call.
func (w *watching) take() io.ReadCloser {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	b := bytes.Clone(w.buf.Bytes())
	w.buf.Reset()
	return io.NopCloser(bytes.NewReader(b))
}

func TestAWatchInProtobuf(t *testing.T) {
	expect := func(t *testing.T, got []protoEvent, want ...string) {
		t.Helper()
		var names []string
		for _, e := range got {
			m, err := meta.Accessor(e.Object)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, strings.TrimSpace(fmt.Sprintf("%s %T %s", e.verb, e.Object, m.GetName())))
		}
		if !slices.Equal(names, want) {
			t.Errorf("got %q, want %q", names, want)
		}
	}
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&"+kubernetesWatchList, resource.MediaProto+";stream=watch")
		defer w.cancel()
		if got := w.header.Get("Content-Type"); got != resource.MediaProto+";stream=watch" {
			t.Errorf("the content type is %s", got)
		}
		first := protoEvents(t, w.take())
		expect(t, first, "ADDED *v1.Node pi-1", "ADDED *v1.Node pi-2", "BOOKMARK *v1.Node")
		end := first[2].Object.(*corev1.Node)
		if end.Annotations[metav1.InitialEventsAnnotationKey] != "true" || end.ResourceVersion != "5" {
			t.Errorf("the bookmark is %+v", end.ObjectMeta)
		}
		f.touch(fakeNode("pi-1", ""), "a", "b")
		f.remove(fakeNode("pi-2", ""))
		expect(t, protoEvents(t, w.take()), "MODIFIED *v1.Node pi-1", "DELETED *v1.Node pi-2")
		time.Sleep(bookmarkEvery + time.Second)
		expect(t, protoEvents(t, w.take()), "BOOKMARK *v1.Node")
	})
	t.Run("of metadata", func(t *testing.T) {
		bubble(t, func(t *testing.T, _ *fakeFleet, s *Server) {
			w := openWatch(t, s, "/api/v1/nodes?watch=1&"+kubernetesWatchList,
				resource.MediaProto+";stream=watch;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
			defer w.cancel()
			expect(t, protoEvents(t, w.take()), "ADDED *v1.PartialObjectMetadata pi-1", "ADDED *v1.PartialObjectMetadata pi-2",
				"BOOKMARK *v1.PartialObjectMetadata")
		})
	})
	t.Run("from a revision older than the history", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
			f.keep = 2
			for range 5 {
				f.touch(fakeNode("pi-1", ""), "a", "b")
			}
			w := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=4", resource.MediaProto)
			defer w.cancel()
			got := protoEvents(t, w.take())
			if len(got) != 1 || got[0].verb != "ERROR" || got[0].Object.(*metav1.Status).Code != http.StatusGone || !w.ended() {
				t.Errorf("got %+v, want Gone", got)
			}
		})
	})
	t.Run("bookmarks of every kind", func(t *testing.T) {
		s := newServer(seeded())
		for _, r := range s.resources {
			if r.Plain || !slices.Contains(r.Verbs, "watch") {
				continue
			}
			bubble(t, func(t *testing.T, _ *fakeFleet, s *Server) {
				s.Allow = func(access.Role, string, string) bool { return true }
				w := openWatch(t, s, strings.ReplaceAll("/apis/"+r.GroupVersion().String(), "/apis/v1", "/api/v1")+"/"+r.Plural+
					"?watch=1&fieldSelector=metadata.name%3Dnone&"+kubernetesWatchList, resource.MediaProto)
				defer w.cancel()
				got := protoEvents(t, w.take())
				if len(got) != 1 || got[0].GetObjectKind().GroupVersionKind() != r.GroupVersionKind {
					t.Errorf("%s: the events are %+v, want one bookmark of the kind", r.Plural, got)
				}
			})
		}
	})
	t.Run("a kind without protobuf is answered in JSON", func(t *testing.T) {
		s := newServer(seeded())
		for path, accept := range map[string]string{
			"/apis/flotilla.dev/v1alpha1/sites?watch=1": resource.MediaProto,
			"/api/v1/nodes?watch=1":                     resource.MediaProto + ";as=Table;v=v1;g=meta.k8s.io",
			"/api/v1/pods?watch=1":                      resource.MediaYAML,
		} {
			if w := (request{method: "GET", path: path, accept: accept}).do(s); w.Code != http.StatusNotAcceptable {
				t.Errorf("%s of %s: %d; want 406", path, accept, w.Code)
			}
		}
	})
	t.Run("over a WebSocket", func(t *testing.T) {
		srv := mounted(newServer(seeded()))
		defer srv.Close()
		conn, _, err := gorilla.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http")+
			"/api/v1/nodes?watch=1",
			http.Header{"Authorization": {"Bearer viewer"}, "Accept": {resource.MediaProto}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for _, want := range []string{"pi-1", "pi-2"} {
			kind, b, err := conn.ReadMessage()
			var e metav1.WatchEvent
			if err == nil {
				err = e.Unmarshal(b)
			}
			if err != nil || kind != gorilla.BinaryMessage || e.Type != "ADDED" {
				t.Fatalf("%d %v %.100q", kind, err, b)
			}
			if o, _, err := resource.ProtoCodec.Decode(e.Object.Raw, nil, nil); err != nil || o.(*corev1.Node).Name != want {
				t.Errorf("the event has %[2]v, want node %[3]s: %[1]v", err, o, want)
			}
		}
	})
}
