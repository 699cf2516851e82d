package manual

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"
)

func load(t *testing.T) *Manual {
	t.Helper()
	m, err := Load(Files)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEveryLinkHasATarget(t *testing.T) {
	m := load(t)
	links := 0
	for _, p := range m.Pages() {
		for _, to := range p.Links {
			links++
			file, id, _ := strings.Cut(to, "#")
			target := p
			if file != "" {
				target = m.Page(strings.TrimSuffix(path.Base(file), ".md"))
			}
			if target == nil || id != "" && !target.Has(id) {
				t.Errorf("%s.md links to %s, which does not exist", p.Name, to)
			}
		}
	}
	if links < 50 {
		t.Errorf("there are %d links: the test looks in the wrong place", links)
	}
}

func TestTheREADMEIsShortAndItsLinksHaveTargets(t *testing.T) {
	m, root := load(t), "../.."
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) > 101 {
		t.Errorf("README.md has %d lines: 100 are enough, the rest belongs in web/manual", len(lines)-1)
	}
	for i, line := range lines {
		if n := utf8.RuneCountInString(line); n > 110 && !strings.HasPrefix(line, "|") {
			t.Errorf("README.md:%d has %d columns, more than 110", i+1, n)
		}
	}
	for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(b), -1) {
		file, id, _ := strings.Cut(link[1], "#")
		if _, err := os.Stat(filepath.Join(root, file)); err != nil && !strings.Contains(file, "://") {
			t.Errorf("README.md links to %s: %v", file, err)
		}
		name, isPage := strings.CutPrefix(file, "web/manual/")
		if isPage && id != "" && !m.Page(strings.TrimSuffix(name, ".md")).Has(id) {
			t.Errorf("README.md links to %s, which does not exist", link[1])
		}
	}
}

func TestTheREADMENamesPackagesAndCommandsThatExist(t *testing.T) {
	root := "../.."
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	packages := 0
	for _, code := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(readme), -1) {
		if strings.HasPrefix(code[1], "hub/") || strings.HasPrefix(code[1], "web/") || strings.HasSuffix(code[1], "/") {
			packages++
			if _, err := os.Stat(filepath.Join(root, code[1])); err != nil {
				t.Errorf("README.md names %s: %v", code[1], err)
			}
		}
	}
	if packages < 15 {
		t.Errorf("README.md names %d packages: the test looks in the wrong place", packages)
	}
}

