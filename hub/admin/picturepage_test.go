package admin

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"flotilla.dev/hub/admin/admintest"
)

func TestAMarkLeadsToItsNode(t *testing.T) {
	srv := start(t, configOf(admintest.Many(300)))
	srv.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for query, want := range map[string]string{
		"site=site-3&at=0": "/nodes/node-0003", "site=site-3&at=14": "/nodes/node-0283", "site=site-3&at=15": "/nodes?site=site-3",
		"site=site-3&at=-1": "/nodes?site=site-3", "site=site-3&at=x": "/nodes?site=site-3", "site=nowhere&at=0": "/nodes?site=nowhere", "": "/nodes?site=",
		"site=" + "%2F%2Fevil.example&at=0": "/nodes?site=%2F%2Fevil.example",
	} {
		h, _ := srv.raw(t, "/mark?"+query)
		if got := h.Get("Location"); got != want {
			t.Errorf("%s leads to %s, want %s", query, got, want)
		}
	}
}

// A click on a mark leads to its node, and axe finds nothing in the picture.
func TestAMarkIsPressed(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.fleet.Become(admintest.Silent(admintest.Many(2400), 700)) // 120 on a site
	for _, pixels := range []int64{1280, 360} {
		k.width(pixels, false)
		k.open("/")
		k.fits("fleet")
		k.axe("fleet")
		k.eval(`document.querySelector("[data-site=site-3][data-at='100']").scrollIntoView({block: "center"}), true`)
		var at struct{ X, Y float64 }
		if err := json.Unmarshal([]byte(k.string(`JSON.stringify((({x, y}) => ({x, y}))(document.querySelector("[data-site=site-3][data-at='100'] svg").getBoundingClientRect()))`)), &at); err != nil {
			t.Fatal(err)
		}
		k.do(chromedp.MouseClickXY(at.X+4+7*8, at.Y+4+8))
		k.await(`location.pathname === "/nodes/node-2343"`) // the 118th, counted from 1
	}
}

func TestTheOverviewOfALargeFleetIsLight(t *testing.T) {
	srv := start(t, configOf(admintest.Silent(admintest.Many(5000), 3000)))
	_, body := srv.raw(t, "/")
	if len(body) > 60_000 {
		t.Errorf("the overview has %d bytes, compressed", len(body))
	}
	t.Logf("%d bytes", len(body))
}

// The picture stands under the tiles and above the cards. It counts only sites with nodes that are
// not ready.
func TestThePictureStandsUnderTheTiles(t *testing.T) {
	m := admintest.Many(60)
	n := m.Snapshot().Node("node-0003").DeepCopy()
	admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x")(n)
	m.Put(t, n)
	_, body := acting(t, m).ask(t, "viewer", "GET", "/", nil)
	tiles, picture, cards := strings.Index(body, `class="tiles"`), strings.Index(body, `class="fleet"`), strings.Index(body, `class="incidents"`)
	if tiles < 0 || picture < tiles || cards < picture {
		t.Errorf("tiles, picture and cards begin at %d, %d and %d", tiles, picture, cards)
	}
	if got := regexp.MustCompile(`>\d+/\d+</strong>`).FindAllString(body, -1); !slices.Equal(got, []string{">2/3</strong>"}) {
		t.Errorf("the picture counts %q", got)
	}
}

// When all is well there is one line without a hole, and a silent node has its pill's red.
func TestTheOverviewHasNoHole(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, admintest.Node("pi-1", "oslo", nil), admintest.Node("pi-2", "oslo", nil))
	k.open("/")
	k.says("All is well")
	for _, want := range []string{`document.querySelector(".incidents").offsetHeight < 120`, `document.querySelector(".incidents .pill").offsetWidth < 200`} {
		if !k.eval(want) {
			t.Errorf("not so: %s", want)
		}
	}
	n := k.fleet.Snapshot().Node("pi-2").DeepCopy()
	admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x")(n)
	k.fleet.Put(t, n)
	k.awaits("does not answer")
	if !k.eval(`getComputedStyle(document.querySelector(".fleet .dark")).stroke === getComputedStyle(document.querySelector(".incidents .pill.bad")).color`) {
		t.Error("a silent node has another colour in the picture than its pill")
	}
}
