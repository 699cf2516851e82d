package inventory

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// errUnchanged means that the list has not changed since the last read, errUnsettled that the file
// is being written.
var (
	errUnchanged = errors.New("not changed")
	errUnsettled = errors.New("it is being changed")
)

// A source is where a list comes from.
type source interface {
	// read returns the list's text, errUnchanged or errUnsettled.
	read(ctx context.Context) ([]byte, error)
	// forget makes the next read return the text even if it is unchanged.
	forget()
	pause() time.Duration // time between two reads
}

// open returns the source that a setting names.
func open(where string, client *http.Client) source {
	if strings.HasPrefix(where, "https://") {
		return &httpsSource{url: where, client: client}
	}
	return &fileSource{path: where}
}

const (
	fileLook = 10 * time.Second
	pageLook = time.Minute
	pageTime = 30 * time.Second // timeout of one response
)

// A fileSource is a list on the hub's disk.
type fileSource struct {
	path       string
	seen, used stamp
}

// A stamp identifies one version of a file.
type stamp struct {
	size  int64
	mtime time.Time
}

func (f *fileSource) pause() time.Duration { return fileLook }
func (f *fileSource) forget()              { f.used = stamp{} }

// read reads a file only if it has not changed since the last look. A list that is half written
// would lack machines, which would count as gone.
func (f *fileSource) read(context.Context) ([]byte, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen = stamp{}
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	now := stamp{info.Size(), info.ModTime()}
	switch {
	case now != f.seen:
		f.seen = now
		return nil, errUnsettled
	case now == f.used:
		return nil, errUnchanged
	}
	r, err := os.Open(f.path)
	if err != nil {
		return nil, cause(err)
	}
	defer func() { _ = r.Close() }() // an error of Close does not matter after reading
	text, err := readBounded(r)
	if err != nil {
		return nil, cause(err)
	}
	if int64(len(text)) != now.size {
		return nil, errUnsettled
	}
	f.used = now
	return text, nil
}

// readBounded reads at most MaxSize bytes. A longer text is an error.
func readBounded(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err == nil && len(text) > MaxSize {
		err = fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	return text, err
}

// An httpsSource is a list behind an https URL.
type httpsSource struct {
	url    string
	client *http.Client
	tag    string // ETag of the version that was read last
}

func (p *httpsSource) pause() time.Duration { return pageLook }
func (p *httpsSource) forget()              { p.tag = "" }

// newClient returns a client that uses only TLS, also after redirects, because a forged list could
// delete nodes.
func newClient() *http.Client {
	return &http.Client{
		Timeout: pageTime,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, IdleConnTimeout: pageTime},
		CheckRedirect: onlyTLS,
	}
}

func onlyTLS(r *http.Request, before []*http.Request) error {
	if r.URL.Scheme != "https" {
		return errors.New("it redirects to a URL without TLS")
	}
	if len(before) >= 5 {
		return errors.New("it redirects too often")
	}
	return nil
}

func (p *httpsSource) read(ctx context.Context) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return nil, cause(err)
	}
	q.Header.Set("Accept", "application/yaml, application/json, text/plain, */*;q=0.5")
	q.Header.Set("User-Agent", "flotilla-hub")
	if p.tag != "" {
		q.Header.Set("If-None-Match", p.tag)
	}
	answer, err := p.client.Do(q)
	if err != nil {
		return nil, cause(err)
	}
	defer func() { _ = answer.Body.Close() }() // an error of Close does not matter after reading
	switch {
	case answer.StatusCode == http.StatusNotModified && p.tag != "":
		return nil, errUnchanged
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the response is %s", answer.Status)
	}
	text, err := readBounded(answer.Body)
	if err != nil {
		return nil, cause(err)
	}
	if endless(answer) && !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		return nil, errors.New("the response has no Content-Length, so a truncated list would look complete and mark the " +
			"rest as gone: have the server send a Content-Length, or JSON")
	}
	p.tag = answer.Header.Get("ETag")
	return text, nil
}

// endless tells whether a response ends with the connection, so that a truncated response looks
// complete.
func endless(answer *http.Response) bool {
	return answer.ProtoMajor == 1 && answer.ContentLength < 0 && len(answer.TransferEncoding) == 0 && !answer.Uncompressed
}

// cause returns an error without the location. The location may contain a password, and is already
// in the sentence around the error.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// displayName returns a source's name for users, without passwords, tokens and the path of a URL.
func displayName(where string) string {
	if u, err := url.Parse(where); err == nil && u.Scheme == "https" {
		return u.Scheme + "://" + u.Host + "/…"
	}
	return where
}
