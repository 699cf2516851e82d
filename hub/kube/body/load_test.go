package body

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A request that does not get memory in time is refused. One user cannot take all memory.
func TestRequestsWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLoad()
		create := func() error {
			r := l.Reader(httptest.NewRecorder(), httptest.NewRequest("POST", "/",
				strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap"}`)), "admin")
			defer r.Release()
			_, err := r.Read(Want{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}})
			return err
		}
		releaseOther, err := l.decoding.take(t.Context(), "another", maxDecoding) // one user's share leaves memory for other users
		if err != nil {
			t.Fatal(err)
		}
		if err := create(); err != nil {
			t.Fatal("another user's request:", err)
		}
		thirds, err := l.decoding.take(t.Context(), "a third", maxDecoding-userDecoding)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = create()
		if _, again := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !again ||
			time.Since(began) != decodePatience {
			t.Errorf("request without free memory: %v after %v", err, time.Since(began))
		}
		releaseOther()
		thirds()
		if err := create(); err != nil {
			t.Error("request when memory is free again:", err)
		}
	})
}

// A short patch reserves memory for the object that it changes, and for its copies.
func TestSmallPatchesWaitForMemory(t *testing.T) {
	const (
		label = `{"metadata":{"labels":{"a":"b"}}}`
		large = 900_000
	)
	for _, c := range []struct {
		media, text string
		live        int
		refused     bool
	}{
		{"application/merge-patch+json", label, 10, false},
		{"application/json-patch+json", `[{"op":"add","path":"/data/b","value":"c"}]`, 10, false},
		{"application/merge-patch+json", label, large, true},
		{"application/strategic-merge-patch+json", label, large, true},
		{"application/json-patch+json", `[{"op":"add","path":"/data/b","value":"c"}]`, large, true},
		{"application/apply-patch+yaml", label, large, true},
		{"application/json-patch+json", `[{"op":"copy","from":"/data","path":"/data/b"}]`, 10, true},
		{"application/json-patch+json", `[{"op":"\u0063opy","from":"/data","path":"/data/b"}]`, 10, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLoad()
			for user, size := range map[string]int64{"one": userDecoding, "two": maxDecoding - userDecoding - 1<<20} {
				if _, err := l.decoding.take(t.Context(), user, size); err != nil {
					t.Fatal(err)
				}
			}
			q := httptest.NewRequest("PATCH", "/", strings.NewReader(c.text))
			q.Header.Set("Content-Type", c.media)
			r := l.Reader(httptest.NewRecorder(), q, "admin")
			defer r.Release()
			_, err := r.Read(Want{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Patch: true, Live: c.live})
			if apierrors.IsTooManyRequests(err) != c.refused {
				t.Errorf("%s %s of %d bytes: %v", c.media, c.text, c.live, err)
			}
		})
	}
}
