package join

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"flotilla.dev/shared/wire"
)

// A refusal is an error response of a hub.
type refusal struct {
	code      int
	text      string
	after     time.Duration // wait before the next request; 0: the hub did not say
	dismissed *wire.Dismissed
	waiting   string // name of the request that an administrator must approve first
}

// A Dismissal is the error of a renewal after the enrolment has ended.
type Dismissal struct{ wire.Dismissed }

func (d *Dismissal) Error() string { return "the hub has ended this device's enrolment: " + d.Reason }

func (r *refusal) Error() string { return r.text }

// waiting limits how long a join repeats its request to a busy hub. retry is the pause of a join
// that waits for approval and cannot reach the hub.
const (
	waiting = 5 * time.Minute
	retry   = 10 * time.Second
)

// askAgain repeats a request until a hub has a final answer, and returns that hub. A busy hub says
// when to repeat the request. A hub that waits for an administrator's approval says so too; that
// may take any time, across restarts of the hub and outages. If a hub does not respond, askAgain
// tries the next one of the list.
func askAgain(ctx context.Context, c *http.Client, hubs []*url.URL, request wire.JoinRequest,
	waits func(string)) (wire.JoinAnswer, *url.URL, error) {
	at, silent := 0, 0 // silent is the number of hubs in a row that did not respond
	for began := time.Now(); ; {
		answer, err := ask(ctx, c, hubs[at].JoinPath(wire.PathJoin), request)
		after := retryAfter(err)
		if err == nil || !mayPass(err) || after > 0 {
			silent = 0
		} else if silent++; silent < len(hubs) && ctx.Err() == nil {
			at = (at + 1) % len(hubs)
			continue
		}
		var no *refusal
		switch {
		case errors.As(err, &no) && no.waiting != "":
			after = max(no.after, time.Second)
			if request.Waiting != no.waiting && waits != nil {
				waits(no.waiting)
			}
			request.Waiting = no.waiting
		case request.Waiting != "" && mayPass(err):
			after, silent = max(after, retry), 0
		case after == 0 || time.Since(began)+after > waiting:
			return answer, hubs[at], err
		}
		select {
		case <-time.After(after):
		case <-ctx.Done():
			if request.Waiting != "" {
				err = &refusal{code: http.StatusAccepted,
					text: "request " + request.Waiting + " still waits, and the same command continues it", waiting: request.Waiting}
			}
			return answer, hubs[at], err
		}
	}
}

// mayPass reports whether repeating the request may help.
func mayPass(err error) bool {
	var no *refusal
	if errors.As(err, &no) {
		return no.code >= 500 || no.code == http.StatusTooManyRequests
	}
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var stranger x509.UnknownAuthorityError
	var netErr net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) { // the response was cut off, which is not a net.Error
		return true
	}
	return errors.As(err, &netErr) && !errors.As(err, &invalid) && !errors.As(err, &name) && !errors.As(err, &stranger)
}

// retryAfter returns the wait that the hub requests; 0: the hub did not say.
func retryAfter(err error) time.Duration {
	var no *refusal
	if errors.As(err, &no) && (no.code == http.StatusTooManyRequests || no.code == http.StatusServiceUnavailable) {
		return no.after
	}
	return 0
}

// ask posts a JSON request and reads the response.
func ask(ctx context.Context, c *http.Client, to *url.URL, request any) (wire.JoinAnswer, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return wire.JoinAnswer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return wire.JoinAnswer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		return wire.JoinAnswer{}, err
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
		return wire.JoinAnswer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		var no wire.JoinRefusal
		if json.Unmarshal(body, &no) != nil || no.Error == "" {
			no.Error = "it answered " + resp.Status
		}
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date is ignored: the hub sends seconds
		return wire.JoinAnswer{}, &refusal{resp.StatusCode, no.Error,
			time.Duration(min(max(seconds, 0), 3600)) * time.Second, no.Dismissed, no.Waiting}
	}
	return wire.ParseJoinAnswer(body)
}

// explain adds to an error of a request what it means and what to do.
func explain(err error, base *url.URL, hubTime time.Time) error {
	var no *refusal
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var stranger x509.UnknownAuthorityError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &no) && no.dismissed != nil:
		return &Dismissal{*no.dismissed}
	case errors.As(err, &no) && no.waiting != "":
		return fmt.Errorf("%w: %s", ErrWaits, no.text)
	case errors.As(err, &stranger):
		return fmt.Errorf("%w: another server answers at the hub's address: %w. Nothing was sent", ErrWrongHub, err)
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%w: %s does not speak TLS; use the port of --https-listen", ErrWrongHub, base.Host)
	case errors.As(err, &no) && no.code >= 500, errors.As(err, &no) && no.code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", ErrUnreachable, no)
	case errors.As(err, &no):
		return fmt.Errorf("%w: %s", ErrRefused, no.text)
	case errors.As(err, &name):
		return wrongName(name, base.Hostname())
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		says := "the hub's certificate is not valid at that time"
		if c := invalid.Cert; c != nil {
			says = fmt.Sprintf("%s is valid from %s until %s", c.Subject.CommonName, c.NotBefore.UTC().Format(time.RFC3339),
				c.NotAfter.UTC().Format(time.RFC3339))
		}
		if !hubTime.IsZero() {
			says = "the hub's clock says " + hubTime.UTC().Format(time.RFC3339)
		}
		return fmt.Errorf("%w says %s, and %s; set it (for example with `date -s`) and try again", ErrClock,
			time.Now().UTC().Format(time.RFC3339), says)
	}
	var netErr net.Error
	if errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w; is it running, is the port right, and does a firewall let %s through?", ErrUnreachable,
			err, base.Host)
	}
	return err
}

// pin returns the name that a token has for a root: the first 16 bytes of the SHA-256 of the root's
// public key.
func pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:16])
}
