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
			"access rules and a certificate for an MQTT broker between devices and this hub", Args: exactly(1),
		Long: "Write configuration, access rules and a certificate for an MQTT broker between devices and this hub.\n" +
			"README.md says how to install the files and what this broker does not support. Start the hub with --broker.\n" +
			"The broker, the hub and the devices identify each other by certificates of the hub's authority.\n" +
			"The configuration of EMQX follows its documentation and was not tested.",
	}
	dir := dataDir(c)
	out := c.Flags().String("out", "",
		"directory for the files, created if needed; existing files are not overwritten (required)")
	addresses := c.Flags().StringSlice("address", nil, "host:port at which hub and devices reach the broker; "+
		"for a cluster all nodes, separated by commas (required)")
	at := c.Flags().String("path", "",
		"directory of the files on the broker's machine (default the value of --out)")
	prefix := c.Flags().String("prefix", wire.DefaultPrefix,
		"prefix of all topics, the value of --broker-prefix of the hub")
	access := c.Flags().Bool("access-only", false, "overwrite only the access rules and ca.crt: after a device "+
		"joined or was removed, or after a rotation of the root")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file whose first line is the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, args []string) error {
		kind := args[0]
		if !slices.Contains(setup.Kinds, kind) {
			return ErrUsage{fmt.Errorf("unknown broker %q; use %s", kind, strings.Join(setup.Kinds, ", "))}
		}
		if *out == "" {
			return ErrUsage{errors.New("--out is missing; name a directory for the files")}
		}
		if len(*addresses) == 0 {
			return ErrUsage{errors.New("--address is missing; write the broker's host and port, " +
				"such as broker.example:8883")}
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
				return ErrUsage{fmt.Errorf("--address: %q is not host:port; use for example broker.example:8883", a)}
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
			if err = d.record(ctx, "create", "brokerconfigs", kind, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "The files for %s are in %s. Continue with README.md there.\n", kind, *out)
			return err
		})
	}
	return c
}

// joined returns the nodes whose devices have certificates.
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

// accessFiles change when a device joins or the root is rotated. They include ca.crt, because
// devices renew after a rotation and a broker with only the former root refuses the new
// certificates.
var accessFiles = []string{"acl", "acl.conf", "devices.conf", "ca.crt"}

func writeAccess(c *cobra.Command, dir string, texts []setup.File) error {
	for _, t := range texts {
		if !slices.Contains(accessFiles, t.Name) {
			continue
		}
		if err := overwrite(filepath.Join(dir, t.Name), []byte(t.Text)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%s was rewritten. Reload the broker.\n",
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
