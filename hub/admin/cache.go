package admin

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"sync"
	"time"

	"flotilla.dev/hub/state"
)

// A view is one page: from a snapshot and what was asked to what is shown. What it
// shows depends on the role, never on the person: people share it.
type view func(*ask) (page, error)

// An ask is what a view may look at.
type ask struct {
	state.Snapshot
	now      time.Time
	param    func(name string) string // of the path
	query    func(name string) string
	path     string
	may      func(verb, resource string) bool
	liveness func(node string) Liveness
	hubURL   string
	actions  []*action
	jobs     *jobs
}

// rendered is a fragment, and the revision and moment that it shows.
type rendered struct {
	page  page
	body  []byte
	small func() []byte // compressed, once somebody asks; nil: not worth it
	rev   uint64
	at    time.Time
}

const (
	// fresh is how long a fragment is good for whoever does not know of anything newer.
	fresh = time.Second
	// cached bounds the number of fragments that are kept, of up to 100 KiB each.
	cached = 64
)

// A cache lets fifty people who look at one page cost one rendering of it.
type cache struct {
	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	mu sync.Mutex // held while it is rendered
	rendered
}

func newCache() *cache { return &cache{entries: map[string]*entry{}} }

// get returns the fragment of a key that shows the revision wanted or a later
// one, made by make unless somebody has just made it.
func (c *cache) get(key string, wanted uint64, make func() (rendered, error)) (rendered, error) {
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
	if e.body != nil && e.rev >= wanted && time.Since(e.at) < fresh {
		return e.rendered, nil
	}
	r, err := make()
	if err == nil {
		e.rendered = r
	}
	return r, err
}

// show answers with a view.
func (c *call) show(v view) error {
	// Whoever was told a revision must see it; whoever just opens the page, the newest.
	wanted, err := strconv.ParseUint(c.Request().Header.Get(fragmentHeader), 10, 64)
	if err != nil {
		wanted = c.Fleet.Snapshot().Revision
	}
	key := c.user.Role + "\x00" + strconv.FormatUint(c.live.touched.Load(), 10) + "\x00" + c.Request().Host + "\x00" + c.Request().URL.RequestURI()
	r, err := c.cache.get(key, wanted, func() (rendered, error) { return c.render(v) })
	if err != nil {
		return c.refuse("Not found", err)
	}
	return c.wrap(http.StatusOK, r)
}

// showNow answers with a view that shows more than the fleet, and so is not kept.
func (c *call) showNow(v view) error {
	r, err := c.render(v)
	if err != nil {
		return c.refuse("Not found", err)
	}
	return c.wrap(http.StatusOK, r)
}

// ask is what the request asks of a view.
func (c *call) ask() *ask {
	hubURL := c.HubURL
	if hubURL == "" {
		hubURL = "https://" + c.Request().Host
	}
	return &ask{
		Snapshot: c.Fleet.Snapshot(), now: time.Now(), param: c.Param, query: c.QueryParam, path: c.Request().URL.Path,
		may: func(verb, resource string) bool { return c.Allow(c.user.Role, verb, resource) }, liveness: c.Liveness, hubURL: hubURL,
		actions: c.actions, jobs: c.jobs,
	}
}

func (c *call) render(v view) (rendered, error) {
	a := c.ask()
	p, err := v(a)
	if err != nil {
		return rendered{}, err
	}
	body, err := c.look.fragment(p)
	small := sync.OnceValue(func() []byte { return compressed(body, gzip.DefaultCompression) })
	return rendered{page: p, body: body, small: small, rev: a.Revision, at: a.now}, err
}
