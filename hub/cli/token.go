package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/access"
)

func (p Program) tokenCommand() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Tokens for devices that join", Args: OnlyCommands, RunE: help}
	create := &cobra.Command{Use: "create", Short: "Create a join token and print the command for the device",
		Args: exactly(0)}
	dir := dataDir(create)
	n := access.NewJoinToken{By: "command line"}
	f := create.Flags()
	f.StringVar(&n.Site, "site", "", "site of the devices that join with this token (required)")
	f.StringVar(&n.Node, "node", "", "name of the only node that may join with this token, new or replaced (default any)")
	f.IntVar(&n.Uses, "uses", 1, "number of devices that may join with this token")
	f.DurationVar(&n.Life, "ttl", 24*time.Hour, "lifetime of this token")
	f.BoolVar(&n.Approval, "require-approval", false,
		"devices that join with this token wait for an administrator's approval")
	f.StringToStringVar(&n.Labels, "label", nil, "label k=v of nodes that join with this token (can be repeated)")
	create.RunE = func(c *cobra.Command, _ []string) error {
		if n.Site == "" {
			return ErrUsage{errors.New("--site is missing; write the site of the devices, such as --site oslo")}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			t, err := d.guard.CreateJoinToken(ctx, n)
			if err = d.record(ctx, "create", "jointokens", t.ID, err); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), access.JoinLine(d.urls, t))
			return err
		})
	}
	list := &cobra.Command{Use: "list", Short: "List join tokens, without their secrets", Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		return p.inside(c, *listDir, func(ctx context.Context, d directory) error {
			tokens, err := d.guard.JoinTokens(ctx)
			if err != nil {
				return err
			}
			return table(c.OutOrStdout(), "ID\tSITE\tNODE\tUSED\tENDS\tAPPROVAL\tSTATE", len(tokens), func(w io.Writer, i int) {
				t := tokens[i]
				state := "good"
				switch {
				case !t.Revoked.IsZero():
					state = "revoked"
				case d.guard.Now().After(t.Expires):
					state = "ended"
				case t.Used >= t.Uses:
					state = "used up"
				}
				approval := "none"
				if t.Approval {
					approval = "required"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\n", t.ID, t.Site, orAny(t.Node), t.Used, t.Uses,
					t.Expires.UTC().Format(time.RFC3339), approval, state)
			})
		})
	}
	revoke := &cobra.Command{Use: "revoke ID", Short: "Revoke a join token; devices that have joined stay joined",
		Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *revokeDir, func(ctx context.Context, d directory) error {
			return d.record(ctx, "revoke", "jointokens", args[0], d.guard.RevokeJoinToken(ctx, args[0]))
		})
	}
	c.AddCommand(create, list, revoke)
	return c
}
