package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/hub/broker/setup"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

func (p Program) brokerConfigCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "broker-config mosquitto|nats|emqx --out DIRECTORY --address HOST:PORT", Short: "Write configuration, " +
			"access rules and certificate of an MQTT broker between devices and this hub", Args: exactly(1),
		Long: "Write configuration, access rules and certificate of an MQTT broker between devices and this hub, with a " +
			"README.md that says what to do with them\n" +
			"and what that broker does not do. The hub, started with --broker, and its devices know the broker by the " +
			"hub's own authority, and it knows them by their certificates.\n" +
			"The configuration of EMQX is written from its documentation and was not tested.",
	}
	dir := dataDir(c)
	out := c.Flags().String("out", "",
		"directory of the files, made if there is none; files that are there stay, and are an error (required)")
	addresses := c.Flags().StringSlice("address", nil, "host and port under which hub and devices reach the broker; "+
		"of a cluster all, with commas between them (required)")
	at := c.Flags().String("path", "",
		"directory in which the files will be on the broker's machine (default that of --out)")
	prefix := c.Flags().String("prefix", wire.DefaultPrefix,
		"what all topics begin with, as in --broker-prefix of the hub")
	access := c.Flags().Bool("access-only", false, "write the access rules and ca.crt alone, over those that are "+
		"there: which devices have joined has changed, or the root was rotated")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file with the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, args []string) error {
		kind := args[0]
		if !slices.Contains(setup.Kinds, kind) {
			return ErrUsage{fmt.Errorf("unknown broker %q; use %s", kind,
				strings.Join(setup.Kinds, ", "))}
		}
		if *out == "" {
			return ErrUsage{errors.New("--out is missing: name the directory that gets the files")}
		}
		if len(*addresses) == 0 {
			return ErrUsage{errors.New("--address is missing: say under which host and port hub and devices reach the " +
				"broker, such as broker.example:8883")}
		}
		if err := wire.ValidPrefix(*prefix); err != nil {
			return ErrUsage{fmt.Errorf("--prefix: %w", err)}
		}
		o := setup.Options{Addresses: *addresses, Path: *at, Prefix: *prefix, Secret: strings.ToLower(rand.Text())}
		if o.Path == "" {
			abs, err := filepath.Abs(*out)
			if err != nil {
				return err
			}
			o.Path = abs
		}
		var names []string
		for _, a := range *addresses {
			host, _, err := net.SplitHostPort(a)
			if err != nil || host == "" {
				return ErrUsage{fmt.Errorf("--address %q must be like broker.example:8883", a)}
			}
			if !slices.Contains(names, host) {
				names = append(names, host)
			}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) (err error) {
			if o.Nodes, err = joined(ctx, d.store); err != nil {
				return err
			}
			texts, err := setup.Files(kind, o)
			if err != nil {
				return ErrUsage{err}
			}
			var files []file
			if *access {
				return writeAccess(c, *out, append(texts, setup.File{Name: "ca.crt", Text: string(d.authority.RootPEM())}))
			}
			for _, t := range texts {
				mode := os.FileMode(0o644)
				if t.Secret {
					mode = 0o600
				}
				files = append(files, file{t.Name, []byte(t.Text), mode})
			}
			cert, key, err := d.authority.IssueServer(names)
			if err == nil {
				files = append(files, file{"ca.crt", d.authority.RootPEM(), 0o644}, file{"server.crt", cert, 0o644},
					file{"server.key", key, 0o600})
				err = writeFiles(*out, files)
			}
			if err = d.did(ctx, "create", "brokerconfigs", kind, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s holds what %s needs; its README.md says what to do with it.\n", *out, kind)
			return err
		})
	}
	return c
}

// joined are the nodes whose device has a certificate.
func joined(ctx context.Context, st *store.Store) (nodes []string, err error) {
	err = st.Load(ctx, func(r store.Row) error {
		if r.Kind != "records" {
			return nil
		}
		var rec struct{ Key string }
		if err := json.Unmarshal(r.Object, &rec); err != nil {
			return fmt.Errorf("read the record of node %s: %w", r.Name, err)
		}
		if rec.Key != "" {
			nodes = append(nodes, r.Name)
		}
		return nil
	})
	return nodes, err
}

// accessFiles are those that name devices, what they may do, or who signs their certificates:
// devices renew after a rotation of the root, and a broker that knows the former one alone
// would refuse them.
var accessFiles = []string{"acl", "acl.conf", "devices.conf", "ca.crt"}

func writeAccess(c *cobra.Command, dir string, texts []setup.File) error {
	for _, t := range texts {
		if !slices.Contains(accessFiles, t.Name) {
			continue
		}
		if err := overwrite(filepath.Join(dir, t.Name), []byte(t.Text)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%s is written anew: have the broker read it.\n",
			filepath.Join(dir, t.Name)); err != nil {
			return err
		}
	}
	return nil
}

func overwrite(path string, text []byte) error {
	if err := renameio.WriteFile(path, text, 0o644, renameio.IgnoreUmask(),
		renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
