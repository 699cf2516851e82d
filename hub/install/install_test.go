package install

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/listen"
)

// agents builds the agent for some architectures, once for all tests.
var agents = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "flotilla-agents-")
	if err != nil {
		return "", err
	}
	for _, p := range []struct{ file, arch, arm string }{{"first", runtime.GOARCH, ""}, {"second", "arm", "6"}} {
		c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=9.8.7", "-o",
			filepath.Join(dir, p.file), "flotilla.dev/device")
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+p.arch, "GOARM="+p.arm)
		if out, err := c.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%w: %s", err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := agents(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func depot(t *testing.T) *Depot {
	t.Helper()
	dir, err := agents()
	if err != nil {
		t.Fatal(err)
	}
	return &Depot{Dir: dir, Version: "9.8.7-rc1", Now: time.Now, Log: slog.New(slog.DiscardHandler)}
}

// The build information in a file, not the file's name, decides whether the file is an agent.
func TestOnlyAgentsAreServed(t *testing.T) {
	d := depot(t)
	if got := d.Arches(); !slices.Equal(got, []string{runtime.GOARCH, "armv6"}) {
		t.Fatalf("agents are listed for %v", got)
	}
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(d.Dir, "first"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, make := range map[string]func(name string){
		"a text":                                func(name string) { put(name, []byte("a text")) },
		"half an agent":                         func(name string) { put(name, program[:len(program)/1000]) },
		"an agent that a full disk has cut off": func(name string) { put(name, program[:len(program)-64<<10]) },
		"an agent without its last byte":        func(name string) { put(name, program[:len(program)-1]) },
		"an empty file":                         func(name string) { put(name, nil) },
		"another Go program": func(name string) {
			b, err := os.ReadFile(self)
			if err != nil {
				t.Fatal(err)
			}
			put(name, b)
		},
		"a directory":     func(name string) { _ = os.Mkdir(filepath.Join(dir, name), 0o755) },
		"a dangling link": func(name string) { _ = os.Symlink("nowhere", filepath.Join(dir, name)) },
		"a device":        func(name string) { _ = os.Symlink("/dev/zero", filepath.Join(dir, name)) },
	} {
		make("flotilla-device-arm64")
		listed := &Depot{Dir: dir, Now: time.Now, Log: d.Log}
		if got := listed.Arches(); len(got) != 0 {
			t.Errorf("%s is listed as an agent for %v", name, got)
		}
		if err := os.RemoveAll(filepath.Join(dir, "flotilla-device-arm64")); err != nil {
			t.Fatal(err)
		}
	}
	listed := &Depot{Dir: dir, Now: time.Now, Log: d.Log}
	put("x", program)
	if got := listed.Arches(); !slices.Equal(got, []string{runtime.GOARCH}) {
		t.Errorf("an agent in a file named x is listed for %v", got)
	}
	put("x", []byte("replaced"))
	if got := listed.Arches(); len(got) != 0 {
		t.Errorf("a replaced file is still listed as an agent for %v", got)
	}
	if got := (&Depot{Dir: filepath.Join(dir, "none"), Now: time.Now, Log: d.Log}).Arches(); len(got) != 0 {
		t.Errorf("agents of a missing directory are listed: %v", got)
	}
}

func TestADownloadIsTheFile(t *testing.T) {
	d := depot(t)
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	want, err := os.ReadFile(filepath.Join(d.Dir, "second"))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string, header ...string) (*http.Response, []byte) {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, body
	}
	if _, got := get("/install/flotilla-device-armv6"); !bytes.Equal(got, want) {
		t.Errorf("the downloaded %d bytes differ from the file's %d", len(got), len(want))
	}
	if resp, got := get("/install/flotilla-device-armv6", "Range",
		"bytes=1000-1999"); resp.StatusCode != http.StatusPartialContent || !bytes.Equal(got, want[1000:2000]) {
		t.Errorf("a request for a range is answered %d", resp.StatusCode)
	}
	for _, path := range []string{"/install/flotilla-device-mips", "/install/first", "/install/..%2f..%2fetc%2fpasswd",
		"/install/flotilla-device-.deb", "/install/flotilla-device-"} {
		if resp, body := get(path); resp.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "armv6") {
			t.Errorf("%s: %d %s, want 404 with the names of the agents", path, resp.StatusCode, body)
		}
	}
	for _, name := range []string{"flotilla-boot-helper.socket", "flotilla-boot-deadman.service"} {
		if resp, body := get("/install/" + name); resp.StatusCode != http.StatusOK ||
			!strings.Contains(string(body), "[Install]") {
			t.Errorf("GET unit %s: status %d", name, resp.StatusCode)
		}
	}
	if resp, body := get("/install/flotilla-device.service"); resp.StatusCode != http.StatusOK ||
		!strings.Contains(string(body), "ExecStart=/usr/local/bin/flotilla-device run") {
		t.Errorf("GET the agent's unit: status %d", resp.StatusCode)
	}
}

