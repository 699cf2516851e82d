// Package openapi serves the API's OpenAPI documents, versions 2 and 3, and provides the schemas
// for server-side apply.
//
// Program generate makes the documents from Kubernetes' own. They contain only what the hub serves,
// and mark fields that devices do not support. The program contains them compressed, and
// decompresses them while sending, so they use no memory. The package knows no objects and checks
// no rights; package kube does.
package openapi

import (
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

//go:generate go run ./generate

//go:embed v2.json.gz v2.pb.gz v3/*.json.gz schemas.json.gz index.json
var files embed.FS

// Media types of requests and answers.
const (
	mediaJSON    = "application/json"
	askProtobuf  = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	sendProtobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
)

// Paths are the documents that clients read first.
var Paths = []string{"/openapi/v2", "/openapi/v3"}

// Handler serves /openapi/v2, /openapi/v3 and the documents below it.
func Handler() http.Handler {
	var hashes map[string]string // hash by document: "v2", "v2.pb", "v3/api/v1", …
	b, err := files.ReadFile("index.json")
	if err == nil {
		err = json.Unmarshal(b, &hashes)
	}
	if err != nil {
		panic(err) // the file is part of the program
	}
	return &handler{hashes, index(hashes)}
}

type handler struct {
	hashes map[string]string
	index  []byte // index of version 3
}

func index(hashes map[string]string) []byte {
	type document struct {
		URL string `json:"serverRelativeURL"`
	}
	paths := map[string]document{}
	for name, hash := range hashes {
		if gv, ok := strings.CutPrefix(name, "v3/"); ok {
			paths[gv] = document{"/openapi/v3/" + gv + "?hash=" + hash}
		}
	}
	b, err := json.Marshal(map[string]any{"paths": paths})
	if err != nil {
		panic(err) // a map of strings can always be encoded
	}
	return b
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the documents support only GET", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/openapi/")
	switch {
	case name == "v2":
		h.version2(w, r)
	case name == "v3":
		if media(r, mediaJSON) == "" {
			notAcceptable(w, mediaJSON)
			return
		}
		w.Header().Set("Content-Type", mediaJSON)
		w.Header().Set("Vary", "Accept")
		_, _ = w.Write(h.index) // an error means that the client has gone
	case h.hashes[name] != "" && strings.HasPrefix(name, "v3/"):
		h.version3(w, r, name)
	default:
		http.NotFound(w, r)
	}
}

func (h *handler) version2(w http.ResponseWriter, r *http.Request) {
	switch media(r, mediaJSON, askProtobuf) {
	case mediaJSON:
		send(w, r, document{"v2.json.gz", mediaJSON, h.hashes["v2"]})
	case askProtobuf:
		send(w, r, document{"v2.pb.gz", sendProtobuf, h.hashes["v2.pb"]})
	default:
		notAcceptable(w, mediaJSON, askProtobuf)
	}
}

// version3 serves the document of a group and version. A URL with the document's hash may be cached
// for ever. A URL with another hash is redirected to the current one.
func (h *handler) version3(w http.ResponseWriter, r *http.Request, name string) {
	if media(r, mediaJSON) == "" {
		notAcceptable(w, mediaJSON)
		return
	}
	hash := h.hashes[name]
	if asked := r.URL.Query().Get("hash"); asked == hash {
		w.Header().Set("Cache-Control", "public, immutable")
	} else if asked != "" {
		w.Header().Del("Cache-Control")
		http.Redirect(w, r, "/openapi/"+name+"?hash="+hash, http.StatusMovedPermanently)
		return
	}
	send(w, r, document{"v3/" + strings.ReplaceAll(strings.TrimPrefix(name, "v3/"), "/", "__") + ".json.gz", mediaJSON,
		hash})
}

type document struct{ file, media, hash string }

func send(w http.ResponseWriter, r *http.Request, d document) {
	head := w.Header()
	tag := strconv.Quote(d.hash)
	head.Set("ETag", tag)
	head.Set("Vary", "Accept-Encoding, Accept")
	for _, have := range strings.Split(r.Header.Get("If-None-Match"), ",") {
		if have = strings.TrimSpace(have); have == tag || have == "*" || have == "W/"+tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	f, err := files.Open(d.file)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = f.Close() }() // the file is part of the program
	head.Set("Content-Type", d.media)
	body := io.Reader(f)
	if zips(r) {
		head.Set("Content-Encoding", "gzip")
		if info, err := f.Stat(); err == nil {
			head.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
		}
	} else if body, err = gzip.NewReader(f); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if r.Method == http.MethodHead {
		return
	}
	_, _ = io.Copy(w, body) // an error means that the client has gone
}

// zips reports whether the client accepts gzip.
func zips(r *http.Request) bool {
	for _, clause := range strings.Split(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, q, _ := strings.Cut(strings.ReplaceAll(clause, " ", ""), ";")
		if (name == "gzip" || name == "*") && q != "q=0" && q != "q=0.0" {
			return true
		}
	}
	return false
}

// media returns the first offered media type that the client accepts, or "".
func media(r *http.Request, offers ...string) string {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return offers[0]
	}
	for _, clause := range strings.Split(accept, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(clause), ";")
		name = strings.TrimSpace(name)
		switch {
		case slices.Contains(offers, name):
			return name
		case name == "*/*" || name == "application/*":
			return offers[0]
		}
	}
	return ""
}

func notAcceptable(w http.ResponseWriter, offers ...string) {
	http.Error(w, "only the following media types are accepted: "+strings.Join(offers, ", "), http.StatusNotAcceptable)
}

// Schemas returns the schemas of all served kinds and of their parts, without descriptions, by the
// names that references use. Each call decodes them again, so keep the result only where it is
// needed.
func Schemas() (map[string]*spec.Schema, error) {
	f, err := files.Open("schemas.json.gz")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the file is part of the program
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("read the schemas: %w", err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("read the schemas: %w", err)
	}
	var schemas map[string]*spec.Schema
	if err := json.Unmarshal(b, &schemas); err != nil {
		return nil, fmt.Errorf("read the schemas: %w", err)
	}
	return schemas, nil
}
