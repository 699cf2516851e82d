package admin

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
)

// Somebody slides through the night, and comes back to now; without a script it is a form.
func TestTheSliderReplaysTheNight(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, admintest.Sample()...)
	for _, pixels := range []int64{1280, 360} {
		k.width(pixels, false)
		k.open("/")
		k.eval(`window.place = document.querySelector(".replay").getBoundingClientRect().top, true`)
		k.eval(`(({elements: {at}}) => { at.value = -500; at.dispatchEvent(new Event("input", {bubbles: true})) })(document.querySelector(".replay")), true`)
		k.awaits("8 h ago")
		k.says("Open at", "are not kept", "Back to now")
		if !k.eval(`location.search === "?at=-500" && document.querySelector(".replay").getBoundingClientRect().top === window.place`) {
			t.Errorf("at %d pixels the slider moved by %s, at %s", pixels,
				k.string(`String(document.querySelector(".replay").getBoundingClientRect().top - window.place)`), k.string("location.search"))
		}
		k.fits(fmt.Sprintf("the replay at %d pixels", pixels))
		k.axe("replay")
		k.shot(fmt.Sprintf("replay-%d", pixels))
		k.press(`a[href="/"]:not(.brand, nav[aria-label=Main] a)`)
		k.says("Needs attention")
	}
}

// A moment that cannot be replayed is one sentence with the way back.
func TestAMomentThatCannotBeReplayed(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for _, path := range []string{"/?at=yesterday", "/?at=2020-01-01T00:00:00Z", "/?at=-99999"} {
		resp, body := srv.ask(t, "viewer", "GET", path, nil)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "last 12 h.") || !strings.Contains(body, `href="/">Overview<`) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, wordsOf(body))
		}
	}
}
