package mirror

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// mirrored starts a hub that answers with handler, and a mirror of it.
func mirrored(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	hub := httptest.NewTLSServer(handler)
	t.Cleanup(hub.Close)
	config := hub.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com"
	m := New(func() (Hub, error) {
		return Hub{Addresses: []string{strings.TrimPrefix(hub.URL, "https://")}, TLS: config}, nil
	}, slog.New(slog.DiscardHandler))
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	return s.URL
}

func get(t *testing.T, url string) (int, []byte, error) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

func TestABlobIsContinuedWhereTheLineBroke(t *testing.T) {
	blob := bytes.Repeat([]byte("0123456789"), 50_000)
	var requests, sent atomic.Int64
	url := mirrored(t, func(w http.ResponseWriter, q *http.Request) {
		n := requests.Add(1)
		var cut http.ResponseWriter = w
		if n <= 3 { // the line breaks three times
			cut = &breaking{w, 120_000}
		}
		http.ServeContent(counting{cut, &sent}, q, "", time.Time{}, bytes.NewReader(blob))
	})
	status, body, err := get(t, url+"/v2/app/blobs/sha256:00")
	if err != nil || status != http.StatusOK || !bytes.Equal(body, blob) {
		t.Fatalf("%d, %d of %d bytes, %v", status, len(body), len(blob), err)
	}
	if requests.Load() != 4 || sent.Load() > int64(len(blob))+4*64<<10 {
		t.Errorf("%d requests, %d bytes for a blob of %d", requests.Load(), sent.Load(), len(blob))
	}
}

// A breaking answer ends its connection after so many bytes.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return b.ResponseWriter.Write(p)
}

