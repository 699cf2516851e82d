package admin

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
)

// pageLoads are the measured fleets and numbers of open pages. A change shows on all pages or on
// none.
var pageLoads = []struct {
	nodes, dark, pages int
	shows              bool
}{{1000, 0, 0, true}, {1000, 0, 50, true}, {1000, 0, 50, false}, {1000, 0, 500, true}, {5000, 0, 50, true}, {5000, 3000, 50, true}}

// BenchmarkPages holds pages with three views open while 20 nodes change per second. The clients
// are another process, so %core is the hub alone: TLS, HTTP/2, sessions, rendering, compression.
// behind-ms is the greatest age of what a page showed; 50 is the least.
func BenchmarkPages(b *testing.B) {
	for _, load := range pageLoads {
		b.Run(fmt.Sprintf("nodes=%d/dark=%d/pages=%d/shows=%v", load.nodes, load.dark, load.pages, load.shows), func(b *testing.B) {
			m := admintest.Many(load.nodes)
			if load.dark > 0 {
				admintest.Silent(m, load.dark)
				m.FindIncidents()
			}
			c, secret := guarded(b, m)
			c.Liveness = renewed
			me := access.NewUser{Name: "admin", Password: "four words are good", Role: access.Admin}
			if err := c.Logins.Setup(b.Context(), secret, me, ""); err != nil {
				b.Fatal(err)
			}
			cookie, err := c.Logins.Login(b.Context(), me.Name, me.Password, "")
			if err != nil {
				b.Fatal(err)
			}
			others := startBrowsers(b, browsersOrder{URL: start(b, c).URL, Cookie: cookie.Name + "=" + cookie.Value, Pages: load.pages})
			before, begin, i := cpu(), time.Now(), 0
			for b.Loop() {
				i++
				if load.shows {
					m.Put(b, admintest.Node(fmt.Sprintf("node-%04d", i%10), "site-1", admintest.Condition("Ready", "Unknown", "x", fmt.Sprintf("mark=%d.", time.Now().UnixNano()))))
				} else {
					m.Put(b, admintest.Node(fmt.Sprintf("node-%04d", i%10), "site-1", func(n *corev1.Node) { n.Labels["n"] = strconv.Itoa(i) }))
				}
				time.Sleep(50 * time.Millisecond)
			}
			took, used := time.Since(begin), cpu()-before
			saw := others.stop(b)
			b.ReportMetric(100*used.Seconds()/took.Seconds(), "%core")
			b.ReportMetric(float64(saw.Times)/took.Seconds(), "shows/s")
			b.ReportMetric(float64(saw.Bytes)/took.Seconds()/1000, "kB/s")
			b.ReportMetric(float64(saw.Behind.Milliseconds()), "behind-ms")
		})
	}
}

// renewed is the liveness of a node that renews its lease every ten seconds.
func renewed(node string) frame.Liveness {
	own := time.Duration(crc32.ChecksumIEEE([]byte(node))%10_000) * time.Millisecond
	return frame.Liveness{Seen: time.Now().Add(-own).Truncate(10 * time.Second).Add(own), Connected: true, Wanted: 4, Stored: 4}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ---- the clients, in another process

const browsersEnv = "FLOTILLA_TEST_BROWSERS"

// A browsersOrder is the task of the clients' process.
type browsersOrder struct {
	URL, Cookie string
	Pages       int
}

// A browsersSaw has the measurements of the clients.
type browsersSaw struct {
	Times  int   // updates received
	Bytes  int64 // on the wire
	Behind time.Duration
}

type browsers struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// startBrowsers returns once every page is open and connected.
func startBrowsers(t testing.TB, o browsersOrder) *browsers {
	t.Helper()
	order, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), browsersEnv+"="+string(order)), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	b := &browsers{cmd, in, bufio.NewReader(out)}
	if line, err := b.out.ReadString('\n'); line != "open\n" {
		t.Fatalf("the browsers say %q, %v", line, err)
	}
	return b
}

func (b *browsers) stop(t testing.TB) (saw browsersSaw) {
	t.Helper()
	b.in.Close()
	if err := json.NewDecoder(b.out).Decode(&saw); err != nil {
		t.Fatalf("what the browsers saw: %v", err)
	}
	return saw
}

