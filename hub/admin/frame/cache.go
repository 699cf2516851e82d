package frame

import (
	"context"
	"hash/maphash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/history"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// A View is one page: from a snapshot and what was asked to what is shown. What it
// shows depends on the role, never on the person: people share it.
type View func(*Request) (Page, error)

// A Request is what a view may look at.
type Request struct {
	state.Snapshot
	Now      time.Time
	Param    func(name string) string // of the path
	Query    func(name string) string
	Path     string
	May      func(verb, resource string) bool
	Liveness func(node string) Liveness
	Uses     func(node string) wire.Usage // what it uses now; zero: not known
	HubURL   string
	Actions  []*Action
	listings map[state.Kind]Listing
	Jobs     *jobs
	Pauses   []store.Pause
	History  func(uid types.UID, from time.Time, n int) []history.Word

	Foresight preview.Rules
	audits    func(now time.Time) ([]store.Audit, error)
}

// rendered is what a view shows at a revision and a moment.
type rendered struct {
	code    int
	page    Page
	tag     string        // what shows something else has another tag; that time has passed is nothing else
	whole   func() []byte // the part that changes, in a document
	event   func() *event // the same, for pages that are open
	rev     uint64
	touched uint64 // see live
	at      time.Time
}

const (
	// fresh is how long what was rendered is good while nothing changes: some of it
	// shows what is no change, such as when a node was heard of.
	fresh = time.Second
	// cached bounds the number of views that are kept, of up to 100 KiB each.
	cached = 64
)

// A cache lets everybody who looks at one view cost one rendering of it.
type cache struct {
	now     func() time.Time
	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	mu sync.Mutex // held while it is rendered
	rendered
}

func newCache(now func() time.Time) *cache {
	return &cache{now: now, entries: map[string]*entry{}}
}

// get returns what a key's view shows, made by make unless what was made last shows
// this revision, or a later one, and is fresh.
func (c *cache) get(key string, rev, touched uint64, make func() rendered) rendered {
	c.mu.Lock()
	e := c.entries[key]
	if e == nil {
		if len(c.entries) >= cached {
			clear(c.entries)
		}
		e = &entry{}
		c.entries[key] = e
	}
	c.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rev < rev || e.touched < touched || c.now().Sub(e.at) >= fresh {
		e.rendered = make()
	}
	return e.rendered
}

// shownQuery is the tag of what a page shows when it asks to be kept up to date.
const shownQuery = "shown"

// Show answers with a view: once, or as long as the page is open.
func (c *Call) Show(v View) error {
	key, look := c.looks(v)
	if c.Request().Header.Get("Accept") == eventStream {
		return c.stream(key, look)
	}
	r := look()
	if r.code != http.StatusOK {
		r.page.Watch = nil
	}
	return c.wrap(r.code, r)
}

// looks returns how to look at a view as this request asks, now and later, and what
// is the same for everybody who asks the same.
func (c *Call) looks(v View) (key string, look func() rendered) {
	s, asks := c.Server, c.asks()
	query := c.QueryParams()
	key = string(c.User.Role) + "\x00" + c.Request().Host + "\x00" + c.Request().URL.Path + "?" + query.Encode()
	return key, func() rendered {
		return s.cache.get(key, s.Fleet.Snapshot().Revision, s.live.touched.Load(), func() rendered {
			touched := s.live.touched.Load() // before: what is touched meanwhile is looked at again
			return s.render(v, asks(), touched)
		})
	}
}

// JoinURLs are what devices join through, for who has reached the page at a host.
func (s *Server) JoinURLs(host string) []string {
	if s.HubURLs == nil {
		return []string{"https://" + host}
	}
	return s.HubURLs()
}

// Ask is what the request asks of a view.
func (c *Call) Ask() *Request { return c.asks()() }

// asks is the same for every moment to come: it holds nothing of the request.
func (c *Call) asks() func() *Request {
	s, q := c.Server, Question{Role: c.User.Role, Host: c.Request().Host, Path: c.Request().URL.Path,
		Query: c.QueryParams()}
	q.Query.Del(shownQuery)
	q.names, q.values = slices.Clone(c.ParamNames()), slices.Clone(c.ParamValues())
	return func() *Request { return s.RequestFor(q) }
}

// A Question is what somebody asks of a view.
type Question struct {
	Role          access.Role
	Host, Path    string
	Query         url.Values
	names, values []string // of the parameters in the path
}

// RequestFor returns what a view may look at to answer a question now.
func (s *Server) RequestFor(q Question) *Request {
	return &Request{
		Snapshot: s.Fleet.Snapshot(), Now: s.Now(), Path: q.Path, Query: q.Query.Get, HubURL: s.JoinURLs(q.Host)[0],
		Param: func(name string) string {
			if i := slices.Index(q.names, name); i >= 0 {
				return q.values[i]
			}
			return ""
		},
		May: func(verb, resource string) bool { return s.Allow(q.Role, verb, resource) }, Liveness: s.Liveness,
		Uses:    s.uses,
		Actions: s.actions, listings: s.listings, Jobs: s.jobs, Pauses: s.Pauses, History: s.History,
		Foresight: s.Foresight, audits: s.audits.newest,
	}
}

var tagSeed = maphash.MakeSeed()

func (s *Server) render(v View, a *Request, touched uint64) rendered {
	r := rendered{code: http.StatusOK, rev: a.Revision, touched: touched, at: a.Now}
	var err error
	var live []byte
	if why := a.wrongFilter(strings.TrimPrefix(a.Path, "/")); why != "" {
		err = InputError(why)
	} else if r.page, err = v(a); err == nil {
		live, err = s.look.live.main(r.page)
	}
	if err != nil {
		var why string
		r.code, why = s.explainOf(a.Path, err)
		title := "Not found"
		if r.code != http.StatusNotFound {
			title = "Not understood"
		}
		r.page = Page{Template: "message", Title: title, Data: messageOf(r.code, title, why, a.Path)}
		if live, err = s.look.live.main(r.page); err != nil {
			panic(err) // it has no more than two texts
		}
	}
	r.tag = strconv.FormatUint(maphash.Bytes(tagSeed, live), 36)
	r.event = sync.OnceValue(func() *event { return newEvent("show", r.tag, live) })
	r.whole = sync.OnceValue(func() []byte {
		whole, err := s.look.whole.main(r.page)
		if err != nil {
			panic(err) // it has just been rendered, without the words of its times
		}
		return whole
	})
	return r
}

// UsageTopic is what pages watch that show what a node uses.
func UsageTopic(node string) string { return "usage/" + node }

// uses is what a node uses now, where that is known. A device measures when it is
// asked, and a page that shows it asks; when there is something new it is shown.
func (s *Server) uses(node string) wire.Usage {
	u, _ := s.Usage(node, func() { s.live.touch(UsageTopic(node)) })
	return u
}

const (
	// MostAudits is how many of the newest changes in the audit the views look through.
	MostAudits = 1000
	// auditsFresh is how long these records are good: views are rendered often, and the database is
	// asked seldom.
	auditsFresh = 5 * time.Second
	auditsWait  = 2 * time.Second // for the database
)

// Reading are the verbs of audit records that changed nothing.
var Reading = []string{"get", "list", "watch", "connect", "renew"}

// audits keeps the newest audit records for the views.
type audits struct {
	archive Archive

	mu      sync.Mutex
	at      time.Time
	records []store.Audit
	err     error
}

func (k *audits) newest(now time.Time) ([]store.Audit, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if since := now.Sub(k.at); k.at.IsZero() || since < 0 || since >= auditsFresh {
		ctx, cancel := context.WithTimeout(context.Background(), auditsWait)
		defer cancel()
		k.records, k.err = k.archive.FindAudits(ctx, store.AuditQuery{NotVerbs: Reading, Limit: MostAudits})
		k.at = now
	}
	return k.records, k.err
}

// Audits are the newest changes in the audit, the newest first; none for a role that may not read it.
func (a *Request) Audits() ([]store.Audit, error) {
	if a.audits == nil || !a.May("list", "audit") {
		return nil, nil
	}
	return a.audits(a.Now)
}
