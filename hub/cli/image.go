package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/registry"
	"flotilla.dev/hub/registry/archive"
)

func (p Program) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Container images that the hub keeps for its devices", Args: OnlyCommands,
		RunE: help}
	list := &cobra.Command{Use: "list", Short: "List the images on the hub, as pods name them", Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		text, err := socket.Ask(*listDir, "image list")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(text), "\n")
		images, usage := lines[:len(lines)-1], lines[len(lines)-1]
		err = table(c.OutOrStdout(), "IMAGE\tPLATFORMS\tSIZE\tPUSHED\tDIGEST", len(images), func(w io.Writer, i int) {
			fmt.Fprintln(w, images[i])
		})
		if err == nil {
			_, err = fmt.Fprintln(c.OutOrStdout(), usage)
		}
		return err
	}
	rm := &cobra.Command{Use: "rm IMAGE", Short: "Remove an image that no pod and no workload names", Args: exactly(1)}
	rmDir := dataDir(rm)
	rm.RunE = func(c *cobra.Command, args []string) error { return order(c, *rmDir, "image rm "+args[0]) }
	gc := &cobra.Command{Use: "gc", Short: "Free the space of images that were removed or replaced a day ago or earlier",
		Args: exactly(0)}
	gcDir := dataDir(gc)
	gc.RunE = func(c *cobra.Command, _ []string) error { return order(c, *gcDir, "image gc") }
	c.AddCommand(list, pushCommand(), rm, gc)
	return c
}

func pushCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "push FILE [NAME]",
		Short: "Push the images of an archive to the hub on this machine",
		Long: "Push the images of an archive, made by `docker save`, `podman save` or in the OCI layout, to the hub on " +
			"this machine. FILE may be a directory in the OCI layout, or - for standard input. NAME, such as " +
			"hub/shop/till:1.2, is needed unless the archive has a name for its image.",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactly(1)(c, args)
		},
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		a, err := archive.Open(args[0], c.InOrStdin())
		if err != nil {
			return err
		}
		defer a.Close()
		if len(args) == 2 {
			if len(a.Images) > 1 {
				return fmt.Errorf("%s has %d images: omit NAME, or save one image per file", args[0], len(a.Images))
			}
			a.Images[0].Name = args[1]
		}
		for _, im := range a.Images {
			if im.Name == "" {
				return ErrUsage{fmt.Errorf("%s has no name for its image: add one, for example hub/shop/till:1.2", args[0])}
			}
			if _, _, err := registry.ParseName(hubName(im.Name)); err != nil {
				return ErrUsage{err}
			}
		}
		to := archive.Registry{URL: "http://hub", Client: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return socket.Dial(ctx, *dir, registry.Socket)
			},
		}}}
		for _, im := range a.Images {
			repository, tag, _ := registry.ParseName(hubName(im.Name))
			p, err := a.Push(c.Context(), to, im, repository, tag)
			if err != nil {
				var at *url.Error // its URL is not one that anybody can use
				if errors.As(err, &at) {
					err = at.Err
				}
				return fmt.Errorf("push hub/%s:%s: %w", repository, tag, err)
			}
			fmt.Fprintf(c.OutOrStdout(), "pushed hub/%s:%s\t%.1f MiB\t%s\t%s\n", repository, tag, float64(p.Size)/(1<<20),
				cmp.Or(strings.Join(p.Platforms, ","), "one"), p.Digest)
		}
		return nil
	}
	return c
}

// hubName returns the name on the hub of an image that a tool names so: Podman calls an image that
// was built here localhost/till.
func hubName(image string) string { return strings.TrimPrefix(image, "localhost/") }
