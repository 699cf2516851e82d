package kube

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/kube/resource"
)

func TestALargeAnswerIsCompressedIfAccepted(t *testing.T) {
	f := newFake()
	for i := range 400 {
		f.put(fakeNode(fmt.Sprintf("pi-%d", i), "oslo"))
	}
	s := newServer(f)
	for _, c := range []struct {
		path, accept, want string
	}{
		{"/api/v1/nodes", "gzip", "gzip"},
		{"/api/v1/nodes", "", ""},
		{"/api/v1/nodes?limit=3", "gzip", ""},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Header.Set("Authorization", "Bearer viewer")
		r.Header.Set("Accept-Encoding", c.accept)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		var body io.Reader = w.Body
		if got := w.Header().Get("Content-Encoding"); got != c.want {
			t.Errorf("%s for %q is encoded as %q, want %q", c.path, c.accept, got, c.want)
		} else if got == "gzip" {
			z, err := gzip.NewReader(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			body = z
		}
		var list corev1.NodeList
		if err := json.NewDecoder(body).Decode(&list); err != nil || len(list.Items) == 0 {
			t.Errorf("%s for %q: %d nodes, %v", c.path, c.accept, len(list.Items), err)
		}
	}
}

// Requests and answers can be protobuf wherever older clients use JSON.
func TestProtobufBothWays(t *testing.T) {
	s := newServer(seeded())
	send := func(method, path string, o runtime.Object) runtime.Object {
		t.Helper()
		var b bytes.Buffer
		if o != nil {
			if err := resource.ProtoCodec.Encode(o, &b); err != nil {
				t.Fatal(err)
			}
		}
		w := request{method: method, path: path, accept: resource.MediaProto, contentType: resource.MediaProto,
			body: b.String()}.do(s)
		out, _, err := resource.ProtoCodec.Decode(w.Body.Bytes(), nil, nil)
		if err != nil || w.Header().Get("Content-Type") != resource.MediaProto {
			t.Fatalf("%s %s: %d %s %v %q", method, path, w.Code, w.Header().Get("Content-Type"), err, w.Body)
		}
		return out
	}
	cm := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "b"}}
	if got := send("POST", ns+"/configmaps", cm).(*corev1.ConfigMap); got.Data["a"] != "b" || got.UID == "" {
		t.Errorf("created %+v", got)
	}
	if got := send("GET", "/api/v1/nodes", nil).(*corev1.NodeList); len(got.Items) != 2 || got.Items[0].Name != "pi-1" {
		t.Errorf("the list has %d nodes", len(got.Items))
	}
	if got := send("GET", "/api/v1/nodes/nope", nil).(*metav1.Status); got.Code != 404 {
		t.Errorf("a missing node is answered %+v, want 404", got)
	}
	grace := int64(0)
	opts := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		GracePeriodSeconds: &grace}
	if got := send("DELETE", ns+"/pods/kiosk-1", opts).(*corev1.Pod); got.Name != "kiosk-1" {
		t.Errorf("deleted %+v", got)
	}
}
