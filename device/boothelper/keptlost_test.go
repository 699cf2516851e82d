package boothelper_test

import (
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/shared/wire"
)

// A kept configuration is reported only while the files contain it. Debian's raspi-firmware
// rewrites config.txt and cmdline.txt with each kernel, a user restores a backup, or a card loses
// data.
func TestAConfigurationRemovedFromTheFilesIsLost(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
			st, j, h := w.live(f, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
			untried := *f
			untried.Try = false
			if st, _, _ = w.live(&untried, well); st.State != wire.FirmwareUpToDate || st.Digest != f.Digest {
				t.Fatalf("the kept configuration is no longer reported: %+v", st)
			}
			name := map[string]string{boothelper.ByUEnv: boothelper.UEnvTxt, boothelper.ByGrub: boothelper.CustomCfg}[way]
			if name == "" {
				name = boothelper.ConfigTxt
				w.put(w.dir()+"/"+boothelper.CmdlineTxt, w.old.Cmdline)
			}
			w.put(w.dir()+"/"+name, w.old.Config)
			w.start()
			boots := w.boots
			if st, _, _ = w.live(&untried, well); st.State != wire.FirmwareStaged || st.Digest != "" ||
				st.Candidate != f.Digest || st.Diff == "" || w.boots != boots {
				t.Errorf("with restored files the status is %+v after %d boots", st, w.boots-boots)
			}
			if st, _, _ = w.live(nil, well); st == nil || st.Digest != "" {
				t.Errorf("without a desired configuration the status is %+v", st)
			}
			st, j, h = w.live(f, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
			if st.Digest != f.Digest || w.boots == boots {
				t.Fatalf("the lost configuration is not tried again: %+v", st)
			}
			w.kept = true
			undo := *f
			undo.Undo = true
			st, j, h = w.live(&undo, well)
			w.goneBack(st, j, h, wire.FirmwareUpToDate)
		})
	}
}

// The kept configuration is lost only if its own lines or words have changed.
func TestChangesOutsideOfTheSectionLoseNothing(t *testing.T) {
	for _, c := range []struct {
		name         string
		config, line func(string) string
		lost         bool
	}{
		{"a line at the end", func(s string) string { return s + "dtparam=audio=on\n" }, same, false},
		{"Windows line endings", func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }, same, false},
		{"a foreign kernel parameter", same, func(s string) string { return "quiet " + s }, false},
		{"an added word is gone", same, func(s string) string { return strings.Replace(s, " cgroup_memory=1", "", 1) }, true},
		{"a removed word is back", same, func(s string) string { return "splash " + s }, true},
		{"a line of the section is gone", func(s string) string { return strings.Replace(s, "gpu_mem=16\n", "", 1) }, same, true},
		{"the section is damaged", func(s string) string { return strings.Replace(s, boothelper.EndMark+"\n", "", 1) }, same, false}, // the helper cannot tell, so it refuses the board instead
		{"the section is gone, but its settings are there", func(s string) string {
			before, after, _ := strings.Cut(s, boothelper.BeginMark)
			_, after, _ = strings.Cut(after, boothelper.EndMark+"\n")
			return before + after + "gpu_mem=16\n"
		}, same, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := boothelper.TrialProfile()
			b.Cmdline.Add, b.Cmdline.Remove = []string{"cgroup_enable=memory", "cgroup_memory=1"}, []string{"splash"}
			w, f := newBoardOf(t, boothelper.ByTryboot, b)
			w.old.Cmdline = []byte("root=/dev/mmcblk0p2 splash rootwait\n")
			w.put(w.dir()+"/"+boothelper.CmdlineTxt, w.old.Cmdline)
			var err error
			if w.new, err = boothelper.Render(w.old, b); err != nil {
				t.Fatal(err)
			}
			w.start()
			if st, _, _ := w.live(f, well); st.Digest != f.Digest {
				t.Fatalf("%+v", st)
			}
			files := w.files()
			w.put(w.dir()+"/"+boothelper.ConfigTxt, []byte(c.config(string(files.Config))))
			w.put(w.dir()+"/"+boothelper.CmdlineTxt, []byte(c.line(string(files.Cmdline))))
			helper, err := boothelper.New(w, w, "/var/helper")
			if err != nil {
				t.Fatal(err)
			}
			if h := helper.Status(); h.Lost != c.lost || h.Kept != f.Digest {
				t.Errorf("%+v", h)
			}
		})
	}
}

func same(s string) string { return s }

// With GRUB, a kept configuration is reported only while the entries use flotilla_args. update-grub
// rewrites them without flotilla_args if the drop-in that adds it is gone.
func TestAConfigurationThatGRUBIgnoresIsLost(t *testing.T) {
	for _, cfg := range []string{"load_env\nlinux /vmlinuz ro\nsource $prefix/custom.cfg\n",
		"load_env\nlinux /vmlinuz ro ${flotilla_args}\n"} {
		w, f := newBoardOf(t, boothelper.ByGrub, boothelper.ProfileOf(boothelper.ByGrub))
		if st, _, _ := w.live(f, well); st.Digest != f.Digest {
			t.Fatalf("%+v", st)
		}
		was := w.text("/boot/grub/grub.cfg")
		w.put("/boot/grub/grub.cfg", []byte(cfg))
		boots := w.boots
		helper, err := boothelper.New(w, w, "/var/helper")
		if err != nil {
			t.Fatal(err)
		}
		h := helper.Status()
		_, do, st := firmware.Decide(firmware.Journal{}, firmware.Facts{Helper: h, Inspected: f.Digest}, f, time.Unix(1e9, 0))
		if !h.Lost || do != firmware.Wait || st.State != wire.FirmwareUnsupported || st.Digest != "" ||
			!strings.Contains(st.Message, "grub.cfg") {
			t.Errorf("grub.cfg %q: the action is %q, the status %+v", cfg, do, st)
		}
		w.put("/boot/grub/grub.cfg", was)
		if st, _, _ := w.live(f, well); st.State != wire.FirmwareUpToDate || st.Digest != f.Digest || w.boots != boots {
			t.Errorf("with the old grub.cfg the status is %+v, after %d boots", st, w.boots-boots)
		}
	}
}
