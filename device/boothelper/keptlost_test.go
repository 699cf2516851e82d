package boothelper_test

import (
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/shared/wire"
)

// A kept configuration counts while the files have it. Debian's raspi-firmware rewrites config.txt
// and cmdline.txt with each kernel, a user restores a backup, or a card loses data.
func TestWhatIsTakenOutOfTheFilesIsKeptNoMore(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
			st, j, h := w.live(f, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
			waits := *f
			waits.Try = false
			if st, _, _ = w.live(&waits, well); st.State != wire.FirmwareUpToDate || st.Digest != f.Digest {
				t.Fatalf("what is there counts no more: %+v", st)
			}
			name := map[string]string{boothelper.ByUEnv: boothelper.UEnvTxt, boothelper.ByGrub: boothelper.CustomCfg}[way]
			if name == "" {
				name = boothelper.ConfigTxt
				w.put(w.dir()+"/"+boothelper.CmdlineTxt, w.old.Cmdline)
			}
			w.put(w.dir()+"/"+name, w.old.Config)
			w.start()
			boots := w.boots
			if st, _, _ = w.live(&waits, well); st.State != wire.FirmwareStaged || st.Digest != "" || st.Candidate != f.Digest || st.Diff == "" || w.boots != boots {
				t.Errorf("it says %+v after %d boots", st, w.boots-boots)
			}
			if st, _, _ = w.live(nil, well); st == nil || st.Digest != "" {
				t.Errorf("where the hub wants nothing it says %+v", st)
			}
			st, j, h = w.live(f, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
			if st.Digest != f.Digest || w.boots == boots {
				t.Fatalf("it is not tried again: %+v", st)
			}
			w.kept = true
			undo := *f
			undo.Undo = true
			st, j, h = w.live(&undo, well)
			w.goneBack(st, j, h, wire.FirmwareUpToDate)
		})
	}
}

// Changes outside of the section do not make the kept configuration lost.
func TestWhatIsChangedBesideItLeavesWhatIsKept(t *testing.T) {
	for _, c := range []struct {
		name         string
		config, line func(string) string
		lost         bool
	}{
		{"a line at the end", func(s string) string { return s + "dtparam=audio=on\n" }, same, false},
		{"Windows line endings", func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }, same, false},
		{"another word of the kernel's", same, func(s string) string { return "quiet " + s }, false},
		{"one of its words is gone", same, func(s string) string { return strings.Replace(s, " cgroup_memory=1", "", 1) }, true},
		{"a word that it took away is back", same, func(s string) string { return "splash " + s }, true},
		{"one of its lines is gone", func(s string) string { return strings.Replace(s, "gpu_mem=16\n", "", 1) }, same, true},
		{"its section is damaged", func(s string) string { return strings.Replace(s, boothelper.EndMark+"\n", "", 1) }, same, false}, // unknown: the board refuses
		{"its section is gone, what it says is there", func(s string) string {
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

// With GRUB, a kept configuration counts while the entries use flotilla_args. update-grub rewrites
// them without it if the file that adds it is gone.
func TestWhatGRUBTakesNoMoreIsKeptNoMore(t *testing.T) {
	for _, cfg := range []string{"load_env\nlinux /vmlinuz ro\nsource $prefix/custom.cfg\n", "load_env\nlinux /vmlinuz ro ${flotilla_args}\n"} {
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
		if !h.Lost || do != firmware.Wait || st.State != wire.FirmwareUnsupported || st.Digest != "" || !strings.Contains(st.Message, "grub.cfg") {
			t.Errorf("%q: it does %q and says %+v", cfg, do, st)
		}
		w.put("/boot/grub/grub.cfg", was)
		if st, _, _ := w.live(f, well); st.State != wire.FirmwareUpToDate || st.Digest != f.Digest || w.boots != boots {
			t.Errorf("where it is put back it says %+v, after %d boots", st, w.boots-boots)
		}
	}
}
