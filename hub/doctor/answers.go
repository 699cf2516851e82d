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

// answers asks a hub that runs whether it is ready, as a load balancer does: who it is
// does not matter here.
func answers(ctx context.Context, url string) Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const do = "see its log: journalctl -u flotilla-hub"
	if url == "" {
		return Finding{Fail, "hub", "it runs, and its address is not known: its database says none",
			"if that does not answer, mend it first; else wait for the first start to end; " + do}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz?verbose", nil)
	if err != nil {
		return Finding{Fail, "hub", fmt.Sprintf("it runs, but the address in its database, %.300q, is not valid",
			url), "restart it: it writes its address when it starts; " + do}
	}
	//nolint:gosec // nothing is told, and nothing believed but that it answers
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return Finding{Fail, "hub", fmt.Sprintf("it runs, and does not answer: %v", err),
			do + "; a firewall, or an --advertise-address that does not lead here"}
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if answer.StatusCode != http.StatusOK {
		return Finding{Fail, "hub",
			fmt.Sprintf("it is not ready: %s", strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; ")), do}
	}
	return Finding{OK, "hub", "it runs, and is ready at " + url, ""}
}

// standby is what to say of a hub that stands by, and answers like that. The address in the
// database is that of the one that leads.
func standby(s leader.Standing, answer Finding) Finding {
	if s.Leader == "" {
		return Finding{Fail, "hub", "it stands by, and nobody leads",
			"within 10 s one should: see its log, and that it and the other hubs reach the database"}
	}
	where := fmt.Sprintf("it stands by at %s: %s leads (%s), and this one is %.1f s behind, at revision %d", s.URL,
		s.Leader, s.At, s.Behind.Seconds(), s.Revision)
	switch {
	case answer.Level != OK:
		answer.Seen = where + "; " + answer.Seen
		return answer
	case s.Behind > leader.Late:
		return Finding{Warn, "hub", where, "see its log for why it cannot follow; a database of an older schema is " +
			"followed once a hub of this version has led"}
	}
	return Finding{OK, "hub", where, ""}
}
