package boothelper

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/shared/fleet"
)

// A grubDisk is a disk with an ext4 file system of our files. The BIOS boots GRUB from the disk, or
// UEFI boots GRUB from an EFI system partition beside it.
type grubDisk struct {
	t    *testing.T
	efi  bool
	root string // directory with the content of the file system
	dir  string
}

const (
	grubModules = "/usr/lib/grub/i386-pc"
	efiModules  = "/usr/lib/grub/x86_64-efi"
	efiFirmware = "/usr/share/ovmf/OVMF.fd"
	rootUUID    = "6d1f9c52-94a5-4b7e-9a61-3f2f8f0f5a10"
)

// newGrubDisk returns a disk with a grub.cfg as grub-mkconfig writes it. Its entry prints the
// command line and halts instead of starting Linux.
func newGrubDisk(t *testing.T, efi bool) *grubDisk {
	t.Helper()
	modules, needs := grubModules, []string{
		"qemu-system-x86_64",
		"grub-mkimage",
		"mke2fs",
		"debugfs",
		"/etc/grub.d/41_custom",
	}
	if efi {
		modules, needs = efiModules, append(needs, efiFirmware, efiModules+"/loadenv.mod")
	} else {
		needs = append(needs, grubModules+"/boot.img")
	}
	for _, need := range needs {
		_, err := exec.LookPath(need)
		if strings.HasPrefix(need, "/") {
			_, err = os.Stat(need)
		}
		if err != nil {
			t.Skipf("SKIPPED: GRUB was not booted: this test needs %s (packages qemu-system-x86, grub-pc-bin, grub-efi-amd64-bin, ovmf, grub2-common, e2fsprogs): %v", need, err)
		}
	}
	d := &grubDisk{t: t, efi: efi, dir: t.TempDir()}
	d.root = filepath.Join(d.dir, "root")
	if err := os.MkdirAll(filepath.Join(d.root, "boot/grub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(d.root, "boot/grub", filepath.Base(modules)), os.DirFS(modules)); err != nil {
		t.Fatal(err)
	}
	custom, err := exec.Command("sh", "/etc/grub.d/41_custom").Output()
	if err != nil {
		t.Fatal(err)
	}
	d.put(grubCfg, `serial --unit=0 --speed=115200
terminal_output serial
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
set default=0
set timeout=0
menuentry 'Debian GNU/Linux' {
	echo	"BOOT /vmlinuz ro quiet "${flotilla_args}
	halt
}
`+string(custom))
	d.put(grubEnv, string(EmptyEnv()))
	return d
}

func (d *grubDisk) put(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.root, "boot/grub", name), []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// make creates the file system and the disk.
func (d *grubDisk) make(kind string) (disk string) {
	d.t.Helper()
	part, core := filepath.Join(d.dir, "part.img"), filepath.Join(d.dir, "core.img")
	disk = filepath.Join(d.dir, "disk.img")
	_ = os.Remove(part)
	d.run("mke2fs", "-q", "-t", kind, "-U", rootUUID, "-d", d.root, part, "40M")
	modules := []string{"part_msdos", "ext2", "normal", "loadenv", "echo", "test", "configfile", "halt", "serial",
		"terminal"}
	if d.efi { // as on Debian, this grub.cfg loads /boot/grub/grub.cfg
		boot := filepath.Join(d.dir, "esp/EFI/BOOT")
		if err := os.MkdirAll(boot, 0o755); err != nil {
			d.t.Fatal(err)
		}
		stub := "search.fs_uuid " + rootUUID + " root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n"
		if err := os.WriteFile(filepath.Join(boot, grubCfg), []byte(stub), 0o644); err != nil {
			d.t.Fatal(err)
		}
		d.run("grub-mkimage", append([]string{"-O", "x86_64-efi", "-o", filepath.Join(boot, "BOOTX64.EFI"), "-p",
			"/EFI/BOOT", "fat", "search", "search_fs_uuid"}, modules...)...)
	} else {
		d.run("grub-mkimage", append([]string{"-O", "i386-pc", "-o", core, "-p", "(hd0,msdos1)/boot/grub", "biosdisk"},
			modules...)...)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(name)
		if err != nil {
			d.t.Fatal(err)
		}
		return b
	}
	const first = 2048 // first sector of the partition
	content := read(part)
	image := make([]byte, first*512+len(content))
	if !d.efi {
		copy(image, read(grubModules + "/boot.img")[:440])
		copy(image[512:], read(core))
	}
	copy(image[first*512:], content)
	entry := image[446:]
	entry[0], entry[4] = 0x80, 0x83
	binary.LittleEndian.PutUint32(entry[8:], first)
	binary.LittleEndian.PutUint32(entry[12:], uint32(len(content)/512))
	image[510], image[511] = 0x55, 0xaa
	if err := os.WriteFile(disk, image, 0o600); err != nil {
		d.t.Fatal(err)
	}
	return disk
}

func (d *grubDisk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// boot boots the disk and returns the command line with which GRUB would start Linux.
func (d *grubDisk) boot(drive string) (args, output string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 4*time.Minute)
	defer cancel()
	qemu := []string{"-accel", "tcg", "-m", "64", "-display", "none", "-serial", "stdio", "-no-reboot", "-net", "none",
		"-drive", drive}
	if d.efi {
		qemu = append(qemu, "-m", "256", "-bios", efiFirmware, "-drive",
			"format=raw,readonly=on,if=virtio,file=fat:"+filepath.Join(d.dir, "esp"))
	}
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", qemu...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("qemu: %v\n%s", err, out)
	}
	_, args, ok := strings.Cut(string(out), "BOOT ")
	if !ok {
		d.t.Fatalf("GRUB starts no entry:\n%q", out)
	}
	args, _, _ = strings.Cut(args, "\r")
	return strings.TrimSpace(args), string(out)
}

