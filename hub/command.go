package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// A beside is what commands beside a running hub work with.
type beside struct {
	store     *store.Store
	guard     *access.Guard
	authority *pki.Authority
	url       string // of the hub, as it last said
}

// did keeps in the audit what a command has changed, and by whom: as whom it runs.
func (b beside) did(ctx context.Context, verb, resource, name string, err error) error {
	a := store.Audit{Who: "uid " + strconv.Itoa(os.Getuid()), Via: "command line", Verb: verb, Resource: resource, Name: name, Code: http.StatusOK}
	if u, uerr := osuser.Current(); uerr == nil {
		a.Who = u.Username
	}
	if err != nil {
		a.Code, a.Message = http.StatusUnprocessableEntity, err.Error()
	}
	b.guard.Record(ctx, a)
	return err
}

// dataDir adds the flag by which a command finds its hub.
func dataDir(c *cobra.Command) *string {
	dir := os.Getenv("FLOTILLA_DATA_DIR")
	if dir == "" {
		dir = config.Default().DataDir
	}
	return c.Flags().String("data-dir", dir, "data directory of the hub")
}

// next opens a hub's data directory beside it, for the time of do.
func next(c *cobra.Command, dir string, do func(ctx context.Context, b beside) error) error {
	ctx := c.Context()
	st, err := store.OpenBeside(ctx, store.Options{Dir: dir, Version: version})
	if errors.Is(err, store.ErrNotFound) {
		return errUsage{err} // another directory was meant
	}
	if err != nil {
		return err
	}
	defer st.Close()
	// Before the authority: a hub in the middle of its first start is just making
	// it, and two of them would be of no use to each other.
	address, err := st.Meta(ctx, metaURL)
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("the hub of %s has not finished its first start: start `flotilla-hub serve --data-dir %s` and try again", dir, dir)
	}
	if err != nil {
		return err
	}
	authority, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		return err
	}
	return usage(do(ctx, beside{st, access.New(access.Options{Store: st, Authority: authority}), authority, address}))
}

// usage gives what the user can mend on the command line its exit code.
func usage(err error) error {
	if errors.Is(err, access.ErrInvalid) {
		return errUsage{err}
	}
	return err
}

func tokenCommand() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Tokens by which devices join", Args: command, RunE: help}
	create := &cobra.Command{Use: "create", Short: "Make a join token and print the line to type on the device", Args: exactly(0)}
	dir := dataDir(create)
	n := access.NewJoinToken{By: "command line"}
	f := create.Flags()
	f.StringVar(&n.Site, "site", "", "site of the devices that join with it (required)")
	f.StringVar(&n.Node, "node", "", "the one node that it is for, new or to be replaced (default any)")
	f.IntVar(&n.Uses, "uses", 1, "how many devices may join with it")
	f.DurationVar(&n.Life, "ttl", 24*time.Hour, "how long it is good")
	f.StringToStringVar(&n.Labels, "label", nil, "label k=v of the nodes that join with it (can be repeated)")
	create.RunE = func(c *cobra.Command, _ []string) error {
		return next(c, *dir, func(ctx context.Context, b beside) error {
			t, err := b.guard.CreateJoinToken(ctx, n)
			if err = b.did(ctx, "create", "jointokens", t.ID, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "flotilla-device join %s --token %s\n", b.url, t.Text())
			return err
		})
	}
	list := &cobra.Command{Use: "list", Short: "List join tokens; their secrets are not kept", Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		return next(c, *listDir, func(ctx context.Context, b beside) error {
			tokens, err := b.guard.JoinTokens(ctx)
			if err != nil {
				return err
			}
			return table(c.OutOrStdout(), "ID\tSITE\tNODE\tUSED\tENDS\tSTATE", len(tokens), func(w io.Writer, i int) {
				t := tokens[i]
				state := "good"
				switch {
				case !t.Revoked.IsZero():
					state = "revoked"
				case time.Now().After(t.Expires):
					state = "ended"
				case t.Used >= t.Uses:
					state = "used up"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\n", t.ID, t.Site, orAny(t.Node), t.Used, t.Uses, t.Expires.UTC().Format(time.RFC3339), state)
			})
		})
	}
	revoke := &cobra.Command{Use: "revoke ID", Short: "Revoke a join token; devices that have joined stay", Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return next(c, *revokeDir, func(ctx context.Context, b beside) error {
			return b.did(ctx, "revoke", "jointokens", args[0], b.guard.RevokeJoinToken(ctx, args[0]))
		})
	}
	c.AddCommand(create, list, revoke)
	return c
}

func orAny(s string) string {
	if s == "" {
		return "<any>"
	}
	return s
}

func table(out io.Writer, head string, rows int, row func(io.Writer, int)) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, head)
	for i := range rows {
		row(w, i)
	}
	return w.Flush()
}

