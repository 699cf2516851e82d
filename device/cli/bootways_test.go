package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// furnish makes another board of the Raspberry Pi 4.
func (b *bootBoard) furnish() {
	remove := func(names ...string) {
		for _, n := range names {
			if err := os.RemoveAll(filepath.Join(b.root, n)); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(b.root, name)), 0o755); err != nil {
			b.t.Fatal(err)
		}
		b.write(name, text)
	}
	switch b.way {
	case "deadman":
		remove("proc/device-tree/chosen")
		write("etc/systemd/system/sysinit.target.wants/flotilla-boot-restore.service", "")
	case "grub":
		remove("boot", "proc/device-tree/chosen")
		write("proc/mounts", "/dev/sda1 / ext4 rw,relatime 0 0\n")
		write("proc/cmdline", "BOOT_IMAGE=/vmlinuz ro\n")
		write("boot/grub/grub.cfg", "load_env\n\tlinux /vmlinuz ro ${flotilla_args}\nsource $prefix/custom.cfg\n")
		write("boot/grub/grubenv", "# GRUB Environment Block\n"+strings.Repeat("#", 999))
	}
}

// startOther is the boot of a board whose firmware does not try.
func (b *bootBoard) startOther() (kind string) {
	if b.way != "grub" {
		b.write("proc/cmdline", b.cmdline)
		return "plain"
	}
	text := func(name string) string {
		t, err := os.ReadFile(filepath.Join(b.root, "boot/grub", name))
		if err != nil && !os.IsNotExist(err) {
			b.t.Error(err)
		}
		return string(t)
	}
	words := func(text string) string {
		_, text, _ = strings.Cut(text, `set flotilla_args="`)
		text, _, _ = strings.Cut(text, `"`)
		return text
	}
	custom, env := text("custom.cfg"), text("grubenv")
	kind, b.cmdline = "plain", words(custom)
	_, try, armed := strings.Cut(env, "\nflotilla_try=")
	try, _, _ = strings.Cut(try, "\n")
	if _, block, ok := strings.Cut(custom, `if [ "${flotilla_try}" = "`+try+`" ]; then`); ok && armed {
		kind, b.cmdline = "trial", words(block)
		b.write("boot/grub/grubenv", "# GRUB Environment Block\n"+strings.Repeat("#", 999))
	}
	b.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz ro "+b.cmdline+"\n")
	return kind
}

// The real agent and helper on boards that try in other ways than a Raspberry Pi 4.
func TestABootConfigurationIsTriedByADeadmanAndByGRUB(t *testing.T) {
	t.Parallel()
	program := buildDevice(t)
	for _, way := range []string{"deadman", "grub"} {
		for _, c := range []struct {
			name   string
			effect func(b *bootBoard, config, cmdline string)
			want   string
			says   string
		}{
			{"a good one is kept", nil, wire.FirmwareUpToDate, "kept"},
			{"one that takes the network away is rolled back", func(b *bootBoard, _, cmdline string) {
				b.hub.Lock()
				defer b.hub.Unlock()
				b.hub.refuses = strings.Contains(cmdline, "psi=1")
			}, wire.FirmwareRolledBack, "the hub was connected before, and is not"},
			{"one with which the agent does not run is rolled back", func(b *bootBoard, _, cmdline string) {
				b.noAgent = strings.Contains(cmdline, "psi=1")
			}, wire.FirmwareRolledBack, "the agent did not run"},
		} {
			t.Run(way+": "+c.name, func(t *testing.T) {
				t.Parallel() // most of it is waiting
				hub := newBootHub(t)
				b := newBootBoardOf(t, program, hub, way)
				b.effect = c.effect
				config := bootConfig("psi=1", "cgroup_enable=memory")
				if way == "grub" {
					config.Backend = fleet.BootGrub
				}
				f := signedBoot(t, 1, config)
				hub.want(f)
				st := hub.until(c.want)
				hub.Lock()
				t.Log(hub.states, b.boots)
				hub.Unlock()
				trial := map[string]string{"deadman": fleet.TrialDeadman, "grub": fleet.TrialGrub}[way]
				if !strings.Contains(st.Message, c.says) || st.Trial != trial || st.Backend != config.Backend {
					t.Errorf("it says %+v, want %q", st, c.says)
				}
				name := "boot/firmware/cmdline.txt"
				if way == "grub" {
					name = "boot/grub/custom.cfg"
				}
				got, err := os.ReadFile(filepath.Join(b.root, name))
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				if kept := c.want == wire.FirmwareUpToDate; strings.Contains(string(got), "psi=1") != kept || strings.Contains(string(got), "trial") {
					t.Errorf("%s is %q", name, got)
				}
			})
		}
	}
}
