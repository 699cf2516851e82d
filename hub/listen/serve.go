package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

// CheckHost refuses a request whose Host is not one of the names, with the status and the reason;
// "" means accepted.
func CheckHost(header http.Header, r *http.Request, names []string) (code int, why string) {
	host := r.Host
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "" {
			return http.StatusBadRequest, fmt.Sprintf("the port %.20q of the request's Host is not a number\n", port)
		}
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	ip, err := netip.ParseAddr(host)
	if err == nil && ip.Zone() != "" { // an address with a zone is valid on one machine only
		return http.StatusBadRequest, "the request's Host is an address with a zone: leave out what is behind the %\n"
	}
	if err != nil && !slices.Contains(names, host) {
		return http.StatusMisdirectedRequest, fmt.Sprintf("this hub is not %.100q: open it under one of its own names, or "+
			"start it with --advertise-address\n", host)
	}
	if err != nil && r.TLS != nil && host != "localhost" { // addresses cannot have the header
		header.Set("Strict-Transport-Security", "max-age=2592000") // 30 days, without subdomains
	}
	return 0, ""
}

// ServeHTTPS serves until ctx ends. open is done when the requests running at that moment have
// ended, after five seconds at the latest.
func ServeHTTPS(ctx context.Context, open *sync.WaitGroup, s *http.Server, l net.Listener) error {
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	return ServeUntil(ctx, open, s, func() error { return Serve(s, New(l, Limits{})) })
}

// ServeUntil returns when the server accepts no more connections, so that the next server may
// begin. The caller waits for open before it closes what running requests need.
func ServeUntil(ctx context.Context, open *sync.WaitGroup, s *http.Server, serve func() error) error {
	open.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer open.Done()
		defer panics.Catch("https")
		short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if s.Shutdown(short) != nil {
			_ = s.Close()
		}
	})
	defer func() {
		if stop() {
			open.Done()
		}
	}()
	err := serve()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve HTTPS: %w", err)
}
