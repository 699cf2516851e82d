package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A refusal is what a client is told, as the OCI distribution API has it.
type refusal struct {
	status  int
	code    string
	message string
}

func (r refusal) Error() string { return r.message }

// Refuse answers a request with an error of the distribution API.
func Refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	type entry struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	_ = json.NewEncoder(w).Encode(map[string][]entry{"errors": {{code, message}}})
}

// Writes tells whether a request changes images, for which other rights are needed than for
// reading.
func Writes(q *http.Request) bool { return q.Method != http.MethodGet && q.Method != http.MethodHead }

// ServeHTTP answers requests below /v2/.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	err := r.serve(w, q)
	var no refusal
	switch {
	case err == nil:
	case errors.As(err, &no):
		Refuse(w, no.status, no.code, no.message)
	default:
		slog.Error("image registry", "path", q.URL.Path, "err", err)
		Refuse(w, http.StatusInternalServerError, "UNKNOWN", "the hub cannot read or write its images; see its log")
	}
}

var (
	notFound    = refusal{http.StatusNotFound, "NAME_UNKNOWN", "this path is not part of the registry API"}
	unsupported = refusal{http.StatusMethodNotAllowed, "UNSUPPORTED", "the registry does not support this request"}
)

func (r *Registry) serve(w http.ResponseWriter, q *http.Request) error {
	rest, ok := strings.CutPrefix(q.URL.Path, "/v2/")
	switch {
	case q.URL.Path == "/v2" || rest == "" && ok:
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, "{}")
		return err
	case rest == "_catalog":
		return r.serveCatalog(w, q)
	}
	parts := strings.Split(rest, "/")
	n := len(parts)
	if n >= 3 && parts[n-2] == "blobs" && parts[n-1] == "uploads" { // some clients leave the last slash out
		parts = append(parts, "")
		n++
	}
	if n < 3 {
		return notFound
	}
	serve, cut := r.route(parts)
	if serve == nil {
		return notFound
	}
	name := strings.Join(parts[:n-cut], "/")
	if len(name) > 255 || !namePattern.MatchString(name) {
		return refusal{http.StatusBadRequest, "NAME_INVALID", fmt.Sprintf("%.100q is not a valid image name: "+
			"use small letters, digits and . _ - /", name)}
	}
	return serve(w, q, name, parts[n-1])
}

type served func(w http.ResponseWriter, q *http.Request, name, last string) error

// route returns what serves a path, and how many of its parts come after the image's name.
func (r *Registry) route(parts []string) (served, int) {
	n := len(parts)
	switch {
	case n >= 4 && parts[n-3] == "blobs" && parts[n-2] == "uploads":
		return r.serveUpload, 3
	case parts[n-2] == "blobs":
		return r.serveBlob, 2
	case parts[n-2] == "manifests":
		return r.serveManifest, 2
	case parts[n-2] == "tags" && parts[n-1] == "list":
		return r.serveTags, 2
	case parts[n-2] == "referrers":
		return r.serveReferrers, 2
	}
	return nil, 0
}

