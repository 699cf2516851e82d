// Package manual makes the hub's manual, the Markdown files and pictures of this folder, into HTML
// pages, a table of contents and a search index.
//
// It serves no requests and does not style the page: package admin does. Tests of hub and hub/cli
// compare its flags, conditions, events and kinds with the code.
//
// If a table's first column is code, each row has an anchor: the code, after the code of the
// heading above it and a dot, if that heading begins with code. So the flag --policy of
// `flotilla-hub serve` is flotilla-hub-serve.--policy, and the event FailedMount is FailedMount.
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

// First is the page that lists all other pages in their order.
const First = "index"

// Root is the address of the first page; the others are below it.
const Root = "/help"

// A Manual contains all pages. It is immutable.
type Manual struct {
	Groups []Group // in the first page's order
	pages  map[string]*Page
	order  []*Page
}

// A Group is the pages under one heading of the first page.
type Group struct {
	Title string
	Pages []*Page
}

// A Page is one Markdown file.
type Page struct {
	Name     string // file name without .md
	Title    string
	Body     string    // HTML without the title
	Contents []Heading // headings of the second level
	Links    []string  // to other places of the manual, as written: sites.md#rates, #rates
	sections []section
	anchors  map[string]bool
}

// A Heading is a heading of a page and its anchor.
type Heading struct{ ID, Text string }

// Has reports whether the page has the anchor.
func (p *Page) Has(id string) bool { return p.anchors[id] }

// Entries returns the anchors of the rows of the page's tables, in order.
func (p *Page) Entries() (ids []string) {
	for _, s := range p.sections {
		if s.entry {
			ids = append(ids, s.ids...)
		}
	}
	return ids
}

// Load parses the pages; an error names the file.
func Load(files fs.FS) (*Manual, error) {
	m := &Manual{pages: map[string]*Page{}}
	names, err := fs.Glob(files, "*.md")
	if err != nil {
		return nil, err
	}
	md := goldmark.New(goldmark.WithExtensions(extension.Table),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(&htmlRenderer{files}, 100))))
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
		return nil, fmt.Errorf("%s.md, which lists the other pages, is missing", First)
	}
	return m, m.list(first, firstSource)
}

// list orders the pages as the first page lists them.
func (m *Manual) list(first ast.Node, source []byte) error {
	m.order = []*Page{m.pages[First]}
	seen := map[string]bool{First: true}
	for n := first.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				m.Groups = append(m.Groups, Group{Title: plainText(n, source)})
			}
		case *ast.List:
			for item := n.FirstChild(); item != nil; item = item.NextSibling() {
				to := firstLink(item)
				p := m.pages[strings.TrimPrefix(strings.TrimPrefix(to, Root), "/")]
				if p == nil || seen[p.Name] || len(m.Groups) == 0 {
					return fmt.Errorf("%s.md: the entry %q must stand below a heading and link to a page that exists "+
						"and is listed once", First, plainText(item, source))
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

// Pages returns all pages, the first one first.
func (m *Manual) Pages() []*Page { return m.order }

// Page returns the page of that name, or nil.
func (m *Manual) Page(name string) *Page { return m.pages[name] }

// Href returns the address of a page's anchor, or "".
func (m *Manual) Href(page, id string) string {
	if p := m.pages[page]; p != nil && p.anchors[id] {
		return Root + "/" + page + "#" + id
	}
	return ""
}

// read removes the title from the document, and adds anchors, contents, sections and links.
func (p *Page) read(doc ast.Node, source []byte) error {
	title, ok := doc.FirstChild().(*ast.Heading)
	if !ok || title.Level != 1 {
		return fmt.Errorf("the first line is not a title (# …)")
	}
	p.Title = plainText(title, source)
	doc.RemoveChild(doc, title)
	p.sections = []section{{page: p, title: p.Title}}
	prefix := "" // the code of the heading above the table rows
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if t, ok := n.(*ast.HTMLBlock); ok { // a comment that marks a generated part
			next := &ast.TextBlock{}
			doc.ReplaceChild(doc, t, next)
			n = next
			continue
		}
		if h, ok := n.(*ast.Heading); ok {
			at := p.sectionOf(h, source)
			if prefix = ""; h.FirstChild() != nil && h.FirstChild().Kind() == ast.KindCodeSpan {
				prefix = codeID(plainText(h.FirstChild(), source))
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
	title := plainText(h, source)
	return section{page: p, title: title, ids: []string{slug(title)}}
}

// block adds a block's text to its section; of a table of entries each row becomes a section.
func (p *Page) block(n ast.Node, source []byte, prefix string) error {
	if n.Kind() != kindTable {
		p.sections[len(p.sections)-1].add(plainText(n, source))
		return nil
	}
	above := len(p.sections) - 1
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		spans := codes(row.FirstChild(), source)
		if row.Kind() != kindRow {
			continue // the row of column names
		}
		if len(spans) == 0 {
			p.sections[above].add(plainText(row, source))
			continue
		}
		s := section{page: p, title: plainText(row.FirstChild(), source), entry: true}
		for cell := row.FirstChild().NextSibling(); cell != nil; cell = cell.NextSibling() {
			s.add(plainText(cell, source))
		}
		for _, span := range spans {
			id := codeID(plainText(span, source))
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

// codes returns the code spans of a cell that contains only code, or nil.
func codes(cell ast.Node, source []byte) (spans []ast.Node) {
	for n := cell.FirstChild(); n != nil; n = n.NextSibling() {
		switch {
		case n.Kind() == ast.KindCodeSpan:
			spans = append(spans, n)
		case strings.Trim(plainText(n, source), " ,") != "":
			return nil
		}
	}
	return spans
}

// relink turns links to other files into links to their pages.
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
			return ast.WalkStop, fmt.Errorf("the link to %s leads out of the manual: use a complete URL", to)
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

// slug is the anchor of a heading.
func slug(title string) string {
	words := strings.FieldsFunc(strings.ToLower(title), func(r rune) bool {
		return r < '0' || r > '9' && r < 'a' || r > 'z' && r < 0x80
	})
	return strings.Join(words, "-")
}

// codeID is the anchor of a piece of code.
func codeID(code string) string { return strings.Join(strings.Fields(code), "-") }

// plainText returns a node's text without markup.
func plainText(n ast.Node, source []byte) string {
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
