package manualtest

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"flotilla.dev/web/manual"
)

var (
	blocks = regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$")
	joints = regexp.MustCompile(`\s[|>#<]|&&|;|\$\(`) // end of a command
	words  = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
)

// Typed fails if the program would refuse a command that the manual shows: an unknown command or
// flag, or a wrong number of arguments. root returns the program's commands.
func Typed(t *testing.T, program string, root func() *cobra.Command) {
	t.Helper()
	pages, err := fs.Glob(manual.Files, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		text, err := fs.ReadFile(manual.Files, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks.FindAllSubmatch(text, -1) {
			for line := range strings.Lines(strings.ReplaceAll(string(block[1]), "\\\n", "")) {
				for _, part := range joints.Split(line, -1) {
					typed := words.FindAllString(strings.ReplaceAll(part, "…", ""), -1)
					if len(typed) > 0 && typed[0] == "sudo" {
						typed = typed[1:]
					}
					if len(typed) == 0 || typed[0] != program {
						continue
					}
					found++
					if err := accepts(root(), typed[1:]); err != nil {
						t.Errorf("%s.md shows %q: %v", strings.TrimSuffix(page, ".md"), strings.TrimSpace(part), err)
					}
				}
			}
		}
	}
	if found < 3 {
		t.Errorf("the manual shows %d commands of %s: the test looks in the wrong place", found, program)
	}
}

func accepts(root *cobra.Command, typed []string) error {
	for i, word := range typed {
		typed[i] = strings.Trim(word, `'"`)
	}
	c, left, err := root.Find(typed)
	if err == nil {
		err = c.ParseFlags(left)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	return err
}
