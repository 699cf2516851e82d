package notify

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

type memory struct {
	mu   sync.Mutex
	s    state.Snapshot
	full error // every write fails
}

func (m *memory) Snapshot() state.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.s
}

func (m *memory) Do(_ context.Context, news control.News) (done []state.Applied, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full != nil {
		return nil, m.full
	}
	changes, err := news(m.s, time.Now())
	m.s, done = state.Apply(m.s, changes)
	return done, err
}

func (m *memory) put(i *fleet.Incident) {
	_, _ = m.Do(context.Background(), func(state.Snapshot, time.Time) ([]state.Change, error) {
		return []state.Change{state.Put(i.DeepCopy(), "")}, nil
	})
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = err
}

func (m *memory) get(name string) *fleet.Incident {
	return m.Snapshot().Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident)
}

// An ear is a fake target. It records messages, or fails.
type ear struct {
	mu    sync.Mutex
	deaf  bool
	sent  []string
	tries int
}

func (*ear) Name() string { return "webhook" }
func (*ear) To() string   { return "an ear" }
func (e *ear) Send(_ context.Context, m Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tries++; e.deaf {
		return errors.New("the target fails")
	}
	e.sent = append(e.sent, m.name())
	return nil
}

// name returns a message as text without its time.
func (m Message) name() string {
	if m.Incident == nil {
		return string(m.Event)
	}
	return m.Incident.Name + "-" + string(m.Event)
}

func (e *ear) set(deaf bool) (tries int, sent string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deaf = deaf
	return e.tries, strings.Join(e.sent, " ")
}

// settles is how long an incident is open before it is notified.
const settles = 30 * time.Second

func trouble(name string, change func(*fleet.Incident)) *fleet.Incident {
	i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: name}, State: fleet.IncidentOpen,
		Cause: fleet.IncidentCause(name), Severity: fleet.SeverityCritical, Message: "oslo is dark", Since: metav1.Now(),
		Opened: metav1.Now(), NotifyAfter: new(metav1.NewTime(time.Now().Add(settles))),
		About: fleet.IncidentObject{Kind: "Site", Name: "oslo"}}
	if change != nil {
		change(i)
	}
	return i
}

func over(i *fleet.Incident) {
	i.State, i.Closed = fleet.IncidentClosed, new(metav1.Now())
}

// run starts a notifier in a synctest bubble. end stops it.
func run(m *memory, to ...Target) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	n := &Notifier{Fleet: m, Targets: to, Hub: func() string { return "https://hub" }, Now: time.Now,
		Log: slog.New(slog.DiscardHandler)}
	go func() {
		defer close(over)
		_ = n.Run(ctx)
	}()
	return func() { cancel(); <-over }
}

func TestOpeningAndClosingAreNotifiedOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &ear{}
		end := run(m, e)
		m.put(trouble("a", nil))
		m.put(trouble("brief", nil))
		m.put(trouble("part", func(i *fleet.Incident) { i.PartOf = "a" }))
		m.put(trouble("note", func(i *fleet.Incident) { i.Severity = fleet.SeverityInfo }))
		time.Sleep(20 * time.Second)
		if _, sent := e.set(false); sent != "" {
			t.Errorf("sent before the incident has settled: %s", sent)
		}
		m.put(trouble("brief", over))
		time.Sleep(time.Minute)
		if _, sent := e.set(false); sent != "a-opened" {
			t.Errorf("sent %q, want only the open incident that is not a consequence", sent)
		}
		end()
		end = run(m, e) // restart the hub
		time.Sleep(time.Minute)
		closed := m.get("a").DeepCopy()
		over(closed)
		m.put(closed)
		time.Sleep(time.Hour)
		if _, sent := e.set(false); sent != "a-opened a-closed" {
			t.Errorf("sent %q, want opening and closing once each", sent)
		}
		end()
	})
}