func TestEveryMakeTargetInTheManualExists(t *testing.T) {
	root := "../.."
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindSubmatch(makefile)
	if phony == nil {
		t.Fatal("the Makefile has no .PHONY line")
	}
	targets := strings.Fields(string(phony[1]))
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, readme := range []string{"README.md", "hub/e2e/conformance/README.md", "hub/e2e/faults/README.md"} {
		pages = append(pages, filepath.Join(root, readme))
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)(?:^|`|&& )make ([a-z-]+)").FindAllSubmatch(text, -1) {
			named++
			if !slices.Contains(targets, string(m[1])) {
				t.Errorf("%s names `make %s`, which is not in the Makefile", page, m[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("%d targets are named: the test looks in the wrong place", named)
	}
}

func TestSearch(t *testing.T) {
	m := load(t)
	for question, want := range map[string]string{
		"FailedMount":          "/help/events#FailedMount",
		"failedmount":          "/help/events#FailedMount",
		"IdentityConflict":     "/help/conditions#Node.IdentityConflict",
		"--node-eviction-rate": "/help/flotilla-hub#flotilla-hub-serve.--node-eviction-rate",
		"node-eviction-rate":   "/help/flotilla-hub#flotilla-hub-serve.--node-eviction-rate",
		"hostNetwork":          "/help/pod-fields#PodSpec.hostNetwork",
		"statefulsets":         "/help/kinds#apps/v1.statefulsets",
		"backup restore":       "/help/backup",
		"passphrase protect":   "/help/flotilla-hub#flotilla-hub-ca-protect",
	} {
		found := m.Find(question, 3)
		ok := false
		for _, f := range found {
			ok = ok || f.Href == want
		}
		if !ok {
			t.Errorf("%q finds %+v, and %s is not among the first", question, found, want)
		}
	}
	for _, question := range []string{"", " ", "no-such-word-anywhere", "FailedMount no-such-word-anywhere", "\xff\xfe"} {
		if found := m.Find(question, 3); len(found) > 0 {
			t.Errorf("%q finds %+v", question, found)
		}
	}
}

func TestAnExcerptMarksTheWordsOfTheQuery(t *testing.T) {
	m, err := Load(fstest.MapFS{
		"index.md": {Data: []byte("# Manual\n\n## All\n\n- [One](one.md)\n")},
		"one.md":   {Data: []byte("# One\n\nThe Ärger with " + strings.Repeat("long ", 100) + "Sentences ends.\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	found := m.Find("SENTENCES ends", 1)
	if len(found) != 1 {
		t.Fatalf("found %+v", found)
	}
	var all, hits []string
	for _, p := range found[0].Text {
		all = append(all, p.Text)
		if p.Hit {
			hits = append(hits, p.Text)
		}
	}
	text := strings.Join(all, "")
	if !strings.HasPrefix(text, "… ") || !strings.HasSuffix(text, "ends.") || len(text) > excerpt+10 ||
		strings.Join(hits, " ") != "Sentences ends" {
		t.Errorf("%q, marked %q", text, hits)
	}
}

func TestLoadNamesTheMistakeOfAPage(t *testing.T) {
	index := "# Manual\n\n## All\n\n- [One](one.md)\n"
	for name, c := range map[string]struct{ index, one, want string }{
		"no first page":             {"", "# One\n", "index.md, which lists the other pages, is missing"},
		"a page that is not listed": {"# Manual\n\n## All\n", "# One\n", "does not list one.md"},
		"a page that is not there":  {index + "- [Two](two.md)\n", "# One\n", "link to a page that exists"},
		"no title":                  {index, "One\n", "not a title"},
		"an anchor twice":           {index, "# One\n\n## A b\n\n## A, b\n", "a-b is there twice"},
		"an entry twice":            {index, "# One\n\n| A |\n|---|\n| `x` |\n| `x` |\n", "x is there twice"},
		"a picture that is missing": {index, "# One\n\n![x](pictures/none.svg)\n", "picture"},
		"a link out of the manual":  {index, "# One\n\n[x](../README.md)\n", "leads out of the manual"},
		"a link to another file":    {index, "# One\n\n[x](one.txt)\n", "leads out of the manual"},
	} {
		files := fstest.MapFS{"one.md": {Data: []byte(c.one)}}
		if c.index != "" {
			files["index.md"] = &fstest.MapFile{Data: []byte(c.index)}
		}
		if _, err := Load(files); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestARowThatBeginsWithCodeHasAnAnchor(t *testing.T) {
	m, err := Load(fstest.MapFS{
		"index.md": {Data: []byte("# Manual\n\n## All\n\n- [One](one.md)\n")},
		"one.md": {Data: []byte("# One\n\n| What | Told |\n|---|---|\n| `A`, `B` | x |\n| no entry | `C` |\n\n" +
			"## `the cmd` of ours\n\n| What | Told |\n|---|---|\n| `--d` | <b>y</b> |\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := m.Page("one")
	if got := strings.Join(p.Entries(), " "); got != "A B the-cmd.--d" {
		t.Errorf("entries are %q", got)
	}
	for _, want := range []string{
		`<th scope="row"><code id="A">A</code>, <code id="B">B</code></th><td data-label="Told">x</td>`,
		`<h2 id="the-cmd">`, `<code id="the-cmd.--d">`,
	} {
		if !strings.Contains(p.Body, want) {
			t.Errorf("%q is not in\n%s", want, p.Body)
		}
	}
	if strings.Contains(p.Body, "<b>") {
		t.Errorf("the page contains unescaped HTML:\n%s", p.Body)
	}
	if m.Href("one", "B") != "/help/one#B" || m.Href("one", "C") != "" || m.Href("two", "B") != "" {
		t.Error("Href returns a wrong address")
	}
}

func TestSearchMatchesTheBeginningOfWords(t *testing.T) {
	for _, c := range []struct {
		text, word string
		want       int
	}{
		{"flotilla", "till", 0}, {"till, and the Till of flotilla", "till", 2}, {"FailedMount", "mount", 1},
		{"unmounted", "mount", 0}, {"node-0042", "42", 1}, {"node-1142", "42", 0},
		{"pi3", "3", 1}, {"--node-name", "--node", 1}, {"", "x", 0}, {"x", "", 0},
	} {
		if got := Begins(c.text, c.word); got != c.want {
			t.Errorf("%q begins words of %q %d times, want %d", c.word, c.text, got, c.want)
		}
	}
}

func TestEveryFileAndUnitInTheManualExists(t *testing.T) {
	root := "../.."
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile(
		`\b(?:firmware-configs|hub|device|shared|web)/[a-z][\w/-]*\.(?:yaml|service|socket|go|md|txt)\b`)
	unit := regexp.MustCompile(`systemctl (?:enable|start|stop|restart|status)(?: --now)?((?: flotilla-[\w.-]+)+)`)
	files, units := 0, 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range file.FindAllString(string(text), -1) {
			files++
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s names %s: %v", page, name, err)
			}
		}
		for _, m := range unit.FindAllStringSubmatch(string(text), -1) {
			for _, name := range strings.Fields(m[1]) {
				units++
				if path.Ext(name) == "" {
					name += ".service"
				}
				if _, err := os.Stat(filepath.Join(root, "firmware-configs/systemd", name)); err != nil {
					t.Errorf("%s names %s: %v", page, name, err)
				}
			}
		}
	}
	if files < 5 || units < 10 {
		t.Errorf("found %d files and %d units: the test looks in the wrong place", files, units)
	}
}
