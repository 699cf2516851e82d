package cli

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/wire"
)

// askHelper writes a text to the helper's socket and returns its answer.
func askHelper(t *testing.T, socket string, text []byte) boothelper.Reply {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	_, _ = conn.Write(text) // the helper may stop reading
	answer, _ := io.ReadAll(conn)
	var a boothelper.Reply
	if err := json.Unmarshal(bytes.TrimSpace(answer), &a); err != nil {
		a.Error = "no answer: " + err.Error()
	}
	return a
}

func TestTheHelperRefusesInvalidRequests(t *testing.T) {
	program := buildDevice(t)
	b := &bootBoard{t: t, program: program, output: &safeBuffer{}}
	var err error
	if b.dir, err = os.MkdirTemp("", "board"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(b.dir) })
	b.root = filepath.Join(b.dir, "root")
	b.writeFiles()
	socket := filepath.Join(b.dir, "helper.sock")
	helper := b.run("boot-helper", "--root", b.root, "--state-dir", filepath.Join(b.dir, "helper"), "--socket", socket)
	t.Cleanup(func() { _ = helper.Process.Kill(); _ = helper.Wait() })
	ask := func(r boothelper.Request) error {
		for range 600 {
			if a, err := boothelper.Ask(context.Background(), socket, r); err == nil || a.Error != "" {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatal("the helper does not answer")
		return nil
	}
	refused := func(name string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", name, err, want)
		}
	}
	arm := func(f *wire.Firmware) error { return ask(boothelper.Request{Op: boothelper.OpArm, Firmware: f}) }
	inspect := func(f *wire.Firmware) error { return ask(boothelper.Request{Op: boothelper.OpInspect, Firmware: f}) }
	config, cmdline := b.read("config.txt"), b.read("cmdline.txt")
	good := signedBoot(t, 5, bootConfig("psi=1"))
	foreignKey := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize)))

	refused("a request before a hub is pinned", arm(good), "no hub key")
	if err := ask(boothelper.Request{Op: boothelper.OpPin, Node: "pi-1",
		Key: bootKey.Public().(ed25519.PublicKey)}); err != nil {
		t.Fatal(err)
	}
	refused("a pin with another hub's key", ask(boothelper.Request{Op: boothelper.OpPin, Node: "pi-1",
		Key: foreignKey.Public().(ed25519.PublicKey)}), "boot-helper --forget")
	refused("a pin for another node", ask(boothelper.Request{Op: boothelper.OpPin, Node: "pi-2",
		Key: bootKey.Public().(ed25519.PublicKey)}), "boot-helper --forget")

	unsigned := *good
	unsigned.Signature = nil
	refused("an unsigned configuration", arm(&unsigned), "not signed")
	refused("a signature by a foreign key", arm(wire.SignFirmware(foreignKey, "pi-1", "raspberrypi,4-model-b", 5,
		good.Document)), "not signed")
	refused("a signature for another node", arm(wire.SignFirmware(bootKey, "pi-2", "raspberrypi,4-model-b", 5,
		good.Document)), "not signed")
	refused("a signature for another board", arm(wire.SignFirmware(bootKey, "pi-1", "raspberrypi,5-model-b", 5,
		good.Document)), "not signed")
	replayed := *good
	replayed.Generation = 9
	refused("a signature with a changed generation", arm(&replayed), "not signed")
	document := strings.Replace(string(good.Document), "psi=1", "init=/x", 1)
	refused("an invalid document", arm(wire.SignFirmware(bootKey, "pi-1", "raspberrypi,4-model-b", 5,
		[]byte(document))), "is refused")
	for _, overlay := range []string{"../../etc/passwd", "a/b", "..", "/x", "w1-gpio\ninclude=x"} {
		c := bootConfig("psi=1")
		c.Config.DTOverlay = []string{overlay}
		refused("the overlay "+overlay, arm(signedBoot(t, 5, c)), "config.dtoverlay[0]")
	}
	missing := bootConfig("psi=1")
	missing.Config.DTOverlay = []string{"not-there"}
	refused("a missing overlay", inspect(signedBoot(t, 5, missing)), "has no overlay not-there")
	refused("a keep without a trial", ask(boothelper.Request{Op: boothelper.OpKeep, Digest: good.Digest}),
		"is not the trial")
	refused("an undo without a configuration", ask(boothelper.Request{Op: boothelper.OpUndo}), "nothing to undo")
	refused("an unknown operation", ask(boothelper.Request{Op: "write"}), "unknown operation")

	for name, text := range map[string]string{
		"10 MB":           strings.Repeat("x", 10<<20),
		"a line of 10 MB": `{"op":"arm","digest":"` + strings.Repeat("x", 10<<20) + "\"}\n",
		"not JSON":        "hello\n",
		"an unknown key":  `{"op":"status","path":"/etc/passwd"}` + "\n",
		"two requests":    `{"op":"status"}{"op":"undo"}` + "\n",
		"deep nesting":    `{"op":` + strings.Repeat("[", 100000) + "\n",
	} {
		if a := askHelper(t, socket, []byte(text)); a.Error == "" {
			t.Errorf("%s: the answer is %+v, want an error", name, a)
		}
	}
	slow, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	_, _ = slow.Write([]byte(`{"op"`))
	// the helper answers once the slow request has timed out
	if err := ask(boothelper.Request{Op: boothelper.OpStatus}); err != nil {
		t.Errorf("a request after a slow one: %v", err)
	}

	// On these boards the helper refuses the configuration.
	for _, c := range []struct{ name, file, text, want string }{
		{"Ubuntu's A/B", "boot/firmware/config.txt", "[tryboot]\nos_prefix=new/\n", "manages the boot"},
		{"not mounted", "proc/mounts", "/dev/mmcblk0p2 / ext4 rw 0 0\n", "not a mounted FAT"},
		{"a broken section", "boot/firmware/config.txt", "# BEGIN flotilla\n", "# END flotilla"},
		{"two lines for the kernel", "boot/firmware/cmdline.txt", "a\nb\n", "more than one line"},
		{"another board", "proc/device-tree/compatible", "raspberrypi,3-model-b\x00", "not signed"},
	} {
		name := filepath.Join(b.root, c.file)
		was, had := os.ReadFile(name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		refused(c.name, arm(good), c.want)
		if had != nil {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(name, was, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"config.txt", "cmdline.txt"} {
		if err := os.Rename(b.file(name), b.file(name)+".real"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(b.file(name)+".real", b.file(name)); err != nil {
			t.Fatal(err)
		}
		want := "is a link"
		if name == "config.txt" {
			want = "not a regular file"
		}
		refused(name+" is a link", arm(good), want)
		if err := os.Rename(b.file(name)+".real", b.file(name)); err != nil {
			t.Fatal(err)
		}
	}

	if got := b.read("config.txt"); got != config || b.read("cmdline.txt") != cmdline || b.read("tryboot.txt") != "" {
		t.Fatalf("a refused request changed the boot files: %q", got)
	}
	if _, err := os.Stat(filepath.Join(b.root, "run/systemd/reboot-param")); err == nil {
		t.Fatal("a refused request rebooted the board")
	}
	if err := arm(good); err != nil {
		t.Fatalf("a valid request is refused: %v", err)
	}
	if !strings.Contains(b.read("tryboot.txt"), good.Digest) || b.read("config.txt") != config {
		t.Error("want an armed trial and an unchanged config.txt")
	}
	if err := ask(boothelper.Request{Op: boothelper.OpRestore}); err != nil {
		t.Error(err)
	}
	older := signedBoot(t, 4, bootConfig("psi=0"))
	refused("replay of an older generation", arm(older), "is older than 5")
	if os.Geteuid() == 0 {
		// another user can connect, but gets a refusal
		if err := errors.Join(os.Chmod(b.dir, 0o755), os.Chmod(socket, 0o666)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/usr/bin/perl", "-MIO::Socket::UNIX", "-e",
			`$s=IO::Socket::UNIX->new($ARGV[0]) or die $!; print <$s>`, socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err == nil && !strings.Contains(string(out), "only root may") {
			t.Errorf("another user's request is not refused: %s", out)
		} else if err != nil {
			t.Errorf("run a request as another user: %v: %s", err, out)
		}
	}
}
