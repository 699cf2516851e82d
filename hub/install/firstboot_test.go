package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

var someCard = FirstBoot{Hub: "https://gateway:8443", CA: []byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"),
	Token: "FLT1.a.b.c", Engine: "docker.io", Now: time.Unix(2_000_000_000, 0)}

// Both formats bring the same files.
func TestFirstBootFilesForCloudInit(t *testing.T) {
	text, err := someCard.Write(CloudInit)
	if err != nil || !strings.HasPrefix(text, "#cloud-config\n") {
		t.Fatalf("%v: %s", err, text)
	}
	var data struct {
		Packages   []string `json:"packages"`
		WriteFiles []struct {
			Path, Permissions, Content string
		} `json:"write_files"`
		RunCmd [][]string `json:"runcmd"`
	}
	if err := yaml.UnmarshalStrict([]byte(strings.Replace(text, "package_update: true\n", "", 1)), &data); err != nil {
		t.Fatal(err)
	}
	if len(data.Packages) != 1 || data.Packages[0] != "docker.io" || len(data.RunCmd) != 3 {
		t.Errorf("it installs %q and runs %q", data.Packages, data.RunCmd)
	}
	for i, f := range someCard.files() {
		if got := data.WriteFiles[i]; got.Path != f.path || got.Permissions != f.mode || got.Content != f.text {
			t.Errorf("it writes %+v, want %+v", got, f)
		}
	}
}

func TestWrongFirstBootFilesAreRefused(t *testing.T) {
	bad := someCard
	bad.Engine = "docker; reboot"
	if _, err := bad.Write(Script); err == nil || !strings.Contains(err.Error(), "not the name of a Debian package") {
		t.Errorf("the error is %v", err)
	}
	if _, err := someCard.Write("toml"); err == nil || !strings.Contains(err.Error(), "use cloud-init or script") {
		t.Errorf("the error is %v", err)
	}
}

// A real shell runs the script, and then its join: with a hub that refuses, and with one that
// accepts. curl, date, apt-get and systemctl write down how they are called.
func TestACardJoinsAtItsFirstBoot(t *testing.T) {
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("private mounts need root")
	}
	box := t.TempDir()
	for name, text := range map[string]string{
		"systemctl": `echo systemctl "$@" >>` + box + "/calls",
		"apt-get":   `echo apt-get "$@" >>` + box + "/calls",
		"date":      `[ "$1" = -s ] && echo date "$@" >>` + box + "/calls || echo 5",
		"curl": `echo curl "$@" >>` + box + "/calls\n" +
			`echo 'join() { echo "join $* $1" >>` + box + `/calls; [ ! -e ` + box + `/refused ] || exit 4; }'`,
	} {
		if err := os.WriteFile(filepath.Join(box, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := someCard.Write(Script)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"card": text, "refused": ""} {
		if err := os.WriteFile(filepath.Join(box, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(refused string) string {
		out, err := exec.Command("unshare", "-m", "sh", "-c", `set -e
			mkdir -p /etc/systemd/system
			mount -t tmpfs tmpfs /var/lib; mount -t tmpfs tmpfs /etc/systemd/system
			export PATH=`+box+`:$PATH
			sh `+box+`/card
			`+refused+` && /var/lib/flotilla-firstboot/join && echo joined || echo failed
			ls /var/lib /etc/systemd/system`).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := run("true"); !strings.Contains(out, "failed\n") || !strings.Contains(out, "flotilla-firstboot\n") ||
		!strings.Contains(out, "flotilla-firstboot.service\n") {
		t.Errorf("after a refused join: %s\nwant another try: the files stay", out)
	}
	_ = os.Remove(filepath.Join(box, "calls"))
	if out := run("rm " + box + "/refused"); !strings.Contains(out, "joined\n") || strings.Contains(out, "flotilla-firstboot") {
		t.Errorf("after a join: %s\nwant no file: they have the token", out)
	}
	calls, _ := os.ReadFile(filepath.Join(box, "calls"))
	for _, want := range []string{"apt-get install -y docker.io\n", "systemctl enable flotilla-firstboot\n", "date -s @2000000000\n",
		"curl -sSf --cacert /var/lib/flotilla-firstboot/ca.crt https://gateway:8443/install\n", "join FLT1.a.b.c FLT1.a.b.c\n",
		"systemctl disable flotilla-firstboot\n"} {
		if !strings.Contains(string(calls), want) {
			t.Errorf("the calls are\n%s\nwant %s", calls, want)
		}
	}
}
