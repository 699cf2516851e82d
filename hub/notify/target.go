package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/netip"
	"net/smtp"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"flotilla.dev/shared/fleet"
)

var errNobody = errors.New("no target is set: name a webhook or a mail server in the hub's configuration")

// partly is the error if some recipients did not get a message. The message is sent again to the
// recipients that the server refused temporarily.
type partly struct {
	error
	later []string
}

// A Webhook gets each message as a POST of JSON. Any 2xx response means that it was received.
type Webhook struct {
	URL    string
	Secret []byte // signs the body as GitHub does; nil: no signature
	Client *http.Client
}

// NewWebhook returns a webhook that follows no redirects, so that it sends only to the configured
// address.
func NewWebhook(address string, secret []byte) *Webhook {
	return &Webhook{URL: address, Secret: secret,
		Client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}}
}

// Name is webhook.
func (*Webhook) Name() string { return "webhook" }

// To is the webhook's host. The path is omitted, because many services have a secret in it.
func (w *Webhook) To() string {
	u, err := url.Parse(w.URL)
	if err != nil {
		return "an invalid address"
	}
	return u.Scheme + "://" + u.Host + "/…"
}

// Send posts the message.
func (w *Webhook) Send(ctx context.Context, m Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the webhook's message: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send to webhook %s: %w", w.To(), reason(err))
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "flotilla-hub")
	r.Header.Set("Flotilla-Delivery", m.ID())
	if w.Secret != nil {
		r.Header.Set("Flotilla-Signature", "sha256="+Sign(w.Secret, body))
	}
	resp, err := w.Client.Do(r)
	if err != nil {
		return fmt.Errorf("send to webhook %s: %w", w.To(), reason(err))
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("webhook %s answers %s instead of 2xx", w.To(), resp.Status)
	}
	return nil
}

// reason returns an error without the webhook's address, which is a secret.
func reason(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Sign returns the HMAC-SHA256 of a body, in hexadecimal.
func Sign(secret, body []byte) string {
	h := hmac.New(sha256.New, secret)
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// A Mail sends messages by e-mail.
type Mail struct {
	Server   string // smtp://host:587, with STARTTLS where the server has it, or smtps://host:465
	User     string // "": no login
	Password string
	From     string
	Whom     []string
	TLS      *tls.Config // nil: the system's CAs
}

// Name is mail.
func (*Mail) Name() string { return "mail" }

// To is the recipients and the server.
func (m *Mail) To() string { return strings.Join(m.Whom, ", ") + " through " + m.Server }

// Send hands the message to the mail server.
func (m *Mail) Send(ctx context.Context, msg Message) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("send mail through %s: %w", m.Server, err)
		}
	}()
	whom := m.whom(msg)
	if len(whom) == 0 {
		return nil
	}
	u, err := url.Parse(m.Server)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if by, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(by)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if m.TLS != nil {
		secure = m.TLS.Clone()
	}
	secure.ServerName = u.Hostname()
	if u.Scheme == "smtps" {
		conn = tls.Client(conn, secure)
	}
	c, err := smtp.NewClient(conn, u.Hostname())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Hello(literal(conn.LocalAddr())); err != nil {
		return err
	}
	if ok, _ := c.Extension("STARTTLS"); ok && u.Scheme == "smtp" {
		if err := c.StartTLS(secure); err != nil {
			return err
		}
	}
	if m.User != "" {
		// PlainAuth does not send the password without TLS
		if err := c.Auth(smtp.PlainAuth("", m.User, m.Password, u.Hostname())); err != nil {
			return err
		}
	}
	if err := c.Mail(m.From); err != nil {
		return err
	}
	var refused []error
	var later []string
	for _, to := range whom {
		if err := c.Rcpt(to); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", to, err))
			if passes(err) {
				later = append(later, to)
			}
		}
	}
	switch {
	case len(refused) < len(whom):
	case msg.Only == nil:
		return errors.Join(refused...)
	default: // the other recipients have the message
		_ = c.Quit()
		return partly{errors.Join(refused...), later}
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(m.letter(msg)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = c.Quit() // the message is delivered, whatever QUIT returns
	if len(refused) > 0 {
		return partly{errors.Join(refused...), later}
	}
	return nil
}

// whom returns the recipients of a message.
func (m *Mail) whom(msg Message) []string {
	if msg.Only == nil {
		return m.Whom
	}
	return slices.DeleteFunc(slices.Clone(m.Whom), func(to string) bool { return !slices.Contains(msg.Only, to) })
}

// passes tells whether a mail server's refusal is temporary: it has a code 4xx. A server with
// greylisting responds with one at first.
func passes(err error) bool {
	var said *textproto.Error
	return errors.As(err, &said) && said.Code/100 == 4
}

// literal returns the address literal that a client without a host name sends (RFC 5321, 4.1.3).
// Some servers refuse localhost.
func literal(at net.Addr) string {
	from, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return "localhost"
	}
	ip := from.Addr().Unmap().WithZone("")
	if ip.Is6() {
		return "[IPv6:" + ip.String() + "]"
	}
	return "[" + ip.String() + "]"
}