func grubFiles(t *testing.T) (from, to Files) {
	t.Helper()
	b := ProfileOf(ByGrub)
	var err error
	b.Cmdline.Add = []string{"kept=1"}
	if from, err = render(Files{Config: []byte("menuentry 'mine' {\n\thalt\n}\n")}, b); err != nil {
		t.Fatal(err)
	}
	b.Cmdline.Add = []string{"psi=1", "a.b=c,d"}
	if to, err = render(from, b); err != nil {
		t.Fatal(err)
	}
	return from, to
}

// The real GRUB boots the trial once and then the old words. If GRUB cannot write its environment
// block, it does not boot the trial.
func TestGRUBTriesOnce(t *testing.T) {
	t.Parallel()
	for name, efi := range map[string]bool{"BIOS": false, "UEFI": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			triesOnce(t, newGrubDisk(t, efi))
		})
	}
}

func triesOnce(t *testing.T, d *grubDisk) {
	from, to := grubFiles(t)
	digest := "sha256:" + strings.Repeat("ab", 32)
	trial, err := grubTrial(from, to, digest)
	if err != nil {
		t.Fatal(err)
	}
	env, err := setEnv(EmptyEnv(), grubTry, trialName(digest))
	if err != nil {
		t.Fatal(err)
	}
	const entry = "/vmlinuz ro quiet "
	tried := entry + "psi=1 a.b=c,d " + grubTrialOf + trialName(digest)
	wants := func(disk, options, want string) {
		t.Helper()
		if got, output := d.boot("format=raw,file=" + disk + options); got != want {
			t.Errorf("GRUB starts %q, want %q:\n%q", got, want, output)
		}
	}

	// The kind of firmware matters only for reading and writing the disk. The BIOS takes a third of
	// the time, so it runs the other cases.
	if d.put(customCfg, string(from.Config)); !d.efi {
		wants(d.make("ext4"), "", entry+"kept=1")
	}

	d.put(customCfg, string(trial))
	wants(d.make("ext4"), "", entry+"kept=1") // the power was cut before grubenv was written

	d.put(grubEnv, string(env))
	disk := d.make("ext4")
	wants(disk, ",if=virtio,readonly=on", entry+"kept=1") // GRUB cannot write
	wants(disk, "", tried)
	wants(disk, "", entry+"kept=1")
	if !d.efi {
		wants(disk, "", entry+"kept=1")
	}

	// The environment block as GRUB leaves it can be read and armed again.
	out, err := exec.Command("debugfs", "-R", "cat /boot/grub/grubenv", "-c", offset(t, d, disk)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), trialName(digest)) {
		t.Errorf("after its boot GRUB has left the trial in the environment block %q", out)
	}
	env, err = setEnv(out, grubTry, trialName(digest))
	if err != nil {
		t.Fatal(err)
	}
	d.put(grubEnv, string(env))
	wants(d.make("ext4"), "", tried)

	if d.put(customCfg, string(to.Config)); !d.efi { // the trial is kept
		wants(d.make("ext4"), "", entry+"psi=1 a.b=c,d")
	}
}

