package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"flotilla.dev/hub/store"
)

// Bounds of the views that people save.
const (
	MaxViews    = 20   // a person
	MaxViewName = 40   // letters
	maxViewHref = 1000 // bytes
)

// Views lists a person's saved views by name.
func (g *Guard) Views(ctx context.Context, user string) ([]store.View, error) {
	return g.Store.Views(ctx, user)
}

// SaveView keeps an address of the page under a name, in place of the one of that name.
func (g *Guard) SaveView(ctx context.Context, user string, v store.View) error {
	v.Name = strings.Join(strings.Fields(v.Name), " ")
	switch {
	case v.Name == "":
		return fmt.Errorf("%w: a view wants a name", ErrInvalid)
	case utf8.RuneCountInString(v.Name) > MaxViewName:
		return fmt.Errorf("%w: the name of a view has %d letters at most", ErrInvalid, MaxViewName)
	case !utf8.ValidString(v.Name) || strings.ContainsFunc(v.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%w: the name of a view has letters that do not show; use others", ErrInvalid)
	case len(v.Href) > maxViewHref || !strings.HasPrefix(v.Href, "/") || strings.HasPrefix(v.Href, "//"):
		return fmt.Errorf("%w: this address cannot be saved: it must be one of the page's lists, of %d letters at most",
			ErrInvalid, maxViewHref)
	}
	return g.Store.ChangeViews(ctx, user, func(have []store.View) ([]store.View, error) {
		i, found := slices.BinarySearchFunc(have, v.Name, func(h store.View, name string) int {
			return strings.Compare(h.Name, name)
		})
		switch {
		case found:
			have[i] = v
		case len(have) >= MaxViews:
			return nil, fmt.Errorf("%w: you have %d saved views, which is as many as there can be: delete one first",
				ErrConflict, MaxViews)
		default:
			have = slices.Insert(have, i, v)
		}
		return have, nil
	})
}

// DeleteView forgets a person's view; one that is gone is no error.
func (g *Guard) DeleteView(ctx context.Context, user, name string) error {
	return g.Store.ChangeViews(ctx, user, func(have []store.View) ([]store.View, error) {
		return slices.DeleteFunc(have, func(v store.View) bool { return v.Name == name }), nil
	})
}
