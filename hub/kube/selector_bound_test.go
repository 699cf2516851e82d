package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// mostRequirements is package resource's limit.
const mostRequirements = 256

func TestTheRequirementsOfASelectorAreLimited(t *testing.T) {
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
		{"as many labels as allowed", "labelSelector", numbered("!a%d", ",", mostRequirements), 200},
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
				t.Errorf("%s: %d %.300s; want %d", tt.name, w.Code, w.Body, tt.code)
			}
		}
	}
}
