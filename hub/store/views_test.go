package store

import (
	"errors"
	"slices"
	"testing"
)

func TestViewsBelongToAUser(t *testing.T) {
	s := openIn(t, t.TempDir())
	ctx := t.Context()
	for _, name := range []string{"anna", "bo"} {
		must(t, s.AddUser(ctx, User{Name: name, Role: "viewer", Created: noon}))
	}
	add := func(v View) func([]View) ([]View, error) {
		return func(have []View) ([]View, error) { return append(have, v), nil }
	}
	must(t, s.ChangeViews(ctx, "anna", add(View{"dark", "/nodes?q=status:unknown"})))
	must(t, s.ChangeViews(ctx, "anna", add(View{"oslo", "/pods?q=site:oslo"})))
	if err := s.ChangeViews(ctx, "anna", func([]View) ([]View, error) { return nil, errors.New("no") }); err == nil {
		t.Error("a refused change is stored")
	}
	if err := s.ChangeViews(ctx, "nobody", add(View{"x", "/"})); !errors.Is(err, ErrNotFound) {
		t.Errorf("views of an unknown user: %v", err)
	}
	want := []View{{"dark", "/nodes?q=status:unknown"}, {"oslo", "/pods?q=site:oslo"}}
	if got, err := s.Views(ctx, "anna"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if got, err := s.Views(ctx, "bo"); err != nil || len(got) != 0 {
		t.Errorf("views of another user: %v, %v", got, err)
	}
	must(t, s.DeleteUser(ctx, "anna", noon))
	must(t, s.AddUser(ctx, User{Name: "anna", Role: "viewer", Created: noon}))
	if got, err := s.Views(ctx, "anna"); err != nil || len(got) != 0 {
		t.Errorf("views of a new user of that name: %v, %v", got, err)
	}
}