// Debian's tools accept the package, and extract the original files.
func TestDebianToolsAcceptThePackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb")
	}
	d := depot(t)
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/install/flotilla-device-armv6.deb", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Length") != fmt.Sprint(w.Body.Len()) {
		t.Fatalf("%d, Content-Length %s, %d bytes sent", w.Code, w.Header().Get("Content-Length"), w.Body.Len())
	}
	dir := t.TempDir()
	deb := filepath.Join(dir, "x.deb")
	if err := os.WriteFile(deb, w.Body.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	about := run("dpkg-deb", "--info", deb)
	for _, want := range []string{"Package: flotilla-device\n", "Version: 9.8.7.rc1\n", "Architecture: armhf\n",
		"postinst", "prerm", "md5sums"} {
		if !strings.Contains(about, want) {
			t.Errorf("dpkg-deb --info does not show %q: %s", want, about)
		}
	}
	root := filepath.Join(dir, "root")
	run("dpkg-deb", "--raw-extract", deb, root)
	want, err := os.ReadFile(filepath.Join(d.Dir, "second"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(root, packageBin)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the package's program differs from the built one (%v)", err)
	}
	units := firmwareconfigs.Units()
	for _, name := range units {
		unit, err := os.ReadFile(filepath.Join(root, packageUnits, name))
		if err != nil || strings.Contains(string(unit), "/usr/local/bin") || strings.HasSuffix(name, ".service") &&
			!strings.Contains(string(unit), "ExecStart=/usr/bin/flotilla-device ") {
			t.Errorf("the package's unit %s must run /usr/bin/flotilla-device (%v)", name, err)
		}
		if gone, _ := os.ReadFile(filepath.Join(root, "DEBIAN", "prerm")); !strings.Contains(string(gone), name) {
			t.Errorf("removing the package leaves %s enabled", name)
		}
	}
	if len(units) != 5 {
		t.Errorf("units %v, want one of the agent and four of the boot helper", units)
	}
	c := exec.Command("md5sum", "--check", "DEBIAN/md5sums")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("checksums: %v: %s", err, out)
	}
	for _, script := range []string{"postinst", "prerm"} {
		run("sh", "-n", filepath.Join(root, "DEBIAN", script))
	}
}

