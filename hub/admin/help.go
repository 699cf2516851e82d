package admin

import (
	"cmp"
	"html/template"
	"net/http"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/web/manual"
)

// mostFound bounds the results of a search in the manual.
const mostFound = 40

type helpData struct {
	Page     *manual.Page
	Body     template.HTML
	Groups   []manual.Group
	Asked    bool
	Question string
	Found    []manual.Found
	Next     *manual.Page
	Root     string
}

// help shows a page of the manual, or the results of a search.
func help(c *frame.Call) error {
	m := frame.Handbook()
	name := cmp.Or(c.Param("page"), manual.First)
	d := helpData{Page: m.Page(name), Groups: m.Groups, Root: manual.Root}
	if d.Page == nil {
		return c.Message(http.StatusNotFound, "Nothing here", "The manual has no page “"+name+"”.")
	}
	title := d.Page.Title
	if _, d.Asked = c.QueryParams()["q"]; d.Asked {
		d.Question = c.QueryParam("q")
		d.Question = d.Question[:min(len(d.Question), manual.MaxQuery)]
		d.Found = m.Find(d.Question, mostFound)
		title = "Search of the manual"
	} else {
		d.Body = template.HTML(d.Page.Body) //nolint:gosec // of files that are built in
		for i, p := range m.Pages() {
			if p == d.Page && i+1 < len(m.Pages()) {
				d.Next = m.Pages()[i+1]
			}
		}
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "help", Title: title, Data: d})
}
