package kube

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// For each request, the hub reads and writes every media type, and reads every parameter, that the
// OpenAPI documents list.
func TestTheHubServesWhatTheDocumentsList(t *testing.T) {
	type operation struct {
		Parameters  []struct{ Name, In string }
		RequestBody struct{ Content map[string]any }
		Responses   map[string]struct{ Content map[string]any }
	}
	honoured := strings.Fields(`allowWatchBookmarks continue dryRun fieldManager fieldSelector fieldValidation force gracePeriodSeconds
		labelSelector limit orphanDependents propagationPolicy resourceVersion resourceVersionMatch sendInitialEvents timeoutSeconds watch`)
	s := newServer(seeded())
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	read(t, s, "/openapi/v3", "", &index)
	asked := 0
	for version, at := range index.Paths {
		var doc struct {
			Paths map[string]map[string]json.RawMessage
		}
		read(t, s, at.ServerRelativeURL, "", &doc)
		for path, item := range doc.Paths {
			name := strings.NewReplacer("{namespace}", "default", "{name}", "nothing", "{path}", "x").Replace(path)
			for method, raw := range item {
				var op operation
				if method == "parameters" || json.Unmarshal(raw, &op) != nil {
					continue // the path's list is for all methods
				}
				for _, p := range op.Parameters {
					if p.In == "query" && !slices.Contains(honoured, p.Name) {
						t.Errorf("%s of %s: the hub does not read the listed parameter %s", method, path, p.Name)
					}
				}
				for media := range op.Responses["200"].Content {
					q := request{method: strings.ToUpper(method), path: name, accept: media}
					if strings.Contains(media, "watch") {
						q.path += "?watch=1&resourceVersion=no" // invalid, because a watch does not end
					}
					if asked++; q.do(s).Code == http.StatusNotAcceptable {
						t.Errorf("%s of %s: the hub does not write %s: %s", method, path, media, version)
					}
				}
				for media := range op.RequestBody.Content {
					q := request{method: strings.ToUpper(method), path: name + "?fieldManager=me", contentType: media, body: "{}"}
					if asked++; media != "*/*" && q.do(s).Code == http.StatusUnsupportedMediaType {
						t.Errorf("%s of %s: the hub does not read a body of %s: %s", method, path, media, version)
					}
				}
			}
		}
	}
	if asked < 500 {
		t.Errorf("the documents list only %d requests", asked)
	}
}
