package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/access"
)

func (p Program) userCommand() *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "Users of the page", Args: OnlyCommands, RunE: help}
	create := &cobra.Command{Use: "create NAME", Short: "Add a user; the password is read from standard input",
		Args: exactly(1)}
	dir := dataDir(create)
	role := create.Flags().String("role", "admin", "role of the user: admin, operator or viewer")
	create.RunE = func(c *cobra.Command, args []string) error {
		r, err := access.ParseRole(*role)
		if err != nil {
			return ErrUsage{err}
		}
		return p.withPassword(c, *dir, func(ctx context.Context, d directory, password string) error {
			return d.record(ctx, "create", "users", args[0],
				d.guard.CreateUser(ctx, access.NewUser{Name: args[0], Password: password, Role: r}))
		})
	}
	passwd := &cobra.Command{Use: "passwd NAME", Short: "Set a user's password, read from standard input",
		Args: exactly(1)}
	passwdDir := dataDir(passwd)
	passwd.RunE = func(c *cobra.Command, args []string) error {
		return p.withPassword(c, *passwdDir, func(ctx context.Context, d directory, password string) error {
			return d.record(ctx, "update", "users", args[0], d.guard.SetPassword(ctx, args[0], password))
		})
	}
	list := &cobra.Command{Use: "list", Short: "List users", Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		return p.inside(c, *listDir, func(ctx context.Context, d directory) error {
			users, err := d.guard.Users(ctx)
			if err != nil {
				return err
			}
			return table(c.OutOrStdout(), "NAME\tROLE", len(users), func(w io.Writer, i int) {
				fmt.Fprintf(w, "%s\t%s\n", users[i].Name, users[i].Role)
			})
		})
	}
	remove := &cobra.Command{Use: "delete NAME", Short: "Delete a user, and end its sessions and API tokens",
		Args: exactly(1)}
	removeDir := dataDir(remove)
	remove.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *removeDir, func(ctx context.Context, d directory) error {
			return d.record(ctx, "delete", "users", args[0], d.guard.DeleteUser(ctx, args[0]))
		})
	}
	c.AddCommand(create, passwd, list, remove)
	return c
}

// withPassword reads a password and runs do with it. It first opens the database briefly, to report
// a wrong directory early. The database is closed while the command waits for input, so that the
// hub can replace it and a user can restore it.
func (p Program) withPassword(c *cobra.Command, dir string,
	do func(ctx context.Context, d directory, password string) error) error {
	if err := p.inside(c, dir, func(context.Context, directory) error { return nil }); err != nil {
		return err
	}
	password, err := readPassword(c)
	if err != nil {
		return err
	}
	return p.inside(c, dir, func(ctx context.Context, d directory) error { return do(ctx, d, password) })
}

func readPassword(c *cobra.Command) (string, error) {
	if f, ok := c.InOrStdin().(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			fmt.Fprint(c.ErrOrStderr(), "Password (visible while you type): ")
		}
	}
	line, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && line == "" {
		return "", ErrUsage{errors.New("no password on standard input")}
	}
	return strings.TrimRight(line, "\r\n"), nil
}
