package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

func (p Program) profileCommand() *cobra.Command {
	c := &cobra.Command{Use: "profile", Short: "Check board profiles and print their boot configurations",
		Args: OnlyCommands, RunE: help}
	lint := &cobra.Command{
		Use: "lint FILE...", Short: "Print every error in board profiles, with its place", Args: atLeastOne,
		RunE: func(c *cobra.Command, files []string) error {
			var errs []error
			for _, file := range files {
				if _, err := readProfile(file); err != nil {
					errs = append(errs, err)
				} else if _, err := fmt.Fprintf(c.OutOrStdout(), "%s: valid\n", file); err != nil {
					return err
				}
			}
			return errors.Join(errs...)
		},
	}
	render := &cobra.Command{
		Use: "render [FILE]", Short: "Print the boot configuration of a board profile, as it is signed",
		Args: atMostOne,
		Long: "Print the boot configuration of a board profile, with all that the profile extends, as it is signed. Its " +
			"name\nand digest go to standard error. The profile is read from FILE, or is that of a node with --node.",
	}
	dir := dataDir(render)
	node := render.Flags().String("node", "", "node of this hub whose profile is printed, instead of FILE")
	render.RunE = func(c *cobra.Command, files []string) error {
		if (len(files) == 1) == (*node != "") {
			return ErrUsage{errors.New("name a file, or a node with --node; see `flotilla-hub profile render --help`")}
		}
		if *node == "" {
			profile, err := readProfile(files[0])
			if err != nil {
				return err
			}
			return printBoot(c, profile)
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			profile, err := profileOfNode(ctx, d.store, *node)
			if err != nil {
				return err
			}
			return printBoot(c, profile)
		})
	}
	c.AddCommand(lint, render)
	return c
}

func atLeastOne(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return ErrUsage{fmt.Errorf("%s needs a file; see `%s --help`", c.CommandPath(), c.CommandPath())}
	}
	return nil
}

func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return exactly(1)(c, args)
	}
	return nil
}

func readProfile(file string) (*fleet.BoardProfile, error) {
	info, err := os.Stat(file)
	if err == nil && info.Size() > firmwareconfigs.MaxSize {
		err = fmt.Errorf("it has %d bytes; at most %d are allowed", info.Size(), firmwareconfigs.MaxSize)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	profile, err := firmwareconfigs.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", file, strings.ReplaceAll(err.Error(), "\n", "\n"+file+": "))
	}
	return profile, nil
}

func printBoot(c *cobra.Command, profile *fleet.BoardProfile) error {
	document, _, err := firmwareconfigs.Render(profile)
	if err != nil {
		return fmt.Errorf("board profile %s: %w", profile.Name, err)
	}
	fmt.Fprintf(c.ErrOrStderr(), "board profile %s: sha256:%x\n", profile.Name, sha256.Sum256(document))
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", document)
	return err
}

// profileOfNode reads a node and returns its board profile.
func profileOfNode(ctx context.Context, st *store.Store, name string) (*fleet.BoardProfile, error) {
	profiles, node := map[string]*fleet.BoardProfile{}, (*corev1.Node)(nil)
	err := st.Load(ctx, func(r store.Row) (err error) {
		switch {
		case r.Kind == "nodes" && r.Name == name:
			node = new(corev1.Node)
			err = r.Into(node)
		case r.Kind == "boardprofiles":
			p := new(fleet.BoardProfile)
			err = r.Into(p)
			profiles[r.Name] = p
		}
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the fleet: %w", err)
	case node == nil:
		return nil, fmt.Errorf("node %s not found; see `kubectl get nodes`", name)
	}
	profile := profiles[node.Labels[fleet.LabelProfile]]
	if profile == nil {
		return nil, fmt.Errorf("no board profile matches node %s; see Boards in the page", name)
	}
	return profile, nil
}
