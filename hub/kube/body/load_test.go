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

// TestRequestsWaitForMemory: a request that gets none in time is refused; one user cannot take the
// memory of all.
func TestRequestsWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLoad()
		create := func() error {
			r := l.Reader(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap"}`)), "admin")
			defer r.Release()
			_, err := r.Read(Want{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}})
			return err
		}
		theirs, err := l.decoding.take(t.Context(), "another", maxDecoding) // one user gets no more than their own
		if err != nil {
			t.Fatal(err)
		}
		if err := create(); err != nil {
			t.Fatal("beside one user:", err)
		}
		thirds, err := l.decoding.take(t.Context(), "a third", maxDecoding-userDecoding)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = create()
		if _, again := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !again || time.Since(began) != decodePatience {
			t.Errorf("without memory: %v after %v", err, time.Since(began))
		}
		theirs()
		thirds()
		if err := create(); err != nil {
			t.Error("with memory again:", err)
		}
	})
}