// width is the longest line of a mail, unless a single word is longer. A server need not accept
// lines of 1,000 characters.
const width = 78

// letter writes a message in the format of RFC 5322. No text of an incident can add a header line.
func (m *Mail) letter(msg Message) []byte {
	var b bytes.Buffer
	head := func(name, value string) {
		at, _ := b.WriteString(name + ":")
		for n, word := range strings.Fields(value) {
			if n > 0 && at+1+len(word) > width {
				b.WriteString("\r\n")
				at = 0
			}
			b.WriteString(" " + word)
			at += 1 + len(word)
		}
		b.WriteString("\r\n")
	}
	head("From", m.From)
	head("To", strings.Join(m.Whom, ", ")) // all recipients, even if only some get this message
	head("Subject", mime.QEncoding.Encode("utf-8", short("[Flotilla] "+strings.Join(strings.Fields(msg.Line()), " "))))
	head("Date", msg.At.UTC().Format(time.RFC1123Z))
	head("Message-ID", "<"+msg.ID()+"@flotilla-hub>")
	head("Auto-Submitted", "auto-generated")
	head("MIME-Version", "1.0")
	head("Content-Type", "text/plain; charset=utf-8")
	head("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	body := quotedprintable.NewWriter(&b)
	line := func(text string) { _, _ = io.WriteString(body, text+"\r\n") } // writes to memory do not fail
	line(msg.Line() + ".")
	switch i := msg.Incident; {
	case len(msg.Incidents) > 1:
		line("")
		for n, i := range msg.Incidents {
			if n == mostLines {
				line(fmt.Sprintf("and %d more", len(msg.Incidents)-n))
				break
			}
			line(i.Message + " (" + i.Name + ")")
		}
	case i != nil:
		about(i, line)
	}
	if msg.Hub != "" {
		line("")
		line(msg.Hub)
	}
	_ = body.Close()
	return b.Bytes()
}

// mostLines limits how many incidents are named in a mail about several.
const mostLines = 20

// about writes the lines about one incident.
func about(i *fleet.Incident, line func(string)) {
	line("")
	line("Since: " + i.Since.UTC().Format(time.RFC3339))
	if i.Closed != nil {
		line("Over: " + i.Closed.UTC().Format(time.RFC3339))
		line(fmt.Sprintf("At most: %d nodes, %d pods, %d workloads short; %d pods were told to leave", i.Most.Nodes,
			i.Most.Pods, i.Most.Workloads, i.Evicted))
	} else {
		line(fmt.Sprintf("Touches: %d nodes, %d pods, %d workloads short", i.Count.Nodes, i.Count.Pods, i.Count.Workloads))
	}
	if i.NextMove != nil {
		line("Pods begin to move: " + i.NextMove.UTC().Format(time.RFC3339))
	}
	if i.Held != "" {
		line("Pods stay: " + i.Held)
	}
	if i.Detail != "" && !strings.Contains(i.Message, i.Detail) {
		line("Details: " + short(i.Detail))
	}
	if i.Note != "" {
		line("Note: " + short(i.Note))
	}
	line("Incident: " + i.Name)
}
