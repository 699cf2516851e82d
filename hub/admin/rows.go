package admin

import (
	"html/template"
	"strings"
	"sync"
)

// rows keeps the rows of the lists as they were rendered: of a list that is rendered
// again most are as they were.
type rows struct {
	template *template.Template
	mu       sync.Mutex
	made     map[rowKey]template.HTML
}

type rowKey struct {
	name string
	data any
}

// A row can be compared, and is all that its row shows.
type row interface {
	lasting() any // the same without the words of its times
}

// keptRows bounds the rows that are kept, of about 1 KiB each.
const keptRows = 4000

func (r *rows) row(name string, of row) (template.HTML, error) {
	key := rowKey{name, of.lasting()}
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
