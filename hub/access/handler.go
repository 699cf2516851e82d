package access

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"flotilla.dev/shared/wire"
)

// Handler serves joining: wire.PathCA, wire.PathJoin and wire.PathRenew.
func (g *Guard) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathCA, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(g.Authority.RootPEM())
	})
	mux.HandleFunc("POST "+wire.PathJoin, func(w http.ResponseWriter, r *http.Request) {
		if !g.joins.Allow() {
			refuse(w, ErrTooMany)
			return
		}
		serve(w, r, wire.ParseJoinRequest, func(q wire.JoinRequest) (wire.JoinAnswer, error) {
			return g.Join(r.Context(), q, Source(r))
		})
	})
	mux.HandleFunc("POST "+wire.PathRenew, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			refuse(w, ErrUnauthenticated)
			return
		}
		serve(w, r, wire.ParseRenewRequest, func(q wire.RenewRequest) (wire.JoinAnswer, error) {
			return g.Renew(r.Context(), q, r.TLS.PeerCertificates)
		})
	})
	return mux
}

func serve[Q any](w http.ResponseWriter, r *http.Request, parse func([]byte) (Q, error), do func(Q) (wire.JoinAnswer, error)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxJoin))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			write(w, http.StatusRequestEntityTooLarge, wire.JoinRefusal{Error: "the request is too large"})
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

// refuse tells why in one sentence. What went wrong inside the hub is for its log.
func refuse(w http.ResponseWriter, err error) {
	code := status(err)
	text := err.Error()
	if code >= 500 {
		text = errUnavailable.Error() + "; try again, and see its log"
	}
	for _, sentinel := range []error{ErrUnauthenticated, ErrForbidden, ErrInvalid, ErrConflict, ErrRefused} {
		text = strings.TrimPrefix(text, sentinel.Error()+": ")
	}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "60")
	}
	write(w, code, wire.JoinRefusal{Error: text})
}

// status is the HTTP code of an error.
func status(err error) int {
	for _, c := range []struct {
		sentinel error
		code     int
	}{
		{errUnavailable, http.StatusServiceUnavailable}, {ErrTooMany, http.StatusTooManyRequests}, {ErrInvalid, http.StatusBadRequest},
		{ErrUnauthenticated, http.StatusUnauthorized}, {ErrForbidden, http.StatusForbidden}, {ErrConflict, http.StatusConflict},
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
