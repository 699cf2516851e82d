package manual_test

import (
	"encoding/json"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/hub/state"
	"flotilla.dev/web/manual"
)

var (
	shown     = regexp.MustCompile("(?m)^kubectl [^\n|]+|`kubectl [^`]+`")
	arguments = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	takesKind = []string{"annotate", "delete", "describe", "edit", "explain", "get", "label", "patch", "wait"}
	takesNone = []string{"api-resources", "apply", "auth", "certificate", "cordon", "create", "debug", "drain", "logs",
		"set", "top", "uncordon"}
	takeValue = []string{"-f", "-o", "-p", "--kubeconfig", "--sort-by", "--subresource", "--type"}
)

// A kubectl command in the manual names a verb and kinds that the hub serves, and its patch has
// only fields of its kind.
func TestKubectlCommandsMatchTheAPI(t *testing.T) {
	kinds := map[string]state.Kind{}
	for _, r := range state.Served() {
		for _, name := range append([]string{string(r.Kind), strings.ToLower(r.Name)}, r.Short...) {
			kinds[name] = r.Kind
		}
	}
	pages, err := fs.Glob(manual.Files, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	found, patches := 0, 0
	for _, page := range pages {
		text, err := fs.ReadFile(manual.Files, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range shown.FindAllString(strings.ReplaceAll(string(text), "\\\n", ""), -1) {
			command, _, _ := strings.Cut(strings.Trim(line, "`"), " #")
			args, patch := positional(command)
			if len(args) == 0 { // only flags, or only the word kubectl
				continue
			}
			found++
			switch {
			case slices.Contains(takesNone, args[0]):
				continue
			case !slices.Contains(takesKind, args[0]):
				t.Errorf("%s shows %q: unknown verb %s", page, line, args[0])
				continue
			case len(args) == 1:
				continue
			}
			for kind := range strings.SplitSeq(args[1], ",") {
				if kind, _, _ = strings.Cut(kind, "/"); args[0] == "explain" {
					kind, _, _ = strings.Cut(kind, ".")
				}
				if kinds[kind] == "" {
					t.Errorf("%s shows %q: unknown kind %s", page, line, kind)
				} else if patch != "" {
					patches++
					o := kinds[kind].Row().New()
					d := json.NewDecoder(strings.NewReader(patch))
					d.DisallowUnknownFields()
					if err := d.Decode(o); err != nil {
						t.Errorf("%s shows %q: %v", page, line, err)
					}
				}
			}
		}
	}
	if found < 40 || patches < 5 {
		t.Errorf("found %d commands and %d patches: the test looks in the wrong place", found, patches)
	}
}

// positional returns the arguments of a kubectl command that are not flags, and its patch.
func positional(command string) (args []string, patch string) {
	words := arguments.FindAllString(command, -1)[1:]
	for i := 0; i < len(words); i++ {
		switch word := words[i]; {
		case slices.Contains(takeValue, word):
			if i++; word == "-p" && i < len(words) {
				patch = strings.Trim(words[i], "'")
			}
		case word == "--raw":
			return nil, ""
		case !strings.HasPrefix(word, "-"):
			args = append(args, word)
		}
	}
	return args, patch
}
