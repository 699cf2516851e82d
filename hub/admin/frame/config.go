package frame

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/history"
	devices "flotilla.dev/hub/node"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// A Fleet is the control loop as the page sees it.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() state.Snapshot
	// Do has the only writer run the news, and returns once that is durable.
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
	// Since returns every change after the revision, and a channel that is closed
	// when there is more; an error when the history does not reach back that far.
	Since(rev uint64) ([]state.Applied, <-chan struct{}, error)
}

// Sessions knows who is logged in.
type Sessions interface {
	// Authenticate tells who sends a request; an error: nobody that is known.
	Authenticate(r *http.Request) (access.User, error)
	// CheckForm refuses a request that changes something and was not sent from our
	// own page, with the session's CSRF token in the form field csrf. The zero User
	// has no session: then only where the request comes from is checked.
	CheckForm(r *http.Request, u access.User) error
	// Logout ends the request's session, and returns the cookie that says so.
	Logout(ctx context.Context, r *http.Request) (*http.Cookie, error)
}

// Logins lets people in.
type Logins interface {
	// Login returns the cookie of a new session.
	Login(ctx context.Context, name, password, source string) (*http.Cookie, error)
	// Setup makes the first administrator, for whoever has the setup link's secret.
	Setup(ctx context.Context, secret string, u access.NewUser, source string) error
}

// People are those who may come in.
type People interface {
	Users(ctx context.Context) ([]store.User, error)
	CreateUser(ctx context.Context, u access.NewUser) error
	SetRole(ctx context.Context, name string, role access.Role) error
	SetPassword(ctx context.Context, name, password string) error
	DeleteUser(ctx context.Context, name string) error
}

// Tokens are how devices and programs come in. Those that are made are shown once.
type Tokens interface {
	JoinTokens(ctx context.Context) ([]store.JoinToken, error)
	CreateJoinToken(ctx context.Context, n access.NewJoinToken) (wire.JoinToken, error)
	RevokeJoinToken(ctx context.Context, id string) error
	APITokens(ctx context.Context) ([]store.APIToken, error)
	CreateAPIToken(ctx context.Context, n access.NewAPIToken) (string, error)
	RevokeAPIToken(ctx context.Context, id string) error
}

// Accounts are what people change of themselves.
type Accounts interface {
	// ChangePassword gives a person who knows the old password a new one. Every
	// session of theirs ends; the cookie is that of a new one.
	ChangePassword(ctx context.Context, p access.PasswordChange) (*http.Cookie, error)
	APITokensOf(ctx context.Context, user string) ([]store.APIToken, error)
	// RevokeAPITokenOf ends a token of that person, and of nobody else.
	RevokeAPITokenOf(ctx context.Context, user, id string) error
}

// An Archive has the audit and the backups.
type Archive interface {
	// FindAudits lists who changed what, newest first.
	FindAudits(ctx context.Context, q store.AuditQuery) ([]store.Audit, error)
	// Copies lists the backups, newest first, and tells when the next one is due.
	Copies() ([]store.Copy, time.Time, error)
	// BackUpNow writes a backup and returns its file.
	BackUpNow(ctx context.Context) (file string, err error)
}

// An About is what the hub tells of itself.
type About struct {
	Certificates []Certificate
	Facts        []Fact // addresses and versions
	Kept         []Fact // how long what is kept
	Settings     []config.Shown
}

// A Certificate ends some day.
type Certificate struct {
	Of, Renewal string
	Until       time.Time
}

// A Told is told of incidents: a webhook, or people by mail. To holds no secret.
type Told struct{ Name, To string }

// A Fact is something that is so.
type Fact struct{ Name, Value string }

// A Liveness is what is known of a node's link.
type Liveness = devices.Liveness

