package admin

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/web"
)

func TestVendoredFilesAreWhatTheirReadmeSays(t *testing.T) {
	readme, err := web.Files.ReadFile("static/vendor/README.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for _, m := range regexp.MustCompile(`\| (\S+) \| ([0-9a-f]{64}) \|`).FindAllStringSubmatch(string(readme), -1) {
		known["static/vendor/"+m[1]] = m[2]
	}
	err = fs.WalkDir(web.Files, "static/vendor", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "README.md" || strings.HasPrefix(d.Name(), "LICENSE") {
			return err
		}
		body, err := web.Files.ReadFile(path)
		if err != nil {
			return err
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(body)); known[path] != sum {
			t.Errorf("%s has the sum %s, but the README says %q", path, sum, known[path])
		}
		delete(known, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range known {
		t.Errorf("the README lists %s, which does not exist", path)
	}
}

// The first load of a page is at most 150 kB compressed, including the terminal's files, which only
// the terminal loads.
func TestTheFirstLoadIsSmall(t *testing.T) {
	srv := start(t, configOf(admintest.New(append(admintest.Sample(), toolObjects()...)...)))
	refers := regexp.MustCompile(`(?:href|src|data-xterm|data-fit)="(/static/[^"]+)"`)
	for _, path := range []string{"/", "/nodes", "/pods/default/two-7d9f/logs", "/pods/default/two-7d9f/terminal", "/yaml", "/settings"} {
		_, body := srv.ask(t, "admin", http.MethodGet, path, nil)
		total := small(t, []byte(body))
		for _, m := range refers.FindAllStringSubmatch(body, -1) {
			file, _, _ := strings.Cut(strings.TrimPrefix(m[1], "/static/"), "?")
			text, err := web.Files.ReadFile("static/" + file)
			if err != nil {
				t.Fatal(err)
			}
			total += small(t, text)
			if strings.HasPrefix(file, "vendor/") && !strings.HasSuffix(path, "/terminal") {
				t.Errorf("%s loads %s", path, file)
			}
		}
		if total > 150_000 {
			t.Errorf("%s costs %d bytes, compressed", path, total)
		}
	}
	resp, _ := srv.ask(t, "", http.MethodGet, "/static/vendor/xterm/xterm.mjs", nil, "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/javascript") {
		t.Errorf("a script is sent as %v", resp.Header)
	}
}

func small(t *testing.T, b []byte) int {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Len()
}
