package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// mostRequirements is the limit of package resource.
const mostRequirements = 256

func TestASelectorHasSoManyRequirements(t *testing.T) {
	s := newServer(seeded())
	numbered := func(format, between string, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, between)
	}
	for _, tt := range []struct {
		name, query, value string
		code               int
	}{
		{"as many labels as there may be", "labelSelector", numbered("!a%d", ",", mostRequirements), 200},
		{"one more", "labelSelector", numbered("!a%d", ",", mostRequirements+1), 400},
		{"values count", "labelSelector", "a notin (" + numbered("v%d", ",", mostRequirements+1) + ")", 400},
		{"fields", "fieldSelector", numbered("metadata.name!=a%d", ",", mostRequirements+1), 400},
	} {
		for _, path := range []string{"/api/v1/pods?", "/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion=1&"} {
			if strings.Contains(path, "watch") && tt.code == 200 {
				continue
			}
			r := httptest.NewRequest(http.MethodGet, path+tt.query+"="+url.QueryEscape(tt.value), nil)
			r.Header.Set("Authorization", "Bearer admin")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != tt.code || tt.code == 400 && !strings.Contains(w.Body.String(), "257 requirements") {
				t.Errorf("%s: %d %.300s", tt.name, w.Code, w.Body)
			}
		}
	}
}

// A slowReader takes its time for each write.
type slowReader struct{ took time.Duration }

func (s slowReader) write(p []byte) error {
	time.Sleep(s.took)
	return nil
}

func TestASlowWatcherKeepsNoSnapshotForLong(t *testing.T) {
	for took, all := range map[time.Duration]bool{stalled - time.Second: false, time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			for i := range 200 {
				n := fakeNode(fmt.Sprintf("pi-%d", i), "oslo")
				n.Annotations = map[string]string{"long": strings.Repeat("a", 32<<10)}
				f.put(n)
			}
			s := newServer(f)
			sel, err := resource.NewSelection(state.Nodes, "", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := &call{Server: s, res: s.find(target{version: "v1", resource: "nodes"})}
			w := &watcher{call: c, form: resource.Form{Media: resource.MediaJSON}, sel: sel, out: slowReader{took}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			w.run(ctx, &internalversion.ListOptions{})
			if held := time.Since(began); all != (held == time.Hour) || !all && held > telling+stalled {
				t.Errorf("with %s for each 64 KiB the watch lasted %s", took, held)
			}
		})
	}
}
