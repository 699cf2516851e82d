package boothelper_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"

	"flotilla.dev/device/boothelper"
)

// Without the hub's signature no request changes the board.
func FuzzTheHelpersSocket(f *testing.F) {
	for _, op := range []string{boothelper.OpStatus, boothelper.OpPin, boothelper.OpInspect, boothelper.OpArm,
		boothelper.OpKeep, boothelper.OpRestore, boothelper.OpUndo, "x"} {
		f.Add([]byte(`{"op":"`+op+`"}`+"\n"), false)
		f.Add([]byte(`{"op":"`+op+`","digest":"sha256:0","node":"pi-1","key":"AAAA","firmware":{"generation":7,"digest":"sha256:0","document":"e30=","signature":"AAAA","try":true}}`+"\n"), true)
	}
	f.Add([]byte(`{"op":"arm","firmware":null}`+"\n"), true)
	f.Add([]byte(strings.Repeat("[", 1000)+"\n"), false)
	f.Add(bytes.Repeat([]byte("x"), boothelper.MaxRequest+2), false)
	f.Fuzz(func(t *testing.T, text []byte, pinned bool) {
		w, _ := newBoardOf(t, boothelper.ByGrub, boothelper.ProfileOf(boothelper.ByGrub))
		h, err := boothelper.New(w, w, "/var/helper")
		if err != nil {
			t.Fatal(err)
		}
		if pinned {
			if err := h.Pin("pi-1", boothelper.HubsKey); err != nil {
				t.Fatal(err)
			}
		}
		was := snapshot(w)
		r, err := boothelper.ReadRequest(bytes.NewReader(text))
		if err != nil {
			return
		}
		if !pinned && r.Op == boothelper.OpPin {
			return // the first key is accepted
		}
		h.Do(r) // a reboot would panic
		if now := snapshot(w); !maps.Equal(was, now) {
			t.Errorf("request %q has changed the board's files", text)
		}
		if h.Status().Phase != boothelper.PhaseIdle || h.Status().Kept != "" {
			t.Errorf("after request %q the helper is in phase %q and has kept %q", text, h.Status().Phase, h.Status().Kept)
		}
	})
}

func snapshot(w *fakeBoard) map[string]string {
	out := map[string]string{}
	for name, i := range w.names {
		if strings.HasPrefix(name, "/boot") {
			out[name] = fmt.Sprintf("%q", i.text)
		}
	}
	return out
}
