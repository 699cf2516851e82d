// Package manualtest holds what the manual says to the programs: for tests of the rooms
// that know better, which write what is generated of it.
package manualtest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flotilla.dev/web/manual"
)

// Block compares the text between <!-- name: begin --> and <!-- name: end --> of a file
// with what it should be, and writes it if update is set.
func Block(t *testing.T, file, name, want string, update bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	have, err := manual.Generated(string(text), name)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if have == want {
		return
	}
	if !update {
		t.Fatalf("%s says something else: run go test here with -run %s -update\ngot:\n%s\nwant:\n%s", file, t.Name(), have,
			want)
	}
	next, err := manual.Replace(string(text), name, want)
	if err == nil {
		err = os.WriteFile(file, []byte(next), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Commands is the manual's text about a program: a heading for each command that does
// something, and a table of its flags.
func Commands(root *cobra.Command) string {
	var b strings.Builder
	b.WriteByte('\n')
	command(&b, root)
	return b.String()
}

func command(b *strings.Builder, c *cobra.Command) {
	if c.Hidden {
		return
	}
	// one with others below may do something itself
	if c.HasParent() && (!c.HasAvailableSubCommands() || c.LocalFlags().HasAvailableFlags()) {
		usage := strings.TrimSpace(strings.TrimSuffix(c.UseLine(), "[flags]"))
		fmt.Fprintf(b, "## `%s`\n\n%s.", c.CommandPath(), strings.TrimSuffix(escape(c.Short), "."))
		if usage != c.CommandPath() {
			fmt.Fprintf(b, " Usage: `%s`", usage)
		}
		b.WriteByte('\n')
		flags(b, c.LocalFlags())
		b.WriteByte('\n')
	}
	for _, sub := range c.Commands() {
		command(b, sub)
	}
}

func flags(b *strings.Builder, set *pflag.FlagSet) {
	head := "\n| Flag | Default | What it is |\n|---|---|---|\n"
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		def := f.DefValue
		if def == "[]" {
			def = ""
		}
		if def != "" {
			def = "`" + def + "`"
		}
		if usage = strings.TrimSuffix(usage, "."); kind != "" && kind != "bool" && !strings.HasPrefix(kind, "string") {
			usage += " (" + kind + ")"
		}
		fmt.Fprintf(b, "%s| `--%s` | %s | %s |\n", head, f.Name, def, escape(usage))
		head = ""
	})
}

// escape keeps a text from being taken for Markdown.
func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`, "[", `\[`, "_", `\_`).Replace(text)
}
