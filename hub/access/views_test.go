package access

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"flotilla.dev/hub/store"
)

func TestViewsAreBounded(t *testing.T) {
	g := guard(t, t.TempDir())
	ctx := t.Context()
	if err := g.CreateUser(ctx, NewUser{Name: "anna", Role: Viewer, Password: "four words are good"}); err != nil {
		t.Fatal(err)
	}
	for i := range MaxViews {
		if err := g.SaveView(ctx, "anna", store.View{Name: fmt.Sprintf("  view   %02d ", MaxViews-1-i),
			Href: "/nodes"}); err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]struct {
		view store.View
		want error
	}{
		"one view more than the limit": {store.View{Name: "more", Href: "/nodes"}, ErrConflict},
		"an existing name":             {store.View{Name: "view 07", Href: "/pods?q=x"}, nil},
		"no name":                      {store.View{Name: " ", Href: "/nodes"}, ErrInvalid},
		"a long name":                  {store.View{Name: strings.Repeat("é", MaxViewName+1), Href: "/nodes"}, ErrInvalid},
		"a name with a character that changes the text direction": {store.View{Name: "a\u202eb", Href: "/nodes"}, ErrInvalid},
		"a name that is not text":                                 {store.View{Name: "a\xff", Href: "/nodes"}, ErrInvalid},
		"another host":                                            {store.View{Name: "view 01", Href: "//evil.example/"}, ErrInvalid},
		"a scheme":                                                {store.View{Name: "view 01", Href: "javascript:alert(1)"}, ErrInvalid},
		"a long address":                                          {store.View{Name: "view 01", Href: "/nodes?q=" + strings.Repeat("x", maxViewHref)}, ErrInvalid},
	} {
		if err := g.SaveView(ctx, "anna", c.view); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	views, err := g.Views(ctx, "anna")
	if err != nil || len(views) != MaxViews || views[0].Name != "view 00" || views[7].Href != "/pods?q=x" ||
		views[1].Href != "/nodes" {
		t.Errorf("the views are %v, %v", views, err)
	}
	if err := g.DeleteView(ctx, "anna", "view 00"); err != nil {
		t.Error(err)
	}
	if views, _ := g.Views(ctx, "anna"); len(views) != MaxViews-1 || views[0].Name != "view 01" {
		t.Errorf("after a deletion the views are %v, want all others", views)
	}
}