func (r *Registry) serveBlob(w http.ResponseWriter, q *http.Request, _, digest string) error {
	if Writes(q) {
		return unsupported // garbage is collected
	}
	if !digestPattern.MatchString(digest) {
		return refusal{http.StatusBadRequest, "DIGEST_INVALID", "only sha256 digests are supported"}
	}
	f, err := os.Open(r.blobPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return refusal{http.StatusNotFound, "BLOB_UNKNOWN", "the hub does not have the blob " + digest}
	} else if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if q.Method == http.MethodHead {
		r.refresh(digest) // a push that finds it does not send it
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Etag", `"`+digest+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, q, "", info.ModTime(), f)
	return nil
}

func (r *Registry) serveUpload(w http.ResponseWriter, q *http.Request, name, id string) error {
	digest := q.URL.Query().Get("digest")
	if digest != "" && !digestPattern.MatchString(digest) {
		return refusal{http.StatusBadRequest, "DIGEST_INVALID", "only sha256 digests are supported"}
	}
	if q.Method == http.MethodPost {
		return r.startUpload(w, q, name, id, digest)
	}
	u, err := r.take(name, id)
	if err != nil {
		return err
	}
	defer u.mu.Unlock()
	switch q.Method {
	case http.MethodGet:
		u.told(w, http.StatusNoContent)
	case http.MethodDelete:
		r.drop(u)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPatch:
		if err := u.follows(q.Header.Get("Content-Range")); err != nil {
			return err
		}
		if err := r.receive(u, q.Body); err != nil {
			return err
		}
		u.told(w, http.StatusAccepted)
	case http.MethodPut:
		if digest == "" {
			return refusal{http.StatusBadRequest, "DIGEST_INVALID", "the digest of the blob is missing"}
		}
		return r.complete(w, q, u, digest)
	default:
		return unsupported
	}
	return nil
}

func (r *Registry) startUpload(w http.ResponseWriter, q *http.Request, name, id, digest string) error {
	if id != "" {
		return unsupported
	}
	if from := q.URL.Query().Get("mount"); digestPattern.MatchString(from) && r.refresh(from) {
		created(w, "/v2/"+name+"/blobs/"+from, from)
		return nil
	}
	u, err := r.begin(name)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if digest == "" {
		u.told(w, http.StatusAccepted)
		return nil
	}
	return r.complete(w, q, u, digest)
}

// complete receives the rest of an upload and makes a blob of it; u.mu is held.
func (r *Registry) complete(w http.ResponseWriter, q *http.Request, u *upload, digest string) error {
	if err := u.follows(q.Header.Get("Content-Range")); err != nil {
		return err
	}
	if err := r.receive(u, q.Body); err != nil {
		return err
	}
	if err := r.finish(u, digest); err != nil {
		return err
	}
	created(w, "/v2/"+u.name+"/blobs/"+digest, digest)
	return nil
}

func created(w http.ResponseWriter, location, digest string) {
	w.Header().Set("Location", location)
	w.Header().Set("Docker-Content-Digest", digest)
	w.WriteHeader(http.StatusCreated)
}

// told says how much of an upload has arrived.
func (u *upload) told(w http.ResponseWriter, status int) {
	w.Header().Set("Location", "/v2/"+u.name+"/blobs/uploads/"+u.id)
	w.Header().Set("Docker-Upload-Uuid", u.id)
	w.Header().Set("Range", fmt.Sprintf("0-%d", max(u.size-1, 0)))
	w.WriteHeader(status)
}

// follows refuses a chunk that does not begin where the one before ended.
func (u *upload) follows(contentRange string) error {
	first, _, given := strings.Cut(strings.TrimPrefix(contentRange, "bytes "), "-")
	if start, err := strconv.ParseInt(first, 10, 64); given && (err != nil || start != u.size) {
		return refusal{http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID",
			fmt.Sprintf("the next chunk begins at byte %d", u.size)}
	}
	return nil
}

func (r *Registry) serveManifest(w http.ResponseWriter, q *http.Request, name, reference string) error {
	switch q.Method {
	case http.MethodGet, http.MethodHead:
		digest, mediaType, err := r.resolve(name, reference)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(r.blobPath(digest))
		if err != nil {
			return err
		}
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Etag", `"`+digest+`"`)
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, err = w.Write(text)
		return err
	case http.MethodPut:
		if !tagPattern.MatchString(reference) && !digestPattern.MatchString(reference) {
			return refusal{http.StatusBadRequest, "TAG_INVALID", fmt.Sprintf("%.100q is not a valid tag or digest", reference)}
		}
		text, err := io.ReadAll(http.MaxBytesReader(w, q.Body, MaxManifest))
		if err != nil {
			return refusal{http.StatusRequestEntityTooLarge, "MANIFEST_INVALID",
				fmt.Sprintf("the manifest did not arrive whole, or has more than %d MiB", MaxManifest>>20)}
		}
		digest, m, err := r.putManifest(name, reference, text, q.Header.Get("Content-Type"))
		if err != nil {
			return err
		}
		if m.Subject != nil {
			w.Header().Set("Oci-Subject", m.Subject.Digest)
		}
		created(w, "/v2/"+name+"/manifests/"+digest, digest)
		return nil
	case http.MethodDelete:
		if err := r.Remove(name, reference); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return unsupported
}

func (r *Registry) serveTags(w http.ResponseWriter, q *http.Request, name, _ string) error {
	tags, err := r.tags(name)
	if err != nil {
		return err
	}
	if digests, err := r.digests(name); err == nil && len(tags)+len(digests) == 0 {
		return refusal{http.StatusNotFound, "NAME_UNKNOWN", "the hub does not have the image " + name}
	}
	return list(w, q, "tags", tags, map[string]any{"name": name})
}

func (r *Registry) serveCatalog(w http.ResponseWriter, q *http.Request) error {
	names, err := r.repositories()
	if err != nil {
		return err
	}
	return list(w, q, "repositories", names, map[string]any{})
}

// list answers with a page of names: at most n, those after last.
func list(w http.ResponseWriter, q *http.Request, key string, names []string, answer map[string]any) error {
	if Writes(q) {
		return unsupported
	}
	query := q.URL.Query()
	if last := query.Get("last"); last != "" {
		i, found := slices.BinarySearch(names, last)
		if found {
			i++
		}
		names = names[i:]
	}
	if n, err := strconv.Atoi(query.Get("n")); err == nil && n >= 0 && n < len(names) {
		names = names[:n]
		if n > 0 {
			w.Header().Set("Link", fmt.Sprintf(`<%s?n=%d&last=%s>; rel="next"`, q.URL.Path, n, names[n-1]))
		}
	}
	if names == nil {
		names = []string{}
	}
	answer[key] = names
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(answer)
}

func (r *Registry) serveReferrers(w http.ResponseWriter, q *http.Request, name, digest string) error {
	if Writes(q) {
		return unsupported
	}
	if !digestPattern.MatchString(digest) {
		return refusal{http.StatusBadRequest, "DIGEST_INVALID", "only sha256 digests are supported"}
	}
	artifactType := q.URL.Query().Get("artifactType")
	found, err := r.referrers(name, digest, artifactType)
	if err != nil {
		return err
	}
	if artifactType != "" {
		w.Header().Set("Oci-Filters-Applied", "artifactType")
	}
	w.Header().Set("Content-Type", ociIndex)
	return json.NewEncoder(w).Encode(map[string]any{"schemaVersion": 2, "mediaType": ociIndex, "manifests": found})
}
