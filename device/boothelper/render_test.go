package boothelper

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const boards = "../../firmware-configs/testdata"

func memoryProfile() *fleet.BootConfig {
	return &fleet.BootConfig{
		Profile: "raspberrypi-4", Revision: 3, Backend: fleet.BootConfigTxt,
		Cmdline: fleet.BootCmdline{Add: []string{"cgroup_enable=memory"}},
	}
}

func fullProfile() *fleet.BootConfig {
	b := memoryProfile()
	b.Config = fleet.BootSettings{
		All:       map[string]string{"gpu_mem": "16", "enable_uart": "0"},
		DTParam:   []string{"i2c_arm=on"},
		DTOverlay: []string{"w1-gpio,gpiopin=4"},
	}
	b.Cmdline = fleet.BootCmdline{
		Add:    []string{"cgroup_enable=cpuset", "psi=1"},
		Remove: []string{"console=tty1", "rootwait0"},
	}
	b.Watchdog = &fleet.BootWatchdog{Hardware: true}
	return b
}

func TestRenderedFilesMatchTheGoldenFiles(t *testing.T) {
	for board, backend := range map[string]string{
		"raspberrypi-4": fleet.BootConfigTxt, "raspberrypi-3": fleet.BootConfigTxt, "raspberrypi-5": fleet.BootConfigTxt,
		"raspberrypi-zero2w": fleet.BootConfigTxt, "raspberrypi-armv6": fleet.BootConfigTxt,
		"beaglebone-black": fleet.BootUEnv, "generic-x86-64": fleet.BootGrub, "generic-arm64": fleet.BootGrub,
	} {
		t.Run(board, func(t *testing.T) { golden(t, board, backend) })
	}
}

func golden(t *testing.T, board, backend string) {
	dir, files := "boot/firmware", map[string]func(*Files) *[]byte{
		configTxt: func(f *Files) *[]byte { return &f.Config }, cmdlineTxt: func(f *Files) *[]byte { return &f.Cmdline },
	}
	b := fullProfile()
	b.Profile, b.Backend = board, backend
	if backend != fleet.BootConfigTxt {
		dir, b.Config, b.Watchdog = "boot", fleet.BootSettings{}, nil
		delete(files, cmdlineTxt)
		files[uEnvTxt] = files[configTxt]
		b.Cmdline.Remove = []string{"quiet"}
	}
	if backend == fleet.BootGrub {
		dir, b.Cmdline.Remove = "boot/grub", nil
		files[customCfg] = files[configTxt]
		delete(files, uEnvTxt)
	}
	if backend != fleet.BootConfigTxt {
		delete(files, configTxt)
	}
	var live Files
	for name, of := range files {
		text, err := os.ReadFile(filepath.Join(boards, board, "root", dir, name))
		if err != nil {
			t.Fatal(err)
		}
		*of(&live) = text
	}
	got, err := render(live, b)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string][]byte{"diff": []byte(changes(backend, live, got))}
	for name, of := range files {
		texts[name] = *of(&got)
	}
	if backend == fleet.BootGrub {
		if texts["custom.cfg.trial"], err = grubTrial(live, got, "sha256:0123456789abcdef"); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range texts {
		file := filepath.Join(boards, board, "rendered", name)
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(want, text) {
			t.Errorf("%s has changed (run with -update to accept that): %v\n%s", file, err, text)
		}
	}
}