// While the database fails for an hour, a sent message is not sent again every two seconds.
func TestASentMessageIsNotRepeatedWhileStoringFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &ear{}
		end := run(m, e)
		m.put(trouble("a", nil))
		m.fail(control.ErrUnavailable)
		time.Sleep(time.Hour)
		if _, sent := e.set(true); sent != "a-opened" {
			t.Fatalf("%d messages are sent, want one", len(strings.Fields(sent)))
		}
		m.fail(nil)
		time.Sleep(time.Minute)
		if told := m.get("a").Told; len(told) != 1 || told[0].Opened == nil || told[0].Failed != 0 {
			t.Errorf("the stored result is %+v", told)
		}
		m.fail(control.ErrFull)
		m.put(trouble("b", nil)) // the target fails
		m.fail(nil)
		m.put(trouble("b", nil))
		m.fail(control.ErrFull)
		before, _ := e.set(true)
		time.Sleep(time.Hour)
		if tries, _ := e.set(false); tries-before > 12 {
			t.Errorf("%d attempts in an hour without storing a result", tries-before)
		}
		m.fail(nil)
		time.Sleep(time.Hour)
		closed := m.get("a").DeepCopy()
		over(closed)
		m.put(closed)
		time.Sleep(time.Minute)
		if _, sent := e.set(false); sent != "a-opened b-opened a-closed" {
			t.Errorf("sent %q, want each message once", sent)
		}
		end()
	})
}

// A webhook that delays each message to its timeout does not delay the mail.
func TestAHangingTargetDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &ear{}
		end := run(m, &named{name: "mail", hangs: true}, e)
		for n := range 2 * atOnce {
			m.put(trouble(fmt.Sprintf("a%02d", n), nil))
		}
		time.Sleep(settles + 3*looks)
		if _, sent := e.set(false); len(strings.Fields(sent)) != 2*atOnce {
			t.Errorf("%d of %d incidents are notified", len(strings.Fields(sent)), 2*atOnce)
		}
		end()
	})
}

// A slow target takes ten seconds for each message.
type slow struct{ ear }

func (s *slow) Send(ctx context.Context, m Message) error {
	time.Sleep(10 * time.Second)
	return s.ear.Send(ctx, m)
}

// During a storm the last message is sent minutes after the first.
func TestAnIncidentThatClosesInTheQueueIsNotNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &slow{}
		for _, name := range []string{"a", "b", "c", "d"} {
			m.put(trouble(name, nil))
		}
		end := run(m, e)
		time.Sleep(settles + 5*time.Second)
		b, c := m.get("b").DeepCopy(), m.get("c")
		over(b)
		m.put(b)
		_, _ = m.Do(t.Context(), func(state.Snapshot, time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(c, "")}, nil
		})
		time.Sleep(5 * time.Minute)
		if _, sent := e.set(false); sent != "a-opened d-opened" {
			t.Errorf("sent %q, want only the openings of a and d", sent)
		}
		end()
	})
}

func TestFailedMessagesAreRetriedWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &ear{deaf: true}
		end := run(m, e)
		m.put(trouble("a", nil))
		time.Sleep(10 * time.Minute)
		tries, _ := e.set(true)
		if tries < 4 || tries > 8 {
			t.Errorf("%d attempts in ten minutes", tries)
		}
		if told := m.get("a").Told[0]; told.Failed != int32(tries) || told.Error != "the target fails" || told.Next == nil {
			t.Errorf("the stored result is %+v", told)
		}
		end()
		end = run(m, e) // a restarted hub continues the back-off
		time.Sleep(10 * time.Second)
		if again, _ := e.set(true); again > tries+1 {
			t.Errorf("after a restart there are %d attempts at once", again-tries)
		}
		time.Sleep(20 * time.Hour)
		if all, _ := e.set(false); all > 20*6+tries+3 {
			t.Errorf("%d attempts in twenty hours", all)
		}
		closed := m.get("a").DeepCopy()
		over(closed)
		m.put(closed)
		time.Sleep(20 * time.Minute)
		if _, sent := e.set(false); sent != "a-closed" {
			t.Errorf("sent %q, want only the end", sent)
		}
		end()
	})
}

