package frame

import (
	"context"
	"hash/maphash"
	"html/template"
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

// A View is one page: a function from a request to what the page shows. It may depend on the role,
// never on the user, because users with one role share it.
type View func(*Request) (Page, error)

// A Request is the input of a view.
type Request struct {
	state.Snapshot
	Now      time.Time
	Param    func(name string) string // a parameter of the path
	Query    func(name string) string
	Path     string
	May      func(verb, resource string) bool
	Liveness func(node string) Liveness
	Uses     func(node string) wire.Usage // what the node uses now; zero: not known
	HubURL   string
	Actions  []*Action
	listings map[state.Kind]Listing
	Jobs     *jobs
	Pauses   []store.Pause
	History  func(uid types.UID, from time.Time, n int) []history.Word

	Foresight preview.Rules
	audits    func(now time.Time) ([]store.Audit, error)
}

// A rendered is a view's output at a revision and a moment.
type rendered struct {
	code    int
	page    Page
	tag     string        // changes with the content; passing time alone does not change it
	whole   func() []byte // the page's main part, for a document
	event   func() *event // the same, for open pages
	rev     uint64
	touched uint64 // the value of live.touched before rendering
	at      time.Time
}

const (
	// fresh is how long a rendered view stays valid while nothing changes. Some views show times
	// that change without the fleet, such as when a node last sent something.
	fresh = time.Second
	// cached bounds the number of cached views, of up to 100 KiB each.
	cached = 64
)

// A cache renders a view once for all users who look at it.
type cache struct {
	now     func() time.Time
	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	mu sync.Mutex // held while rendering
	rendered
}

func newCache(now func() time.Time) *cache {
	return &cache{now: now, entries: map[string]*entry{}}
}

// get returns a key's view. It calls make unless the cached view has this revision, or a later one,
// and is fresh.
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

// shownQuery names the query parameter with the tag that an open page shows.
const shownQuery = "shown"

// Show answers with a view: once, or as a stream while the page is open.
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

// looks returns the key of the request's view, and a function that renders the newest state.
func (c *Call) looks(v View) (key string, look func() rendered) {
	s, asks := c.Server, c.asks()
	query := c.QueryParams()
	key = string(c.User.Role) + "\x00" + c.Request().Host + "\x00" + c.Request().URL.Path + "?" + query.Encode()
	return key, func() rendered {
		return s.cache.get(key, s.Fleet.Snapshot().Revision, s.live.touched.Load(), func() rendered {
			touched := s.live.touched.Load() // read before rendering: a later touch renders again
			return s.render(v, asks(), touched)
		})
	}
}

// JoinURLs are the addresses through which devices join, as seen from a host name of the page.
func (s *Server) JoinURLs(host string) []string {
	if s.HubURLs == nil {
		return []string{"https://" + host}
	}
	return s.HubURLs()
}

// Ask is the input of a view for this request.
func (c *Call) Ask() *Request { return c.asks()() }

// asks returns a function for the view's input at any later moment. It does not keep the HTTP
// request.
func (c *Call) asks() func() *Request {
	s, q := c.Server, Question{Role: c.User.Role, Host: c.Request().Host, Path: c.Request().URL.Path,
		Query: c.QueryParams()}
	q.Query.Del(shownQuery)
	q.names, q.values = slices.Clone(c.ParamNames()), slices.Clone(c.ParamValues())
	return func() *Request { return s.RequestFor(q) }
}

// A Question is the part of an HTTP request that a view depends on.
type Question struct {
	Role          access.Role
	Host, Path    string
	Query         url.Values
	names, values []string // parameters of the path
}

// RequestFor returns the input of a view for a question, as of now.
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
			panic(err) // the template has two texts and cannot fail
		}
	}
	r.tag = strconv.FormatUint(maphash.Bytes(tagSeed, live), 36)
	r.event = sync.OnceValue(func() *event { return newEvent("show", r.tag, live) })
	r.whole = sync.OnceValue(func() []byte {
		whole, err := s.look.whole.main(r.page)
		if err != nil {
			panic(err) // the same template has just been rendered
		}
		return whole
	})
	return r
}

// UsageTopic is watched by pages that show what a node uses.
func UsageTopic(node string) string { return "usage/" + node }

// uses is what a node uses now, if known. A device measures on request: a page that shows it sends
// the request, and is rendered again when the answer comes.
func (s *Server) uses(node string) wire.Usage {
	u, _ := s.Usage(node, func() { s.live.touch(UsageTopic(node)) })
	return u
}

const (
	// MostAudits is how many of the newest changes in the audit the views look through.
	MostAudits = 1000
	// auditsFresh is how long these records stay valid, because views are rendered far more often
	// than the database should be asked.
	auditsFresh = 5 * time.Second
	auditsWait  = 2 * time.Second // time limit for the database
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

// rows caches the rendered rows of lists, because most rows do not change between renderings.
type rows struct {
	template *template.Template
	mu       sync.Mutex
	made     map[rowKey]template.HTML
}

type rowKey struct {
	name string
	data any
}

// A row is comparable and holds everything that its template shows.
type row interface {
	Lasting() any // the row without relative times
}

// keptRows bounds the cached rows, of about 1 KiB each.
const keptRows = 4000

func (r *rows) row(name string, of row) (template.HTML, error) {
	key := rowKey{name, of.Lasting()}
	r.mu.Lock()
	made, ok := r.made[key]
	r.mu.Unlock()
	if ok {
		return made, nil
	}
	made, err := rowOf(r.template, name, key.data)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || len(r.made) >= keptRows {
		r.made = map[rowKey]template.HTML{}
	}
	r.made[key] = made
	return made, nil
}

func rowOf(t *template.Template, name string, data any) (template.HTML, error) {
	var b strings.Builder
	err := t.ExecuteTemplate(&b, name, data)
	return template.HTML(b.String()), err //nolint:gosec // rendered by html/template
}
