package nodes

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"rsc.io/qr"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/install"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// lives are the choices of a join token's lifetime.
var lives = [][2]string{{"1h", "1 hour"}, {"24h", "1 day"}, {"168h", "1 week"}, {"720h", "30 days"}}

type addData struct {
	Sites      []string
	Site, Node string
	Names      string // lines SERIAL,NAME
	Prefix     string
	Uses       int
	Lives      []frame.Option
	Approval   bool
	Waiting    int // number of waiting devices
	Problem    string
}

// AddDevice shows the form for a join token.
func AddDevice(a *frame.Request) (frame.Page, error) {
	return addPage(a.Snapshot, addData{Site: a.Query("site"), Node: a.Query("node"), Uses: 1,
		Lives: frame.Options("1h", lives...), Waiting: WaitingCount(a)}), nil
}

func addPage(s state.Snapshot, d addData) frame.Page {
	for name := range s.Counts() {
		d.Sites = append(d.Sites, name)
	}
	return frame.Page{Template: "add", Title: "Add a device", Data: d}
}

type tokenData struct {
	Install string // the line that installs the agent and joins; "": the hub has no agents
	Arches  []string
	Line    string // the line that joins, once an agent is installed
	QR      template.HTML
	Site    string
	Node    string
	Named   string // the names of its devices; "": their host names
	Uses    int
	Life    string
	Waits   bool   // devices wait for approval
	Since   string // query of the list of the token's devices
	Card    string // path of the first-boot file; "": the hub has no agents

	life  time.Duration
	first install.FirstBoot
}

// MakeToken makes a join token and redirects to a page that only this session can see. The token
// is never part of an address or a log line.
func MakeToken(c *frame.Call, made *MadeTokens) error {
	uses, _ := strconv.Atoi(c.FormValue("uses"))
	life, _ := time.ParseDuration(c.FormValue("life"))
	names := c.FormValue("names")
	t := access.NewJoinToken{Site: strings.TrimSpace(c.FormValue("site")), Node: strings.TrimSpace(c.FormValue("node")),
		Names: store.DeviceNames{Prefix: strings.TrimSpace(c.FormValue("prefix"))},
		Uses:  uses, Life: life, By: c.User.Name, Approval: c.FormValue("approval") != ""}
	var token wire.JoinToken
	var err error
	if strings.TrimSpace(names) != "" {
		if t.Names.BySerial, err = access.ParseNames(names); err != nil {
			err = fmt.Errorf("%w: names: %w", access.ErrInvalid, err)
		}
		t.Uses = max(uses, len(t.Names.BySerial))
	}
	if err == nil {
		token, err = c.Tokens.CreateJoinToken(c.Request().Context(), t)
	}
	act := store.Audit{Verb: "create", Resource: "jointokens", Name: t.Site, Code: http.StatusCreated}
	if err != nil {
		act.Code, act.Message = c.Tell(err)
		act.Message = format.Capital(strings.TrimPrefix(act.Message, "Create join token: "))
		c.Record(act)
		return c.ShowPage(act.Code, addPage(c.Fleet.Snapshot(),
			addData{Site: t.Site, Node: t.Node, Names: names, Prefix: t.Names.Prefix, Uses: max(uses, 1), Approval: t.Approval,
				Lives: frame.Options(c.FormValue("life"), lives...), Problem: act.Message}))
	}
	c.Record(act)
	d := tokenData{
		Line: access.JoinLine(c.JoinURLs(c.Request().Host), token), Site: t.Site, Node: t.Node, Uses: t.Uses,
		Life: format.Duration(t.Life), Waits: t.Approval,
		Since: "/devices/joined?" + url.Values{"token": {token.ID}, "uses": {strconv.Itoa(t.Uses)}}.Encode(),
		life:  t.Life,
	}
	if d.Arches = c.Agents(); len(d.Arches) > 0 {
		hub := c.JoinURLs(c.Request().Host)[0]
		d.Install = install.Line(hub, c.CA(), token.Text())
		d.Card, d.first = "/devices/tokens/"+token.ID+"/card", install.FirstBoot{Hub: hub, CA: c.CA(), Token: token.Text()}
	}
	if len(t.Names.BySerial) > 0 {
		d.Named = "named by the list"
	} else if t.Names.Prefix != "" {
		d.Named = "named " + t.Names.Prefix + "…"
	}
	for _, l := range lives {
		if l[0] == c.FormValue("life") {
			d.Life = l[1]
		}
	}
	if d.QR, err = qrCode(cmp.Or(d.Install, d.Line)); err != nil {
		c.Log.Error("cannot draw a QR code", "err", err)
	}
	made.keep(token.ID, c.User, d, c.Now())
	return c.Redirect(http.StatusSeeOther, "/devices/tokens/"+token.ID)
}