// A test message is sent to its target at once. It stores nothing and returns the target's error.
func TestATestIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &ear{}
		m.put(trouble("a", nil))
		other := &named{name: "mail"}
		n := &Notifier{Fleet: m, Targets: []Target{e, other}, Hub: func() string { return "https://hub" }, Now: time.Now,
			Log: slog.New(slog.DiscardHandler)}
		if err := n.TestTarget(t.Context(), "webhook"); err != nil {
			t.Error(err)
		}
		if tries, sent := e.set(true); tries != 1 || sent != "test" || other.sent != nil {
			t.Errorf("%d attempts, sent %q, the other target got %v", tries, sent, other.sent)
		}
		if err := n.TestTarget(t.Context(), "webhook"); err == nil || err.Error() != "the target fails" {
			t.Errorf("TestTarget of a failing target: %v", err)
		}
		if tries, _ := e.set(true); tries != 2 {
			t.Errorf("a failed test is repeated: %d attempts", tries)
		}
		if err := n.TestTarget(t.Context(), "pigeon"); !errors.Is(err, errNobody) {
			t.Errorf("TestTarget of an unknown target: %v", err)
		}
		if told := m.get("a").Told; len(told) != 0 {
			t.Errorf("the test is stored in an incident: %+v", told)
		}
		if err := n.TestTarget(t.Context(), "mail"); err != nil {
			t.Error(err)
		}
		got := other.sent
		if got == nil || got.Event != Test || got.Incident != nil || got.Hub != "https://hub" ||
			!got.At.Time.Equal(time.Now()) || !strings.Contains(got.Line(), "This is a test") {
			t.Errorf("the sent message is %+v", got)
		}
		other.hangs = true
		began := time.Now()
		if err := n.TestTarget(t.Context(), "mail"); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(began) != timeout {
			t.Errorf("TestTarget of a hanging target: %v after %s", err, time.Since(began))
		}
	})
}

// A named target stores its messages, or hangs.
type named struct {
	name  string
	hangs bool
	sent  *Message
}

func (n *named) Name() string { return n.name }
func (n *named) To() string   { return n.name }
func (n *named) Send(ctx context.Context, m Message) error {
	n.sent = &m
	if n.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

func TestAWebhookIsSignedAndFollowsNoRedirect(t *testing.T) {
	var body []byte
	var head http.Header
	code := http.StatusNoContent
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		head = r.Header
		if r.URL.Path == "/elsewhere" {
			t.Error("the webhook follows a redirect")
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(code)
	}))
	defer srv.Close()
	w := NewWebhook(srv.URL+"/services/T0/secret", []byte("key"))
	m := Message{Event: Opened, Hub: "https://hub", Incident: trouble("a", nil)}
	if err := w.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	var got Message
	if err := json.Unmarshal(body, &got); err != nil || got.Incident.Name != "a" || got.Event != Opened {
		t.Errorf("the body is %s (%v)", body, err)
	}
	if head.Get("Flotilla-Signature") != "sha256="+Sign([]byte("key"), body) || head.Get("Flotilla-Delivery") != m.ID() ||
		!strings.HasPrefix(m.ID(), "a-opened-") {
		t.Errorf("the headers are %v", head)
	}
	for _, code = range []int{http.StatusFound, http.StatusTeapot, http.StatusInternalServerError} {
		if err := w.Send(t.Context(), m); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("the error after status %d is: %v", code, err)
		}
	}
	srv.Close()
	if err := w.Send(t.Context(), m); err == nil || strings.Contains(err.Error(), "T0") {
		t.Errorf("the error without a server is: %v", err)
	}
	if strings.Contains(w.To(), "secret") {
		t.Errorf("To shows the secret: %s", w.To())
	}
}

// A server is a mail server that accepts mail after a valid EHLO, as in RFC 5321 (4.1.4).
type server struct {
	refuses string // unknown recipients
	waits   string // recipients that the server refuses temporarily at first
	moments int    // number of these refusals
	leaves  bool   // the server closes the connection after a mail
	longest int    // the longest line that the server accepts; 0: any
	letter  chan string
	address string
}

