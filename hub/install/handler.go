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

// Path is where all of it is.
const Path = "/install"

const (
	program = "flotilla-device-"
	suffix  = ".deb"

	downloads     = 16               // that go on at once
	downloadsEach = 4                // of one address
	downloadLife  = 15 * time.Minute // of 16 MB: 18 kB/s
)

// Handler serves Path and what is below it, to everybody.
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

// file answers with an agent, its package, or one of its units.
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
		http.Error(w, fmt.Sprintf("the hub has no %.60q: there are agents for %s in its --agents-dir", r.PathValue("file"), have), http.StatusNotFound)
		return
	}
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // what has none is a test's
	leave, ok := d.gate.enter(listen.Whose(at.Addr()))
	if !ok {
		w.Header().Set("Retry-After", "15")
		http.Error(w, "too many devices fetch their agent now; try again in 15 s", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadLife)) // what has none is a test's
	if err := d.send(w, r, agents[i], deb); err != nil {
		d.Log.Warn("cannot hand out an agent", "file", agents[i].File, "err", err)
		http.Error(w, "the hub cannot read the agent; see its log", http.StatusInternalServerError)
	}
}

// send answers with an agent. It fails before anything is sent.
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
	if info, err := f.Stat(); err == nil { // another may have come in the place of the one that was seen
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
		return nil // whoever asked has gone
	}
	if _, err := io.CopyN(w, f, a.Size); err == nil { // if the file has shrunk, less comes than was said
		_, _ = w.Write(p.tail)
	}
	return nil
}

// A gate counts the downloads that go on.
type gate struct {
	mu  sync.Mutex
	all int
	of  map[netip.Addr]int
}

func (g *gate) enter(source netip.Addr) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= downloads || g.of[source] >= downloadsEach {
		return nil, false
	}
	if g.of == nil {
		g.of = map[netip.Addr]int{}
	}
	g.all++
	g.of[source]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.all--
		if g.of[source]--; g.of[source] == 0 {
			delete(g.of, source)
		}
	}, true
}