// ShowToken shows a join token to the session that made it.
func ShowToken(c *frame.Call, made *MadeTokens) error {
	d, ok := made.of(c.Param("id"), c.User, c.Now())
	if !ok {
		return tokenGone(c)
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "token", Title: "Add a device", Data: d})
}

func tokenGone(c *frame.Call) error {
	return c.Message(http.StatusNotFound, "The token is not shown any more",
		"A join token is shown only in the session that made it, for an hour. If it is lost, make another one "+
			"with Add a device, and revoke the lost one in the settings.")
}

// FirstBoot downloads the file for SD cards whose devices join with a token at their first boot.
func FirstBoot(c *frame.Call, made *MadeTokens) error {
	d, ok := made.of(c.Param("id"), c.User, c.Now())
	if !ok || d.Card == "" {
		return tokenGone(c)
	}
	d.first.Engine, d.first.Now = c.QueryParam("engine"), c.Now()
	text, err := d.first.Write(c.QueryParam("format"))
	if err != nil {
		return c.Message(http.StatusBadRequest, "No file", format.Capital(err.Error())+".")
	}
	name := "user-data"
	if c.QueryParam("format") == install.Script {
		name = "firstboot.sh"
	}
	c.Response().Header().Set("Content-Disposition", "attachment; filename="+name)
	return c.Blob(http.StatusOK, "text/plain; charset=utf-8", []byte(text))
}

// qrCode draws a text as one path of squares.
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

// A joiner is a device that has joined with a token.
type joiner struct {
	Name, Href string
	Pill       frame.Pill
	Board      string
	Joined     *format.Moment
	Why        string // why it is not ready
}

type joinedData struct {
	Waiting []waitingRow
	Rows    []joiner
	Left    int // uses of the token
}

// JoinedDevices lists the devices that have joined with a token, and how far each is.
func JoinedDevices(a *frame.Request) (frame.Page, error) {
	token := a.Query("token")
	uses, _ := strconv.Atoi(a.Query("uses"))
	var d joinedData
	var came []*state.Record
	for rec := range state.Each[*state.Record](a.Snapshot, state.Records, "") {
		if token != "" && rec.Token == token {
			came = append(came, rec)
		}
	}
	slices.SortStableFunc(came, func(x, y *state.Record) int { return y.Enrolled.Compare(x.Enrolled.Time) })
	for _, rec := range came[:min(len(came), frame.PerPage)] {
		d.Rows = append(d.Rows, joinerOf(a, rec))
	}
	for _, r := range PendingRequests(a.Snapshot) {
		if r.Spec.Username == state.TokenUser(token) && len(d.Waiting) < frame.PerPage {
			d.Waiting = append(d.Waiting, waitingRowOf(a, r))
		}
	}
	d.Left = max(0, uses-len(came)-len(d.Waiting))
	return frame.Page{Template: "joined", Title: "Joined", Watch: []string{"nodes", "records", "requests"}, Data: d},
		nil
}

// joinerOf says how far a device is: it has its certificate, it has reported, it is ready.
func joinerOf(a *frame.Request, rec *state.Record) joiner {
	j := joiner{Name: rec.Name, Href: frame.NodeHref(rec.Name), Joined: format.Time(rec.Enrolled.Time, a.Now)}
	n := a.Node(rec.Name)
	if n == nil || state.NeverReported(n) || a.Liveness(rec.Name).Seen.Before(rec.Enrolled.Time) {
		if n == nil {
			j.Href = ""
		}
		j.Pill = frame.Pill{Kind: "warn", Text: "Has its certificate"}
		j.Why = "The token is used, and the hub waits for the device's first report. If none comes: is the agent " +
			"running there (systemctl status flotilla-device), and does the device reach the hub's MQTT port?"
		return j
	}
	j.Pill, j.Board = finding.NodePill(n), n.Labels[fleet.LabelBoard]
	if why, _ := finding.NodeWhy(n); state.ReadyOf(n) != corev1.ConditionTrue {
		j.Why = why
	}
	return j
}
