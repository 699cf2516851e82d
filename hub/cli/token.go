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
	c := &cobra.Command{Use: "token", Short: "Tokens by which devices join", Args: OnlyCommands, RunE: help}
	create := &cobra.Command{Use: "create", Short: "Make a join token and print the line to type on the device",
		Args: exactly(0)}
	dir := dataDir(create)
	n := access.NewJoinToken{By: "command line"}
	f := create.Flags()
	f.StringVar(&n.Site, "site", "", "site of the devices that join with it (required)")
	f.StringVar(&n.Node, "node", "", "the one node that it is for, new or to be replaced (default any)")
	f.IntVar(&n.Uses, "uses", 1, "how many devices may join with it")
	f.DurationVar(&n.Life, "ttl", 24*time.Hour, "how long it is good")
	f.BoolVar(&n.Approval, "require-approval", false,
		"devices that join with it wait until an administrator approves of them")
	f.StringToStringVar(&n.Labels, "label", nil, "label k=v of the nodes that join with it (can be repeated)")
	create.RunE = func(c *cobra.Command, _ []string) error {
		if n.Site == "" {
			return ErrUsage{errors.New("--site is missing: say where the devices are that join with it, such as --site oslo")}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			t, err := d.guard.CreateJoinToken(ctx, n)
			if err = d.did(ctx, "create", "jointokens", t.ID, err); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), access.JoinLine(d.urls, t))
			return err
		})
	}
	list := &cobra.Command{Use: "list", Short: "List join tokens; their secrets are not kept", Args: exactly(0)}
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
	revoke := &cobra.Command{Use: "revoke ID", Short: "Revoke a join token; devices that have joined stay",
		Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *revokeDir, func(ctx context.Context, d directory) error {
			return d.did(ctx, "revoke", "jointokens", args[0], d.guard.RevokeJoinToken(ctx, args[0]))
		})
	}
	c.AddCommand(create, list, revoke)
	return c
}
