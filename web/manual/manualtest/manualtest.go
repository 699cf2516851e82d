// Package manualtest compares the manual with the programs, and writes its generated parts. The
// tests of the packages that own the facts call it; product code does not.
package manualtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flotilla.dev/web/manual"
)

// Block compares the generated part name of a file with want. With update it writes want into the
// file.
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
		t.Fatalf("%s is out of date: run go test here with -run %s -update\ngot:\n%s\nwant:\n%s", file, t.Name(), have,
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

// Commands returns the manual's text about a program: one table of the flags that several commands
// have, then a section for each command with a table of its other flags.
func Commands(root *cobra.Command) string {
	doing := commands(root)
	times := map[string]int{}
	for _, c := range doing {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { times[row(f)]++ })
	}
	var b strings.Builder
	common := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, c := range doing {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if times[row(f)] >= several && common.Lookup(f.Name) == nil {
				common.AddFlag(f)
			}
		})
	}
	b.WriteString("\n## Flags of several commands\n")
	flags(&b, common, nil)
	for _, c := range doing {
		text := strings.TrimSuffix(escape(c.Short), ".") + "."
		if usage := strings.TrimSpace(strings.TrimSuffix(c.UseLine(), "[flags]")); usage != c.CommandPath() {
			text += " Usage: `" + usage + "`"
		}
		fmt.Fprintf(&b, "\n## `%s`\n\n%s\n", c.CommandPath(), wrapped(text))
		flags(&b, c.LocalFlags(), times)
	}
	b.WriteByte('\n')
	return b.String()
}

// several is how many commands must share a flag, with equal default and help, before it moves to
// the table of common flags.
const several = 3

// commands returns all visible commands that can run.
func commands(c *cobra.Command) (out []*cobra.Command) {
	if c.Hidden {
		return nil
	}
	if c.HasParent() && (!c.HasAvailableSubCommands() || c.LocalFlags().HasAvailableFlags()) {
		out = append(out, c)
	}
	for _, sub := range c.Commands() {
		out = append(out, commands(sub)...)
	}
	return out
}

// flags writes a table of the command's own flags, and a line that names its common flags.
func flags(b *strings.Builder, set *pflag.FlagSet, times map[string]int) {
	head := "\n| Flag | Default | What it is |\n|---|---|---|\n"
	var also []string
	set.VisitAll(func(f *pflag.Flag) {
		switch line := row(f); {
		case f.Hidden || f.Name == "help":
		case times[line] >= several:
			also = append(also, "`--"+f.Name+"`")
		default:
			b.WriteString(head + line)
			head = ""
		}
	})
	if also != nil {
		fmt.Fprintf(b, "\nAlso: %s.\n", strings.Join(also, ", "))
	}
}

// wrapped breaks a text into lines of at most 100 columns.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch n := utf8.RuneCountInString(word); {
		case column == 0:
			column = n
		case column+1+n > 100:
			b.WriteByte('\n')
			column = n
		default:
			b.WriteByte(' ')
			column += 1 + n
		}
		b.WriteString(word)
	}
	return b.String()
}

func row(f *pflag.Flag) string {
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
	return fmt.Sprintf("| `--%s` | %s | %s |\n", f.Name, def, escape(usage))
}

// escape escapes Markdown.
func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`, "[", `\[`, "_", `\_`).Replace(text)
}
