package install

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/listen"
)

// Path is the prefix of all URLs of this package.
const Path = "/install"

const (
	program = "flotilla-device-"
	suffix  = ".deb"

	downloads     = 16 // concurrent downloads
	downloadsEach = 4  // concurrent downloads of one address
	downloadGrace = 30 * time.Second
	downloadRate  = 16 << 10         // bytes per second that a client has to read on average
	downloadSure  = 10 * time.Second // a new download cannot be cancelled for this long
)

// Handler serves Path without authentication.
func (d *Depot) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) {
		text(w, "text/x-shellscript", d.Script("https://"+r.Host))
	})
	mux.HandleFunc("GET "+Path+"/{file}", d.file)
	return mux
}

func text(w http.ResponseWriter, kind, body string) {
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, body)
}

// file serves an agent, an agent's package or a unit.
func (d *Depot) file(w http.ResponseWriter, r *http.Request) {
	if unit, ok := firmwareconfigs.Unit(r.PathValue("file")); ok {
		text(w, "text/plain", unit)
		return
	}
	name, deb := strings.CutSuffix(r.PathValue("file"), suffix)
	arch, ok := strings.CutPrefix(name, program)
	agents := d.Agents()
	i := slices.IndexFunc(agents, func(a Agent) bool { return a.Arch == arch })
	if !ok || i < 0 {
		have := cmp.Or(strings.Join(d.Arches(), ", "), "no processor")
		http.Error(w, fmt.Sprintf("%.60q not found: the hub's --agents-dir has agents for %s", r.PathValue("file"),
			have), http.StatusNotFound)
		return
	}
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // only tests have an invalid address
	now := time.Now()
	l := &download{ResponseWriter: w, limiter: &d.limiter, source: listen.Prefix(at.Addr()), began: now,
		size: agents[i].Size}
	if !l.enter(now) {
		w.Header().Set("Retry-After", "15")
		http.Error(w, "too many devices download their agent now; try again in 15 s", http.StatusServiceUnavailable)
		return
	}
	defer l.leave()
	w = l
	if err := d.send(w, r, agents[i], deb); err != nil {
		d.Log.Warn("cannot send an agent", "file", agents[i].File, "err", err)
		http.Error(w, "the hub cannot read the agent; see its log", http.StatusInternalServerError)
	}
}

// send writes an agent. It returns errors only from before the first byte.
func (d *Depot) send(w http.ResponseWriter, r *http.Request, a Agent, deb bool) error {
	f, err := os.Open(a.File)
	if err != nil {
		return err
	}
	defer f.Close()
	name := program + a.Arch
	w.Header().Set("Content-Type", "application/octet-stream")
	if !deb {
		w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
		http.ServeContent(w, r, name, a.when, f)
		return nil
	}
	if info, err := f.Stat(); err == nil { // the file may have been replaced since it was listed
		a.Size, a.when = info.Size(), info.ModTime()
	}
	p, err := d.pack(io.LimitReader(f, a.Size), a)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/vnd.debian.binary-package")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+suffix+`"`)
	w.Header().Set("Content-Length", strconv.FormatInt(p.size(a.Size), 10))
	if _, err := w.Write(p.head); err != nil {
		return nil // the client has closed the connection
	}
	if _, err := io.CopyN(w, f, a.Size); err == nil { // a file that has shrunk is shorter than its Content-Length
		_, _ = w.Write(p.tail)
	}
	return nil
}

// A downloadLimiter limits the concurrent downloads.
type downloadLimiter struct {
	mu  sync.Mutex
	all []*download
}

// A download is a response. The limiter cancels it if its client is too slow or another client
// needs the slot.
type download struct {
	http.ResponseWriter
	limiter *downloadLimiter
	source  netip.Addr
	began   time.Time
	size    int64
	sent    int64 // guarded by limiter.mu
}

// enter takes a slot. If all slots, or all slots of the address, are in use, it cancels the
// download that needs the most time for its rest; of equal ones, the oldest.
func (d *download) enter(now time.Time) bool {
	g := d.limiter
	g.mu.Lock()
	defer g.mu.Unlock()
	own := 0
	for _, o := range g.all {
		if o.source == d.source {
			own++
		}
	}
	if own >= downloadsEach || len(g.all) >= downloads {
		var slowest *download
		for _, o := range g.all {
			if now.Sub(o.began) >= downloadSure && (own < downloadsEach || o.source == d.source) &&
				(slowest == nil || o.left(now) > slowest.left(now)) {
				slowest = o
			}
		}
		if slowest == nil {
			return false
		}
		g.drop(slowest)
		slowest.until(time.Unix(1, 0))
	}
	g.all = append(g.all, d)
	d.until(now.Add(downloadGrace))
	return true
}

// left returns the seconds that a download still needs at its average rate so far.
func (d *download) left(now time.Time) float64 {
	return float64(d.size-d.sent) * now.Sub(d.began).Seconds() / float64(max(d.sent, 1))
}

func (d *download) until(t time.Time) {
	_ = http.NewResponseController(d.ResponseWriter).SetWriteDeadline(t) // not supported by a test's writer
}

func (g *downloadLimiter) drop(d *download) bool {
	i := slices.Index(g.all, d)
	if i >= 0 {
		g.all = slices.Delete(g.all, i, i+1)
	}
	return i >= 0
}

func (d *download) leave() {
	d.limiter.mu.Lock()
	defer d.limiter.mu.Unlock()
	if d.limiter.drop(d) {
		d.until(time.Time{}) // for the next request on the connection
	}
}

// Write extends the deadline by the time that the bytes read so far allow.
func (d *download) Write(p []byte) (int, error) {
	n, err := d.ResponseWriter.Write(p)
	d.limiter.mu.Lock()
	defer d.limiter.mu.Unlock()
	if d.sent += int64(n); slices.Contains(d.limiter.all, d) {
		d.until(d.began.Add(downloadGrace + time.Duration(d.sent)*time.Second/downloadRate))
	}
	return n, err
}
