package admin

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"rsc.io/qr"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// lives are the choices of how long a join token is good for.
var lives = [][2]string{{"1h", "1 hour"}, {"24h", "1 day"}, {"168h", "1 week"}, {"720h", "30 days"}}

type addData struct {
	Sites      []string
	Site, Node string
	Uses       int
	Lives      []option
	Approval   bool
	Waiting    int // devices
	Problem    string
}

func addDevice(a *request) (page, error) {
	return addPage(a.Snapshot, addData{Site: a.query("site"), Node: a.query("node"), Uses: 1, Lives: options("1h", lives...), Waiting: waitingCount(a)}), nil
}

func addPage(s state.Snapshot, d addData) page {
	for name := range s.Counts() {
		d.Sites = append(d.Sites, name)
	}
	return page{Template: "add", Title: "Add a device", Data: d}
}

type tokenData struct {
	Line    string
	QR      template.HTML
	Site    string
	Node    string
	Uses    int
	Life    string
	Waits   bool   // whoever joins waits for approval
	Since   string // query of the view of those who have joined since
	Problem string
}

// token makes a join token and shows the line to type on the device. It stands in
// this answer only: not in an address, not in the log.
func (c *call) token() error {
	hubURL := c.HubURL
	if hubURL == "" {
		hubURL = "https://" + c.Request().Host
	}
	uses, _ := strconv.Atoi(c.FormValue("uses"))
	life, _ := time.ParseDuration(c.FormValue("life"))
	t := access.NewJoinToken{Site: strings.TrimSpace(c.FormValue("site")), Node: strings.TrimSpace(c.FormValue("node")), Uses: uses, Life: life, By: c.user.Name, Approval: c.FormValue("approval") != ""}
	token, err := c.Tokens.CreateJoinToken(c.Request().Context(), t)
	act := store.Audit{Verb: "create", Resource: "jointokens", Name: t.Site, Code: http.StatusCreated}
	if err != nil {
		act.Code, act.Message = c.explain(err)
		c.did(act)
		return c.plain(act.Code, addPage(c.Fleet.Snapshot(), addData{Site: t.Site, Node: t.Node, Uses: t.Uses, Approval: t.Approval, Lives: options(c.FormValue("life"), lives...), Problem: act.Message}))
	}
	c.did(act)
	d := tokenData{
		Line: "flotilla-device join " + hubURL + " --token " + token.Text(), Site: t.Site, Node: t.Node, Uses: t.Uses, Life: t.Life.String(), Waits: t.Approval,
		Since: "/devices/joined?" + url.Values{"site": {t.Site}, "since": {strconv.FormatInt(c.Now().Unix(), 10)}}.Encode(),
	}
	for _, l := range lives {
		if l[0] == c.FormValue("life") {
			d.Life = l[1]
		}
	}
	if d.QR, err = qrCode(d.Line); err != nil {
		c.Log.Error("cannot draw a QR code", "err", err)
	}
	return c.plain(http.StatusCreated, page{Template: "token", Title: "Add a device", Data: d})
}

// qrCode draws text as one path of squares.
func qrCode(text string) (template.HTML, error) {
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		return "", fmt.Errorf("encode a QR code: %w", err)
	}
	const quiet = 4
	var b bytes.Buffer
	size := code.Size + 2*quiet
	fmt.Fprintf(&b, `<svg class="qr" viewBox="0 0 %d %d" role="img" aria-label="QR code of the line above" shape-rendering="crispEdges"><rect class="paper" width="%d" height="%d"/><path class="ink" d="`, size, size, size, size)
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			n := 0
			for ; x+n < code.Size && code.Black(x+n, y); n++ {
			}
			if n > 0 {
				fmt.Fprintf(&b, "M%d %dh%dv1h-%dz", x+quiet, y+quiet, n, n)
				x += n
			}
		}
	}
	b.WriteString(`"/></svg>`)
	return template.HTML(b.String()), nil //nolint:gosec // numbers only
}

type joinedData struct {
	Waiting []waitingRow
	Rows    []nodeRow
}

// joined lists the nodes of a site that have appeared, or come back with a new
// installation, since a moment: "waiting…" turns into them.
func joined(a *request) (page, error) {
	seconds, _ := strconv.ParseInt(a.query("since"), 10, 64)
	since := time.Unix(seconds, 0)
	var d joinedData
	for n := range a.NodesIn(a.query("site")) {
		rec := a.Record(n.Name)
		if (!n.CreationTimestamp.Time.Before(since) || rec != nil && !rec.Enrolled.IsZero() && !rec.Enrolled.Time.Before(since)) && len(d.Rows) < perPage {
			d.Rows = append(d.Rows, nodeRowOf(a, n))
		}
	}
	for _, r := range pendingRequests(a.Snapshot) {
		if r.Annotations[state.RequestSite] == a.query("site") && len(d.Waiting) < perPage {
			d.Waiting = append(d.Waiting, waitingRowOf(a, r))
		}
	}
	return page{Template: "joined", Title: "Joined", Watch: []string{"nodes", "requests"}, Data: d}, nil
}
