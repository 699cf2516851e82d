package frame

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/web"
)

// Troubled tells whether a row with this status also shows its cause.
func (p Pill) Troubled() bool { return p.Kind == "bad" || p.Kind == "warn" }

// Rank orders kinds of pills, the worst first.
func Rank(kind string) int { return slices.Index([]string{"bad", "warn", "idle", "ok"}, kind) }

// A Page is the output of a view.
type Page struct {
	Template string
	Title    string
	Tab      string   // the icon in the browser's tab: bad, warn, or "" for the normal one
	Watch    []string // topics that change the page; none: the page is not live
	Poll     int      // seconds until the page is rendered again anyway; 0: never
	Again    int      // seconds until a browser without scripts reloads; 0: never
	Data     any
}

// A Pill is a status: a word with a shape and a colour.
type Pill struct {
	Kind string // ok, warn, bad, idle
	Text string
}

// look is the embedded templates and static files.
type look struct {
	whole  templates             // for documents
	live   templates             // for live updates; see format.TemplateFuncs
	static map[string]staticFile // by their path below static
	name   string                // hash of everything: a page of another version reloads
	named  *event                // the event that sends name
	rows   rows
}

type staticFile struct {
	body      []byte
	mediaType string
	version   string
	small     func() []byte // compressed at the first request
}

func newStaticFile(ext string, body []byte) staticFile {
	sum := sha256.Sum256(body)
	f := staticFile{body: body, mediaType: mime.TypeByExtension(ext), version: hex.EncodeToString(sum[:6])}
	if f.mediaType == "" {
		f.mediaType = "text/plain; charset=utf-8" // licences
	}
	f.small = sync.OnceValue(func() []byte { return smallest(body) })
	return f
}

func newLook() *look {
	l := &look{static: map[string]staticFile{}}
	all := sha256.New()
	if err := fs.WalkDir(web.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := web.Files.ReadFile(name)
		if err != nil {
			return err
		}
		_, _ = all.Write(body) // a hash never fails
		if below, ok := strings.CutPrefix(name, "static/"); ok {
			l.static[below] = newStaticFile(path.Ext(name), body)
		}
		return nil
	}); err != nil {
		panic(err)
	}
	l.name = hex.EncodeToString(all.Sum(nil)[:6])
	l.named = newEvent("look", "", []byte(l.name))
	l.live = l.parse(format.TemplateFuncs(false), template.FuncMap{"row": l.rows.row})
	l.rows.template = l.live.set
	l.whole = l.parse(format.TemplateFuncs(true),
		template.FuncMap{"row": func(name string, of row) (template.HTML, error) {
			return rowOf(l.whole.set, name, of)
		}})
	return l
}

// templates is one set for all pages. A page's main part has the page's name; what it adds to the
// head has that name and "-head".
type templates struct{ set *template.Template }

func (l *look) parse(funcs ...template.FuncMap) templates {
	set := template.New("").Funcs(template.FuncMap{"static": l.staticURL, "iso": format.ISO, "plural": format.Plural,
		"list": func(v ...any) []any { return v }, "help": HelpURL, "lower": strings.ToLower, "plain": format.Plain,
		"minus": func(a, b int) int { return a - b }})
	for _, f := range funcs {
		set.Funcs(f)
	}
	return templates{template.Must(set.ParseFS(web.Files, "templates/*.html"))}
}

// staticURL is the address of a static file with its version, so that browsers may cache it for
// ever.
func (l *look) staticURL(name string) (string, error) {
	f, ok := l.static[name]
	if !ok {
		return "", fmt.Errorf("no static file %s", name)
	}
	return "/static/" + name + "?v=" + f.version, nil
}