func userCommand() *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "People who may use the page", Args: command, RunE: help}
	create := &cobra.Command{Use: "create NAME", Short: "Add a user; the password is read from standard input", Args: exactly(1)}
	dir := dataDir(create)
	role := create.Flags().String("role", "admin", "admin, operator or viewer")
	create.RunE = func(c *cobra.Command, args []string) error {
		r, err := access.ParseRole(*role)
		if err != nil {
			return errUsage{err}
		}
		return next(c, *dir, func(ctx context.Context, b beside) error {
			password, err := readPassword(c)
			if err != nil {
				return err
			}
			return b.did(ctx, "create", "users", args[0], b.guard.CreateUser(ctx, access.NewUser{Name: args[0], Password: password, Role: r}))
		})
	}
	passwd := &cobra.Command{Use: "passwd NAME", Short: "Set a user's password, read from standard input", Args: exactly(1)}
	passwdDir := dataDir(passwd)
	passwd.RunE = func(c *cobra.Command, args []string) error {
		return next(c, *passwdDir, func(ctx context.Context, b beside) error {
			password, err := readPassword(c)
			if err != nil {
				return err
			}
			return b.did(ctx, "update", "users", args[0], b.guard.SetPassword(ctx, args[0], password))
		})
	}
	list := &cobra.Command{Use: "list", Short: "List users", Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		return next(c, *listDir, func(ctx context.Context, b beside) error {
			users, err := b.guard.Users(ctx)
			if err != nil {
				return err
			}
			return table(c.OutOrStdout(), "NAME\tROLE", len(users), func(w io.Writer, i int) { fmt.Fprintf(w, "%s\t%s\n", users[i].Name, users[i].Role) })
		})
	}
	remove := &cobra.Command{Use: "delete NAME", Short: "Delete a user, with sessions and API tokens", Args: exactly(1)}
	removeDir := dataDir(remove)
	remove.RunE = func(c *cobra.Command, args []string) error {
		return next(c, *removeDir, func(ctx context.Context, b beside) error {
			return b.did(ctx, "delete", "users", args[0], b.guard.DeleteUser(ctx, args[0]))
		})
	}
	c.AddCommand(create, passwd, list, remove)
	return c
}

func readPassword(c *cobra.Command) (string, error) {
	if f, ok := c.InOrStdin().(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			fmt.Fprint(c.ErrOrStderr(), "Password (it is shown while you type): ")
		}
	}
	line, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && line == "" {
		return "", errUsage{errors.New("no password on standard input")}
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func kubeconfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "kubeconfig", Short: "Print a kubeconfig for kubectl, with the CA inside", Args: exactly(0)}
	dir := dataDir(c)
	server := c.Flags().String("server", "", "address of the hub, such as https://gateway:8443 (default where the hub last said that it is)")
	user := c.Flags().String("user", "admin", "whose it is; stands in the audit")
	role := c.Flags().String("role", "admin", "admin, operator or viewer")
	life := c.Flags().Duration("ttl", 365*24*time.Hour, "how long its certificate is good")
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := access.ParseRole(*role)
		if err != nil {
			return errUsage{err}
		}
		if *user == "" {
			return errUsage{errors.New("--user is empty: say whose the kubeconfig is, such as admin")}
		}
		if *life <= 0 {
			return errUsage{fmt.Errorf("--ttl is %s: say how long the kubeconfig is good, such as 720h", *life)}
		}
		return next(c, *dir, func(ctx context.Context, b beside) error {
			address := *server
			if address == "" {
				address = b.url
			}
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "https" || u.Host == "" {
				return errUsage{fmt.Errorf("the hub's address is %q: give one such as https://gateway:8443 with --server", address)}
			}
			cert, key, err := b.authority.IssueClient(pki.Role(r), *user, *life)
			if err = b.did(ctx, "create", "kubeconfigs", *user, err); err != nil {
				return err
			}
			text, err := kubeconfig(kubeconfigFor{server: address, user: *user, ca: b.authority.RootPEM(), cert: cert, key: key})
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		})
	}
	return c
}

// A kubeconfigFor says whom it lets in, with a certificate or a token.
type kubeconfigFor struct {
	server, user  string
	ca, cert, key []byte
	token         string
}

func kubeconfig(k kubeconfigFor) ([]byte, error) {
	type m = map[string]any
	user := m{"client-certificate-data": k.cert, "client-key-data": k.key}
	if k.token != "" {
		user = m{"token": k.token}
	}
	return yaml.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "flotilla", "preferences": m{},
		"clusters": []m{{"name": "flotilla", "cluster": m{"server": k.server, "certificate-authority-data": k.ca}}},
		"users":    []m{{"name": k.user, "user": user}},
		"contexts": []m{{"name": "flotilla", "context": m{"cluster": "flotilla", "user": k.user}}},
	})
}

func backupCommand() *cobra.Command {
	c := &cobra.Command{Use: "backup FILE", Short: "Write the database to a file while the hub runs", Args: exactly(1)}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return next(c, *dir, func(ctx context.Context, b beside) error { return b.store.Backup(ctx, args[0]) })
	}
	return c
}

func restoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "restore FILE", Short: "Put a backup in the place of the database, while the hub is down", Args: exactly(1),
		Long: "Put a backup in the place of the database; the old one is kept beside it.\nDevices that have a newer desired state than the backup keep it until `flotilla-hub resume`.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return store.Restore(c.Context(), store.Options{Dir: *dir, Version: version}, args[0])
	}
	return c
}

// socketName is where a running hub takes orders from whoever may write into its data directory.
const socketName = "hub.sock"

func resumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "resume", Short: "Send desired state again to devices whose own is newer, as after a restore", Args: exactly(0),
		Long: "After a restore from a backup some devices have stored a newer desired state than the hub has. The hub sends them\nnothing until this command says that what the hub has is right.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		socket, done, err := short(filepath.Join(*dir, socketName))
		if err != nil {
			return errUsage{fmt.Errorf("reach the hub: %w; name its directory with --data-dir", err)}
		}
		defer done()
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("reach the hub of %s: %w; is it running?", *dir, reason(err))
		}
		defer conn.Close()
		if _, err := fmt.Fprintln(conn, "resume"); err != nil {
			return err
		}
		_, err = io.Copy(c.OutOrStdout(), conn)
		return err
	}
	return c
}
