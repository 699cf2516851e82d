package access

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// Handler serves joining: wire.PathCA, wire.PathJoin and wire.PathRenew.
func (g *Guard) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathCA, func(w http.ResponseWriter, _ *http.Request) {
		// A device checks its certificate with this, the hub's time.
		w.Header().Set("Date", g.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(g.Authority.RootPEM())
	})
	mux.HandleFunc("POST "+wire.PathJoin, func(w http.ResponseWriter, r *http.Request) {
		serve(w, r, noted(g, r, "create", wire.ParseJoinRequest), func(q wire.JoinRequest) (wire.JoinAnswer, error) {
			return g.Join(r.Context(), q, Source(r))
		})
	})
	mux.HandleFunc("POST "+wire.PathRenew, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			refuse(w, ErrUnauthenticated)
			return
		}
		serve(w, r, noted(g, r, "renew", wire.ParseRenewRequest), func(q wire.RenewRequest) (wire.JoinAnswer, error) {
			answer, err := g.Renew(r.Context(), q, r.TLS.PeerCertificates)
			a := store.Audit{Via: "certificate", Source: Source(r), Verb: "renew", Resource: "enrolments",
				Code: http.StatusCreated}
			if len(r.TLS.PeerCertificates) > 0 { // unverified; the record's code shows whether the certificate was accepted
				a.Who = clip(r.TLS.PeerCertificates[0].Subject.CommonName)
				a.Name = a.Who
			}
			if err != nil {
				a.Code, a.Message = status(err), err.Error()
			}
			g.Note(a)
			return answer, err
		})
	})
	return mux
}

// noted wraps a parser of requests and writes its refusals to the audit.
func noted[Q any](g *Guard, r *http.Request, verb string, parse func([]byte) (Q, error)) func([]byte) (Q, error) {
	return func(body []byte) (Q, error) {
		q, err := parse(body)
		if err != nil {
			g.Note(store.Audit{Source: Source(r), Verb: verb, Resource: "enrolments", Code: http.StatusBadRequest,
				Message: err.Error()})
		}
		return q, err
	}
}

func serve[Q any](w http.ResponseWriter, r *http.Request, parse func([]byte) (Q, error),
	do func(Q) (wire.JoinAnswer, error)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxJoin))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			write(w, http.StatusRequestEntityTooLarge, wire.JoinRefusal{Error: "the request is too large"})
		} else { // interrupted or too slow; a device retries after this status
			write(w, http.StatusServiceUnavailable, wire.JoinRefusal{Error: "the request was incomplete; try again"})
		}
		return
	}
	q, err := parse(body)
	if err != nil {
		write(w, http.StatusBadRequest, wire.JoinRefusal{Error: err.Error()})
		return
	}
	answer, err := do(q)
	if err != nil {
		refuse(w, err)
		return
	}
	write(w, http.StatusOK, answer)
}

// refuse writes an error as one sentence. Internal causes are only logged.
func refuse(w http.ResponseWriter, err error) {
	code := status(err)
	text := plain(err)
	if code >= 500 {
		text = errUnavailable.Error() + "; try again, and see its log"
	}
	var later *busy
	var waits *waiting
	switch {
	case errors.As(err, &waits):
		w.Header().Set("Retry-After", strconv.Itoa(int(waits.after/time.Second)))
	case errors.As(err, &later):
		w.Header().Set("Retry-After", strconv.Itoa(int(later.after/time.Second)))
	case code == http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "60")
		w.Header().Set("Connection", "close") // each further attempt needs a new connection, and their number is limited
	}
	no := wire.JoinRefusal{Error: text}
	if waits != nil {
		no.Waiting = waits.request
	}
	var d *dismissal
	if errors.As(err, &d) {
		no.Dismissed = &d.notice
	}
	write(w, code, no)
}

// plain returns an error's text without the prefix of its kind.
func plain(err error) string {
	text := err.Error()
	for _, sentinel := range []error{ErrUnauthenticated, ErrForbidden, ErrInvalid, ErrConflict, ErrRefused} {
		text = strings.TrimPrefix(text, sentinel.Error()+": ")
	}
	return text
}

// status is the HTTP code of an error.
func status(err error) int {
	var w *waiting
	if errors.As(err, &w) {
		return http.StatusAccepted
	}
	for _, c := range []struct {
		sentinel error
		code     int
	}{
		{errUnavailable, http.StatusServiceUnavailable}, {ErrTooMany, http.StatusTooManyRequests},
		{ErrBusy, http.StatusTooManyRequests}, {ErrInvalid, http.StatusBadRequest},
		{ErrUnauthenticated, http.StatusUnauthorized}, {ErrForbidden, http.StatusForbidden},
		{ErrConflict, http.StatusConflict},
	} {
		if errors.Is(err, c.sentinel) {
			return c.code
		}
	}
	return http.StatusServiceUnavailable
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