type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func TestWhatTheHubAnswersIsPassedOn(t *testing.T) {
	url := mirrored(t, func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.Header.Get("Accept") == "":
			w.WriteHeader(http.StatusBadRequest)
		case strings.HasSuffix(q.URL.Path, "/missing"):
			refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "the hub does not have it")
		default:
			w.Header().Set("Content-Type", "application/x-manifest")
			w.Header().Set("Docker-Content-Digest", "sha256:00")
			w.Header().Set("Content-Length", strconv.Itoa(2))
			_, _ = io.WriteString(w, "{}")
		}
	})
	for _, c := range []struct {
		rule, method, path string
		status             int
		says               string
	}{
		{"a manifest", "GET", "/v2/app/manifests/1", 200, "{}"},
		{"a manifest's head", "HEAD", "/v2/app/manifests/1", 200, ""},
		{"a refusal", "GET", "/v2/app/manifests/missing", 404, "does not have it"},
		{"a push", "PUT", "/v2/app/manifests/1", 405, "push them to the hub"},
		{"another path", "GET", "/api/v1/secrets", 405, "only serves images"},
		{"a path that leads elsewhere", "GET", "/v2/../api/v1/secrets", 405, "only serves images"},
		{"an escaped path that leads elsewhere", "GET", "/v2/%2e%2e/api/v1/secrets", 405, "only serves images"},
	} {
		q, err := http.NewRequest(c.method, url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Accept", "*/*")
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.status || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %d %s", c.rule, answer.StatusCode, body)
		}
		if c.rule == "a manifest" && answer.Header.Get("Docker-Content-Digest") != "sha256:00" {
			t.Errorf("%s: its digest is lost", c.rule)
		}
	}
}

func TestAHubThatIsAwayIsSaid(t *testing.T) {
	m := New(func() (Hub, error) { return Hub{Addresses: []string{"127.0.0.1:1"}}, nil }, slog.New(slog.DiscardHandler))
	s := httptest.NewServer(m)
	defer s.Close()
	status, body, err := get(t, s.URL+"/v2/app/manifests/1")
	if err != nil || status != http.StatusBadGateway || !strings.Contains(string(body), "the hub does not answer") {
		t.Errorf("%d %s %v", status, body, err)
	}
}

// A file of the hub arrives whole although the line breaks.
func TestADownloadContinuesWhereTheLineBroke(t *testing.T) {
	const text = "an agent of some length"
	var asked []string
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Range"))
		at := 0
		if v := r.Header.Get("Range"); v != "" {
			at, _ = strconv.Atoi(strings.Trim(v, "bytes=-"))
			w.Header().Set("Content-Length", strconv.Itoa(len(text)-at))
			w.WriteHeader(http.StatusPartialContent)
		} else {
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		}
		_, _ = io.WriteString(w, text[at:min(at+10, len(text))])
		_ = http.NewResponseController(w).Flush()
		if at+10 < len(text) {
			panic(http.ErrAbortHandler)
		}
	}))
	defer hub.Close()
	m := New(func() (Hub, error) {
		config := hub.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		config.ServerName = "example.com"
		return Hub{Addresses: []string{hub.Listener.Addr().String()}, TLS: config}, nil
	}, slog.New(slog.DiscardHandler))
	var got bytes.Buffer
	if err := m.Download(t.Context(), "/install/x", 3, int64(len(text)), &got); err == nil || got.String() != text[3:13] {
		t.Errorf("got %q, error %v; want the bytes before the break, and an error", got.String(), err)
	}
	if err := m.Download(t.Context(), "/install/x", 13, int64(len(text)), &got); err != nil || got.String() != text[3:] {
		t.Errorf("got %q, error %v; want all from byte 3", got.String(), err)
	}
	if len(asked) != 2 || asked[0] != "bytes=3-" || asked[1] != "bytes=13-" {
		t.Errorf("the ranges were %q", asked)
	}
	if err := m.Download(t.Context(), "/install/x", 0, 100, io.Discard); err == nil {
		t.Error("a file that is shorter than it should be was accepted")
	}
}

func TestThePartsOfAnImage(t *testing.T) {
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch strings.TrimPrefix(q.URL.Path, "/v2/shop/till/") {
		case "manifests/1":
			_, _ = io.WriteString(w, `{"manifests":[{"digest":"arm6","platform":{"os":"linux","architecture":"arm","variant":"v6"}},
				{"digest":"arm7","platform":{"os":"linux","architecture":"arm","variant":"v7"}},
				{"digest":"about","platform":{"os":"unknown","architecture":"unknown"}}]}`)
		case "manifests/arm7":
			_, _ = io.WriteString(w, `{"config":{"digest":"conf"},"layers":[{"digest":"a","size":3},{"digest":"b","size":4}]}`)
		case "manifests/big":
			_, _ = w.Write(bytes.Repeat([]byte(" "), 5<<20))
		case "blobs/conf":
			_, _ = io.WriteString(w, `{"rootfs":{"diff_ids":["x","y"]}}`)
		default:
			refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "no")
		}
	}))
	defer hub.Close()
	config := hub.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com"
	m := New(func() (Hub, error) {
		return Hub{Addresses: []string{strings.TrimPrefix(hub.URL, "https://")}, TLS: config}, nil
	}, slog.New(slog.DiscardHandler))
	parts, err := m.Parts(t.Context(), "shop/till", "1", Platform{"arm", "v7"})
	if err != nil || parts.Size() != 7 {
		t.Fatalf("%+v, %v", parts, err)
	}
	if ids, err := m.Unpacked(t.Context(), parts); err != nil || strings.Join(ids, " ") != "x y" {
		t.Errorf("unpacked %v, %v", ids, err)
	}
	for reference, of := range map[string]Platform{"1": {"riscv64", ""}, "2": {"arm", "v7"}} {
		if _, err := m.Parts(t.Context(), "shop/till", reference, of); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s for %v: %v", reference, of, err)
		}
	}
	for _, bad := range []string{"big", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := m.Parts(t.Context(), "shop/till", bad, Platform{"arm", "v7"}); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}
