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

// Limits of saved views.
const (
	MaxViews    = 20   // per user
	MaxViewName = 40   // characters
	maxViewHref = 1000 // bytes
)

// Views lists a user's saved views by name.
func (g *Guard) Views(ctx context.Context, user string) ([]store.View, error) {
	return g.Store.Views(ctx, user)
}

// SaveView saves a URL of the page under a name. It replaces an earlier view with that name.
func (g *Guard) SaveView(ctx context.Context, user string, v store.View) error {
	v.Name = strings.Join(strings.Fields(v.Name), " ")
	switch {
	case v.Name == "":
		return fmt.Errorf("%w: a view needs a name", ErrInvalid)
	case utf8.RuneCountInString(v.Name) > MaxViewName:
		return fmt.Errorf("%w: the name of a view has at most %d characters", ErrInvalid, MaxViewName)
	case !utf8.ValidString(v.Name) || strings.ContainsFunc(v.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%w: the name of a view has invisible characters; remove them", ErrInvalid)
	case len(v.Href) > maxViewHref || !strings.HasPrefix(v.Href, "/") || strings.HasPrefix(v.Href, "//"):
		return fmt.Errorf("%w: this URL cannot be saved; use one of the page's lists, of at most %d characters",
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
			return nil, fmt.Errorf("%w: you have %d saved views, the limit; delete one first",
				ErrConflict, MaxViews)
		default:
			have = slices.Insert(have, i, v)
		}
		return have, nil
	})
}

// DeleteView deletes a user's view. An unknown name is not an error.
func (g *Guard) DeleteView(ctx context.Context, user, name string) error {
	return g.Store.ChangeViews(ctx, user, func(have []store.View) ([]store.View, error) {
		return slices.DeleteFunc(have, func(v store.View) bool { return v.Name == name }), nil
	})
}
