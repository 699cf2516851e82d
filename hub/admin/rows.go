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
	data any // a value that can be compared, and is all that the row shows
}

// keptRows bounds the rows that are kept, of about 1 KiB each.
const keptRows = 4000

func (r *rows) row(name string, data any) (template.HTML, error) {
	key := rowKey{name, data}
	r.mu.Lock()
	made, ok := r.made[key]
	r.mu.Unlock()
	if ok {
		return made, nil
	}
	var b strings.Builder
	if err := r.template.ExecuteTemplate(&b, name, data); err != nil {
		return "", err
	}
	made = template.HTML(b.String()) //nolint:gosec // rendered by html/template
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || len(r.made) >= keptRows {
		r.made = map[rowKey]template.HTML{}
	}
	r.made[key] = made
	return made, nil
}