func TestRender(t *testing.T) {
	const line = "console=tty1 root=PARTUUID=1 quiet x=\"a b\"\n"
	for _, c := range []struct {
		name, config, cmdline string
		add, remove           []string
		wantCmdline, err      string
	}{
		{"a word is added", "a=1\n", line, []string{"psi=1"}, nil, "console=tty1 root=PARTUUID=1 quiet x=\"a b\" psi=1\n", ""},
		{"a present word is not added again", "a=1\n", line, []string{"quiet"}, nil, line, ""},
		{"a word is removed", "a=1\n", line, nil, []string{"quiet"}, "console=tty1 root=PARTUUID=1 x=\"a b\"\n", ""},
		{"the first word is removed", "a=1\n", line, nil, []string{"console=tty1"}, "root=PARTUUID=1 quiet x=\"a b\"\n", ""},
		{"a quoted word does not count", "a=1\n", line, []string{"b"}, []string{"a"}, "console=tty1 root=PARTUUID=1 quiet x=\"a b\" b\n", ""},
		{"a repeated word is removed everywhere", "", "quiet a quiet", nil, []string{"quiet"}, "a", ""},
		{"no last newline, CRLF in config.txt", "a=1\r\nb=2", "a b", []string{"c"}, nil, "a b c", ""},
		{"an empty line would be left", "", "quiet", nil, []string{"quiet"}, "", "would be empty"},
		{"two lines", "", "a\nb\n", nil, nil, "", "more than one line"},
		{"an empty cmdline.txt", "", "\n", nil, nil, "", "is empty"},
		{"a section twice", beginMark + "\n" + endMark + "\n" + beginMark + "\n" + endMark + "\n", line, nil, nil, "", "twice"},
		{"a section without an end", "x\n" + beginMark + "\n", line, nil, nil, "", "without \"# END flotilla\""},
		{"an end without a section", endMark + "\r\n" + beginMark, line, nil, nil, "", "without a begin line"},
		{"a record that cannot be read", beginMark + "\n" + recordMark + "{\n" + endMark + "\n", line, nil, nil, "", "cannot be read"},
		{"zero bytes", "a\x00", line, nil, nil, "", "zero bytes"},
		{"too long", strings.Repeat("#\n", MaxConfigTxt), line, nil, nil, "", "at most"},
		{"a line that would be too long", "", strings.Repeat("a", MaxCmdlineTxt), []string{"b"}, nil, "", "kernels read at most"},
		{"a line that is already too long stays, as 64-bit kernels boot it", "", strings.Repeat("a ", MaxCmdlineTxt) + "b\n", []string{"b"}, nil, strings.Repeat("a ", MaxCmdlineTxt) + "b\n", ""},
		{"a line that is already too long may get shorter", "", strings.Repeat("a ", MaxCmdlineTxt) + "quiet\n", nil, []string{"quiet"}, strings.TrimSpace(strings.Repeat("a ", MaxCmdlineTxt)) + "\n", ""},
		{"a line that is already too long may not get longer", "", strings.Repeat("a ", MaxCmdlineTxt) + "quiet\n", []string{"longer"}, []string{"quiet"}, "", "kernels read at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := fullProfile()
			b.Cmdline = fleet.BootCmdline{Add: c.add, Remove: c.remove}
			live := Files{Config: []byte(c.config), Cmdline: []byte(c.cmdline)}
			got, err := renderConfigTxt(live, b)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || string(got.Cmdline) != c.wantCmdline {
				t.Fatalf("cmdline.txt is %q, %v; want %q", got.Cmdline, err, c.wantCmdline)
			}
			if strings.Contains(c.config, "\r\n") &&
				bytes.Count(got.Config, []byte("\n")) != bytes.Count(got.Config, []byte("\r\n")) {
				t.Errorf("config.txt mixes line breaks: %q", got.Config)
			}
			roundTrip(t, live, b)
		})
	}
}

// roundTrip checks the rules that hold for every successful rendering.
func roundTrip(t *testing.T, live Files, b *fleet.BootConfig) {
	t.Helper()
	base, err := restoreConfigTxt(live)
	if err != nil {
		t.Fatal(err)
	}
	once, err := renderConfigTxt(live, b)
	if err != nil {
		return // cmdline.txt would be too long
	}
	c, err := split(once.Config)
	if err != nil {
		t.Fatalf("the rendered config.txt cannot be parsed: %v\n%q", err, once.Config)
	}
	if outside := append(bytes.Clone(c.before), c.after...); !bytes.Equal(outside, base.Config) {
		t.Errorf("text outside of the section was\n%q and is\n%q", base.Config, outside)
	}
	twice, err := renderConfigTxt(once, b)
	if err != nil || !twice.Equal(once) {
		t.Errorf("rendered twice:\n%q\n%q, %v; once:\n%q\n%q", twice.Config, twice.Cmdline, err, once.Config, once.Cmdline)
	}
	back, err := restoreConfigTxt(once)
	if err != nil || !back.Equal(base) {
		t.Errorf("restored:\n%q\n%q, %v; want\n%q\n%q", back.Config, back.Cmdline, err, base.Config, base.Cmdline)
	}
}

func TestLaterChangesOfOthersStay(t *testing.T) {
	live := Files{Config: []byte("a=1"), Cmdline: []byte("root=1 quiet\n")}
	b := fullProfile()
	b.Cmdline = fleet.BootCmdline{Add: []string{"psi=1"}, Remove: []string{"quiet"}}
	got, err := renderConfigTxt(live, b)
	if err != nil {
		t.Fatal(err)
	}
	got.Config = append(got.Config, "later=1\n"...)
	got.Cmdline = []byte("root=1 psi=1 fsck.repair=yes\n")
	roundTrip(t, got, b)
	back, err := restoreConfigTxt(got)
	if err != nil || string(back.Config) != "a=1\nlater=1\n" || string(back.Cmdline) != "root=1 fsck.repair=yes quiet\n" {
		t.Errorf("restored: %q %q, %v", back.Config, back.Cmdline, err)
	}
}

func FuzzRender(f *testing.F) {
	f.Add([]byte("a=1\r\n"), []byte("root=1 quiet"), "gpu_mem", "16", "psi=1", "quiet")
	f.Add(
		[]byte(
			beginMark+"\n"+recordMark+`{"break":true,"sum":"x","add":["y"],"remove":[{"at":3,"text":" z"}]}`+"\n"+endMark+"\nb",
		),
		[]byte("y \"a b\" z\n"),
		"gpu_mem",
		"16",
		"y",
		"z",
	)
	f.Fuzz(func(t *testing.T, config, cmdline []byte, key, value, add, remove string) {
		b := fullProfile()
		b.Config.All = map[string]string{key: value}
		b.Cmdline = fleet.BootCmdline{Add: []string{add}, Remove: []string{remove}}
		live := Files{config, cmdline}
		if b.Validate() != nil {
			b = fullProfile()
		}
		if _, err := restoreConfigTxt(live); err != nil {
			return
		}
		roundTrip(t, live, b)
	})
}
