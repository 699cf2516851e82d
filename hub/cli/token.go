package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/install"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

func (p Program) tokenCommand() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Tokens for devices that join", Args: OnlyCommands, RunE: help}
	create := &cobra.Command{Use: "create", Short: "Create a join token and print the command for the device",
		Args: exactly(0)}
	dir := dataDir(create)
	token := tokenFlags(create, 24*time.Hour)
	create.RunE = func(c *cobra.Command, _ []string) error {
		n, err := token()
		if err != nil {
			return err
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			t, err := d.createToken(ctx, n)
			if err != nil {
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
				fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\n", t.ID, t.Site, namesOf(t), t.Used, t.Uses,
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

// namesOf says which nodes may join with a token.
func namesOf(t store.JoinToken) string {
	var all []string
	if t.Node != "" {
		all = append(all, t.Node)
	}
	if n := len(t.Names.BySerial); n > 0 {
		all = append(all, fmt.Sprintf("%d names", n))
	}
	if t.Names.Prefix != "" {
		all = append(all, t.Names.Prefix+"*")
	}
	return orAny(strings.Join(all, ","))
}

// tokenFlags adds the flags of a new join token. The function that it returns checks and reads them.
func tokenFlags(c *cobra.Command, life time.Duration) func() (access.NewJoinToken, error) {
	n := access.NewJoinToken{By: "command line"}
	f := c.Flags()
	f.StringVar(&n.Site, "site", "", "site of the devices that join with this token (required)")
	f.StringVar(&n.Node, "node", "", "name of the only node that may join with this token, new or replaced (default any)")
	names := f.String("names", "", "file with a line SERIAL,NAME for each device that may join with this token, where "+
		"SERIAL is the board's serial number, or its machine ID without one, as flotilla-device probe shows them")
	f.StringVar(&n.Names.Prefix, "name-prefix", "", "beginning of the names of nodes that join with this token; the last "+
		"8 characters of the board's serial number follow, or those of its machine ID without one")
	f.IntVar(&n.Uses, "uses", 1, "number of devices that may join with this token (default with --names: all of the file)")
	f.DurationVar(&n.Life, "ttl", life, "lifetime of this token")
	f.BoolVar(&n.Approval, "require-approval", false,
		"devices that join with this token wait for an administrator's approval")
	f.StringToStringVar(&n.Labels, "label", nil, "label k=v of nodes that join with this token (can be repeated)")
	return func() (access.NewJoinToken, error) {
		if n.Site == "" {
			return n, ErrUsage{errors.New("--site is missing; write the site of the devices, such as --site oslo")}
		}
		if *names == "" {
			return n, nil
		}
		text, err := os.ReadFile(*names)
		if err != nil {
			return n, ErrUsage{fmt.Errorf("read --names: %w", err)}
		}
		if n.Names.BySerial, err = access.ParseNames(string(text)); err != nil {
			return n, ErrUsage{fmt.Errorf("--names %s: %w", *names, err)}
		}
		if !f.Changed("uses") {
			n.Uses = len(n.Names.BySerial)
		}
		return n, nil
	}
}

// createToken creates a join token and records it in the audit.
func (d directory) createToken(ctx context.Context, n access.NewJoinToken) (wire.JoinToken, error) {
	t, err := d.guard.CreateJoinToken(ctx, n)
	return t, d.record(ctx, "create", "jointokens", t.ID, err)
}

func (p Program) firstBootCommand() *cobra.Command {
	c := &cobra.Command{Use: "firstboot", Args: exactly(0),
		Short: "Print a file for SD cards whose devices install the agent and join at their first boot",
		Long: "Create a join token and print a file with it. With cloud-init, the file is the card's user-data: copy it to\n" +
			"the boot partition of Raspberry Pi OS (since Trixie) or Ubuntu. The script is for images without cloud-init:\n" +
			"root runs it once on the device, or in the mounted image.",
		Example: "  flotilla-hub firstboot --site oslo --names serials.csv >user-data\n" +
			"  flotilla-hub firstboot --site oslo --uses 40 --name-prefix oslo- >/media/bootfs/user-data"}
	dir := dataDir(c)
	token := tokenFlags(c, 30*24*time.Hour)
	format := c.Flags().String("format", install.CloudInit, "format of the file: "+install.CloudInit+" or "+install.Script)
	engine := c.Flags().String("engine-package", "docker.io", "Debian package of the container engine to install, such "+
		"as podman; empty if the card has an engine")
	c.RunE = func(c *cobra.Command, _ []string) error {
		n, err := token()
		if err != nil {
			return err
		}
		if _, err := (install.FirstBoot{Engine: *engine}).Write(*format); err != nil {
			return ErrUsage{err}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			t, err := d.createToken(ctx, n)
			if err != nil {
				return err
			}
			text, err := install.FirstBoot{Hub: d.urls[0], CA: d.authority.RootPEM(), Token: t.Text(), Engine: *engine,
				Now: d.guard.Now()}.Write(*format)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), text)
			return err
		})
	}
	return c
}
