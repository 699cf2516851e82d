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

// A Fleet is the control loop, as the page uses it.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() state.Snapshot
	// Do gives news to the loop, the only writer, and returns once the changes are durable.
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
	// Since returns every change after the revision, and a channel that closes when there are more.
	// It fails if the history does not reach back to the revision.
	Since(rev uint64) ([]state.Applied, <-chan struct{}, error)
}

// Sessions authenticates requests.
type Sessions interface {
	// Authenticate returns the user who sends a request; an error: the user is unknown.
	Authenticate(r *http.Request) (access.User, error)
	// CheckForm refuses a form that does not come from our own page with the session's CSRF token
	// in the field csrf. The zero User has no session: only the origin is checked.
	CheckForm(r *http.Request, u access.User) error
	// Logout ends the request's session and returns the cookie that clears it.
	Logout(ctx context.Context, r *http.Request) (*http.Cookie, error)
}

// Logins creates sessions.
type Logins interface {
	// Login returns the cookie of a new session.
	Login(ctx context.Context, name, password, source string) (*http.Cookie, error)
	// Setup makes the first administrator, if the secret is that of the setup link.
	Setup(ctx context.Context, secret string, u access.NewUser, source string) error
}

// People manages the users.
type People interface {
	Users(ctx context.Context) ([]store.User, error)
	CreateUser(ctx context.Context, u access.NewUser) error
	SetRole(ctx context.Context, name string, role access.Role) error
	SetPassword(ctx context.Context, name, password string) error
	DeleteUser(ctx context.Context, name string) error
}

// Tokens manages join tokens and API tokens. A new token is shown once.
type Tokens interface {
	JoinTokens(ctx context.Context) ([]store.JoinToken, error)
	CreateJoinToken(ctx context.Context, n access.NewJoinToken) (wire.JoinToken, error)
	RevokeJoinToken(ctx context.Context, id string) error
	APITokens(ctx context.Context) ([]store.APIToken, error)
	CreateAPIToken(ctx context.Context, n access.NewAPIToken) (string, error)
	RevokeAPIToken(ctx context.Context, id string) error
}

// Accounts is what users change about their own account.
type Accounts interface {
	// ChangePassword sets a new password for a user who knows the old one. All their sessions end;
	// the cookie belongs to a new one.
	ChangePassword(ctx context.Context, p access.PasswordChange) (*http.Cookie, error)
	APITokensOf(ctx context.Context, user string) ([]store.APIToken, error)
	// RevokeAPITokenOf revokes a token if it belongs to the user.
	RevokeAPITokenOf(ctx context.Context, user, id string) error
}

// An Archive reads the audit and makes backups.
type Archive interface {
	// FindAudits lists audit records, newest first.
	FindAudits(ctx context.Context, q store.AuditQuery) ([]store.Audit, error)
	// Copies lists the backups, newest first, and returns when the next one is due.
	Copies() ([]store.Copy, time.Time, error)
	// BackUpNow writes a backup and returns its file.
	BackUpNow(ctx context.Context) (file string, err error)
}

// An About describes the hub for the settings page.
type About struct {
	Certificates []Certificate
	Facts        []Fact // addresses and versions
	Kept         []Fact // how long each kind of data is kept
	Settings     []config.Shown
}

// A Certificate is one that the hub issued or uses, with its end.
type Certificate struct {
	Of, Renewal string
	Until       time.Time
}

// A Told is a recipient of notifications: a webhook or mail addresses. To holds no secret.
type Told struct{ Name, To string }

// A Fact is a name with its value.
type Fact struct {
	Name, Value string
	Href        string // "": none
}

// A Liveness is what is known of a node's link.
type Liveness = devices.Liveness

// A Config is the configuration of a Server. Everything must be set except Allow, Now, Audit, Log
// and the addresses.
type Config struct {
	Fleet Fleet
	Now   func() time.Time // the hub's time, shown everywhere; nil: the machine's
	// Allow tells whether a role may use a verb on a resource; nil: access.Allow.
	Allow    func(role access.Role, verb, resource string) bool
	Liveness func(node string) Liveness
	// Usage is what a device used at its last measurement; false: not known. It does not wait:
	// heard is called after the next measurement.
	Usage func(node string, heard func()) (wire.Usage, bool)
	// Audit stores an audit record.
	Audit func(ctx context.Context, a store.Audit)
	// API is the hub's Kubernetes-compatible API. It authenticates requests itself, so that changes
	// made on the page pass the same checks.
	API      http.Handler
	Logs     Logs
	Shells   Shells
	Sessions Sessions
	Logins   Logins
	People   People
	Tokens   Tokens
	Accounts Accounts
	Views    Views // nil: views cannot be saved
	Archive  Archive
	About    func() (About, error)
	// Members are the hubs of the same database, for the request of ctx. nil or none: this hub is
	// alone.
	Members func(ctx context.Context) []Member
	// Told are the recipients of notifications; TestTold sends one of them a test message. nil:
	// there are none.
	Told     func() []Told
	TestTold func(ctx context.Context, name string) error
	// CA is the hub's CA certificate as PEM, for kubeconfigs.
	CA func() []byte
	// Agents lists the architectures that the hub has agents for; nil: none.
	Agents func() []string
	// HubURLs are the addresses through which devices join, such as https://gateway:8443, of every
	// hub of the database, this hub's first. nil: the address of the page's request.
	HubURLs func() []string
	Version string
	// Pauses are the times when no hub ran, oldest first. The state of nodes is not known then.
	Pauses []store.Pause
	// History returns n samples of a node's figures from a moment on; nil: no history is kept.
	History func(uid types.UID, from time.Time, n int) []history.Word
	// Foresight are the rules that foresee what an action would do to pods; zero: it is not
	// foreseen.
	Foresight preview.Rules
	Log       *slog.Logger
}

// Logs copies a container's log to w until its end; with o.Follow, until the container ends or ctx
// is done. Errors are shown to users.
type Logs interface {
	Logs(ctx context.Context, pod *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error
	// NodeLogs copies the log of a node's agent.
	NodeLogs(ctx context.Context, node string, o corev1.PodLogOptions, w io.Writer) error
}

// A Member is one of several hubs on one database.
type Member struct {
	Name, Address, Version string
	Since                  time.Time     // when it began to lead or to stand by
	Leads                  bool          // one hub leads
	Behind                 time.Duration // how old a standby's data may be
	Late                   bool          // Behind is too long
	Here                   bool          // this hub served the page
}

// A MemberRow is a hub in the list of the settings.
type MemberRow struct {
	Name, Address, Version, Behind string
	Since                          *format.Moment
	Here                           bool
	Pill                           Pill
}

// hubsSaid says which hub leads and which others stand by; "": this hub is alone. Every hub shows
// what the leader knows.
func hubsSaid(all []Member) string {
	if len(all) == 0 {
		return ""
	}
	var leads, here string
	var others []string
	for _, m := range all {
		name := m.Name
		// two hubs on one machine need their addresses
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
		facts = append(facts, Fact{Name: k, Value: m[k]})
	}
	return facts
}

// Shells runs commands in containers until they end or ctx is done. An *ask.ExitError is an exit
// code other than 0.
type Shells interface {
	Exec(ctx context.Context, pod *corev1.Pod, o corev1.PodExecOptions, s ask.IO) error
}
