package kube

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/kube/resource"
)

// compressAbove is the size in bytes above which answers are compressed; it is Kubernetes' limit.
const compressAbove = 128 << 10

// write answers with an object whose kind is set.
func (c *call) write(code int, o runtime.Object, media string) error {
	b, err := resource.Marshal(o, media)
	if err != nil {
		return fmt.Errorf("encode the answer to %s %s: %w", c.verb, c.resource, err)
	}
	b = c.pretty(b, media)
	release, err := c.answers.hold(c.user.Name, len(b))
	if err != nil {
		return err
	}
	defer release()
	c.send(code, b, media)
	return nil
}

// pretty indents JSON if the query says so, and for curl and wget unless the query says not to.
func (c *call) pretty(b []byte, media string) []byte {
	var out bytes.Buffer
	if !c.wantsPretty() || media != resource.MediaJSON || json.Indent(&out, b, "", "  ") != nil {
		return b
	}
	return out.Bytes()
}

func (c *call) wantsPretty() bool {
	if q := c.r.URL.Query(); q.Has("pretty") {
		return truthy(q, "pretty")
	}
	return strings.HasPrefix(c.r.UserAgent(), "curl/") || strings.HasPrefix(c.r.UserAgent(), "Wget/")
}

// send answers with an encoded body.
func (c *call) send(code int, body []byte, media string) {
	h := c.w.Header()
	h.Set("Content-Type", media)
	if len(body) > compressAbove && strings.Contains(c.r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		h.Set("Vary", "Accept-Encoding, Accept")
		c.w.WriteHeader(code)
		z, _ := gzip.NewWriterLevel(c.w, gzip.BestSpeed) // the level is valid
		_, _ = z.Write(body)                             // an error means that the client is gone
		_ = z.Close()
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(code)
	_, _ = c.w.Write(body)
}

// writeStatus answers with a Status, in the encoding that the client accepts.
func (c *call) writeStatus(st *metav1.Status) {
	f, err := resource.Negotiate(c.r, []string{resource.MediaJSON, resource.MediaYAML, resource.MediaProto})
	if err != nil {
		f.Media = resource.MediaJSON
	}
	if d := st.Details; d != nil && d.RetryAfterSeconds > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	code := int(st.Code)
	if code == 0 {
		code = http.StatusOK
	}
	b, err := resource.Marshal(st, f.Media)
	if err != nil {
		http.Error(c.w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.send(code, c.pretty(b, f.Media), f.Media)
}

// Limits in bytes of the warnings in an answer's headers: of one, and of all. A body of 3 MB can
// cause 13 MB of warnings, which no client reads.
const (
	maxWarning  = 4 << 10
	maxWarnings = 16 << 10
)

// warn adds warnings, which clients print.
func (c *call) warn(lines ...string) {
	h, size := c.w.Header(), 0
	for _, line := range h["Warning"] {
		size += len(line)
	}
	for i, line := range lines {
		if size > maxWarnings {
			return
		}
		line = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, line[:min(len(line), maxWarning)])
		if size += len(line); size > maxWarnings {
			line = fmt.Sprintf("%d more warnings are omitted", len(lines)-i)
		}
		h.Add("Warning", `299 - `+quoted(strings.ToValidUTF8(line, "")))
	}
}

// quoted returns a quoted-string of RFC 9110, section 5.6.4.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