// ServeStatic answers with a static file.
func (c *Call) ServeStatic() error {
	f, ok := c.look.static[c.Param("*")]
	if !ok {
		return c.notFound()
	}
	h := c.Response().Header()
	if c.QueryParam("v") == f.version {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	h.Set("Vary", "Accept-Encoding")
	if strings.Contains(c.Request().Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		return c.Blob(http.StatusOK, f.mediaType, f.small())
	}
	return c.Blob(http.StatusOK, f.mediaType, f.body)
}

// main renders a page's main part.
func (t templates) main(p Page) ([]byte, error) {
	var b bytes.Buffer
	if err := t.set.ExecuteTemplate(&b, p.Template, p.Data); err != nil {
		return nil, fmt.Errorf("render %s: %w", p.Template, err)
	}
	return visibly(b.Bytes()), nil
}

// frame renders the document around a main part.
func (t templates) frame(f frame) ([]byte, error) {
	var b bytes.Buffer
	if name := f.Template + "-head"; t.set.Lookup(name) != nil {
		if err := t.set.ExecuteTemplate(&b, name, f); err != nil {
			return nil, err
		}
		f.Head = template.HTML(b.String()) //nolint:gosec // rendered by html/template
		b.Reset()
	}
	err := t.set.ExecuteTemplate(&b, "layout", f)
	return b.Bytes(), err
}

// hides tells whether a character makes a text look like another: it has no width, or changes the
// direction of writing.
func hides(r rune) bool {
	return r > 0x7f && (unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029')
}

// Visible replaces characters that hide text, and carriage returns, which end a line of an event
// stream.
func Visible(r rune) rune {
	switch {
	case r == '\r':
		return ' '
	case hides(r):
		return '\ufffd'
	}
	return r
}

// fields delimit the values of a form that the browser sends back. The values contain neither
// quotation marks nor <.
var fields = [][2][]byte{{[]byte(` value="`), []byte(`"`)}, {[]byte("<textarea"), []byte("</textarea>")}}

// visibly marks characters that hide text. In a form's values it keeps them, because they are sent
// back: emojis and many scripts need them.
func visibly(b []byte) (out []byte) {
	if !bytes.ContainsFunc(b, hides) {
		return bytes.Map(Visible, b)
	}
	for len(b) > 0 {
		from, to := len(b), len(b)
		for _, f := range fields {
			if i := bytes.Index(b[:from], f[0]); i >= 0 {
				from, to = i, len(b)
				if n := bytes.Index(b[i+len(f[0]):], f[1]); n >= 0 {
					to = i + len(f[0]) + n
				}
			}
		}
		out = append(out, bytes.Map(Visible, b[:from])...)
		for _, r := range string(b[from:to]) {
			if hides(r) {
				out = fmt.Appendf(out, "&#%d;", r)
			} else {
				out = utf8.AppendRune(out, Visible(r))
			}
		}
		b = b[to:]
	}
	return out
}

// A frame is the data of the document around a main part.
type frame struct {
	Page
	Head    template.HTML
	Main    template.HTML
	Tag     string
	Look    string
	Now     time.Time
	User    access.User
	Version string
	Hubs    string // which hub leads, and which stand by
	Path    string
	More    []navLink
	Saved   *savedViews // saved views of a list
}

// A navLink is an entry of the navigation.
type navLink struct{ Name, Href string }

// Here tells whether the page belongs to an entry of the navigation.
func (f frame) Here(prefix string) bool {
	return f.Path == prefix || prefix != "/" && strings.HasPrefix(f.Path, prefix)
}

// wrap answers with a rendered page in its document.
func (c *Call) wrap(code int, r rendered) error {
	c.Response().Header().Set("Vary", "Accept, Accept-Encoding")
	f := frame{
		//nolint:gosec // rendered by html/template
		Page: r.page, Main: template.HTML(r.whole()), Tag: r.tag, Look: c.look.name, Now: r.at,
		User: c.User, Version: c.Version, Path: c.Request().URL.Path,
	}
	for _, p := range pagesBehind {
		if c.User.Name != "" && c.Allow(c.User.Role, p.verb, p.resource) {
			f.More = append(f.More, p.navLink)
		}
	}
	if c.User.Name != "" {
		f.Hubs = hubsSaid(c.Members(c.Request().Context()))
	}
	f.Saved = c.savedViews(code)
	whole, err := c.look.whole.frame(f)
	if err != nil {
		c.Log.Error("page failed", "path", f.Path, "err", err)
		return c.String(http.StatusInternalServerError, "The page could not be made; the hub's log says why.")
	}
	return c.html(code, whole)
}

// minCompressed is the least size, in bytes, that is compressed.
const minCompressed = 1400

// html answers with HTML, compressed if the browser accepts that. Compression could reveal the
// form's token to a site that makes the browser send requests; the session's cookie is SameSite, so
// no other site can.
func (c *Call) html(code int, body []byte) error {
	if len(body) < minCompressed || !strings.Contains(c.Request().Header.Get("Accept-Encoding"), "gzip") {
		return c.HTMLBlob(code, body)
	}
	c.Response().Header().Set("Content-Encoding", "gzip")
	return c.HTMLBlob(code, compressed(body))
}

// smallest compresses a static file.
func smallest(body []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	_, _ = z.Write(body)                                  // nothing fails in memory
	_ = z.Close()
	return b.Bytes()
}

// compressed returns the gzip of a page.
func compressed(body []byte) []byte {
	var b bytes.Buffer
	z, _ := fastWriters.Get().(*gzip.Writer)
	defer fastWriters.Put(z)
	z.Reset(&b)
	_, _ = z.Write(body)
	_ = z.Close()
	return b.Bytes()
}

// fastWriters compress pages. A new writer takes a megabyte, so a flood of requests must reuse
// them.
var fastWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	return z
}}

// ShowPage answers with a page that is not live.
func (c *Call) ShowPage(code int, p Page) error {
	whole, err := c.look.whole.main(p)
	if err != nil {
		c.Log.Error("page failed", "path", c.Request().URL.Path, "err", err)
		return c.String(http.StatusInternalServerError, "The page could not be made; the hub's log says why.")
	}
	return c.wrap(code, rendered{page: p, whole: func() []byte { return whole }, at: c.Now()})
}

type messageData struct {
	Title, Text string
	Back, List  string // the list that the address belongs to, and its name; "": it belongs to none
}

// Message answers with one sentence.
func (c *Call) Message(code int, title, text string) error {
	return c.ShowPage(code, Page{Template: "message", Title: title,
		Data: messageOf(code, title, text, c.Request().URL.Path)})
}

// lists names the lists that a message leads back to.
var lists = map[string]string{"/nodes": "All nodes", "/pods": "All pods", "/workloads": "All workloads",
	"/sites": "All sites", "/events": "All events", "/incidents": "All incidents", "/audit": "All of the audit",
	"/rollouts": "All boot configurations", "/agents": "All agents", "/help": "The manual", "/actions": "Actions"}

// messageOf leads back to the list above an address where something is missing or not understood.
func messageOf(code int, title, text, path string) messageData {
	d := messageData{Title: title, Text: text}
	list, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if name := lists["/"+list]; name != "" && (code == http.StatusNotFound || code == http.StatusBadRequest) {
		d.Back, d.List = "/"+list, name
	}
	return d
}
