package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"

	"flotilla.dev/hub/leader"
)

// answers requests the readiness of a running hub over HTTPS, without a check of the certificate.
func answers(ctx context.Context, url string) Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const do = "see its log: journalctl -u flotilla-hub"
	if url == "" {
		return Finding{Fail, "hub", "it runs, but its database has no address",
			"if the database does not answer, fix that first; else wait until the first start ends; " + do}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz?verbose", nil)
	if err != nil {
		return Finding{Fail, "hub", fmt.Sprintf("it runs, but the address in its database, %.300q, is not valid",
			url), "restart it: a start writes the address; " + do}
	}
	//nolint:gosec // sends no secrets, and trusts nothing but the status
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return Finding{Fail, "hub", fmt.Sprintf("it runs, but does not answer: %v", err),
			do + "; check the firewall and --advertise-address"}
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if answer.StatusCode != http.StatusOK {
		return Finding{Fail, "hub",
			fmt.Sprintf("it is not ready: %s", strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; ")), do}
	}
	return Finding{OK, "hub", "it runs and is ready at " + url, ""}
}

// standby describes a hub on standby. The address in the database is the leader's.
func standby(s leader.Status, answer Finding) Finding {
	if s.Leader == "" {
		return Finding{Fail, "hub", "it is on standby, without a leader",
			"wait 10 s for a leader; then see its log, and check that every hub reaches the database"}
	}
	where := fmt.Sprintf("it is on standby at %s; the leader is %s (%s); it is %.1f s behind, at revision %d", s.URL,
		s.Leader, s.At, s.Behind.Seconds(), s.Revision)
	switch {
	case answer.Level != OK:
		answer.Seen = where + "; " + answer.Seen
		return answer
	case s.Behind > leader.MaxBehind:
		return Finding{Warn, "hub", where, "see its log for the reason; it cannot follow a database of an older " +
			"schema until a hub of this version was the leader"}
	}
	return Finding{OK, "hub", where, ""}
}
