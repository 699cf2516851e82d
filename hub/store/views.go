package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

// A View is an address on the page that a person has given a name.
type View struct {
	Name string `json:"name"`
	Href string `json:"href"`
}

// viewsOf is the key in meta of a person's views.
func viewsOf(user string) string { return "views of " + user }

// LoginsOf is the key in meta of the networks from which a person has logged in.
func LoginsOf(user string) string { return "logins " + user }

// Views lists a person's saved views, as ChangeViews left them.
func (s *Store) Views(ctx context.Context, user string) (views []View, err error) {
	text, err := s.Meta(ctx, viewsOf(user))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &views)
	}
	if err != nil {
		return nil, fmt.Errorf("read the saved views of %s: %w", user, err)
	}
	return views, nil
}

// ChangeViews replaces a person's views by what change makes of them, or leaves them with its
// error. ErrNotFound: there is no such person. Views go with the person.
func (s *Store) ChangeViews(ctx context.Context, user string, change func([]View) ([]View, error)) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		var text sql.NullString
		err := c.QueryRowContext(ctx, "SELECT m.value FROM users u LEFT JOIN meta m ON m.key = ? WHERE u.name = ?", viewsOf(user), user).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("user %s: %w", user, ErrNotFound)
		}
		if err != nil {
			return err
		}
		var views []View
		if text.Valid {
			if err := json.Unmarshal([]byte(text.String), &views); err != nil {
				return fmt.Errorf("read the saved views of %s: %w", user, err)
			}
		}
		if views, err = change(views); err != nil {
			return err
		}
		now, err := json.Marshal(views)
		if err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, setMeta, viewsOf(user), string(now))
		return err
	})
}
