package manual

import (
	"fmt"
	"html"
	"io/fs"
	"strings"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

var (
	kindTable = extast.KindTable
	kindRow   = extast.KindTableRow
)

// An htmlRenderer renders tables like the page's other tables, whose rows become cards on a phone,
// and inlines pictures, so that the page's style sheet colours them.
type htmlRenderer struct{ files fs.FS }

func (r *htmlRenderer) RegisterFuncs(to renderer.NodeRendererFuncRegisterer) {
	to.Register(extast.KindTable, tags(`<table class="rows">`, "</tbody></table>\n"))
	to.Register(extast.KindTableHeader, tags("<thead><tr>", "</tr></thead>\n<tbody>"))
	to.Register(extast.KindTableRow, tags("<tr>", "</tr>\n"))
	to.Register(extast.KindTableCell, cell)
	to.Register(ast.KindImage, r.picture)
	to.Register(ast.KindFencedCodeBlock, code)
}

func tags(before, after string) renderer.NodeRendererFunc {
	return func(w util.BufWriter, _ []byte, _ ast.Node, in bool) (ast.WalkStatus, error) {
		tag := after
		if in {
			tag = before
		}
		_, err := w.WriteString(tag)
		return ast.WalkContinue, err
	}
}

// cell renders a row's first cell as its heading, and labels the others with their column's name.
func cell(w util.BufWriter, source []byte, n ast.Node, in bool) (ast.WalkStatus, error) {
	head := n.Parent().Kind() == extast.KindTableHeader
	tag, with := "td", ""
	switch {
	case head:
		tag = "th"
	case n.PreviousSibling() == nil:
		tag, with = "th", ` scope="row"`
	default:
		if name := plainText(column(n), source); name != "" {
			with = fmt.Sprintf(` data-label="%s"`, html.EscapeString(name))
		}
	}
	if !in {
		_, err := fmt.Fprintf(w, "</%s>", tag)
		return ast.WalkContinue, err
	}
	_, err := fmt.Fprintf(w, "<%s%s>", tag, with)
	return ast.WalkContinue, err
}

// column returns the heading of the cell's column.
func column(n ast.Node) ast.Node {
	at := n.Parent().Parent().FirstChild().FirstChild()
	for n = n.PreviousSibling(); n != nil; n = n.PreviousSibling() {
		at = at.NextSibling()
	}
	return at
}

// picture inlines an SVG file; screen readers read its description.
func (r *htmlRenderer) picture(w util.BufWriter, source []byte, n ast.Node, in bool) (ast.WalkStatus, error) {
	if !in {
		return ast.WalkContinue, nil
	}
	image, _ := n.(*ast.Image)
	body, err := fs.ReadFile(r.files, string(image.Destination))
	if err != nil {
		return ast.WalkStop, fmt.Errorf("picture: %w", err)
	}
	svg, isSVG := strings.CutPrefix(string(body), "<svg ")
	if !isSVG {
		return ast.WalkStop, fmt.Errorf("picture %s does not begin with <svg", image.Destination)
	}
	_, err = fmt.Fprintf(w, `<span class="picture" tabindex="0"><svg role="img" aria-label="%s" %s</span>`,
		html.EscapeString(plainText(n, source)), svg)
	return ast.WalkSkipChildren, err
}

// code renders a code block with tabindex, so that the keyboard can scroll it.
func code(w util.BufWriter, source []byte, n ast.Node, in bool) (ast.WalkStatus, error) {
	if in {
		_, err := fmt.Fprintf(w, "<pre tabindex=\"0\"><code>%s</code></pre>\n",
			html.EscapeString(string(n.Lines().Value(source))))
		return ast.WalkSkipChildren, err
	}
	return ast.WalkContinue, nil
}