// beBrowsers is the main function of the clients' process: it opens pages until its input ends.
func beBrowsers() (is bool) {
	var o browsersOrder
	if order := os.Getenv(browsersEnv); order == "" {
		return false
	} else if err := json.Unmarshal([]byte(order), &o); err != nil {
		panic(err)
	}
	var pages []*openPage
	for i := range o.Pages {
		p := &openPage{url: o.URL + []string{"/", "/nodes", "/pods"}[i%3], cookie: o.Cookie, client: newClient()}
		p.open()
		pages = append(pages, p)
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	var saw browsersSaw
	for _, p := range pages {
		p.mu.Lock()
		saw.Times += p.times
		saw.Bytes += p.bytes.Load()
		saw.Behind = max(saw.Behind, p.behind)
		p.mu.Unlock()
	}
	if err := json.NewEncoder(os.Stdout).Encode(saw); err != nil {
		panic(err)
	}
	return true
}

// newClient has connections of its own, as a browser has.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}} //nolint:gosec // the benchmark's own hub
}

// An openPage does what page.js does.
type openPage struct {
	url, cookie string
	client      *http.Client
	bytes       atomic.Int64

	mu     sync.Mutex
	times  int
	shown  int64 // newest mark
	behind time.Duration
}

func (p *openPage) get(url string, header ...string) *http.Response {
	req, err := http.NewRequestWithContext(context.Background(), "GET", url, nil)
	if err != nil {
		panic(err)
	}
	header = append(header, "Cookie", p.cookie, "Accept-Encoding", "gzip, deflate, br, zstd", "Accept-Language", "en-GB,en;q=0.9", "Cache-Control", "no-cache",
		"User-Agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
		"Sec-Ch-Ua", `"Chromium";v="140", "Not=A?Brand";v="24"`, "Sec-Ch-Ua-Mobile", "?0", "Sec-Ch-Ua-Platform", `"Linux"`,
		"Sec-Fetch-Dest", "empty", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Site", "same-origin", "Priority", "u=1, i", "Referer", p.url)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		panic(err)
	}
	return resp
}

var markOf = regexp.MustCompile(`mark=(\d+)\.`)

// open loads the page and receives updates until its process ends.
func (p *openPage) open() {
	resp := p.get(p.url, "Accept", "text/html")
	body, err := io.ReadAll(p.read(resp))
	resp.Body.Close()
	found := liveTag.FindSubmatch(body)
	if err != nil || found == nil {
		panic(fmt.Sprint(p.url, " is not live: ", resp.Status, " ", err))
	}
	p.looks(string(body))
	lines, open := bufio.NewScanner(p.read(p.get(p.url+"?shown="+string(found[1]), "Accept", liveStream))), make(chan struct{})
	lines.Buffer(nil, 1<<20)
	opened := sync.OnceFunc(func() { close(open) })
	go func() {
		event, data := "", []string(nil)
		for lines.Scan() {
			switch field, value, _ := strings.Cut(lines.Text(), ": "); {
			case field == "event":
				event = value
			case field == "data":
				data = append(data, value)
			case field == "" && event == "beat":
				opened()
				data = nil
			case field == "":
				p.looks(strings.Join(data, "\n"))
				data = nil
			}
		}
	}()
	<-open
}

// read reads an answer's body and counts the bytes on the wire.
func (p *openPage) read(resp *http.Response) io.Reader {
	if resp.StatusCode != http.StatusOK {
		panic(fmt.Sprint(p.url, ": ", resp.Status))
	}
	sent := &counted{Reader: resp.Body, n: &p.bytes}
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return sent
	}
	z, err := gzip.NewReader(sent)
	if err != nil {
		panic(err)
	}
	return z
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// looks records the age of what the page showed.
func (p *openPage) looks(body string) {
	newest := p.shown
	for _, m := range markOf.FindAllStringSubmatch(body, -1) {
		at, _ := strconv.ParseInt(m[1], 10, 64)
		newest = max(newest, at)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times++
	if p.shown > 0 && newest > p.shown {
		p.behind = max(p.behind, time.Since(time.Unix(0, p.shown)))
	}
	p.shown = newest
}
