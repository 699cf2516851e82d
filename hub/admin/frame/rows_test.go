package frame

import (
	"crypto/rand"
	"html/template"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/format"
)

type testRow struct {
	Name string
	Age  format.Moment
}

func (r testRow) Lasting() any {
	r.Age = r.Age.Lasting()
	return r
}

// Rows with equal data are rendered once.
func TestRowsAreKept(t *testing.T) {
	kept := rows{template: template.Must(template.New("").Parse(`{{define "row"}}<td>{{.Name}}</td>{{end}}`))}
	row := func(r testRow) string {
		made, err := kept.row("row", r)
		if err != nil {
			t.Fatal(err)
		}
		return string(made)
	}
	one := testRow{Name: "one", Age: format.Moment{At: "2026-11-20T12:00:00Z", Ago: "5m"}}
	first := row(one)
	for range keptRows + 10 { // more than fit the cache
		other := one
		other.Name = rand.Text()
		if got := row(other); !strings.Contains(got, other.Name) || strings.Contains(got, ">one<") {
			t.Fatalf("the row of %s is %s", other.Name, got)
		}
	}
	if again := row(one); again != first || len(kept.made) > keptRows {
		t.Errorf("%s has become %s; %d rows are kept", first, again, len(kept.made))
	}
}
