package frame

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A stream without updates stays open longer than a browser may take to read.
func TestAStreamWithoutUpdatesStaysOpen(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := EventWriter{w: w, rc: http.NewResponseController(w), wait: 50 * time.Millisecond}
		for range 3 {
			if out.Send("beat", "", "") != nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(body), "beat") != 3 {
		t.Errorf("the stream says %q and ends with %v", body, err)
	}
}

// All streams get the same compressed parts, between parts of their own.
func TestPartsMakeAGzipStreamInAnyOrder(t *testing.T) {
	long := newEvent("show", "x", []byte(strings.Repeat("a line of the page\n", 5000)))
	short := newEvent("beat", "", []byte("now"))
	browser, hub := io.Pipe()
	sent := make(chan *event)
	go func() {
		_, _ = hub.Write(gzipHeader)
		for e := range sent {
			_, _ = hub.Write(e.small())
		}
		_ = hub.Close()
	}()
	z, err := gzip.NewReader(browser)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range []*event{short, long, short, short, long, long} {
		sent <- e
		got := make([]byte, len(e.text)) // before another part is sent
		if _, err := io.ReadFull(z, got); err != nil || !bytes.Equal(got, e.text) {
			t.Fatalf("event %d is not what a browser decompresses: %v", i, err)
		}
	}
	close(sent)
	if n := len(long.small()); n > len(long.text)/10 {
		t.Errorf("%d bytes are %d compressed", len(long.text), n)
	}
}
