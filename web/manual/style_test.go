package manual

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	proseColumns   = 110
	paragraphLines = 5
)

// Tables, code and pictures cannot be wrapped.
func TestParagraphsAreWrappedAndShort(t *testing.T) {
	item := regexp.MustCompile(`^([*-]|\d+\.) `)
	err := fs.WalkDir(Files, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		text, err := fs.ReadFile(Files, file)
		inCode, paragraph := false, 0
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "```") {
				inCode = !inCode
			}
			if inCode || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "![") {
				continue
			}
			if paragraph++; line == "" || strings.HasPrefix(line, "```") || item.MatchString(line) {
				paragraph = 0
			}
			if paragraph > paragraphLines {
				t.Errorf("%s:%d: the paragraph has more than %d lines: make it a table, or shorter", file, i+1, paragraphLines)
			}
			if n := utf8.RuneCountInString(line); n > proseColumns {
				t.Errorf("%s:%d has %d columns, more than %d", file, i+1, n, proseColumns)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// --help and the manual sort flags by name, so a flag's help must not refer to the flag before it.
func TestEachFlagsHelpStandsAlone(t *testing.T) {
	refers := regexp.MustCompile(
		`\bthe same\b|\bthat follow|\bof that (mail|login)\b|^(the same|whom|whose)\b`)
	flags := 0
	for _, page := range []string{"flotilla-hub.md", "flotilla-device.md"} {
		text, err := fs.ReadFile(Files, page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, " | ")
			if !strings.HasPrefix(line, "| `--") || len(cells) < 3 {
				continue
			}
			flags++
			if found := refers.FindString(cells[2]); found != "" {
				t.Errorf("%s: the help of %s says %q", page, strings.TrimPrefix(cells[0], "| "), found)
			}
		}
	}
	if flags < 100 {
		t.Errorf("there are %d flags: the test looks in the wrong place", flags)
	}
}

// sources calls show for each file of the repository with one of the endings.
func sources(t *testing.T, show func(path, text string), ends ...string) {
	t.Helper()
	for _, root := range []string{"hub", "device", "shared", "web"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			for _, end := range ends {
				if strings.HasSuffix(path, end) {
					text, err := os.ReadFile(path)
					show(strings.TrimPrefix(path, "../../"), string(text))
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryLinkIntoTheManualHasATarget(t *testing.T) {
	m, found := load(t), 0
	link := regexp.MustCompile(`(?:"|\()/help/([a-z-]+)(?:#([^"')\s]+))?|web/manual/([a-z-]+)\.md(?:#([^"')\s]+))?`)
	sources(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, at := range link.FindAllStringSubmatch(text, -1) {
			found++
			name, id := at[1]+at[3], at[2]+at[4]
			if p := m.Page(name); p == nil || id != "" && !p.Has(id) {
				t.Errorf("%s leads to %s, which does not exist", path, at[0])
			}
		}
	}, ".go", ".html", ".js")
	if found < 15 {
		t.Errorf("there are %d links: the test looks in the wrong place", found)
	}
}

// The page names the tests that fail until all places are there, so a renamed test must be renamed
// there too.
func TestContributingNamesExistingTestsAndFiles(t *testing.T) {
	page, err := fs.ReadFile(Files, "contributing.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	sources(t, func(_, text string) {
		for _, name := range declared.FindAllStringSubmatch(text, -1) {
			there[name[1]] = true
		}
	}, "_test.go")
	tests, places := 0, 0
	for _, code := range regexp.MustCompile("`([A-Za-z_./]+)`").FindAllStringSubmatch(string(page), -1) {
		switch name := code[1]; {
		case strings.HasPrefix(name, "Test"):
			if tests++; !there[name] {
				t.Errorf("contributing.md names %s, which does not exist", name)
			}
		case strings.HasPrefix(name, "hub/") || strings.HasPrefix(name, "device/") || strings.HasPrefix(name, "shared/"):
			places++
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("contributing.md names %s: %v", name, err)
			}
		}
	}
	if tests < 15 || places < 20 {
		t.Errorf("contributing.md names %d tests and %d places: the test looks in the wrong place", tests, places)
	}
}
