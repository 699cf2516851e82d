// Package manual is what the hub tells people about itself: the Markdown files of this
// folder, and the pictures in them, made into HTML, a table of contents and an index.
//
// It knows neither requests nor the look of the page: package admin serves it. What it
// says of flags, conditions, events and kinds is held to the code by tests in those rooms.
//
// A table whose first column is code has an anchor for each row: the code, and if the
// heading above it is code, too, that one's and a dot before it. So the flag --policy of
// `flotilla-hub serve` is flotilla-hub-serve.--policy, and an event FailedMount is itself.
package manual

import (
	"bytes"
	"embed"
	"fmt"
	"html"
	"io/fs"
	"path"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Files are the pages and pictures/*.svg.
//
//go:embed *.md pictures
var Files embed.FS

// First is the page that lists all others, in their order.
const First = "index"

// Root is where the pages are served: links from one to another lead below it.
const Root = "/help"

// A Manual is all of the pages. It does not change.
type Manual struct {
	Groups []Group // as the first page lists them
	pages  map[string]*Page
	order  []*Page
}

// A Group is some pages under one heading of the first page.
type Group struct {
	Title string
	Pages []*Page
}

// A Page is one Markdown file.
type Page struct {
	Name     string // of the file, without .md
	Title    string
	Body     string    // HTML, without the title
	Contents []Heading // of its second level
	Links    []string  // to other places of the manual, as the page says them: sites.md#rates, #rates
	sections []section
	anchors  map[string]bool
}

// A Heading is one of a page's.
type Heading struct{ ID, Text string }

// Has tells whether the page has such an anchor.
func (p *Page) Has(id string) bool { return p.anchors[id] }

// Entries are the anchors of the page's tables whose first column is code, in their order.
func (p *Page) Entries() (ids []string) {
	for _, s := range p.sections {
		if s.entry {
			ids = append(ids, s.ids...)
		}
	}
	return ids
}

// Load reads a manual; an error names the file and what is wrong in it.
func Load(files fs.FS) (*Manual, error) {
	m := &Manual{pages: map[string]*Page{}}
	names, err := fs.Glob(files, "*.md")
	if err != nil {
		return nil, err
	}
	md := goldmark.New(goldmark.WithExtensions(extension.Table),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(&look{files}, 100))))
	var first ast.Node
	var firstSource []byte
	for _, name := range names {
		source, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		doc := md.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext()))
		p := &Page{Name: strings.TrimSuffix(name, ".md"), anchors: map[string]bool{}}
		if err := p.read(doc, source); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var b bytes.Buffer
		if err := md.Renderer().Render(&b, source, doc); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		p.Body = b.String()
		m.pages[p.Name] = p
		if p.Name == First {
			first, firstSource = doc, source
		}
	}
	if first == nil {
		return nil, fmt.Errorf("there is no %s.md, which lists the other pages", First)
	}
	return m, m.list(first, firstSource)
}

// list finds the order of the pages: that in which the first one names them.
func (m *Manual) list(first ast.Node, source []byte) error {
	m.order = []*Page{m.pages[First]}
	seen := map[string]bool{First: true}
	for n := first.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				m.Groups = append(m.Groups, Group{Title: plain(n, source)})
			}
		case *ast.List:
			for item := n.FirstChild(); item != nil; item = item.NextSibling() {
				to := firstLink(item)
				p := m.pages[strings.TrimPrefix(strings.TrimPrefix(to, Root), "/")]
				if p == nil || seen[p.Name] || len(m.Groups) == 0 {
					return fmt.Errorf("%s.md: the entry %q must link to a page, which is there and named once, below a heading",
						First, plain(item, source))
				}
				seen[p.Name] = true
				g := &m.Groups[len(m.Groups)-1]
				g.Pages, m.order = append(g.Pages, p), append(m.order, p)
			}
		}
	}
	for name := range m.pages {
		if !seen[name] {
			return fmt.Errorf("%s.md does not list %s.md", First, name)
		}
	}
	return nil
}

func firstLink(n ast.Node) (to string) {
	_ = ast.Walk(n, func(n ast.Node, in bool) (ast.WalkStatus, error) {
		if l, ok := n.(*ast.Link); ok && in {
			to = string(l.Destination)
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})
	return to
}

// Pages are all of them, the first one first.
func (m *Manual) Pages() []*Page { return m.order }

// Page returns the page of that name, or nil.
func (m *Manual) Page(name string) *Page { return m.pages[name] }

// Href is the address of an anchor of a page, "" if there is none.
func (m *Manual) Href(page, id string) string {
	if p := m.pages[page]; p != nil && p.anchors[id] {
		return Root + "/" + page + "#" + id
	}
	return ""
}

// read takes the title off the document, and gives anchors, contents, sections and
// addresses to the rest.
func (p *Page) read(doc ast.Node, source []byte) error {
	title, ok := doc.FirstChild().(*ast.Heading)
	if !ok || title.Level != 1 {
		return fmt.Errorf("the first line is no title (# …)")
	}
	p.Title = plain(title, source)
	doc.RemoveChild(doc, title)
	p.sections = []section{{page: p, title: p.Title}}
	prefix := "" // of the rows below: the code of the heading above them
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if t, ok := n.(*ast.HTMLBlock); ok { // a comment, for programs
			next := &ast.TextBlock{}
			doc.ReplaceChild(doc, t, next)
			n = next
			continue
		}
		if h, ok := n.(*ast.Heading); ok {
			at := p.sectionOf(h, source)
			if prefix = ""; h.FirstChild() != nil && h.FirstChild().Kind() == ast.KindCodeSpan {
				prefix = idOf(plain(h.FirstChild(), source))
				at.ids = []string{prefix}
			}
			h.SetAttributeString("id", []byte(at.ids[0]))
			if err := p.anchor(at.ids[0]); err != nil {
				return err
			}
			p.sections = append(p.sections, at)
			if h.Level == 2 {
				p.Contents = append(p.Contents, Heading{at.ids[0], at.title})
			}
			continue
		}
		if err := p.block(n, source, prefix); err != nil {
			return err
		}
	}
	return p.relink(doc)
}

func (p *Page) anchor(id string) error {
	if p.anchors[id] {
		return fmt.Errorf("the anchor %s is there twice", id)
	}
	p.anchors[id] = true
	return nil
}

func (p *Page) sectionOf(h *ast.Heading, source []byte) section {
	title := plain(h, source)
	return section{page: p, title: title, ids: []string{slug(title)}}
}

// block adds what a block says to the section that it stands in, or if it is a table of
// entries makes a section of each row.
func (p *Page) block(n ast.Node, source []byte, prefix string) error {
	if n.Kind() != kindTable {
		p.sections[len(p.sections)-1].add(plain(n, source))
		return nil
	}
	above := len(p.sections) - 1
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		spans := codes(row.FirstChild(), source)
		if row.Kind() != kindRow {
			continue // the names of the columns
		}
		if len(spans) == 0 {
			p.sections[above].add(plain(row, source))
			continue
		}
		s := section{page: p, title: plain(row.FirstChild(), source), entry: true}
		for cell := row.FirstChild().NextSibling(); cell != nil; cell = cell.NextSibling() {
			s.add(plain(cell, source))
		}
		for _, span := range spans {
			id := idOf(plain(span, source))
			if prefix != "" {
				id = prefix + "." + id
			}
			if err := p.anchor(id); err != nil {
				return err
			}
			span.SetAttributeString("id", []byte(id))
			s.ids = append(s.ids, id)
		}
		p.sections = append(p.sections, s)
	}
	return nil
}

// codes are the code spans of a cell that has nothing else but what is between them.
func codes(cell ast.Node, source []byte) (spans []ast.Node) {
	for n := cell.FirstChild(); n != nil; n = n.NextSibling() {
		switch {
		case n.Kind() == ast.KindCodeSpan:
			spans = append(spans, n)
		case strings.Trim(plain(n, source), " ,") != "":
			return nil
		}
	}
	return spans
}

// relink has the links that lead to another file lead to its page.
func (p *Page) relink(doc ast.Node) error {
	return ast.Walk(doc, func(n ast.Node, in bool) (ast.WalkStatus, error) {
		l, ok := n.(*ast.Link)
		if !ok || !in || strings.Contains(string(l.Destination), "://") || strings.HasPrefix(string(l.Destination), "/") {
			return ast.WalkContinue, nil
		}
		to := string(l.Destination)
		p.Links = append(p.Links, to)
		file, id, has := strings.Cut(to, "#")
		if file == "" {
			return ast.WalkContinue, nil
		}
		name, isPage := strings.CutSuffix(file, ".md")
		if !isPage || path.Base(name) != name {
			return ast.WalkStop, fmt.Errorf("the link to %s leads out of the manual: write the whole address", to)
		}
		if to = Root + "/" + name; name == First {
			to = Root
		}
		if has {
			to += "#" + id
		}
		l.Destination = []byte(to)
		return ast.WalkContinue, nil
	})
}

// slug is the anchor of a heading of words.
func slug(title string) string {
	words := strings.FieldsFunc(strings.ToLower(title), func(r rune) bool {
		return r < '0' || r > '9' && r < 'a' || r > 'z' && r < 0x80
	})
	return strings.Join(words, "-")
}

// idOf is the anchor of code.
func idOf(code string) string { return strings.Join(strings.Fields(code), "-") }

// plain is what a node says, without how.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, in bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if in {
				b.Write(n.Segment.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.String:
			if in {
				b.Write(n.Value)
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			for i := 0; in && i < n.Lines().Len(); i++ {
				line := n.Lines().At(i)
				b.Write(line.Value(source))
			}
		default:
			if !in && n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.TrimSpace(html.UnescapeString(b.String()))
}