// A Config is what a Server needs. All of it but Allow, Now, Audit, Log and the
// addresses must be set.
type Config struct {
	Fleet Fleet
	Now   func() time.Time // the hub's time, which everything that is shown carries; nil: the machine's
	// Allow tells whether a role may do a verb to a resource; nil: access.Allow.
	Allow    func(role access.Role, verb, resource string) bool
	Liveness func(node string) Liveness
	// Usage is what a device used when it last measured, false where that is not known.
	// It does not wait; heard is called when the device has measured anew.
	Usage func(node string, heard func()) (wire.Usage, bool)
	// Audit keeps what somebody did.
	Audit func(ctx context.Context, a store.Audit)
	// API is the hub's Kubernetes-compatible API. It finds who asks in the request,
	// as Sessions does: what people write in the page goes through the same checks.
	API      http.Handler
	Logs     Logs
	Shells   Shells
	Sessions Sessions
	Logins   Logins
	People   People
	Tokens   Tokens
	Accounts Accounts
	Views    Views // nil: nobody can save any
	Archive  Archive
	About    func() (About, error)
	// Members are the hubs of the same database, as the request of ctx finds them; nil, or none: this one is alone.
	Members func(ctx context.Context) []Member
	// Told are those outside who are told of incidents, and TestTold sends one of them a message
	// that is about nothing. nil: nobody is.
	Told     func() []Told
	TestTold func(ctx context.Context, name string) error
	// CA is the hub's authority, for kubeconfigs, as PEM.
	CA func() []byte
	// Agents lists the processors that the hub has agents for; nil: none.
	Agents func() []string
	// HubURLs are what devices join through, such as https://gateway:8443, of every hub of the
	// database, this one's first; nil is the address by which the page was reached.
	HubURLs func() []string
	Version string
	// Pauses are when no hub ran, oldest first: then nothing is known of any node.
	Pauses []store.Pause
	// History is how a node fared: n samples from a moment on; nil: nobody remembers it.
	History func(uid types.UID, from time.Time, n int) []history.Word
	// Foresight are the rules by which it is told beforehand what would become of pods; zero: it
	// is not told.
	Foresight preview.Rules
	Log       *slog.Logger
}

// Logs copies a container's log to w until its end, or, with o.Follow, until the
// container ends or ctx does. What it fails with is told to people.
type Logs interface {
	Logs(ctx context.Context, pod *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error
	// NodeLogs does the same with the log of a node's own agent.
	NodeLogs(ctx context.Context, node string, o corev1.PodLogOptions, w io.Writer) error
}

// A Member is one of several hubs on one database.
type Member struct {
	Name, Address, Version string
	Since                  time.Time     // it has led, or stood by
	Leads                  bool          // one of them
	Behind                 time.Duration // for how long a standby may not have been up to date
	Late                   bool          // that is too long
	Here                   bool          // this page was asked for there
}

// A MemberRow is a hub as the settings list it.
type MemberRow struct {
	Name, Address, Version, Behind string
	Since                          *format.Moment
	Here                           bool
	Pill                           Pill
}

// hubsSaid says in a line which hub leads, and which others there are; "": there is one alone. What a page
// shows is what the hub that leads knows, wherever it was asked for.
func hubsSaid(all []Member) string {
	if len(all) == 0 {
		return ""
	}
	var leads, here string
	var others []string
	for _, m := range all {
		name := m.Name
		// on one machine
		if slices.ContainsFunc(all, func(o Member) bool { return o.Name == name && o.Address != m.Address }) {
			name += " (" + m.Address + ")"
		}
		switch {
		case m.Leads:
			leads = name
		case m.Late:
			others = append(others, fmt.Sprintf("%s stands by, %.0f s behind", name, m.Behind.Seconds()))
		default:
			others = append(others, name+" stands by")
		}
		if m.Here && !m.Leads {
			here = fmt.Sprintf(" You are at %s, which passes this page on.", name)
		}
	}
	if len(others) == 0 {
		others = []string{"no other hub stands by"}
	}
	return fmt.Sprintf("Hub %s leads; %s.%s", leads, strings.Join(others, "; "), here)
}

// MemberRows are the hubs of one database.
func MemberRows(all []Member, now time.Time) (rows []MemberRow) {
	for _, m := range all {
		r := MemberRow{Name: m.Name, Address: m.Address, Version: m.Version, Since: format.Time(m.Since, now),
			Here: m.Here, Behind: "–", Pill: Pill{"ok", "Leads"}}
		if !m.Leads {
			r.Pill, r.Behind = Pill{"ok", "Stands by"}, fmt.Sprintf("%.1f s", m.Behind.Seconds())
		}
		if m.Late {
			r.Pill = Pill{"warn", "Behind"}
		}
		rows = append(rows, r)
	}
	return rows
}

// FactsOf are labels as facts, sorted.
func FactsOf(m map[string]string) (facts []Fact) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		facts = append(facts, Fact{k, m[k]})
	}
	return facts
}

// Shells runs commands in containers, to their end or that of ctx; an
// *ask.ExitError says that one has ended with another code than 0.
type Shells interface {
	Exec(ctx context.Context, pod *corev1.Pod, o corev1.PodExecOptions, s ask.IO) error
}
