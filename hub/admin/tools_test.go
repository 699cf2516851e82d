package admin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// ---- a device that logs and runs commands

type device struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
	err   error // returned to every request
	asked []corev1.PodLogOptions
	runs  [][]string
	sizes []ask.Size

	follows atomic.Int64 // followed logs
}

func newDevice(lines ...string) *device { return &device{lines: lines, more: make(chan struct{})} }

// log adds lines to all followed logs.
func (d *device) log(lines ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, lines...)
	close(d.more)
	d.more = make(chan struct{})
}

// followed waits until a log is followed.
func (d *device) followed(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		d.mu.Lock()
		ok := slices.ContainsFunc(d.asked, func(o corev1.PodLogOptions) bool { return o.Follow })
		d.mu.Unlock()
		if ok {
			return
		}
	}
	t.Fatal("no page follows a log")
}

func (d *device) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	close(d.more)
	d.more = make(chan struct{})
}

// stampOf returns the time of the nth line. Several lines have the same, as with engines that give
// whole seconds.
func stampOf(n int) time.Time {
	return admintest.Now.Add(-time.Hour + time.Duration(n/3)*10*time.Second)
}

func (d *device) Logs(ctx context.Context, p *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
	d.mu.Lock()
	d.asked = append(d.asked, o)
	if o.Follow {
		d.follows.Add(1)
		defer d.follows.Add(-1)
	}
	seen := 0
	if o.TailLines != nil {
		seen = max(0, len(d.lines)-int(*o.TailLines))
	}
	d.mu.Unlock()
	for {
		d.mu.Lock()
		var out bytes.Buffer
		for ; seen < len(d.lines); seen++ {
			if o.SinceTime != nil && stampOf(seen).Before(o.SinceTime.Time) {
				continue
			}
			if o.Timestamps {
				fmt.Fprintf(&out, "%s ", stampOf(seen).Format(time.RFC3339Nano))
			}
			fmt.Fprintln(&out, d.lines[seen])
		}
		more, err := d.more, d.err
		d.mu.Unlock()
		if err != nil {
			return err
		}
		if _, err := w.Write(out.Bytes()); err != nil {
			return err
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Exec is a small shell: it echoes its input, and knows exit.
func (d *device) Exec(ctx context.Context, p *corev1.Pod, o corev1.PodExecOptions, s ask.IO) error {
	d.mu.Lock()
	d.runs = append(d.runs, o.Command)
	err := d.err
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if o.Command[0] == "nothing" {
		return &ask.ExitError{Code: 127}
	}
	go func() {
		for {
			select {
			case size := <-s.Resize:
				d.mu.Lock()
				d.sizes = append(d.sizes, size)
				d.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
	typed := make(chan []byte)
	go func() {
		defer close(typed)
		for {
			b := make([]byte, 1024)
			n, err := s.Stdin.Read(b)
			if err != nil {
				return
			}
			typed <- b[:n]
		}
	}()
	say := func(text string) { _, _ = io.WriteString(s.Stdout, text) }
	say("\x1b[1;32m" + p.Name + "\x1b[0m \x1b[38;2;255;160;60m$\x1b[0m ")
	var line []byte
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, ok := <-typed:
			if !ok {
				return nil
			}
			for _, c := range b {
				if c != '\r' {
					line = append(line, c)
					_, _ = s.Stdout.Write([]byte{c})
					continue
				}
				switch words := strings.Fields(string(line)); {
				case len(words) > 0 && words[0] == "exit":
					code := 0
					_, _ = fmt.Sscan(strings.Join(words[1:], ""), &code)
					say("\r\n")
					if code == 0 {
						return nil
					}
					return &ask.ExitError{Code: code}
				default:
					say("\r\nyou said: " + string(line) + "\r\n$ ")
				}
				line = nil
			}
		}
	}
}

// ---- a hub

// estate has the hub's data, and records changes.
type estate struct {
	mu   sync.Mutex
	did  []string
	fail error
	acts []store.Audit
}

func (e *estate) do(format string, args ...any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.did = append(e.did, fmt.Sprintf(format, args...))
	return e.fail
}

func (e *estate) done(what string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.did, what)
}

func (e *estate) Users(context.Context) ([]store.User, error) {
	now := time.Now()
	return []store.User{
		{Name: "admin", Role: "admin", Created: now.Add(-400 * time.Hour)}, {Name: "bo", Role: "operator", Created: now.Add(-30 * time.Hour)},
		{Name: "cleo.nordmann@example.org", Role: "viewer", Created: now.Add(-time.Hour)},
	}, nil
}

func (e *estate) CreateUser(_ context.Context, u access.NewUser) error {
	return e.do("create %s as %s", u.Name, u.Role)
}

func (e *estate) SetRole(_ context.Context, name string, role access.Role) error {
	return e.do("make %s %s", name, role)
}

func (e *estate) SetPassword(_ context.Context, name, _ string) error {
	return e.do("password for %s", name)
}

func (e *estate) DeleteUser(_ context.Context, name string) error { return e.do("delete %s", name) }

func (e *estate) JoinTokens(context.Context) ([]store.JoinToken, error) {
	now := time.Now()
	return []store.JoinToken{
		{ID: "p0d4ncz8vt", Site: "bergen", Node: "kiosk-window-left", CreatedBy: "admin", Uses: 1, Used: 1, Created: now, Expires: now.Add(time.Hour)},
		{ID: "k3jx7w2mqa", Site: "oslo", CreatedBy: "admin", Uses: 10, Used: 3, Created: now, Expires: now.Add(20 * time.Hour)},
	}, nil
}

func (e *estate) CreateJoinToken(context.Context, access.NewJoinToken) (wire.JoinToken, error) {
	return wire.JoinToken{Pin: "0123456789abcdef0123456789abcdef", ID: "abcdefghij", Secret: "0123456789abcdefghijklmnop"}, nil
}

func (e *estate) RevokeJoinToken(_ context.Context, id string) error {
	return e.do("revoke join %s", id)
}

func (e *estate) APITokens(context.Context) ([]store.APIToken, error) {
	return e.APITokensOf(context.Background(), "admin")
}

func (e *estate) RevokeAPIToken(_ context.Context, id string) error { return e.do("revoke api %s", id) }

func (e *estate) CreateAPIToken(_ context.Context, t access.NewAPIToken) (string, error) {
	return "FLA1.abcdefghij.0123456789abcdefghijklmnop", e.do("token for %s: %s, %s", t.User, t.Note, t.Life)
}

func (e *estate) ChangePassword(_ context.Context, p access.PasswordChange) (*http.Cookie, error) {
	return &http.Cookie{Name: "x"}, e.do("password of %s", p.Name)
}

func (e *estate) APITokensOf(_ context.Context, user string) ([]store.APIToken, error) {
	return []store.APIToken{{ID: "h2m9xq4rtb", User: user, Note: "the backup script", Created: admintest.Now, Expires: admintest.Now.Add(80 * 24 * time.Hour)}}, nil
}

func (e *estate) RevokeAPITokenOf(_ context.Context, user, id string) error {
	return e.do("revoke api %s of %s", id, user)
}

func (e *estate) BackUpNow(context.Context) (string, error) {
	return "backups/hub-x.db", e.do("back up")
}

func (e *estate) Copies() ([]store.Copy, time.Time, error) {
	now := time.Now()
	return []store.Copy{{File: "data/backups/hub-20261121T010000Z.db", At: now.Add(-3 * time.Hour), Bytes: 5 << 20}}, now.Add(21 * time.Hour), nil
}

func about() (frame.About, error) {
	now := time.Now()
	return frame.About{
		Certificates: []frame.Certificate{
			{Of: "Root CA", Renewal: "by hand only: devices trust the hub because of it", Until: now.Add(3000 * 24 * time.Hour)},
			{Of: "This hub, HTTPS and MQTT", Renewal: "automatic, also when its addresses change", Until: now.Add(200 * 24 * time.Hour)},
			{Of: "Node pi-2", Renewal: "by the device, at half of its life", Until: now.Add(12 * 24 * time.Hour)},
		},
		Facts:    []frame.Fact{{Name: "Version", Value: "1.0.0"}, {Name: "Page and API", Value: "https://gateway.example:8443"}, {Name: "Answers to", Value: "gateway.example, localhost, 10.1.2.1, 127.0.0.1"}},
		Kept:     []frame.Fact{{Name: "Audit", Value: "90 days"}, {Name: "Backups", Value: "the last 7, one a day"}},
		Settings: []config.Shown{{Name: "https-listen", Value: ":8443", From: "default"}, {Name: "advertise-address", Value: "gateway.example", From: "hub.yaml:3"}, {Name: "inventory", From: "default"}},
	}, nil
}

func (e *estate) FindAudits(_ context.Context, q store.AuditQuery) (out []store.Audit, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.acts {
		text := strings.ToLower(strings.Join([]string{r.Who, r.Via, r.Source, r.Verb, r.Resource, r.Namespace, r.Name, r.Message}, " "))
		has := !slices.ContainsFunc(q.Words, func(w string) bool { return !strings.Contains(text, w) })
		if has && (len(q.Via) == 0 || slices.Contains(q.Via, r.Via)) && (!q.Refused || r.Code >= 400) && (q.Before == 0 || r.ID < q.Before) && len(out) < q.Limit {
			out = append(out, r)
		}
	}
	return out, nil
}

func sampleActs() (acts []store.Audit) {
	for i := range 70 {
		acts = append(acts, store.Audit{ID: int64(100 - i), At: admintest.Now.Add(-time.Duration(i) * 17 * time.Minute), Who: "anna", Via: "session", Source: "10.1.2.9", Verb: "patch", Resource: "deployments", Namespace: "default", Name: fmt.Sprintf("kiosk-%d", i), Code: 200})
	}
	acts[1] = store.Audit{ID: 99, At: admintest.Now.Add(-time.Minute), Who: "bo", Via: "token", Source: "2001:db8::17", Verb: "delete", Resource: "nodes", Name: "pi-2", Code: 403, Message: `nodes "pi-2" is forbidden: role "operator" does not allow it`}
	acts[0].Via, acts[4].Via, acts[4].Who = "page", "command line", "root"
	acts[2] = store.Audit{ID: 98, At: admintest.Now.Add(-2 * time.Minute), Via: "password", Source: "10.1.2.66", Verb: "create", Resource: "sessions", Code: 401, Message: "wrong name or password"}
	return acts
}

type noLeases struct{}

func (noLeases) Lease(string) *coordv1.Lease { return nil }

func (noLeases) Leases() []*coordv1.Lease { return nil }

func (noLeases) Seen(string) time.Time { return time.Time{} }

// wires holds a server's connections, which a test may cut.
type wires struct {
	net.Listener
	mu   sync.Mutex
	open []net.Conn
}

func (w *wires) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open = append(w.open, c)
	}
	return c, err
}

// cut closes every connection, including WebSockets.
func (s *server) cut() {
	s.wires.mu.Lock()
	defer s.wires.mu.Unlock()
	for _, c := range s.wires.open {
		_ = c.Close()
	}
	s.wires.open = nil
}

// keys are the estate's tokens, with the guard's real API tokens.
type keys struct {
	*estate
	guard *access.Guard
}

func (k keys) CreateAPIToken(ctx context.Context, t access.NewAPIToken) (string, error) {
	return k.guard.CreateAPIToken(ctx, t)
}

// some are the estate's users; the guard says whether there are any.
type some struct {
	*estate
	guard *access.Guard
}

func (s some) Users(ctx context.Context) ([]store.User, error) {
	if users, err := s.guard.Users(ctx); err != nil || len(users) == 0 {
		return nil, err
	}
	return s.estate.Users(ctx)
}

// A kit is a page with all its tools, with the real guard and the real API.
type kit struct {
	*browser
	fleet  *admintest.Memory
	device *device
	estate *estate
	server *server
	guard  *access.Guard
	acts   chan store.Audit
}

// equip gives a page simulated tools.
func equip(c *frame.Config) (*device, *estate) {
	d, e := newDevice(), &estate{acts: sampleActs()}
	c.Logs, c.Shells, c.Archive, c.People, c.Tokens, c.Accounts, c.About = d, d, e, e, e, e, about
	c.History, c.Foresight = admintest.SampleHistory, foresight
	c.Usage = func(string, func()) (wire.Usage, bool) { return wire.Usage{}, false }
	c.CA = func() []byte { return []byte("the hub's root") }
	c.API = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"pi-1"}}`)
	})
	return d, e
}

func newKit(t *testing.T, objects ...state.Object) *kit {
	t.Helper()
	return newKitOf(t, append(admintest.Sample(), objects...)...)
}

// newKitOf is a kit with a fleet of only these objects.
func newKitOf(t *testing.T, objects ...state.Object) *kit {
	t.Helper()
	k := &kit{fleet: admintest.New(objects...), acts: make(chan store.Audit, 100)}
	c, secret := guarded(t, k.fleet)
	k.device, k.estate = equip(&c)
	k.guard = c.Sessions.(*access.Guard)
	c.Accounts, c.People, c.Tokens = k.guard, some{k.estate, k.guard}, keys{k.estate, k.guard}
	c.API = kube.New(kube.Config{Fleet: k.fleet, Leases: noLeases{}, Access: k.guard, Settings: admission.Settings{}, Version: "test", Log: slog.New(slog.DiscardHandler)})
	c.Audit = func(_ context.Context, a store.Audit) { k.acts <- a }
	k.server = start(t, c)
	k.browser = browse(t, k.server.URL)
	k.width(1280, false)
	k.open("/setup?token=" + secret)
	k.fill("input[name=password]", "four words are good")
	k.fill("input[name=again]", "four words are good")
	k.press("button.primary")
	return k
}

// become logs in as another user.
func (k *kit) become(role access.Role) {
	k.Helper()
	name := string(role) + "-person"
	if err := k.guard.CreateUser(k.ctx, access.NewUser{Name: name, Password: "four words are good", Role: role}); err != nil {
		k.Fatal(err)
	}
	k.open("/")
	k.logout()
	k.fill("input[name=name]", name)
	k.fill("input[name=password]", "four words are good")
	k.press("button.primary")
}

// sizes checks a page at every width, light and dark, and saves pictures.
func (k *kit) sizes(name string) {
	k.Helper()
	for _, w := range []struct {
		pixels int64
		dark   bool
	}{{360, true}, {1280, false}} {
		k.width(w.pixels, w.dark)
		look := fmt.Sprintf("%s-%d-%s", name, w.pixels, map[bool]string{true: "dark", false: "light"}[w.dark])
		k.fits(look)
		k.axe(look)
		k.shot(look)
	}
}

func toolObjects() []state.Object {
	two := admintest.Pod("two-7d9f", "pi-1", func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side", Image: "registry.example/side:1"})
		p.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "registry.example/side:1"}}
	})
	replicas, labels := int32(3), map[string]string{"app": "till"}
	till := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "till", Namespace: "default", UID: "u2"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/till:1.0"}}},
		}}}
	admission.Default(till, admission.Settings{}) // as every stored object
	return []state.Object{
		till,
		two, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}},
		&fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "raspberrypi-4"}, Spec: fleet.BoardProfileSpec{
			Title: "Raspberry Pi 4", Match: fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b", "raspberrypi,400"}, Arch: []string{"arm64", "arm"}, MemoryMiB: &fleet.MiBBounds{Min: 900}},
			Resources: fleet.BoardResources{SystemReserved: map[string]string{"cpu": "200m", "memory": "160Mi"}, EvictionHard: map[string]string{"memory.available": "64Mi", "nodefs.available": "10%"}},
			Labels:    map[string]string{"gpio": "true"},
		}},
		admintest.Node("with-profile", "oslo", func(n *corev1.Node) { n.Labels[fleet.LabelProfile] = "raspberrypi-4" }),
	}
}