func serve(t *testing.T, s server) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.letter, s.address = make(chan string, 9), l.Addr().String()
	over := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-over })
	go func() {
		defer close(over)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.talk(conn)
			_ = conn.Close()
		}
	}()
	return &s
}

func (s *server) talk(conn net.Conn) {
	r := bufio.NewReader(conn)
	say := func(s string) { fmt.Fprintf(conn, "%s\r\n", s) }
	say("220 here")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch verb, what, _ := strings.Cut(strings.TrimSpace(line), " "); {
		case verb == "EHLO" && what != "[127.0.0.1]":
			say("421 invalid name in EHLO")
			return
		case verb == "EHLO":
			say("250 hello")
		case verb == "RCPT" && s.refuses != "" && strings.Contains(what, s.refuses):
			say("550 unknown recipient")
		case verb == "RCPT" && s.moments > 0 && strings.Contains(what, s.waits):
			s.moments--
			say("450 try again later")
		case verb == "DATA":
			say("354 go on")
			var b strings.Builder
			long := false
			for line != ".\r\n" {
				if line, err = r.ReadString('\n'); err != nil {
					return
				}
				long = long || s.longest > 0 && len(line) > s.longest
				b.WriteString(line)
			}
			if long {
				say("550 a line is too long")
				continue
			}
			s.letter <- b.String()
			say("250 taken")
			if s.leaves {
				return
			}
		case verb == "QUIT":
			say("221 bye")
			return
		default:
			say("250 well")
		}
	}
}

func TestAnIncidentsTextCannotAddMailHeaders(t *testing.T) {
	s := serve(t, server{})
	m := &Mail{Server: "smtp://" + s.address, From: "hub@example.org", Whom: []string{"kari@example.org",
		"ola@example.org"}}
	evil := trouble("a", func(i *fleet.Incident) { i.Message = "oslo is dark\r\nBcc: thief@example.org" })
	if err := m.Send(t.Context(), Message{Event: Opened, Hub: "https://hub", At: metav1.Now(),
		Incident: evil}); err != nil {
		t.Fatal(err)
	}
	text := <-s.letter
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	if strings.Contains(head, "\nBcc:") || !strings.Contains(head, "To: kari@example.org, ola@example.org") ||
		!strings.Contains(head, "Subject: [Flotilla] Critical: oslo is dark") || !strings.Contains(body, "https://hub") {
		t.Errorf("the mail is\n%s", text)
	}
	m.Server = "smtp://127.0.0.1:1"
	if err := m.Send(t.Context(), Message{Event: Test}); err == nil {
		t.Error("sending to a stopped server succeeds")
	}
}

// A mail that the server has accepted is not sent again, even if the server fails afterwards.
func TestAnAcceptedMailIsNotSentAgain(t *testing.T) {
	s := serve(t, server{leaves: true})
	m := &Mail{Server: "smtp://" + s.address, From: "hub@example.org", Whom: []string{"kari@example.org"}}
	if err := m.Send(t.Context(), Message{Event: Opened, Incident: trouble("a", nil)}); err != nil || len(s.letter) != 1 {
		t.Errorf("%d mails are accepted, but Send returns %v", len(s.letter), err)
	}
}

