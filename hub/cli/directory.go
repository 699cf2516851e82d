package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// A directory is a hub's data directory, opened for a command.
type directory struct {
	store     *store.Store
	guard     *access.Guard
	authority *pki.Authority
	url       string   // the hub's last known address
	urls      []string // addresses of every hub of the database, url first
}

// record writes a change to the audit, with the user who ran the command.
func (d directory) record(ctx context.Context, verb, resource, name string, err error) error {
	a := store.Audit{Who: socket.UserName(os.Getuid()), Via: "command line", Verb: verb, Resource: resource, Name: name,
		Code: http.StatusOK}
	if err != nil {
		a.Code, a.Message = http.StatusUnprocessableEntity, err.Error()
	}
	d.guard.Record(ctx, a)
	return err
}

// ended prints the result of a revocation by name. The audit may not record every certificate, so
// every name can be revoked; if the audit does not know the name, ended prints a hint.
func (d directory) ended(ctx context.Context, out io.Writer, err error, what, name string, resources ...string) error {
	if err != nil {
		return err
	}
	made, err := d.store.FindAudits(ctx,
		store.AuditQuery{Words: []string{name}, Verbs: []string{"create"}, Resources: resources, Limit: 1000})
	if err != nil {
		return err
	}
	hint := " The audit has no record of that name; check its spelling."
	for _, a := range made {
		if a.Name == name && a.Code < http.StatusBadRequest {
			hint = ""
		}
	}
	_, err = fmt.Fprintf(out, "All %s of %s issued until now have ended.%s\n", what, name, hint)
	return err
}

// dataDir adds the flag --data-dir.
func dataDir(c *cobra.Command) *string {
	dir := os.Getenv("FLOTILLA_DATA_DIR")
	if dir == "" {
		dir = config.Default().DataDir
	}
	return c.Flags().String("data-dir", dir, "data directory of the hub")
}

// inside opens a hub's data directory, runs do, and closes it.
func (p Program) inside(c *cobra.Command, dir string, do func(ctx context.Context, d directory) error) error {
	ctx := c.Context()
	st, err := p.openStore(c, dir)
	if err != nil {
		return err
	}
	defer st.Close()
	// Check this before opening the authority, which a hub creates during its first start.
	address, err := st.Meta(ctx, store.MetaURL)
	// A hub of several receives the authority when it becomes a standby.
	_, made := os.Stat(filepath.Join(dir, "pki", "root.crt"))
	if errors.Is(err, store.ErrNotFound) || err == nil && errors.Is(made, fs.ErrNotExist) {
		return fmt.Errorf(
			"the hub of %s has not completed its first start; run `flotilla-hub serve --data-dir %s`, then try again", dir, dir)
	}
	if err != nil {
		return err
	}
	var file string
	if f := c.Flags().Lookup("ca-passphrase-file"); f != nil {
		file = f.Value.String()
	}
	authority, err := pki.OpenShared(dir, file)
	if err != nil {
		return err
	}
	urls := []string{address}
	if all, err := st.Meta(ctx, store.MetaURLs); err == nil {
		urls = append(urls, strings.Split(all, ",")...)
	}
	now, err := hubTime(ctx, dir, st)
	if err != nil {
		return err
	}
	authority.Now = func() time.Time { return now }
	return usage(do(ctx, directory{st, access.New(access.Options{Store: st, Authority: authority, Now: authority.Now}),
		authority, address, urls}))
}

// hubTime returns the hub's time. If this machine's clock is wrong, it asks the running hub. With a
// wrong time, a new token could be expired, or a revocation could miss recent certificates.
func hubTime(ctx context.Context, dir string, st *store.Store) (time.Time, error) {
	now, machines, err := access.Time(ctx, st)
	if err != nil || machines {
		return now, err
	}
	if text, err := socket.Look(dir, "time"); err == nil {
		// An older hub does not know this order.
		if at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(text)); err == nil {
			return at, nil
		}
	}
	return now, nil
}

func (p Program) openStore(c *cobra.Command, dir string) (*store.Store, error) {
	st, err := store.OpenShared(c.Context(), p.options(dir))
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrUsage{err} // --data-dir is wrong
	}
	return st, err
}

// options are the store options of a command.
func (p Program) options(dir string) store.Options {
	return store.Options{Dir: dir, Database: os.Getenv("FLOTILLA_DATABASE"), Version: p.Version,
		By: socket.UserName(os.Getuid())}
}

// usage marks an error that the user can correct on the command line.
func usage(err error) error {
	if errors.Is(err, access.ErrInvalid) {
		return ErrUsage{err}
	}
	return err
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