// offset returns the partition of a disk as a file.
func offset(t *testing.T, d *grubDisk, disk string) string {
	t.Helper()
	image, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(d.dir, "after.img")
	if err := os.WriteFile(name, image[2048*512:], 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestGRUBsEnvironmentBlock(t *testing.T) {
	env := EmptyEnv()
	for _, c := range []struct{ key, value, want string }{
		{"next_entry", "1>2", "next_entry=1>2\n"},
		{grubTry, "a", "next_entry=1>2\nflotilla_try=a\n"},
		{grubTry, "b", "next_entry=1>2\nflotilla_try=b\n"},
		{"next_entry", "", "flotilla_try=b\n"},
		{grubTry, "", ""},
	} {
		var err error
		if env, err = setEnv(env, c.key, c.value); err != nil || len(env) != envSize ||
			strings.TrimRight(string(env), "#") != envHead+c.want {
			t.Errorf("setEnv(%s, %s) returns %q, %v", c.key, c.value, env, err)
		}
	}
	for name, bad := range map[string][]byte{"empty": nil, "short": env[:1000],
		"another": []byte(strings.Repeat("x", envSize)), "cut": append([]byte(envHead+"a=b"),
			strings.Repeat("#", envSize-len(envHead)-3)...)} {
		if _, err := setEnv(bad, grubTry, "x"); err == nil {
			t.Errorf("an invalid environment block is accepted: %s", name)
		}
	}
	if _, err := setEnv(env, grubTry, strings.Repeat("x", envSize)); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("a value that does not fit: %v, want an error that says full", err)
	}
}

func TestOnlyTheSectionOfGRUBAndUBootFilesChanges(t *testing.T) {
	for _, text := range []string{"", "a=1", "a=1\n", "# x\ncmdline=quiet b\n", "cmdline=quiet b"} {
		for _, backend := range []string{fleet.BootGrub, fleet.BootUEnv} {
			b := ProfileOf(ByGrub)
			b.Backend = backend
			live := Files{Config: []byte(text)}
			once, err := render(live, b)
			if err != nil {
				t.Fatal(err)
			}
			twice, err := render(once, b)
			if err != nil || !twice.Equal(once) {
				t.Errorf("%s: rendered twice: %q, %v; once: %q", backend, twice.Config, err, once.Config)
			}
			if back, err := withoutSection("x", once.Config); err != nil || string(back) != text {
				t.Errorf("%s: %q without the section is %q, %v", backend, text, back, err)
			}
			if !strings.HasPrefix(string(once.Config), text) || changes(backend, live, once) == "" {
				t.Errorf("%s: text outside of the section was %q and is %q: %s", backend, text, once.Config,
					changes(backend, live, once))
			}
			if backend == fleet.BootGrub {
				trial, err := grubTrial(live, once, "sha256:abc")
				if err != nil {
					t.Fatal(err)
				}
				if back, err := untried(trial); err != nil || string(back) != text {
					t.Errorf("after a trial %q has become %q, %v", text, back, err)
				}
			}
		}
	}
}
