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

// A directory is the data directory of a hub, which may be running meanwhile, as
// commands work with it.
type directory struct {
	store     *store.Store
	guard     *access.Guard
	authority *pki.Authority
	url       string   // of the hub, as it last said
	urls      []string // of every hub of its database, that one first
}

// did keeps in the audit what a command has changed, and by whom: as whom it runs.
func (d directory) did(ctx context.Context, verb, resource, name string, err error) error {
	a := store.Audit{Who: socket.UserName(os.Getuid()), Via: "command line", Verb: verb, Resource: resource, Name: name,
		Code: http.StatusOK}
	if err != nil {
		a.Code, a.Message = http.StatusUnprocessableEntity, err.Error()
	}
	d.guard.Record(ctx, a)
	return err
}

// ended says what a revocation by name was of, unless it was none. Any name may be revoked, for the
// audit does not go back as far as what was made; a mistyped one would end nothing, and nobody
// would see that.
func (d directory) ended(ctx context.Context, out io.Writer, err error, what, name string, resources ...string) error {
	if err != nil {
		return err
	}
	made, err := d.store.FindAudits(ctx,
		store.AuditQuery{Words: []string{name}, Verbs: []string{"create"}, Resources: resources, Limit: 1000})
	if err != nil {
		return err
	}
	none := " The audit tells of none for that name: if one was lost, look whether its name is written like this."
	for _, a := range made {
		if a.Name == name && a.Code < http.StatusBadRequest {
			none = ""
		}
	}
	_, err = fmt.Fprintf(out, "All %s of %s that were made until now have ended.%s\n", what, name, none)
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

// inside opens a hub's data directory for the time of do.
func (p Program) inside(c *cobra.Command, dir string, do func(ctx context.Context, d directory) error) error {
	ctx := c.Context()
	st, err := p.openStore(c, dir)
	if err != nil {
		return err
	}
	defer st.Close()
	// Before the authority: a hub in the middle of its first start is just making
	// it, and two of them would be of no use to each other.
	address, err := st.Meta(ctx, store.MetaURL)
	// And one of several hubs has theirs only once it stands by.
	_, made := os.Stat(filepath.Join(dir, "pki", "root.crt"))
	if errors.Is(err, store.ErrNotFound) || err == nil && errors.Is(made, fs.ErrNotExist) {
		return fmt.Errorf(
			"the hub of %s has not finished its first start: start `flotilla-hub serve --data-dir %s` and try again", dir, dir)
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

// hubTime is what time it is for the hub. Where that cannot be what this machine's clock says, the
// hub is asked, if it runs: a token would have ended before it is good, and a revocation would be
// of what was issued long ago.
func hubTime(ctx context.Context, dir string, st *store.Store) (time.Time, error) {
	now, machines, err := access.Time(ctx, st)
	if err != nil || machines {
		return now, err
	}
	if text, err := socket.Look(dir, "time"); err == nil {
		// a hub of before does not know the word
		if at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(text)); err == nil {
			return at, nil
		}
	}
	return now, nil
}

func (p Program) openStore(c *cobra.Command, dir string) (*store.Store, error) {
	st, err := store.OpenShared(c.Context(), p.options(dir))
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrUsage{err} // another directory was meant
	}
	return st, err
}

// options are those of a hub's store, as a command finds it.
func (p Program) options(dir string) store.Options {
	return store.Options{Dir: dir, Database: os.Getenv("FLOTILLA_DATABASE"), Version: p.Version,
		By: socket.UserName(os.Getuid())}
}

// usage gives what the user can mend on the command line its exit code.
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