// The install line is the shell command that the hub's page shows. Installing the package replaces
// the files that the line installed. If the line ran after the package, removing the package keeps
// the line's files.
func TestPackageAndInstallLineOverrideEachOther(t *testing.T) {
	for _, tool := range []string{"dpkg-deb", "unshare", "systemctl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("private mounts need root")
	}
	w := httptest.NewRecorder()
	depot(t).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/install/flotilla-device-armv6.deb", nil))
	dir := t.TempDir()
	deb := filepath.Join(dir, "x.deb")
	if err := os.WriteFile(deb, w.Body.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("dpkg-deb", "--raw-extract", deb, filepath.Join(dir, "deb")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	const ofPackage, ofLine = "/usr/bin/flotilla-device", "/usr/local/bin/flotilla-device"
	byLine := map[string]string{"local/flotilla-device": "the line's program"}
	for _, name := range firmwareconfigs.Units() {
		unit, _ := firmwareconfigs.Unit(name)
		byLine["etc/"+name] = unit
	}
	edited := strings.Replace(byLine["etc/flotilla-device.service"], ofLine, ofPackage, 1) + "# by the owner\n"
	for _, test := range []struct {
		name    string
		there   map[string]string // files before the installation of the package
		enabled []string
		away    []string // files that the installation moves out of /etc/systemd/system
		program string   // the program that the command flotilla-device runs
		stopped string   // units that the removal stops
	}{
		{"on a new device", nil, nil, nil, "", "flotilla-device.service"},
		{"after the install line", byLine, []string{"flotilla-device.service", "flotilla-boot-helper.socket"}, firmwareconfigs.Units(), ofPackage, "flotilla-device.service"},
		{"after a manual installation without the boot helper", map[string]string{"local/flotilla-device": "x", "etc/flotilla-device.service": byLine["etc/flotilla-device.service"]},
			[]string{"flotilla-device.service"}, []string{"flotilla-device.service"}, ofPackage, "flotilla-device.service"},
		{"with a unit that the owner has edited", map[string]string{"etc/flotilla-device.service": edited}, []string{"flotilla-device.service"}, nil, "", "flotilla-device.service"},
	} {
		t.Run(test.name, func(t *testing.T) {
			box := t.TempDir()
			put := func(name, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(filepath.Join(box, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(box, name), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			run := func(line string) string {
				t.Helper()
				inside := fmt.Sprintf("set -e; mkdir -p /usr/local/bin /etc/systemd/system /run/systemd; mount --bind "+
					"%[1]s/local /usr/local/bin; mount --bind %[1]s/etc /etc/systemd/system; mount --bind %[1]s/run /run/systemd; "+
					"export PATH=%[1]s/sbin:$PATH; %[2]s", box, line)
				out, err := exec.Command("unshare", "-m", "sh", "-c", inside).CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v: %s", line, err, out)
				}
				return string(out)
			}
			calls := func() string {
				text, _ := os.ReadFile(filepath.Join(box, "calls"))
				_ = os.Remove(filepath.Join(box, "calls"))
				return string(text)
			}
			put("run/system/x", "")
			put("local/x", "")
			put("etc/x", "")
			put("sbin/systemctl", "#!/bin/sh\necho \"$@\" >>"+box+"/calls\ncase \"$*\" in is-enabled*) grep -qsx \"$2\" "+box+
				"/enabled && echo enabled || { echo disabled; exit 1; };; esac\n")
			put("enabled", strings.Join(test.enabled, "\n")+"\n")
			for name, text := range test.there {
				put(name, text)
			}

			run(filepath.Join(dir, "deb/DEBIAN/postinst") + " configure")
			did := calls()
			for name, text := range test.there {
				unit, isUnit := strings.CutPrefix(name, "etc/")
				now, err := os.ReadFile(filepath.Join(box, name))
				if away := slices.Contains(test.away, unit); isUnit && away != os.IsNotExist(err) {
					t.Errorf("only edited units must stay after the installation: %s (%v)", name, err)
				} else if isUnit && !away && string(now) != text {
					t.Errorf("%s has changed", name)
				} else if kept, _ := os.ReadFile(filepath.Join(box, name+".replaced")); isUnit && away && string(kept) != text {
					t.Errorf("%s must be kept as *.replaced", name)
				}
				if want := "reenable " + unit + "\n"; isUnit && strings.Contains(did, want) != (slices.Contains(test.away, unit) &&
					slices.Contains(test.enabled, unit)) {
					t.Errorf("%s must be reenabled exactly if it was enabled and is replaced: %s", unit, did)
				}
			}
			if got, _ := os.Readlink(filepath.Join(box, "local/flotilla-device")); got != test.program {
				t.Errorf("the command flotilla-device runs %q, want %q", got, test.program)
			}
			if !strings.HasSuffix(did, "daemon-reload\ntry-restart flotilla-device.service\n") {
				t.Errorf("a running agent must be replaced by the new one: %s", did)
			}
			run(filepath.Join(dir, "deb/DEBIAN/postinst") + " configure") // an upgrade of the package
			if did := calls(); strings.Contains(did, "reenable") {
				t.Errorf("an upgrade must not reenable units: %s", did)
			}
			for name, text := range byLine { // the line runs after the package's installation
				if test.there != nil && test.program != "" && test.there[name] != "" {
					_ = os.Remove(filepath.Join(box, name))
					put(name, text)
				}
			}
			run(filepath.Join(dir, "deb/DEBIAN/prerm") + " remove")
			did = calls()
			if _, there := test.there["local/flotilla-device"]; there && strings.Contains(did, "flotilla-device.service") {
				t.Errorf("removing the package must not stop the line's agent: %s", did)
			} else if !there && !strings.Contains(did, "disable --now "+test.stopped) {
				t.Errorf("removing the package must stop its agent: %s", did)
			}
			if now, err := os.ReadFile(filepath.Join(box, "local/flotilla-device")); test.program != "" &&
				(err != nil || string(now) != byLine["local/flotilla-device"]) {
				t.Errorf("removing the package must keep the line's program (%v)", err)
			}
		})
	}
}

// reads counts the bytes that are read from a program.
type reads struct {
	io.Reader
	bytes int
}

func (r *reads) Read(p []byte) (n int, err error) {
	n, err = r.Reader.Read(p)
	r.bytes += n
	return n, err
}

// Repeated requests for a package make the hub read the program once.
func TestAPackageIsBuiltOnce(t *testing.T) {
	d := depot(t)
	a := d.Agents()[0]
	ask := func(a Agent) int {
		t.Helper()
		f, err := os.Open(a.File)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := &reads{Reader: f}
		if p, err := d.pack(r, a); err != nil || len(p.head) == 0 {
			t.Fatal(err)
		}
		return r.bytes
	}
	if n := ask(a); int64(n) != a.Size {
		t.Errorf("the first request reads %d bytes, want all %d", n, a.Size)
	}
	for range 3 {
		if n := ask(a); n != 0 {
			t.Errorf("a repeated request reads %d bytes, want 0", n)
		}
	}
	a.when = a.when.Add(time.Second)
	if n := ask(a); int64(n) != a.Size {
		t.Errorf("the first request for a replaced program reads %d bytes, want all %d", n, a.Size)
	}
}

func TestVersionsForDebian(t *testing.T) {
	for v, want := range map[string]string{"1.2.3": "1.2.3", "v1.2": "1.2", "1.0-rc.1": "1.0.rc.1", "": "0~",
		"dev": "0~dev", "1.0+git/x y": "1.0+git.x.y"} {
		if got := debianVersion(v); got != want {
			t.Errorf("version %q is %q for Debian, want %q", v, got, want)
		}
	}
}

// Slow downloads do not block the hub or other devices.
func TestDownloadsAreLimited(t *testing.T) {
	d, began := depot(t), time.Now()
	enter := func(from string, after time.Duration, sent int64) *download {
		l := &download{ResponseWriter: httptest.NewRecorder(), limiter: &d.limiter,
			source: listen.Prefix(netip.MustParseAddr(from)), began: began.Add(after), size: 1 << 20, sent: sent}
		if !l.enter(l.began) {
			return nil
		}
		return l
	}
	running := func(l *download) bool { return slices.Contains(d.limiter.all, l) }
	ask := func(from string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(http.MethodHead, "/install/flotilla-device-armv6", nil), httptest.NewRecorder()
		r.RemoteAddr = from
		d.Handler().ServeHTTP(w, r)
		return w
	}
	slow := enter("10.0.0.1", 0, 100)
	for i := 1; i < downloadsEach; i++ {
		if enter("10.0.0.1", 0, 1000) == nil {
			t.Fatalf("download %d of one address is refused", i+1)
		}
	}
	if enter("10.0.0.1", time.Second, 0) != nil || enter("::ffff:10.0.0.1", time.Second, 0) != nil {
		t.Error("an address must not have more than its limit of downloads")
	}
	for i := range downloadsEach {
		if enter(fmt.Sprint("fd00:0:0:1::", i+1), 0, 500) == nil {
			t.Fatalf("download %d of one IPv6 network is refused", i+1)
		}
	}
	if w := ask("[fd00:0:0:1:a:b:c:d]:40000"); w.Code != http.StatusServiceUnavailable ||
		w.Header().Get("Retry-After") == "" {
		t.Errorf("the addresses of one IPv6 network must share a limit: status %d", w.Code)
	}
	if w := ask("[fd00:0:0:2::1]:40000"); w.Code != http.StatusOK {
		t.Errorf("another IPv6 network must have its own limit: status %d", w.Code)
	}
	for i := 2 * downloadsEach; i < downloads; i++ {
		if enter(fmt.Sprint("10.0.1.", i), 0, 5000) == nil {
			t.Fatalf("download %d is refused", i+1)
		}
	}
	if enter("10.0.2.1", downloadSure-1, 0) != nil {
		t.Error("a new download must not be cancelled")
	}
	next := enter("10.0.2.1", downloadSure, 0)
	if next == nil || !running(next) || running(slow) {
		t.Error("the slowest download must be cancelled for the next")
	}
	slow.leave()
	own := enter("fd00:0:0:1::9", 2*downloadSure, 0)
	if own == nil || !running(next) || len(d.limiter.all) != downloads {
		t.Error("an address at its limit must replace its own slowest download, not that of another address")
	}
	for _, l := range slices.Clone(d.limiter.all) {
		l.leave()
	}
	if len(d.limiter.all) != 0 {
		t.Errorf("%d downloads are left, want 0", len(d.limiter.all))
	}
}

// The connection has no buffer, so the client has read every sent byte.
func TestASlowDownloadEnds(t *testing.T) {
	d := depot(t)
	synctest.Test(t, func(t *testing.T) {
		lines := make(line)
		s := &http.Server{Handler: d.Handler()}
		go func() { _ = s.Serve(lines) }()
		get := func() *http.Response {
			near, far := net.Pipe()
			lines <- far
			go func() {
				_, _ = io.WriteString(near, "GET /install/flotilla-device-armv6 HTTP/1.1\r\nHost: hub\r\n\r\n")
			}()
			resp, err := http.ReadResponse(bufio.NewReaderSize(near, 16), nil)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		took := func(r *http.Response, rate int64) (n int64) {
			for {
				m, err := io.CopyN(io.Discard, r.Body, rate)
				if n += m; err != nil {
					return n
				}
				time.Sleep(time.Second)
			}
		}
		for _, c := range []struct {
			name  string
			rate  int64
			whole bool
		}{{"2 kB a second", 2 << 10, false}, {"20 kB a second", 20 << 10, true}, {"1 byte a second", 1, false}} {
			began := time.Now()
			r := get()
			if n := took(r, c.rate); (n == r.ContentLength) != c.whole || !c.whole && time.Since(began) > time.Minute {
				t.Errorf("a client that reads %s got %d of %d bytes in %s", c.name, n, r.ContentLength, time.Since(began))
			}
		}
		_ = s.Close()
	})
}

// A line is a listener for connections in memory.
type line chan net.Conn

func (l line) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l line) Close() error   { close(l); return nil }
func (l line) Addr() net.Addr { return &net.TCPAddr{} }

// The system's word size, not the kernel's, decides which agent is installed.
func TestTheAgentFitsTheSystem(t *testing.T) {
	text, err := os.ReadFile("install.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ system, kernel, bits, want string }{
		{"a PC", "x86_64", "64", "amd64"},
		{"64-bit Raspberry Pi OS", "aarch64", "64", "arm64"},
		{"32-bit Raspberry Pi OS on a 64-bit kernel", "aarch64", "32", "armv7"},
		{"a system without getconf", "aarch64", "", "arm64"},
		{"a 32-bit kernel on a 64-bit processor", "armv8l", "32", "armv7"},
		{"a Pi 2", "armv7l", "32", "armv7"},
		{"a Pi Zero", "armv6l", "32", "armv6"},
	} {
		dir := t.TempDir()
		for name, answer := range map[string]string{
			"uname":   "case $1 in -s) echo Linux ;; *) echo " + c.kernel + " ;; esac",
			"getconf": "echo " + c.bits, "id": "echo 0",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+answer+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-s", "--", "ca.crt")
		cmd.Stdin = bytes.NewReader(text)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "no agent for "+c.want+" ("+c.kernel+")") {
			t.Errorf("%s: %v: %s, want the agent for %s", c.system, err, out, c.want)
		}
	}
}

// A shell runs the page's install line, which installs the agent and joins the hub. The test has
// its own directories, a hub with only the needed paths, and a systemctl that records its
// arguments.
func TestTheLineInstallsAndJoins(t *testing.T) {
	for _, tool := range []string{"curl", "unshare", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("private mounts need root")
	}
	d := depot(t)
	var ca []byte
	asked := make(chan string, 10)
	mux := http.NewServeMux()
	mux.Handle("/install", d.Handler())
	var cut atomic.Value // name of the file whose download breaks off
	cut.Store("")
	mux.HandleFunc("/install/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/install/"+cut.Load().(string) {
			w.Header().Set("Content-Length", "200")
			_, _ = io.WriteString(w, "[Unit]\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		d.Handler().ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /join/ca", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(ca) })
	mux.HandleFunc("POST /join", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		asked <- string(b)
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"error":"the test's hub refuses every device"}`)
	})
	hub := httptest.NewUnstartedServer(mux)
	hub.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	hub.StartTLS()
	defer hub.Close()
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})

	box := t.TempDir()
	for _, f := range []string{"bin", "sbin", "unit", "run/systemd/system", "state"} {
		if err := os.MkdirAll(filepath.Join(box, f), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(box, "sbin", name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("sudo", "#!/bin/sh\necho \"$@\" >>"+box+"/sudo\nexec \"$@\"\n")
	script("systemctl", "#!/bin/sh\necho \"$@\" >>"+box+"/systemctl\n")
	run := func(line string) (string, error) {
		t.Helper()
		inside := fmt.Sprintf("set -e; mkdir -p /usr/local/bin /etc/systemd/system /run/systemd /var/lib; mount --bind "+
			"%[1]s/bin /usr/local/bin; mount --bind %[1]s/unit /etc/systemd/system; mount -t tmpfs tmpfs /var/lib; mount "+
			"--bind %[1]s/run/systemd /run/systemd; export PATH=%[1]s/sbin:$PATH TMPDIR=%[1]s; %[2]s", box, line)
		out, err := exec.Command("unshare", "-m", "sh", "-c", inside).CombinedOutput()
		return string(out), err
	}

	token := "FLT1.0123456789abcdef0123456789abcdef.abcdefghij.0123456789abcdefghijklmnop"
	out, err := run(Line(hub.URL, ca, token))
	if err == nil || !strings.Contains(out, "9.8.7") {
		t.Fatalf("%v: %s", err, out)
	}
	want, _ := os.ReadFile(filepath.Join(d.Dir, "first"))
	if got, err := os.ReadFile(filepath.Join(box, "bin", "flotilla-device")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the agent was not installed (%v): %s", err, out)
	}
	for _, name := range firmwareconfigs.Units() {
		if unit, err := os.ReadFile(filepath.Join(box, "unit", name)); err != nil ||
			!bytes.Contains(unit, []byte("[Install]")) && !strings.Contains(name, "helper.service") {
			t.Errorf("the unit %s was not installed (%v)", name, err)
		}
	}
	// The token has the pin of another hub, so the agent refuses this hub and does not send the token.
	if !strings.Contains(out, "wrong hub") {
		t.Errorf("the join must report a wrong hub: %s", out)
	}
	// sudo logs its arguments, so the token must not be one of them.
	if asked, err := os.ReadFile(filepath.Join(box, "sudo")); err != nil || len(asked) == 0 ||
		strings.Contains(string(asked), "FLT1") {
		t.Errorf("sudo's arguments must not have the token: %q (%v)", asked, err)
	}
	// A running agent is restarted with the new program; a stopped agent is not started.
	if calls, _ := os.ReadFile(filepath.Join(box,
		"systemctl")); string(calls) != "daemon-reload\ntry-restart flotilla-device\n" {
		t.Errorf("an agent that has not joined must not be started: %s", calls)
	}

	// Older hubs put the token at the line's end; users add options of join.
	upgrade := strings.NewReplacer("{ curl", "curl", "&& echo join "+token+"; }", "", "$c -",
		"$c").Replace(Line(hub.URL, ca, token))
	if out, err := run(upgrade + " " + token + " --node-name Pi_7"); err == nil ||
		!strings.Contains(out, `"Pi_7" must be`) {
		t.Errorf("a line with the token at its end: %v: %s", err, out)
	}
	if out, err := run(strings.Replace(Line(hub.URL, ca, token), token, token+" --node-name Pi_8", 1)); err == nil ||
		!strings.Contains(out, `"Pi_8" must be`) {
		t.Errorf("a line with options: %v: %s", err, out)
	}
	if err := os.Remove(filepath.Join(box, "systemctl")); err != nil {
		t.Fatal(err)
	}

	// Without a token the line updates the agent and starts nothing.
	if out, err := run(upgrade); err != nil {
		t.Errorf("an upgrade: %v: %s", err, out)
	}
	if calls, _ := os.ReadFile(filepath.Join(box, "systemctl")); !strings.HasSuffix(string(calls),
		"daemon-reload\ntry-restart flotilla-device\n") {
		t.Errorf("systemctl calls of an upgrade: %s", calls)
	}

	// An interrupted download or a full disk changes no file, because the agent could not start
	// without its unit.
	old := map[string]string{filepath.Join(box, "bin", "flotilla-device"): "the agent before"}
	for _, name := range firmwareconfigs.Units() {
		old[filepath.Join(box, "unit", name)] = "the unit before"
	}
	for file, text := range old {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"flotilla-device-" + d.Arches()[0], firmwareconfigs.Units()[0],
		"flotilla-device.service"} {
		cut.Store(name)
		if out, err := run(upgrade); err == nil {
			t.Errorf("the line must fail after half of %s: %s", name, out)
		}
		for file, text := range old {
			if now, err := os.ReadFile(file); err != nil || string(now) != text {
				t.Errorf("after half of %s, %s has changed (%v)", name, file, err)
			}
		}
	}
	cut.Store("")
	// The message about a failed write does not blame the hub or the clock.
	for where, how := range map[string]string{
		"/usr/local/bin/flotilla-device.new":                         "mount -t tmpfs -o size=64k tmpfs /usr/local/bin",
		"/etc/systemd/system/" + firmwareconfigs.Units()[0] + ".new": "mount -o remount,bind,ro /etc/systemd/system",
	} {
		out, err := run(how + "; " + upgrade)
		if err == nil || !strings.Contains(out, "cannot write "+where) || strings.Contains(out, "set the clock") ||
			!strings.Contains(out, "nothing is changed") {
			t.Errorf("after %s: %v: %s", how, err, out)
		}
		for file, text := range old {
			if now, err := os.ReadFile(file); err != nil || string(now) != text {
				t.Errorf("after %s, %s has changed (%v)", how, file, err)
			}
		}
	}
	if out, err := run(upgrade); err != nil {
		t.Errorf("an upgrade after failed ones: %v: %s", err, out)
	}
	for file, text := range old {
		if now, err := os.ReadFile(file); err != nil || string(now) == text {
			t.Errorf("after a complete upgrade, %s has not changed (%v)", file, err)
		}
	}

	// A server with another authority is refused.
	if err := os.Remove(filepath.Join(box, "bin", "flotilla-device")); err != nil {
		t.Fatal(err)
	}
	out, err = run(Line(hub.URL, []byte("another"), token))
	if err == nil {
		t.Errorf("a wrong authority must be refused: %s", out)
	}
	if !strings.HasPrefix(out, "flotilla: the server at this address is not the hub that made this line") ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("the message about a wrong authority is %q", out)
	}
	if _, err := os.Stat(filepath.Join(box, "bin", "flotilla-device")); err == nil {
		t.Error("a file from an unknown server was installed")
	}
	for _, dir := range []string{"bin", "unit"} {
		if left, err := filepath.Glob(filepath.Join(box, dir, "*.new")); err != nil || len(left) > 0 {
			t.Errorf("temporary files are left: %v (%v)", left, err)
		}
	}
}

// The shell never executes a part of the hub's URL.
func TestAHubsURLIsNotExecuted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "touched")
	d := &Depot{Dir: t.TempDir(), Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	for _, hub := range []string{"https://x';touch " + file + ";'", "https://x$(touch " + file + ")",
		"https://x`touch " + file + "`", "https://x\n touch " + file + "\n"} {
		c := exec.Command("sh", "-s")
		c.Stdin = strings.NewReader(d.Script(hub))
		if out, err := c.CombinedOutput(); err == nil {
			t.Errorf("without arguments the script must fail: %s", out)
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("the shell executed a part of %q", hub)
		}
	}
}