// An unknown recipient does not prevent the mail to the others.
func TestAnUnknownRecipientDoesNotStopTheMail(t *testing.T) {
	s := serve(t, server{refuses: "ola"})
	to := &Mail{Server: "smtp://" + s.address, From: "hub@example.org", Whom: []string{"ola@example.org",
		"kari@example.org"}}
	m := &memory{s: state.Empty("x", time.Now())}
	m.put(trouble("a", func(i *fleet.Incident) { i.NotifyAfter = nil }))
	n := &Notifier{Fleet: m, Hub: func() string { return "" }, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	for range 2 {
		(&teller{Notifier: n, Target: to, pending: map[string]attempt{}}).tell(t.Context())
	}
	if len(s.letter) != 1 {
		t.Errorf("%d mails are sent, want one", len(s.letter))
	}
	if told := m.get("a").Told; len(told) != 1 || told[0].Opened == nil || told[0].Next != nil ||
		!strings.Contains(told[0].Error, "ola@example.org: 550") {
		t.Errorf("the stored result is %+v", told)
	}
	n.Targets, to.Whom = []Target{to}, to.Whom[:1]
	if err := n.TestTarget(t.Context(), "mail"); err == nil || !strings.Contains(err.Error(), "ola@example.org: 550") ||
		len(s.letter) != 1 {
		t.Errorf("TestTarget with only an unknown recipient: %v", err)
	}
}

// A server with greylisting refuses each recipient at first, and a mailbox may be full. Only such
// recipients get the mail again.
func TestATemporarilyRefusedRecipientGetsTheMailLater(t *testing.T) {
	s := serve(t, server{waits: "ola", moments: 2, refuses: "per"})
	to := &Mail{Server: "smtp://" + s.address, From: "hub@example.org", Whom: []string{"ola@example.org",
		"kari@example.org", "per@example.org"}}
	m := &memory{s: state.Empty("x", time.Now())}
	now := time.Now()
	m.put(trouble("a", func(i *fleet.Incident) { i.NotifyAfter = nil }))
	// Each check is that of a hub after a restart, because the incident stores the whole state.
	look := func(after time.Duration, letters int, missed string) {
		t.Helper()
		now = now.Add(after)
		n := &Notifier{Fleet: m, Hub: func() string { return "" }, Now: func() time.Time { return now },
			Log: slog.New(slog.DiscardHandler)}
		(&teller{Notifier: n, Target: to, pending: map[string]attempt{}}).tell(t.Context())
		got := 0
		for ; len(s.letter) > 0; got++ {
			<-s.letter
		}
		told := m.get("a").Told
		if len(told) != 1 || got != letters || strings.Join(told[0].Missed, " ") != missed ||
			(told[0].Next == nil) != (missed == "") {
			t.Fatalf("%d mails, want %d; the stored result is %+v, want %q missed", got, letters, told, missed)
		}
	}
	look(0, 1, "ola@example.org")
	look(time.Second, 0, "ola@example.org")
	look(time.Minute, 0, "ola@example.org") // the server refuses ola once more
	look(time.Minute, 1, "")
	look(time.Hour, 0, "")

	s.moments = 1
	closed := m.get("a").DeepCopy()
	over(closed)
	m.put(closed)
	look(time.Minute, 1, "ola@example.org")
	to.Server = "smtp://127.0.0.1:1"
	look(time.Minute, 0, "ola@example.org")
	look(time.Second, 0, "ola@example.org")
	to.Server = "smtp://" + s.address
	look(time.Hour, 1, "")
	look(time.Hour, 0, "")

	// A recipient that missed the opening gets the closing at the same time as the others.
	s.moments = 1
	m.put(trouble("b", func(i *fleet.Incident) { i.NotifyAfter = nil }))
	b := func() *fleet.IncidentTold { return &m.get("b").Told[0] }
	look(0, 1, "")
	if b().Opened == nil || len(b().Missed) != 1 {
		t.Fatalf("the stored result is %+v", b())
	}
	closed = m.get("b").DeepCopy()
	over(closed)
	m.put(closed)
	look(time.Second, 1, "")
	if b().Closed == nil || len(b().Missed) != 0 {
		t.Fatalf("the stored result is %+v", b())
	}

	// The notifier does not wait for a recipient that was removed from the configuration.
	s.moments = 1
	m.put(trouble("c", func(i *fleet.Incident) { i.NotifyAfter = nil }))
	look(0, 1, "")
	to.Whom = to.Whom[1:2]
	look(time.Hour, 0, "")
	if told := m.get("c").Told[0]; len(told.Missed) != 0 || told.Next != nil {
		t.Errorf("the stored result is %+v", told)
	}
}

// Lines of a mail have at most 998 octets, as every server must accept, in any script and with any
// number of recipients.
func TestAMailHasNoLongLines(t *testing.T) {
	s := serve(t, server{longest: 998 + len("\r\n")})
	m := &Mail{Server: "smtp://" + s.address, From: "hub@example.org"}
	for n := range 60 {
		m.Whom = append(m.Whom, fmt.Sprintf("somebody-%02d@example.org", n))
	}
	said := "Образ не может быть получен = " + strings.Repeat("ошибка сети ", 40) + strings.Repeat("ы", 200)
	if err := m.Send(t.Context(), Message{Event: Opened, Hub: "https://hub", Incident: trouble("a",
		func(i *fleet.Incident) { i.Message = said })}); err != nil {
		t.Fatal(err)
	}
	letter, err := mail.ReadMessage(strings.NewReader(<-s.letter))
	if err != nil {
		t.Fatal(err)
	}
	if to, err := letter.Header.AddressList("To"); err != nil || len(to) != len(m.Whom) {
		t.Errorf("the mail has %d recipients, want %d: %v", len(to), len(m.Whom), err)
	}
	if subject, err := new(mime.WordDecoder).DecodeHeader(letter.Header.Get("Subject")); err != nil ||
		!strings.HasPrefix(subject, "[Flotilla] Critical: Образ не может быть получен = ошибка") {
		t.Errorf("the subject is %q, %v", subject, err)
	}
	body, err := io.ReadAll(quotedprintable.NewReader(letter.Body))
	if err != nil || !strings.HasPrefix(string(body), "Critical: "+said+".\r\n") || !strings.Contains(string(body),
		"\r\nhttps://hub\r\n") {
		t.Errorf("the text is %s, %v", body, err)
	}
}

// A message that is sent twice has the same ID, so that receivers show it once. A later incident
// with the same name has a different ID.
func TestARepeatedMessageHasTheSameID(t *testing.T) {
	m, at := &Mail{Whom: []string{"kari@example.org"}}, time.Now()
	id := func(msg Message, after time.Duration) string {
		msg.At = metav1.NewTime(at.Add(after))
		letter, err := mail.ReadMessage(bytes.NewReader(m.letter(msg)))
		if err != nil {
			t.Fatal(err)
		}
		return letter.Header.Get("Message-ID")
	}
	a, later := trouble("a", nil), trouble("a", func(i *fleet.Incident) { i.Opened = metav1.NewTime(at.Add(48 * time.Hour)) })
	first := id(Message{Event: Opened, Incident: a}, 0)
	if again := id(Message{Event: Opened, Incident: a}, time.Minute); again != first || first == "" {
		t.Errorf("the ID is %s, and then %s", first, again)
	}
	for what, other := range map[string]string{
		"its end":                             id(Message{Event: Closed, Incident: a}, time.Minute),
		"a later incident with the same name": id(Message{Event: Opened, Incident: later}, 48*time.Hour),
		"a test":                              id(Message{Event: Test}, 0),
	} {
		if other == first {
			t.Errorf("%s has the same ID: %s", what, other)
		}
	}
	if id(Message{Event: Test}, 0) == id(Message{Event: Test}, time.Minute) {
		t.Error("two test messages have the same ID")
	}
	if first, again, other := (Message{Event: Opened, Incident: a}).ID(),
		(Message{Event: Opened, Incident: a, At: metav1.NewTime(at)}).ID(),
		(Message{Event: Opened, Incident: later}).ID(); again != first || other == first {
		t.Errorf("the webhook's ID is %s, then %s, and %s for another incident", first, again, other)
	}
}

func TestTheMailClientSendsItsAddressLiteral(t *testing.T) {
	for _, c := range []struct{ at, says string }{
		{"192.0.2.7:40000", "[192.0.2.7]"},
		{"[2001:db8::7]:40000", "[IPv6:2001:db8::7]"},
		{"[fe80::7%eth0]:40000", "[IPv6:fe80::7]"},
		{"[::ffff:192.0.2.7]:40000", "[192.0.2.7]"},
	} {
		if says := literal(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.at))); says != c.says {
			t.Errorf("from %s the literal is %s, want %s", c.at, says, c.says)
		}
	}
}
